"""A file system that forgets what was not fsynced, for power cuts under the real daemon.

A FUSE file system in a process of its own (`losefs_server`), all of it in memory. A power cut stops
it at once: no answer leaves any more, as none leaves a machine without power. The next mount holds
what had been fsynced, and of the rest whatever chance kept.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.clients.ingesting import until
from support.disks.losefs_tree import Keep

TESTS = Path(__file__).resolve().parents[2]


class LoseFsHandle:
    """Mounted at `path`; made by `losefs`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.disks.losefs_server", str(path)],
            cwd=TESTS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # A signal that ends the tests does not end it: it has to unmount first, and does so
            # when its input ends. A dead mount would break the clean-up of every later run.
            start_new_session=True,
        )

    def _ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline() or "{}")
        if "error" in answer:
            raise OSError(answer["errno"], answer["error"])
        return answer

    def mount(self) -> None:
        self._ask("mount")

    def cut(self, keep: Keep, seed: int) -> None:
        """Power goes now, or has gone by `cut_after`; decides what the disk kept. Not mounted."""
        self._ask("cut", keep=keep, seed=seed)

    def cut_after(self, operations: int | None) -> None:
        """Power goes before the n-th of the next operations that change something or sync; None:
        no more, if it has not gone by now."""
        self._ask("cut_after", operations=operations)

    def fail(
        self, operation: str, *, path: str = "", error: int = errno.EIO, skip: int = 0,
        times: int = 1,
    ) -> None:  # fmt: skip
        """The operation on paths that contain `path`, or all of its parts around `*`, fails; a
        failed fsync drops dirty pages."""
        self._ask("fail", operation=operation, path=path, error=error, skip=skip, times=times)

    def lose_pages(self, path: Path, *pages: int) -> None:
        """From now on the disk does not give these pages (of 4 KiB) of a file: reads that begin on
        one fail, those that reach one are short. They survive power cuts and can be written over.
        """
        place = str(path.relative_to(self.path))
        self._ask("lose_pages", path=place, pages=list(pages))

    def find_pages(self) -> None:
        """All can be read again."""
        self._ask("find_pages")

    def heal(self) -> None:
        self._ask("heal")

    def stall(self, path: str = "") -> None:
        """From now on no fsync of files and directories with `path` in theirs returns: as of a disk
        that hangs. Who waits for one cannot be killed before `go_on`."""
        self._ask("stall", path=path)

    def go_on(self) -> None:
        """What has stalled is done, and returns."""
        self._ask("go_on")

    def limit(self, size_bytes: int | None) -> None:
        """Room for so many bytes; the write at the border is short."""
        self._ask("capacity", size_bytes=size_bytes)

    @property
    def status(self) -> dict[str, Any]:
        return self._ask("status")

    @property
    def mounted(self) -> bool:
        return bool(self.status["mounted"])

    def wait_cut(self, timeout: float = 30.0) -> None:
        until(lambda: not self.mounted, timeout, "the power cut")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # it unmounts and ends
        self._process.wait(10)
        self._process.stdout.close()


@contextmanager
def losefs(path: Path) -> Iterator[LoseFsHandle]:
    """Mounts at `path`, a new directory; skips the test where that is not possible."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("power cuts need root and /dev/fuse")
    path.mkdir()
    handle = LoseFsHandle(path)
    try:
        try:
            handle.mount()
        except OSError as error:
            pytest.skip(f"cannot mount a FUSE file system: {error}")
        yield handle
    finally:
        handle.close()


class Reboots:
    """Gives a program another boot id: after a power cut the machine has restarted."""

    def __init__(self, directory: Path) -> None:
        self.boot_id = directory / "boot_id"
        self._unshare = shutil.which("unshare")
        self.reboot()

    def reboot(self) -> None:
        self.boot_id.unlink(missing_ok=True)  # a new file: the old one may be bound somewhere
        self.boot_id.write_text(f"{uuid.uuid4()}\n")

    @property
    def wrapper(self) -> list[str]:
        """To put before the command, see `Daemon`."""
        if self._unshare is None:
            pytest.skip("unshare is not installed")
        script = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'
        unshare = [self._unshare, "--mount", "--fork", "--kill-child"]
        return [*unshare, "/bin/sh", "-c", script, str(self.boot_id)]
