"""Small file systems of several kinds that tests fill up: ext4 and btrfs on a loop device, and
tmpfs.

Each fails in its own way when it is full. ext4 refuses new blocks. btrfs also refuses to overwrite
old blocks. tmpfs refuses to fill the holes of a sparse file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

KINDS = ("btrfs", "ext4", "tmpfs")
_SIZE_MIB = {"ext4": 32, "btrfs": 128, "tmpfs": 32}  # btrfs takes no less
_MIB = 1024 * 1024
_MAKERS = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-m", "0"],
    "btrfs": ["mkfs.btrfs", "-q", "-f"],
}


@dataclass(frozen=True)
class SmallDisk:
    kind: str
    path: Path

    def fill(self) -> None:
        """Use all free space, like another program."""
        with contextlib.suppress(OSError), (self.path / "hog").open("ab", 0) as hog:
            while self.free_bytes() > 512 * 1024:
                hog.write(os.urandom(256 * 1024))
            while True:
                hog.write(os.urandom(4096))

    def give_back(self, length: int) -> None:
        """Free a part of the space that `fill` used."""
        hog = self.path / "hog"
        os.truncate(hog, hog.stat().st_size - length)

    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def make_room(self) -> None:
        (self.path / "hog").unlink()
        os.sync()


@contextlib.contextmanager
def small_disk(kind: str, directory: Path) -> Iterator[SmallDisk]:
    """Mount a disk at `directory`/disk. Skips the test if this is not possible."""
    path = directory / "disk"
    path.mkdir(parents=True)
    if kind == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE_MIB[kind]}m", "tmpfs", str(path)]
    else:
        command = ["mount", "-o", "loop", str(_image(kind, directory)), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"cannot mount {kind}: {done.stderr.strip()}")
    try:
        yield SmallDisk(kind, path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def _image(kind: str, directory: Path) -> Path:
    maker = _MAKERS[kind]
    program = shutil.which(maker[0]) or shutil.which(maker[0], path="/usr/sbin:/sbin")
    if program is None:
        pytest.skip(f"{maker[0]} is not installed")
    image = directory / f"{kind}.image"
    with image.open("wb") as file:
        file.truncate(_SIZE_MIB[kind] * _MIB)
    subprocess.run([program, *maker[1:], str(image)], check=True, capture_output=True)
    return image
