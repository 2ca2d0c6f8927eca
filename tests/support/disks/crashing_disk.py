"""The disk of an export that stops at a chosen step, and forgets unsynced data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from liftlog.spark.export.store import Disk, LocalStore


class Stopped(BaseException):
    """The machine stops. No code catches this exception, because a stopped machine does not clean
    up."""


class CrashingDisk(Disk):
    """Stops before the change with the number `stop_before`, counted from 0. From then on every
    call fails. `cut_power` removes everything that no fsync has made durable."""

    def __init__(self, stop_before: int | None = None) -> None:
        self.steps = 0
        self.stop_before = stop_before
        self._unsynced_content: set[Path] = set()
        self.unsynced_names: set[Path] = set()

    def _step(self) -> None:
        if self.stop_before is not None and self.steps >= self.stop_before:
            raise Stopped
        self.steps += 1

    def make_directory(self, path: Path) -> None:
        self._step()
        super().make_directory(path)
        self.unsynced_names.add(path)

    def create(self, path: Path) -> BinaryIO:
        self._step()
        file = super().create(path)
        self._unsynced_content.add(path)
        self.unsynced_names.add(path)
        return file

    def fsync(self, path: Path) -> None:
        self._step()  # the effect is modelled here; a real sync would only take time
        if path.is_dir():
            self.unsynced_names = {one for one in self.unsynced_names if one.parent != path}
        else:
            self._unsynced_content.discard(path)

    def link(self, existing: Path, new: Path) -> None:
        self._step()
        super().link(existing, new)
        self.unsynced_names.add(new)
        if existing in self._unsynced_content:
            self._unsynced_content.add(new)

    def unlink(self, path: Path) -> None:
        self._step()
        super().unlink(path)

    def remove_tree(self, path: Path) -> None:
        self._step()
        super().remove_tree(path)

    def cut_power(self) -> None:
        for path in self._unsynced_content:
            if path.exists():
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        for path in sorted(self.unsynced_names, reverse=True):
            if path.is_dir():
                Disk().remove_tree(path)
            else:
                path.unlink(missing_ok=True)


@contextmanager
def disk(stop_before: int | None = None) -> Iterator[CrashingDisk]:
    """Let every store of this process use the disk."""
    made = CrashingDisk(stop_before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "disk", made)
        yield made
