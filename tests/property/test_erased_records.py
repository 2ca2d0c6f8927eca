"""A log with erased records beside a plain dict, through every reader, after every step.

No reader shows an erased record or hides another one. The steps: append, roll, erase, compact,
rewrite, make sketches and subject indexes, retention, stop, kill.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.disks.logs import BASE_NS
from support.disks.small_runs import index_small_segments, read_small_answers_by_subject
from support.disks.stored_logs import STREAM, StoredLog
from support.rounds import seeds
from support.worlds.rewriting import Row, Rows, add, plain_erased, row, rows_of, sketch_segments

from compaction import CompactionPolicy, plan_compaction
from liftlog.log import Log
from liftlog.log.backup import create_backup, restore_backup, verify_backup
from liftlog.log.erased import ErasedSet
from liftlog.log.files.filesystem import OsFileSystem
from liftlog.log.offline.dump import DumpedBatch, dump_stream
from liftlog.log.offline.files import find_streams
from liftlog.log.offline.verify import verify_stream
from liftlog.log.read import slices, sparse
from liftlog.log.read.one_now import read_one_now
from liftlog.log.rewrite import (
    CompactJob,
    RebatchJob,
    apply_compaction,
    apply_rebatch,
    compact,
    rebatch,
)
from liftlog.records import Record, decode_batch, iter_batches
from liftlog.records.columns.selection import parse_selection
from liftlog.server.reading.filtering import scan_log
from liftlog.server.reading.one_record import NoRecord, read_record
from liftlog.server.reading.pieces import SharedPieces
from liftlog.server.reading.scan import Scan
from liftlog.spark.file_transport import FileTransport
from liftlog.spark.options import parse_options
from liftlog.spark.transport import Losses, ScanRange

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"
FS = OsFileSystem()
SUBJECTS = [f"orders.{number}" for number in range(5)]
KEYS = [b"k%d" % number for number in range(7)]
SLOTS = 16
HEADER = b"NATS/1.0\r\nTrace: 7\r\n\r\n"
SELECTIONS: list[dict[str, Any]] = [
    {"subjects": [SUBJECTS[1]]},
    {"subjects": [SUBJECTS[1], SUBJECTS[3]], "columns": ["offset", "subject", "timestamp"]},
    {"subjects": ["orders.>"], "readable": (SUBJECTS[2],)},
    {"subjects": [SUBJECTS[0]], "columns": ["offset"]},
    {"keys": [KEYS[0], KEYS[4]]},
    {"headers": ["Trace=7"]},
    {"columns": ["offset"]},
    {"columns": ["offset", "key"]},
    {"slots": [1, 5, 11], "slot_count": SLOTS},
]


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    index_small_segments(monkeypatch)
    read_small_answers_by_subject(monkeypatch)
    monkeypatch.setattr(sparse, "SPARSE_VALUE_BYTES", 16)
    # Slices end before short stretches of clean batches, too.
    monkeypatch.setattr(slices, "CLEAN_BYTES", 8 * 1024)


class World:
    """A log in a directory, and the records that its readers must show."""

    def __init__(self, path: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.path = path
        self.stored = StoredLog(path / "data")
        self.rows: Rows = {}
        self.erased: Rows = {}
        self.stamp = BASE_NS
        self.copies = 0
        self.shared = SharedPieces()

    @property
    def log(self) -> Log:
        return self.stored.log

    # --- steps ---

    def append(self) -> None:
        chance = self.chance
        for _ in range(chance.randrange(1, 5)):
            rows = []
            for _ in range(chance.choice((1, 1, 4, 30, 90))):
                self.stamp += chance.choice((0, 1000, 5_000_000))
                key = chance.choice((None, *KEYS))
                value = b"%d/" % chance.randrange(10**9) + b"v" * chance.randrange(60)
                rows.append(
                    row(
                        key,
                        None if key and chance.random() < 0.1 else value,
                        subject=chance.choice(SUBJECTS),
                        stamp=self.stamp,
                        headers=HEADER if chance.random() < 0.2 else b"",
                    )
                )
            compression = chance.choice(("none", "none", "lz4", "zstd"))
            self.rows |= add(self.log, [rows], compression=compression)

    def roll(self) -> None:
        self.log.writer.roll()

    def erase(self) -> None:
        log, chance = self.log, self.chance
        start, end = log.log_start_offset, log.high_watermark
        if start == end:
            return
        kind = chance.randrange(5)
        if kind == 0:
            wanted = {chance.randrange(start, end)}
        elif kind == 1:
            first = chance.randrange(start, end)
            wanted = set(range(first, min(first + chance.randrange(1, 200), end + 5)))
        elif kind == 2:
            wanted = {one for one in range(start, end) if chance.random() < 0.02}
        elif kind == 3:  # one batch, or segment
            segment = chance.choice(log.segments)
            wanted = set(range(segment.base_offset, segment.next_offset))
            wanted -= {chance.randrange(start, end)}
        else:
            subject = chance.choice(SUBJECTS)
            wanted = {o for o, r in self.rows.items() if r.subject == subject}
            wanted = set(sorted(wanted)[: chance.randrange(1, 20)])
        shown = wanted & {o for o in self.rows if start <= o < end}
        found = log.structure.erase(ErasedSet.of_offsets(np.array(sorted(wanted), np.int64)))
        assert set(found.offsets.offsets_in(0, 2**40).tolist()) == shown
        assert found.unreadable == ()
        for offset in shown:
            self.erased[offset] = self.rows.pop(offset)

    def compact(self) -> None:
        log = self.log
        planned = plan_compaction(
            log.segments,
            CompactionPolicy(min_dirty_ratio=0, tombstone_retention_ns=1),
            cleaned_below=log.view.manifest.cleaned_below,
            log_start_offset=log.log_start_offset,
            bound_offset=log.high_watermark,
            segment_max_bytes=1 << 20,
            now_ns=self.stamp,
            on_demand=True,
        )
        if planned is None:
            return
        job = CompactJob(
            str(log.directory),
            planned,
            tuple(one.entry() for one in log.segments[: planned.sources]),
            log_start_offset=log.log_start_offset,
            memory_bytes=1 << 20,
            epochs=log.view.manifest.epochs,
            incarnation=log.incarnation,
            erased=plain_erased(log) if self.chance.random() < 0.7 else (),
        )
        before = dict(self.rows)
        result = compact(job, FS)
        if self.chance.random() < 0.5:
            self.erase()  # between the work and the swap
            before = dict(self.rows)
        apply_compaction(log, result, erased=job.erased)
        self.rows = {o: r for o, r in before.items() if o in self._stored()}
        known = before | self.erased
        newest = {r.key: o for o, r in sorted(known.items()) if r.key is not None}
        for offset in before.keys() - self.rows.keys():
            if offset >= log.log_start_offset:
                one = before[offset]
                assert newest[one.key] > offset or one.is_tombstone, "another record was dropped"

    def _stored(self) -> set[int]:
        """Return the offsets of the records whose bytes exist, according to the files alone."""
        found: set[int] = set()
        for segment in self.log.segments:
            raw = segment.path.read_bytes()[: segment.size_bytes]
            for batch in iter_batches(raw):
                found |= set(batch.offsets())
        return found

    def rewrite(self) -> None:
        """Rewrite one sealed segment, as for a removal."""
        log = self.log
        sealed = [one for one in log.segments if one.sealed and one.size_bytes]
        if not sealed:
            return
        segment = self.chance.choice(sealed)
        first, end = segment.base_offset, segment.next_offset
        erased = log.view.erased
        some = () if erased is None else erased.within(first, end).to_plain()
        job = RebatchJob(
            str(log.directory),
            segment.entry(),
            epochs=log.view.manifest.epochs,
            incarnation=log.incarnation,
            erased=some,
        )
        result = rebatch(RebatchJob.from_dict(job.to_dict()), FS)
        late = self.chance.random() < 0.5
        if late:
            self.erase()
        apply_rebatch(log, result, erased=job.erased)
        if result.swaps and not late:
            hidden = self.erased.keys() & set(range(first, end))
            assert not hidden & self._stored(), "bytes of erased records are left"
            assert log.view.erased is None or not log.view.erased.count_in(first, end)

    def sketch(self) -> None:
        sketch_segments(self.log, FS, with_subjects=True)

    def retention(self) -> None:
        log = self.log
        count = self.chance.randrange(len(log.segments))
        low, high = log.segments[0].base_offset, log.segments[count].base_offset
        start = max(log.log_start_offset, self.chance.randrange(low, max(high, low) + 1))
        log.structure.remove_before(min(start, log.high_watermark), count)
        self._forget_below(log.log_start_offset)

    def _forget_below(self, start: int) -> None:
        self.rows = {o: r for o, r in self.rows.items() if o >= start}

    def stop(self) -> None:
        self.stored.close()
        self.stored = StoredLog(self.path / "data")

    def kill(self) -> None:
        self.stored.crash()
        self.stored = StoredLog(self.path / "data")

    # --- readers ---

    def check(self) -> None:
        self.check_slices()
        self.check_single_records()
        self.check_times_and_counts()
        self.check_filters()
        self.check_tools()

    def check_slices(self) -> None:
        log = self.log
        for max_bytes, max_records in ((700, None), (1 << 20, None), (1 << 20, 3)):
            found: Rows = {}
            offset = log.log_start_offset
            while (piece := log.read(offset, max_bytes, max_records)) is not None:
                with piece:
                    raw = piece.pread()
                    assert piece.read_some(0, piece.length) == raw
                    assert len(raw) == piece.length
                    reached, count = piece.first_offset, 0
                    for batch in iter_batches(raw):
                        assert batch.header.base_offset == reached
                        reached = batch.next_offset
                        count += len(batch)
                        found |= {o: r for o, r in rows_of(batch).items() if o >= offset}
                    assert reached == piece.next_offset > offset
                    assert 0 < count <= piece.record_count
                    offset = reached
            assert found == self.rows
        erased = {o: r for o, r in self.erased.items() if o >= log.segments[0].base_offset}
        stored: Rows = {}
        offset = log.segments[0].base_offset
        while (piece := log.read_stored(offset, 4000)) is not None:
            with piece:
                for batch in iter_batches(piece.pread()):
                    stored |= rows_of(batch)
                offset = piece.next_offset
        assert stored.items() >= self.rows.items()
        assert stored.keys() - self.rows.keys() >= erased.keys() & self._stored()

    def check_single_records(self) -> None:
        log = self.log
        offsets = list(range(log.log_start_offset, log.high_watermark))
        for offset in self.chance.sample(offsets, min(len(offsets), 60)):
            now = read_one_now(log.view, log.environment, offset)
            if now is not None:
                assert _row(now) == self.rows.get(offset)
            try:
                record, _ = read_record(log, offset)
            except NoRecord:
                assert offset not in self.rows
            else:
                assert _row(record) == self.rows[offset]

    def check_times_and_counts(self) -> None:
        log = self.log
        count, start = log.view.record_count, log.log_start_offset
        # With holes in a segment that the log start has reached, it is an upper bound.
        is_bound = any(
            one.base_offset < start < one.next_offset
            and one.record_count < one.next_offset - one.base_offset
            for one in log.segments
        )
        assert count >= len(self.rows) if is_bound else count == len(self.rows)
        for stamp in {BASE_NS, *(r.timestamp_ns for r in list(self.rows.values())[::17])}:
            at = min((o for o, r in self.rows.items() if r.timestamp_ns >= stamp), default=None)
            assert log.offset_for_timestamp(stamp) == (log.high_watermark if at is None else at)
        for segment in log.segments:
            if segment.base_offset < log.log_start_offset:
                continue
            inside = sorted(o for o in self.rows if segment.base_offset <= o < segment.next_offset)
            assert log.view.remaining_records(segment) == len(inside)
            for number in range(0, len(inside), 13):
                assert log.offset_of_record(segment, number) == inside[number]

    def check_filters(self) -> None:
        log = self.log
        for about in SELECTIONS:
            selection = parse_selection(**about)
            shared = self.shared if "slots" in about else None
            found: dict[int, Record] = {}
            offset = log.log_start_offset
            while offset < log.high_watermark:
                if shared is not None:
                    assert selection.slots is not None
                    shared.note(log, selection.slots)
                size = self.chance.choice((600, 1 << 16))
                scanned = scan_log(log, Scan(offset, None, size, selection, shared))
                for batch in iter_batches(scanned.body):
                    found |= {one.offset: one for one in batch.records()}
                if scanned.next_offset == offset:
                    break
                offset = scanned.next_offset
            wanted = {o for o, r in self.rows.items() if _matches(r, about)}
            if shared is None:
                assert found.keys() == wanted, about
            else:
                assert found.keys() <= self.rows.keys()
                self._check_all_slots(found.keys())
            if "columns" not in about:
                assert all(_row(one) == self.rows[o] for o, one in found.items())

    def _check_all_slots(self, some: Any) -> None:
        """Check that the members of a group together get every record once."""
        log, found = self.log, set(some)
        others = [slot for slot in range(SLOTS) if slot not in (1, 5, 11)]
        selection = parse_selection(slots=others, slot_count=SLOTS)
        offset = log.log_start_offset
        while offset < log.high_watermark:
            scanned = scan_log(log, Scan(offset, None, 1 << 16, selection, self.shared))
            for batch in iter_batches(scanned.body):
                assert not found & set(batch.offsets())
                found |= set(batch.offsets())
            if scanned.next_offset == offset:
                break
            offset = scanned.next_offset
        assert found == self.rows.keys()

    def check_tools(self) -> None:
        log = self.log
        (stream,) = find_streams(self.path / "data")
        dumped: Rows = {}
        for item in dump_stream(stream):
            if isinstance(item, DumpedBatch):
                dumped |= rows_of(item.batch)
        start = log.log_start_offset
        assert {o: r for o, r in dumped.items() if o >= start} == self.rows
        hidden = self.erased.keys() & dumped.keys()
        # Below the log start, erased files are dropped with the segments.
        assert all(offset < start for offset in hidden)
        report = verify_stream(stream)
        assert report.of_kind("damage") == []
        transport = FileTransport(
            parse_options({"stream": STREAM, "path": str(self.stored.directory)})
        )
        state = transport.state()
        wanted = ScanRange(STREAM, state.identity, 0, state.log_start_offset, state.end_offset)
        found: Rows = {}
        for one in transport.batches(wanted, Losses(STREAM, fail=True)):
            trimmed = zip(
                one.offsets(), one.timestamps_ns(), one.subjects(), one.keys(), one.values(),
                one.headers(), strict=True,
            )  # fmt: skip
            found |= {o: Row(t, s, k, v, h) for o, t, s, k, v, h in trimmed}
        assert found == {o: r for o, r in self.rows.items() if o < state.end_offset}

    def check_backup(self) -> None:
        self.copies += 1
        backup, data = self.path / f"backup-{self.copies}", self.path / f"new-{self.copies}"
        create_backup(self.path / "data", backup, created_ns=1)
        assert verify_backup(backup)[1] == []
        restore_backup(backup, data, now_seconds=1_800_000_000)
        copy = StoredLog(data)
        mine, self.stored = self.stored, copy
        self.check_slices()
        self.check_times_and_counts()
        self.stored = mine
        copy.close()


def _row(record: Record) -> Row:
    return Row(record.timestamp_ns, record.subject, record.key, record.value, record.raw_headers)


def _matches(one: Row, about: dict[str, Any]) -> bool:
    subjects = about.get("readable") or about.get("subjects")
    if subjects is not None and one.subject not in subjects:
        return False
    if "keys" in about and one.key not in about["keys"]:
        return False
    return "headers" not in about or bool(one.headers)


STEPS = [
    World.append, World.append, World.append, World.roll, World.erase, World.erase, World.erase,
    World.compact, World.rewrite, World.sketch, World.retention, World.stop, World.kill,
]  # fmt: skip


@pytest.mark.parametrize("seed", range(400) if THOROUGH else seeds(8))
def test_every_reader_shows_what_is_left(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    world.append()
    for number in range(60 if THOROUGH else 25):
        step = world.chance.choice(STEPS)
        step(world)
        world.check()
        if number % 10 == 9:
            world.check_backup()
    world.stored.close()


def test_a_batch_is_written_as_before_if_nothing_of_it_is_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No copy up to the first batch with an erased record; then whole batches as they are
    stored."""
    monkeypatch.setattr(slices, "CLEAN_BYTES", 1 << 20)
    world = World(tmp_path, 1)
    for _ in range(40):
        world.rows |= add(world.log, [[row(None, b"x" * 100)] * 10])
    before = world.log.read(1, 1 << 20)
    assert before is not None
    stored = before.pread()
    world.log.structure.erase(ErasedSet.of_ranges([(205, 206)]))
    clean = world.log.read(1, 1 << 20)
    assert clean is not None
    assert (clean.body, clean.next_offset) == (None, 201)
    cut = world.log.read(201, 1 << 20)
    assert cut is not None
    assert cut.body is not None
    assert cut.next_offset == before.next_offset
    assert clean.pread() == stored[: clean.length]
    dirty = decode_batch(cut.body)
    assert dirty.offsets() == [201, 202, 203, 204, 206, 207, 208, 209, 210]
    old = decode_batch(stored, clean.length)
    assert cut.body[dirty.header.length :] == stored[clean.length + old.header.length :]
    for piece in (before, clean, cut):
        piece.release()
    assert replace(world.log.view.manifest, erased=()).erased == ()
    world.stored.close()
