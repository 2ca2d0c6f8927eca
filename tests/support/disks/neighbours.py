"""Two streams of the same shape, with all files that are derived from their segments. Each derived
file is replaced by the valid file of a neighbour: of another segment, of another stream, or of the
file that a rewrite has replaced.

Such files can result from a disk that writes to the wrong place, or from a mistake of an operator.
Their checksums are right. No reader may give a different answer because of such a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from support.disks.logs import BASE_NS, DIRECTORY, create, read_all, reopen
from support.disks.simfs import SimFileSystem
from support.worlds.rewriting import ROLL_ON_DEMAND, add, rebatch_file, row, sketch_segments

from liftlog.log import Log
from liftlog.log.files.manifest import read_manifest
from liftlog.log.rewrite import scrub
from liftlog.log.segment.sketch import Probe
from liftlog.log.segment.walk import find_new_damage
from liftlog.records import iter_batches
from liftlog.records.columns.selection import parse_selection
from liftlog.server.cleaning.next_segments import job_for
from liftlog.server.reading.filtering import scan_log
from liftlog.server.reading.scan import Scan

OTHER = DIRECTORY.with_name("trades")
DERIVED = (".index", ".sketch", ".subjects")
SUBJECTS = ["orders.a", "orders.b", "orders.c"]
SEGMENTS = 4
_BATCHES = 24
_SECOND_NS = 1_000_000_000


class Truth(NamedTuple):
    """The records of a stream: timestamp, subject and value by offset."""

    rows: dict[int, tuple[int, str, bytes]]
    end: int


@dataclass
class Neighbours:
    """The disk with both streams, whose logs are closed."""

    fs: SimFileSystem
    truth: Truth
    older: dict[str, bytes] = field(default_factory=dict)
    """Files of the generation that a rewrite has replaced, under the names of the new files."""


def neighbours() -> Neighbours:
    """Make the streams. Their batches are equal, so the same place of each segment holds the same
    kind of batch."""
    fs = SimFileSystem()
    truth = _written(fs, DIRECTORY, BASE_NS)
    log, _ = reopen(fs, config=ROLL_ON_DEMAND)
    sketch_segments(log, fs, with_subjects=True)
    old = log.segments[1]
    kept = {suffix: fs.read(old.path.with_suffix(suffix)) for suffix in DERIVED}
    rebatch_file(log, fs, 1)
    new = log.segments[1]
    assert new.generation > old.generation
    sketch_segments(log, fs, with_subjects=True)
    log.close()
    _written(fs, OTHER, BASE_NS + 500 * _SECOND_NS)
    other, _ = reopen(fs, config=ROLL_ON_DEMAND, directory=OTHER)
    sketch_segments(other, fs, with_subjects=True)
    other.close()
    older = {new.path.with_suffix(suffix).name: raw for suffix, raw in kept.items()}
    return Neighbours(fs, truth, older)


def _written(fs: SimFileSystem, directory: Path, stamp: int) -> Truth:
    log = create(fs, config=ROLL_ON_DEMAND, directory=directory)
    rows: dict[int, tuple[int, str, bytes]] = {}
    for _ in range(SEGMENTS):
        for _ in range(_BATCHES):
            batch = []
            for _ in range(4):
                stamp += _SECOND_NS
                offset = log.log_end_offset + len(batch)
                subject = SUBJECTS[offset % 7 % 3]
                value = b"%s %08d" % (directory.name[:1].encode(), offset) + b"x" * 400
                rows[offset] = stamp, subject, value
                batch.append(row(None, value, subject=subject, stamp=stamp))
            add(log, [batch])
        log.writer.roll()
    end = log.log_end_offset
    log.close()
    return Truth(rows, end)


class Swap(NamedTuple):
    """A file of the first stream, and the file that replaces it."""

    path: Path
    raw: bytes
    whose: str


def swaps(one: Neighbours) -> Iterator[Swap]:
    """Yield, for each derived file, its replacement by the file of each neighbour."""
    fs = one.fs
    for kind in DERIVED:
        mine = [path for path in fs.files() if path.suffix == kind and path.parent == DIRECTORY]
        others = [path for path in fs.files() if path.suffix == kind]
        assert len(mine) >= SEGMENTS, kind
        for path in mine:
            for source in others:
                if source != path:
                    yield Swap(path, fs.read(source), f"{source.parent.name}/{source.name}")
            if path.name in one.older:
                yield Swap(path, one.older[path.name], "the generation before")
            yield Swap(path, b"", "nothing")


def check_all_readers(log: Log, truth: Truth, fs: SimFileSystem) -> None:
    """Check that every way to read returns the content of the stream, and reports no damage."""
    values = {offset: value for offset, (_, _, value) in truth.rows.items()}
    for size in (1, 6000, 1 << 20):
        assert read_all(log, max_bytes=size) == values
    for offset in values:
        with log.read(offset, 1) as piece:  # type: ignore[union-attr]
            assert piece.first_offset <= offset < piece.next_offset
            first = next(iter_batches(piece.pread()))
            assert offset in first.offsets(), "a read begins beside the batch"
    for offset, (stamp, _, _) in truth.rows.items():
        assert log.offset_for_timestamp(stamp) == offset
        assert log.offset_for_timestamp(stamp + 1) == offset + 1
    _check_extents(log, truth)
    for subject in SUBJECTS:
        wanted = {o: value for o, (_, name, value) in truth.rows.items() if name == subject}
        for columns in (None, ["offset", "value"], ["offset"]):
            found = _scanned(log, subject, columns)
            assert found.keys() == wanted.keys()
            assert columns == ["offset"] or found == wanted
    manifest = read_manifest(fs, DIRECTORY)
    assert manifest is not None
    assert find_new_damage(fs, DIRECTORY, manifest, None) == []
    for segment in log.segments[:-1]:
        assert scrub(job_for(log, segment), fs).damaged == ()
    assert log.view.manifest.quarantined == ()
    assert log.log_end_offset == truth.end


def _check_extents(log: Log, truth: Truth) -> None:
    for probe in (None, *(Probe(subject=name.encode()) for name in SUBJECTS)):
        reached = 1
        while reached < truth.end:
            for extent in log.extents(reached, 1, probe):
                if extent.next_offset <= reached:
                    continue
                assert extent.first_offset <= reached < extent.next_offset <= truth.end
                if probe is not None and not extent.size_bytes:
                    offsets = range(extent.first_offset, extent.next_offset)
                    assert all(truth.rows[o][1].encode() != probe.subject for o in offsets)
                reached = extent.next_offset


def _scanned(log: Log, subject: str, columns: list[str] | None) -> dict[int, bytes | None]:
    asked = {"subjects": [subject]} | ({} if columns is None else {"columns": columns})
    selection, found, at = parse_selection(**asked), {}, 1
    while True:
        scanned = scan_log(log, Scan(at, None, 1 << 16, selection))
        for batch in iter_batches(scanned.body):
            found.update({one.offset: one.value for one in batch.records()})
        if scanned.caught_up:
            return found
        assert scanned.next_offset > at
        at = scanned.next_offset
