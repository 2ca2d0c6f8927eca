"""The offset of the n-th record of a segment with holes after a compaction."""

from __future__ import annotations

import errno

import pytest
from support.disks.logs import DIRECTORY, flip
from support.disks.simfs import Fault, SimFileSystem
from support.worlds.rewriting import add, compact_once, keyed, row, stored

from liftlog.errors import StorageError
from liftlog.log import Log
from liftlog.log.files.manifest import QuarantinedRange
from liftlog.log.read import measuring


def with_holes(fs: SimFileSystem, *, size: int = 20) -> Log:
    """Return one sealed segment of 600 offsets, a third of which are holes, in many batches."""
    log = keyed(fs)
    for first in range(0, 600, 10):
        add(
            log,
            [[row(b"k%d" % (i % 7 or i), b"%d" % i * size) for i in range(first, first + 10)]],
        )
    log.writer.roll()
    assert compact_once(log, fs) is not None
    assert log.segments[0].record_count < 600
    return log


def test_every_record_is_found() -> None:
    fs = SimFileSystem()
    log = with_holes(fs)
    offsets = sorted(stored(log))
    segment = log.segments[0]
    assert len(offsets) == segment.record_count
    assert [log.offset_of_record(segment, n) for n in range(len(offsets))] == offsets


def test_what_was_counted_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_STEP_BYTES", 1024)
    fs = SimFileSystem()
    log = with_holes(fs, size=500)
    segment = log.segments[0]
    offsets = sorted(stored(log))
    last = segment.record_count - 1
    walked: list[int] = []
    original = measuring.walk_batches

    def walk(file: object, start: object, end: object, **more: object) -> object:
        for found in original(file, start, end, **more):  # type: ignore[arg-type]
            walked.append(found[0])
            yield found

    monkeypatch.setattr(measuring, "walk_batches", walk)
    assert log.offset_of_record(segment, last) == offsets[last]
    assert walked[0] == 0
    assert len(walked) > 2
    for number in (last, last - 1, last):
        walked.clear()
        assert log.offset_of_record(segment, number) == offsets[number]
        assert len(walked) <= 2
    walked.clear()
    assert log.offset_of_record(segment, 0) == offsets[0]
    assert walked == [0]


def test_damage_makes_it_less_and_never_more() -> None:
    fs = SimFileSystem()
    log = with_holes(fs)
    segment = log.segments[0]
    offsets = sorted(stored(log))
    flip(fs, segment.path, 3)  # the magic of the first batch: none of its records is counted
    found = [log.offset_of_record(segment, number) for number in range(len(offsets))]
    assert all(one <= offset for one, offset in zip(found, offsets, strict=True))
    log.structure.quarantine(
        segment.path.name, [QuarantinedRange(1, 11, segment.path.name, 0, 64, "flipped")]
    )
    found = [log.offset_of_record(segment, number) for number in range(len(offsets))]
    assert all(one <= offset for one, offset in zip(found, offsets, strict=True))


def test_a_failing_disk_is_an_error() -> None:
    fs = SimFileSystem()
    log = with_holes(fs)
    log.environment.pool.forget_directory(DIRECTORY)
    fs.faults = [Fault("pread", errno.ENOMEM)]
    with pytest.raises(StorageError):
        log.offset_of_record(log.segments[0], 50)
    assert log.offset_of_record(log.segments[0], 0) == min(stored(log))
