"""The scrubber reports exactly the damage, and which part of it was known."""

from __future__ import annotations

import json

import pytest
from support.disks.logs import BASE_NS, DIRECTORY, create, flip
from support.disks.simfs import Fault, SimFileSystem
from support.worlds.rewriting import ROLL_ON_DEMAND, add, row

from liftlog.log import Log
from liftlog.log.rewrite import Progress, ScrubJob, ScrubResult, scrub
from liftlog.log.segment.index import SparseIndex, index_path
from liftlog.records.header import parse_header

BATCHES = 12


def sealed(fs: SimFileSystem, *, size: int = 900) -> Log:
    log = create(fs, config=ROLL_ON_DEMAND)
    add(log, [[row(b"k%d" % i, bytes([i + 1]) * size) for i in range(3)] for _ in range(BATCHES)])
    log.writer.roll()
    return log


def scrubbed(log: Log, fs: SimFileSystem, **how: object) -> ScrubResult:
    job = ScrubJob(
        str(DIRECTORY),
        log.segments[0].entry(),
        log.view.manifest.quarantined,
        log.view.manifest.epochs,
        log.incarnation,
    )
    assert ScrubJob.from_dict(json.loads(json.dumps(job.to_dict()))) == job
    before = fs.operations
    result = scrub(job, fs, **how)  # type: ignore[arg-type]
    assert fs.operations == before, "a scrubber writes nothing"
    assert fs.open_files == 2
    assert ScrubResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    return result


def border(log: Log, fs: SimFileSystem, number: int) -> int:
    raw = fs.read(log.segments[0].path)
    position = 0
    for _ in range(number):
        position += parse_header(raw, position).length
    return position


def test_a_whole_segment_is_read_to_its_end() -> None:
    fs = SimFileSystem()
    log = sealed(fs)
    seen: list[int] = []
    result = scrubbed(log, fs, throttle=seen.append)
    assert (result.damaged, result.index_damaged, result.batches) == ((), False, BATCHES)
    assert result.bytes_read == log.segments[0].size_bytes <= sum(seen)


@pytest.mark.parametrize("number", [0, 5, BATCHES - 1])
@pytest.mark.parametrize("inside", [3, 20, 60, 200, 2000])
def test_a_flipped_bit_costs_one_batch(number: int, inside: int) -> None:
    fs = SimFileSystem()
    log = sealed(fs)
    start, end = border(log, fs, number), border(log, fs, number + 1)
    flip(fs, log.segments[0].path, start + inside)
    result = scrubbed(log, fs)
    (bad,) = result.damaged
    assert (bad.first_offset, bad.next_offset) == (1 + 3 * number, 4 + 3 * number)
    assert (bad.segment, bad.position, bad.end_position) == (log.segments[0].path.name, start, end)
    assert result.batches == BATCHES - 1
    log.structure.quarantine(bad.segment, result.damaged)
    assert scrubbed(log, fs).damaged == (), "known damage is no news"


def test_a_sector_that_cannot_be_read_is_damage_and_costs_what_lies_on_it() -> None:
    fs = SimFileSystem()
    log = sealed(fs, size=3000)
    fs.remove(index_path(log.segments[0].path))  # so that nothing but the walk reads the segment
    fs.faults = [Fault("pread", path=".log", countdown=1), Fault("pread", path=".log", countdown=4)]
    result = scrubbed(log, fs)
    offsets = {o for bad in result.damaged for o in range(bad.first_offset, bad.next_offset)}
    assert 0 < len(offsets) <= 6
    assert result.batches == BATCHES - len(offsets) // 3


def test_a_cut_file_lacks_its_end() -> None:
    fs = SimFileSystem()
    log = sealed(fs)
    path = log.segments[0].path
    fs.replace(path, fs.read(path)[: border(log, fs, 7) + 100])
    result = scrubbed(log, fs)
    (bad,) = result.damaged
    assert (bad.first_offset, bad.next_offset) == (22, 1 + 3 * BATCHES)
    assert (result.batches, result.bytes_read) == (7, border(log, fs, 7) + 100)


def test_what_lies_behind_the_end_of_a_segment_is_nobodys() -> None:
    """A truncation whose last step failed leaves the truncated batches, or half of one."""
    fs = SimFileSystem()
    log = sealed(fs)
    whole, size = fs.read(log.segments[0].path), border(log, fs, 5)
    fs.faults = [Fault("truncate", path=".log")]
    assert log.truncate_suffix(16) == 16
    path = log.segments[0].path
    for behind in (whole[size:], whole[size : size + 300], bytes(300), b"\xff" * 300):
        fs.replace(path, whole[:size] + behind)
        result = scrubbed(log, fs)
        assert (result.damaged, result.index_damaged) == ((), False)
        assert (result.batches, result.bytes_read) == (5, size)


def test_a_missing_file_is_an_error() -> None:
    fs = SimFileSystem()
    log = sealed(fs)
    fs.remove(log.segments[0].path)
    with pytest.raises(FileNotFoundError):
        scrub(ScrubJob(str(DIRECTORY), log.segments[0].entry()), fs)


def test_a_bad_index_is_told_apart_from_bad_records() -> None:
    fs = SimFileSystem()
    log = sealed(fs)
    path = index_path(log.segments[0].path)
    good = fs.read(path)
    for position in range(len(good)):
        flip(fs, path, position)
        result = scrubbed(log, fs)
        assert (result.damaged, result.index_damaged) == ((), True)
        fs.replace(path, good)
    wrong = SparseIndex(1)  # well-formed, but of another file
    for position in (0, 8192):
        wrong.maybe_add(1 + position // 100, position, BASE_NS)
    fs.replace(path, wrong.to_bytes(log.segments[0], log.incarnation))
    assert scrubbed(log, fs).index_damaged
    fs.faults = [Fault("pread", path=".index")]
    assert scrubbed(log, fs).index_damaged
    fs.remove(path)
    assert scrubbed(log, fs).index_damaged


def test_progress_comes_now_and_then() -> None:
    fs = SimFileSystem()
    log = create(fs, config=ROLL_ON_DEMAND)
    add(log, [[row(None, bytes(100_000))] for _ in range(40)])
    log.writer.roll()
    seen: list[Progress] = []
    scrubbed(log, fs, progress=seen.append)
    assert 2 <= len(seen) <= 4
    assert {one.phase for one in seen} == {"verify"}
