"""Cases in which a compaction pass refuses, and the files that it leaves after a failure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from crc32c import crc32c
from support.disks.logs import DIRECTORY, flip
from support.disks.simfs import Fault, SimFileSystem
from support.worlds.rewriting import (
    add_segments,
    batches_of,
    expected,
    key_rows,
    keyed,
    plan,
    row,
    segment_files,
    stored,
)

from liftlog.log.rewrite import (
    Progress,
    SourceDamaged,
    apply_compaction,
    compact,
    leftover_files,
    remove_files,
)
from liftlog.records import parse_header


@pytest.mark.parametrize("segment", [0, 1])
def test_damage_anywhere_ends_the_job_and_nothing_changes(segment: int) -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    add_segments(log, [key_rows(6)], [key_rows(6, tag=b"x"), [row(None, b"end")]])
    path = log.segments[segment].path
    job = plan(log)
    assert job is not None
    good, listing = fs.read(path), segment_files(fs)
    for position in range(len(good)):
        flip(fs, path, position, position % 8)
        with pytest.raises(SourceDamaged) as error:
            compact(job, fs)
        assert error.value.file_name == path.name
        assert segment_files(fs) == listing
        fs.replace(path, good)
    for size in range(0, len(good), 8):
        fs.replace(path, good[:size])
        with pytest.raises(SourceDamaged):
            compact(job, fs)
    assert segment_files(fs) == listing
    assert fs.open_files == 2  # the active segment and the slot


def test_a_source_that_ends_too_early_at_a_batch_border_is_not_taken_for_whole() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    add_segments(log, [key_rows(6), key_rows(6)])
    job = plan(log)
    assert job is not None
    path = log.segments[0].path
    size = batches_of(log)[0].header.length
    fs.replace(path, fs.read(path)[:size])
    with pytest.raises(SourceDamaged):
        compact(job, fs)
    # Nor when the manifest agrees about the size, but not about the offsets.
    short = replace(job, sources=(replace(job.sources[0], size_bytes=size),))
    with pytest.raises(SourceDamaged, match="end at offset 7, not at 13"):
        compact(short, fs)


@pytest.mark.parametrize("alone", [True, False])
def test_columns_that_lie_are_damage_however_good_the_checksum(alone: bool) -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    sizes = [4] if alone else [2, 2, 2]
    add_segments(log, [key_rows(size, first=10 * size) for size in sizes], [key_rows(3)])
    job = plan(log)
    assert job is not None
    path = log.segments[0].path
    raw = bytearray(fs.read(path))
    length = parse_header(raw).length
    # Behind stamps and a subject dictionary of one entry the first key ends: now past the second.
    at = 64 + 4 * sizes[0] + 16 + 16 + 4
    assert raw[at : at + 4] == (2).to_bytes(4, "little")
    raw[at] = 99
    raw[56:60] = crc32c(bytes(raw[64:length])).to_bytes(4, "little")
    raw[60:64] = crc32c(bytes(raw[:60])).to_bytes(4, "little")
    fs.replace(path, bytes(raw))
    with pytest.raises(SourceDamaged) as error:
        compact(job, fs)
    assert error.value.file_name == path.name


@pytest.mark.parametrize("operation", ["create", "write", "fsync", "fsync-directory", "pread"])
def test_a_failing_operation_ends_the_job_and_leaves_nothing(operation: str) -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    rows = add_segments(log, [key_rows(30)], [key_rows(30)])
    job = plan(log, max_bytes=1000)
    assert job is not None
    assert len(job.plan.groups) == 2
    listing = segment_files(fs)
    failed = 0
    for nth in range(1, 100):
        fs.faults = [Fault(operation, error=28, countdown=nth)]
        try:
            result = compact(job, fs)
        except OSError:
            assert segment_files(fs) == listing
            assert fs.open_files == 2
            failed += 1
            continue
        break
    fs.faults = []
    assert failed >= (1 if operation == "fsync-directory" else 3)
    apply_compaction(log, result)
    assert stored(log) == expected(rows, log.log_end_offset)


def test_whoever_watches_may_end_the_job() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    add_segments(log, [key_rows(30)], [key_rows(30)])
    job = plan(log)
    assert job is not None
    listing = segment_files(fs)

    class Enough(Exception):
        pass

    def stop(progress: Progress) -> None:
        seen.append(progress)
        if progress.phase == "rewrite":
            raise Enough

    seen: list[Progress] = []
    with pytest.raises(Enough):
        compact(job, fs, progress=stop)
    assert segment_files(fs) == listing
    assert fs.open_files == 2
    assert [one.phase for one in seen] == ["map", "map", "rewrite"]
    throttled: list[int] = []
    seen.clear()
    result = compact(job, fs, progress=seen.append, throttle=throttled.append)
    assert seen[-1].done_bytes == seen[-1].total_bytes == 2 * result.bytes_in
    assert sum(throttled) == 2 * result.bytes_in + result.bytes_out


def test_what_a_killed_job_leaves_can_be_found() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    add_segments(log, [key_rows(30)], [key_rows(30)])
    job = plan(log)
    assert job is not None
    before = segment_files(fs)
    result = compact(job, fs)
    assert tuple(leftover_files(fs, job)) == result.new_files
    remove_files(fs, DIRECTORY, leftover_files(fs, job))
    assert segment_files(fs) == before
