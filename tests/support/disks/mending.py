"""Two replicas of one log of keyed records. One is damaged and mended from the other."""

from __future__ import annotations

import json
from collections.abc import Sequence

from support.disks.logs import DIRECTORY, create, flip
from support.disks.simfs import SimFileSystem
from support.worlds.rewriting import ROLL_ON_DEMAND, add, key_rows

from liftlog.log import Log
from liftlog.log.files.filesystem import write_all
from liftlog.log.files.manifest import QuarantinedRange
from liftlog.log.read.reading import Gap
from liftlog.log.rewrite import (
    MendJob,
    MendResult,
    Piece,
    ScrubJob,
    apply_mending,
    mend,
    scrub,
)
from liftlog.records.header import parse_header

PATCH = "00000000000000000001.log.patch.tmp"
BATCHES = 12


def pair(*, size: int = 300) -> tuple[SimFileSystem, Log, SimFileSystem, Log]:
    """Return a log with three sealed segments in two epochs and batches of three records, and its
    copy in segments with the same offsets."""
    fs, other_fs = SimFileSystem(), SimFileSystem()
    log, other = create(fs, config=ROLL_ON_DEMAND), create(other_fs, config=ROLL_ON_DEMAND)
    for number in range(3):
        if number == 1:
            log.writer.begin_epoch(3)
        for i in range(BATCHES):
            first = 3 * (i + number * BATCHES)
            add(log, [key_rows(3, 7, tag=b"." * size, first=first)])
        copy_rest(log, other)
        log.writer.roll()
        other.writer.roll()
    add(log, [key_rows(2, 7)])
    copy_rest(log, other)
    return fs, log, other_fs, other


def copy_rest(log: Log, other: Log) -> None:
    while (found := log.read_replica(other.log_end_offset, 1 << 20)) is not None:
        assert not isinstance(found, Gap)
        with found:
            other.writer.append_raw(found.pread())
    other.commit_up_to(other.sync())


def batch_places(log: Log, fs: SimFileSystem, number: int) -> list[tuple[int, int]]:
    """Return (position, first offset) of each batch of a sealed segment."""
    segment = log.segments[number]
    raw, places, position = fs.read(segment.path), [], 0
    while position < segment.size_bytes:
        header = parse_header(raw, position)
        places.append((position, header.base_offset))
        position += header.length
    return places


def spoil(log: Log, fs: SimFileSystem, number: int, batches: Sequence[int]) -> None:
    """Damage one byte in each of these batches of a sealed segment. The damage is not detected
    yet."""
    places = batch_places(log, fs, number)
    for one in batches:
        flip(fs, log.segments[number].path, places[one][0] + 70)


def examine(log: Log, fs: SimFileSystem, number: int) -> tuple[QuarantinedRange, ...]:
    """Scrub a sealed segment and quarantine the damage. Returns all known damage of the segment."""
    segment = log.segments[number]
    name = segment.path.name
    if fs.exists(segment.path):
        known = tuple(bad for bad in log.view.manifest.quarantined if bad.segment == name)
        found = scrub(
            ScrubJob(
                str(DIRECTORY), segment.entry(), known, log.view.manifest.epochs, log.incarnation
            ),
            fs,
        ).damaged
    else:
        lost = (segment.base_offset, segment.next_offset)
        found = (QuarantinedRange(*lost, name, 0, 0, "the file is missing"),)
    log.structure.quarantine(name, found)
    return tuple(bad for bad in log.view.manifest.quarantined if bad.segment == name)


def write_patch(
    fs: SimFileSystem, other: Log, ranges: Sequence[QuarantinedRange]
) -> tuple[Piece, ...]:
    """Write a patch with the other replica's batches for these ranges, in the same form as the
    daemon."""
    file = fs.open(DIRECTORY / PATCH, create=True)
    pieces, position = [], 0
    for bad in ranges:
        at, start = bad.first_offset, position
        while at < bad.next_offset and (found := other.read(at, 500)) is not None:
            with found:
                write_all(file, [found.pread()], position)
                position += found.length
                at = found.next_offset
        pieces.append(Piece(bad.first_offset, bad.next_offset, start, position))
    file.close()
    return tuple(pieces)


def job_of(log: Log, number: int, pieces: tuple[Piece, ...]) -> MendJob:
    job = MendJob(
        str(DIRECTORY),
        log.segments[number].entry(),
        PATCH,
        pieces,
        log.view.manifest.epochs,
        log.incarnation,
    )
    assert MendJob.from_dict(json.loads(json.dumps(job.to_dict()))) == job
    return job


def mend_from(
    log: Log, fs: SimFileSystem, other: Log, number: int, *, lineage: str | None = None
) -> int:
    """Mend a segment, including damage that was not known before."""
    pieces = write_patch(fs, other, examine(log, fs, number))
    result = mend(job_of(log, number, pieces), fs)
    assert MendResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    ended = apply_mending(log, result, lineage)
    fs.unlink(DIRECTORY / PATCH)
    return ended
