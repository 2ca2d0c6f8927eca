"""A file system that forgets unsynced data, to test power cuts with the real daemon.

It is a FUSE file system in its own process (`losefs_server`), completely in memory. A power cut
stops it at once: it sends no further answer. The next mount has all fsynced data, and a random part
of the other data.
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
    """A file system mounted at `path`, made by `losefs`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.disks.losefs_server", str(path)],
            cwd=TESTS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # A signal that ends the tests does not end this process. It has to unmount first, which
            # it does when its input ends. A dead mount would make the clean-up of every later run
            # fail.
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
        """Cut the power, unless `cut_after` has done it already. Decides which data the disk has
        kept. Afterwards the file system is not mounted."""
        self._ask("cut", keep=keep, seed=seed)

    def cut_after(self, operations: int | None) -> None:
        """Cut the power before the n-th following operation that changes something or syncs. None
        cancels the cut, unless it has happened already."""
        self._ask("cut_after", operations=operations)

    def fail(
        self, operation: str, *, path: str = "", error: int = errno.EIO, skip: int = 0,
        times: int = 1,
    ) -> None:  # fmt: skip
        """Let the operation fail on paths that contain `path`, or all of its parts around `*`. A
        failed fsync drops dirty pages."""
        self._ask("fail", operation=operation, path=path, error=error, skip=skip, times=times)

    def lose_pages(self, path: Path, *pages: int) -> None:
        """Make these pages (of 4 KiB) of a file unreadable from now on. A read that begins on such
        a page fails; a read that reaches one is short. The pages stay unreadable after power cuts,
        and can be overwritten.
        """
        place = str(path.relative_to(self.path))
        self._ask("lose_pages", path=place, pages=list(pages))

    def find_pages(self) -> None:
        """Make all pages readable again."""
        self._ask("find_pages")

    def heal(self) -> None:
        self._ask("heal")

    def stall(self, path: str = "") -> None:
        """Block all fsyncs of files and directories with `path` in their path from now on, like a
        disk that hangs. A process that waits for one cannot be killed before `go_on`."""
        self._ask("stall", path=path)

    def go_on(self) -> None:
        """Let all blocked operations complete."""
        self._ask("go_on")

    def limit(self, size_bytes: int | None) -> None:
        """Limit the size of the file system. The write that reaches the limit is short."""
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
    """Mount the file system at `path`, a new directory. Skips the test if this is not possible."""
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
    """Gives a program another boot id, because after a power cut the machine has rebooted."""

    def __init__(self, directory: Path) -> None:
        self.boot_id = directory / "boot_id"
        self._unshare = shutil.which("unshare")
        self.reboot()

    def reboot(self) -> None:
        self.boot_id.unlink(missing_ok=True)  # a new file, because the old one may be bind-mounted
        self.boot_id.write_text(f"{uuid.uuid4()}\n")

    @property
    def wrapper(self) -> list[str]:
        """Return the wrapper to put before a command, see `Daemon`."""
        if self._unshare is None:
            pytest.skip("unshare is not installed")
        script = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'
        unshare = [self._unshare, "--mount", "--fork", "--kill-child"]
        return [*unshare, "/bin/sh", "-c", script, str(self.boot_id)]
