"""Open files shared by readers, bounded in number, closed when no reader holds them.

A segment file that retention removed stays readable until its last reader lets go: unlinking
does not touch an open descriptor.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

from liftlog.log.filesystem import File, FileSystem


class PooledFile:
    """A file with a count of its holders."""

    __slots__ = ("detached", "file", "holders")

    def __init__(self, file: File) -> None:
        self.file = file
        self.holders = 0
        self.detached = False  # no longer in the pool: close it when the last holder lets go


class FilePool:
    """Open files, `limit` of them unless more are held at once; the longest unused is closed first.
    Thread-safe."""

    def __init__(self, fs: FileSystem, limit: int) -> None:
        self._fs = fs
        self._limit = limit
        self._lock = threading.Lock()
        self._files: OrderedDict[Path, PooledFile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._files)

    def acquire(self, path: Path) -> PooledFile:
        """Open `path` for reading or take the open one. Raises OSError. Release it after use."""
        with self._lock:
            pooled = self._files.get(path)
            if pooled is None:
                pooled = PooledFile(self._fs.open(path, writable=False))
                self._files[path] = pooled
            else:
                self._files.move_to_end(path)
            pooled.holders += 1
            self._shrink()
            return pooled

    def release(self, pooled: PooledFile) -> None:
        with self._lock:
            pooled.holders -= 1
            if pooled.holders == 0 and pooled.detached:
                pooled.file.close()
            else:
                self._shrink()

    def remove(self, path: Path) -> None:
        """Unlink `path`; holders of the open file keep it. Raises OSError."""
        with self._lock:
            self._detach(path)
        # Not under the lock: a slow disk must not keep readers of other files waiting.
        if self._fs.exists(path):
            self._fs.unlink(path)

    def forget_directory(self, directory: Path) -> None:
        """Let go of all files in a directory that is about to be removed or renamed."""
        with self._lock:
            for path in [path for path in self._files if path.parent == directory]:
                self._detach(path)

    def _detach(self, path: Path) -> None:
        pooled = self._files.pop(path, None)
        if pooled is None:
            return
        pooled.detached = True
        if not pooled.holders:
            pooled.file.close()

    def close(self) -> None:
        """Close every idle file; held ones close when they are released."""
        with self._lock:
            for path in list(self._files):
                self._detach(path)

    def _shrink(self) -> None:
        excess = len(self._files) - self._limit
        if excess <= 0:
            return
        idle = [path for path, pooled in self._files.items() if not pooled.holders]
        for path in idle[:excess]:
            self._files.pop(path).file.close()
