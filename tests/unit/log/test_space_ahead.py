"""The space ahead of the active segment, and the bytes that a small append writes to it."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.disks.logs import DIRECTORY, Promises, append, check, commit, environment
from support.disks.simfs import Fault, SimFile, SimFileSystem

from liftlog.errors import StorageError
from liftlog.log import Log, LogConfig

KIB = 1024


class _Noting(SimFileSystem):
    """Records the beginning and the end of each write to a segment, and the sizes of its files."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[int, int]] = []
        self.allocated = 0

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> SimFile:
        node = super().open(path, create=create, writable=writable)
        return _NotingFile(self, path, node.inode) if path.suffix == ".log" else node


class _NotingFile(SimFile):
    def pwritev(self, buffers: Sequence[bytes | bytearray | memoryview], position: int) -> int:
        assert isinstance(self._fs, _Noting)
        done = super().pwritev(buffers, position)
        self._fs.writes.append((position, position + done))
        return done

    def allocate(self, size: int) -> None:
        assert isinstance(self._fs, _Noting)
        super().allocate(size)
        self._fs.allocated = size


def _log(fs: SimFileSystem, max_bytes: int = 1 << 26) -> tuple[Log, Promises]:
    fs.make_directory(DIRECTORY.parent)
    config = LogConfig(segment_max_bytes=max_bytes, segment_max_age_ns=None)
    return Log.create(DIRECTORY, environment(fs), config, boot_id="b"), Promises()


def _size(log: Log) -> int:
    return log.segments[-1].size_bytes


def test_one_small_append_in_many_writes_zeros_behind_itself() -> None:
    fs = _Noting()
    log, promises = _log(fs)
    for _ in range(300):
        commit(log, promises, 3)
    assert len(fs.writes) == 300
    ahead = [one for one, after in itertools.pairwise(fs.writes) if one[1] > after[0]]
    assert 1 <= len(ahead) < 10, "most write only what they append"
    for begin, end in ahead:
        assert end - begin <= 1025 * KIB
    assert max(end for _, end in fs.writes) <= fs.allocated, "only where there is space already"
    path = log.segments[-1].path
    assert not any(fs.read(path)[_size(log) :]), "what was appended later is not overwritten"
    check(log, promises)


def test_a_large_append_writes_nothing_else() -> None:
    fs = _Noting()
    log, promises = _log(fs)
    for _ in range(4):
        before = _size(log)
        commit(log, promises, 9000)
        assert _size(log) - before > 256 * KIB
        assert fs.writes[-1] == (before, _size(log))


def test_a_segment_that_is_nearly_full_gets_no_zeros_past_its_end() -> None:
    fs = _Noting()
    log, promises = _log(fs, max_bytes=2000)
    for _ in range(20):
        commit(log, promises, 4)
    assert len(log.segments) > 2
    assert max(end for _, end in fs.writes) <= 2000
    check(log, promises)


@pytest.mark.parametrize("left", [0, 50])
def test_a_disk_without_room_ahead_takes_the_records_alone(left: int) -> None:
    """Zeros must never be the reason why there is no space for records."""
    fs = _Noting()
    fs.faults.append(Fault("allocate", path=".log", error=errno.ENOSPC))
    log, promises = _log(fs)
    commit(log, promises, 3)
    first = _size(log)
    assert fs.writes == [(0, first)]
    fs.free_bytes = 1000 + left
    commit(log, promises, 3)
    assert fs.writes[-1] == (first, _size(log))
    check(log, promises)


def test_what_was_cut_off_is_written_ahead_again() -> None:
    """After a failed append the file ends at its data, and the bytes after them are unknown."""
    fs = _Noting()
    log, promises = _log(fs)
    commit(log, promises, 3)
    zeroed = fs.writes[-1][1]
    fs.faults.append(Fault("write", path=".log"))
    with pytest.raises(StorageError, match="appending to orders"):
        append(log, promises, 2000)
    fs.faults.clear()
    commit(log, promises, 3)
    begin, end = fs.writes[-1]
    assert begin < zeroed
    assert end > _size(log)
    assert not any(fs.read(log.segments[-1].path)[_size(log) :])
