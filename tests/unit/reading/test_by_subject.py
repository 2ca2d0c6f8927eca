"""Reads by the subject index: what it finds is what reading everything finds, and where anything is
not as it says, reading everything decides."""

from __future__ import annotations

import errno
import random
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.disks.logs import BASE_NS, create, flip, reopen
from support.disks.simfs import Fault, Keep, MachineStopped, SimFileSystem
from support.disks.small_runs import index_small_segments, read_small_answers_by_subject
from support.rounds import one_in, seeds
from support.worlds.rewriting import (
    ROLL_ON_DEMAND,
    Row,
    add,
    compact_fully,
    encode_rows,
    keyed,
    rebatch_file,
    row,
    sketch_segments,
)

from liftlog.errors import CorruptRange
from liftlog.log import EncodedBatch, Log
from liftlog.log.files.manifest import QuarantinedRange
from liftlog.log.read import by_subject
from liftlog.log.rewrite import subject_indexing
from liftlog.log.rewrite.subject_indexing import SubjectIndexBuilder
from liftlog.log.segment.derived import files_of, subject_index_path, write_derived
from liftlog.log.segment.subject_index import is_indexed, read_subject_index
from liftlog.records import Record, decode_batch, encode_batch, iter_batches
from liftlog.records.columns.heads import WantedSubjects
from liftlog.records.columns.selection import parse_selection
from liftlog.server.reading import filtering
from liftlog.server.reading.filtering import scan_log
from liftlog.server.reading.scan import Scan

KEEPS: list[Keep] = ["none", "some", "all", "last"]
NAMES = [f"orders.{number}.größe" for number in range(12)]
ODD = [b"orders.\xff\xfe.x", b"orders.\\xff.y", b"orders.rare"]
SELECTIONS: list[dict[str, Any]] = [
    {"subjects": [NAMES[3]]},
    {"subjects": ["orders.rare"]},
    {"subjects": ["orders.none"]},
    {"subjects": [NAMES[3], "orders.none", NAMES[7], NAMES[3]]},
    {"subjects": ["orders.1.*", "*.4.größe"]},
    {"subjects": ["orders.>"], "readable": (NAMES[5], "orders.rare")},
    {"subjects": [NAMES[2]], "readable": (NAMES[5],)},
    {"subjects": [NAMES[6]], "columns": ["offset"]},
    {"subjects": [NAMES[6]], "columns": ["offset", "key", "headers"]},
    {"subjects": [NAMES[6], NAMES[8]], "columns": ["offset", "subject", "timestamp"]},
    {"subjects": [NAMES[6], NAMES[8]], "columns": ["offset", "value"]},
    {"subjects": ["orders.\\xff\\xfe.x"]},
    {"subjects": ["orders.\\xff.y"]},
]


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    index_small_segments(monkeypatch)
    read_small_answers_by_subject(monkeypatch)
    monkeypatch.setattr(subject_indexing, "_CHAPTER_BYTES", 24 * 1024)
    monkeypatch.setattr(filtering, "_LARGE_BYTES", 1024)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each time that a reader asked the index: whether it was of use."""
    asked: list[bool] = []
    real = Log.read_by_subject

    def noting(log: Log, *about: Any, **more: Any) -> Any:
        runs = real(log, *about, **more)
        asked.append(runs is not None)
        return runs

    monkeypatch.setattr(Log, "read_by_subject", noting)
    return asked


def random_rows(rng: random.Random, count: int, stamp: int) -> Iterator[Row]:
    with_keys, with_headers, with_none = (rng.random() < 0.7 for _ in range(3))
    size = rng.choice([0, 100, 600])
    for _ in range(count):
        # A burst on one subject: its values are neighbours in the segment.
        subject = rng.choice(NAMES) if rng.random() < 0.99 else "orders.rare"
        for _ in range(rng.choice([1, 1, 1, 4])):
            stamp += rng.choice([0, 1000, 777_000])
            yield row(
                rng.choice([None, b"", b"k%d" % rng.randrange(200)]) if with_keys else None,
                None
                if with_none and rng.random() < 0.1
                else rng.randbytes(rng.randrange(size + 1)),
                subject=subject,
                stamp=stamp,
                headers=b"NATS/1.0\r\nTrace: 7\r\n\r\n"
                if with_headers and rng.random() < 0.5
                else b"",
            )


def history(seed: int) -> tuple[SimFileSystem, Log]:
    """The same one for each seed: all optional columns and none, holes, several epochs, hours
    between batches, subjects that are not UTF-8."""
    rng, fs = random.Random(seed), SimFileSystem()
    log = keyed(fs)
    stamp = BASE_NS
    for number in range(30):
        stamp += rng.choice([10**9, 10**9, 10**9, 7200 * 10**9])
        rows = list(random_rows(rng, rng.choice([1, 30, 120]), stamp))
        add(log, [rows])
        if number % 7 == 3:
            subjects = [rng.choice(ODD) for _ in range(20)]
            add_raw(log, stamp, subjects, [rng.randbytes(120) for _ in subjects])
        if number == 13:
            log.writer.begin_epoch(log.leader_epoch + 1)
        if number in (9, 20):
            log.writer.roll()
        if number == 22 and seed % 3 == 1:
            compact_fully(log, fs)
        if number == 22 and seed % 3 == 2:
            rebatch_file(log, fs, 0)
    log.writer.roll()
    return fs, log


def add_raw(log: Log, stamp: int, subjects: list[bytes], values: list[bytes]) -> None:
    base, count = log.log_end_offset, len(values)
    raw = encode_batch(
        base_offset=base,
        leader_epoch=log.leader_epoch,
        commit_group=log.writer.commit_group,
        stamps=[(stamp, count)],
        subjects=subjects,
        values=values,
    )
    log.append([EncodedBatch(raw, base, base + count, count, stamp, stamp)])
    log.sync()


def read_all(
    log: Log, asked: dict[str, Any], start: int = 1, stop: int | None = None, size: int = 32 * 1024
) -> list[Record]:
    """Raises CorruptRange."""
    selection, found, at = parse_selection(**asked), [], start
    while True:
        scanned = scan_log(log, Scan(at, stop, size, selection))
        place = scanned.first_offset
        for batch in iter_batches(scanned.body):
            assert batch.header.base_offset == place  # they tile the offsets
            place = batch.header.next_offset
            found.extend(batch.records())
        assert place == scanned.next_offset or not scanned.record_count
        if scanned.caught_up or scanned.next_offset == stop:
            return found
        assert scanned.next_offset > at
        at = scanned.next_offset


@pytest.mark.parametrize("seed", seeds(2, of=6))
def test_what_the_index_finds_is_what_reading_all_finds(seed: int, found: list[bool]) -> None:
    (_, plain), (fs, log) = history(seed), history(seed)
    assert all(made.size_bytes for made in sketch_segments(log, fs, with_subjects=True))
    rng, records = random.Random(seed), 0
    for asked in SELECTIONS:
        expected = read_all(plain, asked)
        assert not found
        for size in (2000, 20_000, 1 << 20):
            assert read_all(log, asked, size=size) == expected, asked
        assert any(found), asked
        for _ in range(6):
            start = rng.randrange(1, plain.high_watermark)
            stop = rng.randrange(start + 1, plain.high_watermark + 1)
            some = read_all(log, asked, start, stop, rng.choice([500, 1 << 20]))
            assert some == [one for one in expected if start <= one.offset < stop]
        found.clear()
        records += len(expected)
    assert records > 500


@pytest.mark.parametrize("seed", seeds(1, of=3))
def test_the_runs_hold_each_record_once(seed: int) -> None:
    """Each is a batch with good checksums, and has one subject."""
    fs, log = history(seed)
    sketch_segments(log, fs, with_subjects=True)
    for segment in log.segments[:-1]:
        index = read_subject_index(fs, segment.path, segment.entry(), log.view.manifest.lineage)
        assert index is not None
        raw = fs.read(segment.path)[: segment.size_bytes]
        expected = [
            (one, name)
            for batch in iter_batches(raw)
            for one, name in zip(batch.records(), batch.raw_subjects(), strict=True)
        ]
        piece = log.read(segment.base_offset, 1 << 32)
        made = []
        for number in range(len(index.runs)):
            [run] = by_subject._read_heads(log._state, segment, index.runs[[number]])
            assert piece is not None
            by_subject._read_values(piece, [run], 1e12)
            [batch] = iter_batches(run.raw)
            names = set(batch.raw_subjects())
            assert len(names) == 1
            made += [(one, names.copy().pop()) for one in batch.records()]
        assert piece is not None
        piece.release()
        assert sorted(made, key=lambda one: one[0].offset) == expected
        assert len(index) == len({name for _, name in expected})


def forget_indexes(log: Log) -> None:
    """Those that were read from their files."""
    log.environment.subject_indexes._found.clear()


@pytest.mark.parametrize("seed", seeds(1, of=3))
def test_an_index_that_is_damaged_or_old_changes_nothing(seed: int, found: list[bool]) -> None:
    rng, asked = random.Random(seed), SELECTIONS[3]
    (_, plain), (fs, log) = history(seed), history(seed)
    sketch_segments(log, fs, with_subjects=True)
    expected = read_all(plain, asked)
    segment = max(log.segments[:-1], key=lambda one: one.size_bytes)
    path = subject_index_path(segment.path)
    good = fs.read(path)
    index = read_subject_index(fs, segment.path, segment.entry(), log.view.manifest.lineage)
    assert index is not None
    [borders] = index.runs_of(WantedSubjects((NAMES[3].encode(),), None), 1) or []
    used = [
        position + rng.randrange(size)
        for _, _, position, size, *_ in index.runs[slice(*borders)].tolist()
    ]
    places = [*range(48), *rng.sample(range(48, len(good)), 40), *used]
    contents = [
        good[:at] + bytes([good[at] ^ 1 << rng.randrange(8)]) + good[at + 1 :] for at in places
    ]
    contents += [good[:at] for at in (0, 3, 47, 48, 500, len(good) // 2, len(good) - 1)]
    contents += [
        fs.read(subject_index_path(one.path)) for one in log.segments[:-1] if one != segment
    ]
    for content in contents:
        write_derived(fs, path, [content])
        forget_indexes(log)
        assert read_all(log, asked) == expected
    assert not all(found)


def test_entries_that_contradict_the_runs_are_not_believed(found: list[bool]) -> None:
    """With good checksums."""
    from crc32c import crc32c

    (_, plain), (fs, log) = history(0), history(0)
    sketch_segments(log, fs, with_subjects=True)
    asked = SELECTIONS[0]
    expected = read_all(plain, asked)
    path = subject_index_path(log.segments[0].path)
    good = fs.read(path)
    subjects, runs, names = (struct.unpack_from("<I", good, at)[0] for at in (8, 32, 36))
    tables_end = 48 + 16 * subjects + 32 * runs + names
    in_subjects = [(48 + 4 * field, 16, subjects) for field in range(4)]
    in_runs = [(48 + 16 * subjects + 4 * field, 32, runs) for field in range(8)]
    for field, (first, step, count) in enumerate([*in_subjects, *in_runs]):
        for wrong in (0, 1, 64, 1 << 20, 0xFFFF_FFFF):
            made = bytearray(good)
            for entry in range(count):
                struct.pack_into("<I", made, first + step * entry, wrong)
            check = crc32c(bytes(made[48:tables_end]), crc32c(bytes(made[:44])))
            struct.pack_into("<I", made, 44, check)
            write_derived(fs, path, [bytes(made)])
            forget_indexes(log)
            found.clear()
            records = read_all(log, asked)
            if field >= 6:  # others say which runs there are
                assert records == expected, (field, wrong)
                assert False in found


@pytest.mark.parametrize("seed", seeds(3, of=8))
def test_of_what_is_damaged_nothing_wrong_is_read(seed: int) -> None:
    """Damage in what the index leaves out is not found; what is used is right, or named."""
    rng, asked = random.Random(seed), SELECTIONS[seed % 4]
    (_, plain), (fs, log) = history(0), history(0)
    expected = read_all(plain, asked)
    sketch_segments(log, fs, with_subjects=True)
    segment = rng.choice(log.segments[:-1])
    place = rng.randrange(segment.size_bytes)
    wanted = [one.value for one in expected if segment.base_offset <= one.offset and one.value]
    if seed % 2 and wanted:
        place = fs.read(segment.path).index(max(wanted[:20], key=len))
    flip(fs, segment.path, place)
    records: list[Record] = []
    lost: list[range] = []
    at = 1
    while at < log.high_watermark:
        try:
            scanned = scan_log(log, Scan(at, None, 64 * 1024, parse_selection(**asked)))
        except CorruptRange as damage:
            at = int(damage.details["next_offset"])
            lost.append(range(int(damage.details["first_offset"]), at))
            continue
        records += [one for batch in iter_batches(scanned.body) for one in batch.records()]
        at = scanned.next_offset
    assert records == [one for one in expected if not any(one.offset in some for some in lost)]
    assert len(lost) == 1 or not seed % 2 or not wanted


def replica_history(seed: int) -> tuple[SimFileSystem, Log]:
    """Sealed segments with records that are not committed yet."""
    rng, fs = random.Random(seed), SimFileSystem()
    log = create(fs, config=replace(ROLL_ON_DEMAND, replicated=True))
    log.writer.begin_epoch(1)
    for number in range(20):
        rows = list(random_rows(rng, rng.choice([1, 30, 100]), BASE_NS + number * 10**9))
        log.append(encode_rows(log, [rows])[0])
        log.sync()
        if number in (6, 13):
            log.writer.roll()
    log.writer.roll()
    return fs, log


@pytest.mark.parametrize("seed", seeds(1, of=3))
def test_what_is_not_committed_and_what_was_cut_off_is_not_read(
    seed: int, found: list[bool]
) -> None:
    (_, plain), (fs, log) = replica_history(seed), replica_history(seed)
    sketch_segments(log, fs, with_subjects=True)
    rng, end = random.Random(seed), log.log_end_offset
    for high_watermark in sorted([*rng.sample(range(2, end), 5), end]):
        for one in (log, plain):
            one.commit_up_to(high_watermark)
        for asked in SELECTIONS[:5]:
            assert read_all(log, asked) == read_all(plain, asked)
    assert any(found)
    cut, start = end * 2 // 3, end // 7
    for one in (log, plain):
        one.truncate_prefix(start)
        one.truncate_suffix(cut, below_high_watermark=True)
        one.writer.begin_epoch(7)
        rows = list(random_rows(random.Random(seed + 9), 150, BASE_NS + 10**11))
        one.append(encode_rows(one, [rows])[0])
        one.sync()
        one.writer.roll()
        one.commit_up_to(one.log_end_offset)
    for _ in range(2):  # with the old indexes beside the segments, and with new ones
        for asked in SELECTIONS[:5]:
            assert read_all(log, asked, start) == read_all(plain, asked, start)
        sketch_segments(log, fs, with_subjects=True)


def test_making_one_keeps_no_batch_in_memory() -> None:
    """What is kept of a batch does not refer to its buffer, and so to its values."""
    builder = SubjectIndexBuilder(1)
    for number in range(6):
        values = [b"%d" % i * 2000 for i in range(50)]
        raw = encode_batch(
            base_offset=1 + 50 * number,
            leader_epoch=1,
            commit_group=0,
            stamps=[(BASE_NS, 25), (BASE_NS + 1000, 25)],
            subjects=[b"orders.%d" % (i % 3) for i in range(50)],
            values=values if number % 2 else [None, *values[1:]],
            keys=[b"k%d" % i if i % 7 else None for i in range(50)],
            headers=[b"NATS/1.0\r\nTrace: 7\r\n\r\n"] * 50,
            has_tombstones=not number % 2,
        )
        builder.add(number * len(raw), decode_batch(raw))
        raw += b"more"  # BufferError if anything still looks into it


def test_a_disk_that_is_full_keeps_no_remains() -> None:
    fs, log = history(0)
    sketch_segments(log, fs)
    path = subject_index_path(log.segments[0].path)
    fs.faults = [Fault("write", path=".subjects.tmp", error=errno.ENOSPC)]
    with pytest.raises(OSError) as caught:  # the number says which
        sketch_segments(log, fs, with_subjects=True)
    assert caught.value.errno == errno.ENOSPC
    assert not [name for name in fs.list_directory(path.parent) if ".subjects" in name]
    sketch_segments(log, fs, with_subjects=True)
    assert fs.exists(path)


def test_a_file_that_is_too_short_is_made_again() -> None:
    fs, log = history(0)
    sketch_segments(log, fs, with_subjects=True)
    path, entry = log.segments[0].path, log.segments[0].entry()
    beside = subject_index_path(path)
    good = fs.read(beside)
    write_derived(fs, beside, [good[:-100]])
    assert not is_indexed(fs, path, entry, log.view.manifest.lineage)
    sketch_segments(log, fs, with_subjects=True)
    assert fs.read(beside) == good


def test_a_look_into_an_index_counts_for_the_answer(
    found: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer does not go through the indexes of all segments."""
    monkeypatch.setattr(filtering, "SCAN_SECONDS", 60.0)  # the bytes bound it, not the time
    fs = SimFileSystem()
    log = keyed(fs)
    for _ in range(300):
        add(log, [[row(b"k", b"v" * 90, subject=one) for one in ("orders.1", "orders.2")] * 4])
        log.writer.roll()
    sketch_segments(log, fs, with_subjects=True)
    scanned = scan_log(log, Scan(1, None, 1 << 20, parse_selection(subjects=["orders.3"])))
    assert not scanned.caught_up
    assert len(found) == filtering.SCAN_BYTES // (64 * 1024)
    assert read_all(log, {"subjects": ["orders.3"]}) == []


def test_none_of_a_segment_with_known_damage(found: list[bool]) -> None:
    fs, log = history(0)
    sketch_segments(log, fs, with_subjects=True)
    segment = log.segments[0]
    first = segment.base_offset
    log.structure.quarantine(
        segment.path.name, [QuarantinedRange(first, first + 1, segment.path.name, 0, 64, "a test")]
    )
    assert log.subject_index(first + 1) is None
    assert log.subject_index(log.segments[1].base_offset) is not None


def test_where_the_records_are_many_all_is_read(
    found: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_subject, "SPARSE_VALUE_BYTES", 4096)
    fs = SimFileSystem()
    log = keyed(fs)
    subjects = [*["orders.many", "orders.half"] * 20, "orders.rare"]
    for _ in range(20):
        add(log, [[row(b"k", b"v" * 200, subject=one) for one in subjects]])
    log.writer.roll()
    sketch_segments(log, fs, with_subjects=True)
    for asked, is_few in (("orders.rare", True), ("orders.many", False), ("orders.>", False)):
        found.clear()
        records = read_all(log, {"subjects": [asked]})
        assert len(records) == {"orders.rare": 20, "orders.many": 400}.get(asked, 820)
        assert any(found) is is_few, asked
        assert found


def test_few_offsets_and_small_answers_are_read_without_it(
    found: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, log = history(0)
    sketch_segments(log, fs, with_subjects=True)
    assert read_all(log, {"subjects": ["orders.rare"]}, 100, 101) == []
    assert not any(found)
    monkeypatch.setattr(filtering, "_LEAST_BY_SUBJECT", 256 * 1024)
    found.clear()
    read_all(log, SELECTIONS[0], size=128 * 1024)
    assert not found


def is_empty(fs: SimFileSystem, log: Log) -> bool:
    path, entry = log.segments[0].path, log.segments[0].entry()
    assert is_indexed(fs, path, entry, log.view.manifest.lineage)
    assert len(fs.read(subject_index_path(path))) == 48
    return read_subject_index(fs, path, entry, log.view.manifest.lineage) is None


@pytest.mark.parametrize(
    "kind", ["compressed", "one subject", "small batches", "own subjects", "few records"]
)
def test_none_where_it_would_not_pay(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    size = 3000 if kind == "few records" else 300
    fs = SimFileSystem()
    log = keyed(fs)

    def name(number: int) -> str:
        of = {"one subject": 1, "own subjects": 10**6, "few records": 400}.get(kind, 4)
        return f"orders.{number % of}"

    batches = [
        [row(b"k%d" % i, b"v" * size, subject=name(n * 100 + i)) for i in range(100)]
        for n in range(20)
    ]
    if kind == "small batches":
        batches = [[one] for batch in batches for one in batch]
    add(log, batches, compression="zstd" if kind == "compressed" else "none")
    log.writer.roll()
    sketch_segments(log, fs, with_subjects=True)
    assert is_empty(fs, log)


def test_a_crash_leaves_one_that_is_right_or_none() -> None:
    """The machine stops at each step of the making; the index is not fsynced."""
    fs, log = history(0)
    asked = SELECTIONS[0]
    expected = read_all(log, asked)
    log.close()
    survived, stop_at, is_over = set(), 0, False
    while not is_over:
        stop_at += 1
        for keep in one_in(2, KEEPS, str(stop_at)):
            image = fs.power_cut("all")
            one, _ = reopen(image)
            image.stop_at = image.operations + stop_at - 1
            try:
                sketch_segments(one, image, with_subjects=True)
                is_over = True
            except MachineStopped:
                pass
            after = image.power_cut(keep, stop_at)
            again, _ = reopen(after)
            segment = again.segments[0]
            about = after, segment.path, segment.entry(), again.view.manifest.lineage
            survived.add(read_subject_index(*about) is not None)
            assert read_all(again, asked) == expected
    assert stop_at > 3
    assert survived == {True, False}


def test_it_goes_with_its_segment() -> None:
    fs, log = history(0)
    sketch_segments(log, fs, with_subjects=True)
    before = [segment.path for segment in log.segments[:-1]]
    assert all(fs.exists(one) for path in before for one in files_of(path))
    compact_fully(log, fs)
    log.truncate_prefix(log.segments[-1].base_offset)
    left = {segment.path for segment in log.segments}
    assert not any(fs.exists(one) for path in before if path not in left for one in files_of(path))


def test_one_without_a_segment_is_removed_at_the_start() -> None:
    fs, log = history(0)
    log.close()
    stray = subject_index_path(log.segments[0].path.with_name("00000000000009999999.log"))
    write_derived(fs, stray, [b"x"])
    reopen(fs)
    assert not fs.exists(stray)


def test_who_does_not_want_them_has_sketches_alone() -> None:
    from liftlog.log.rewrite import make_sketch
    from liftlog.server.cleaning import next_segments
    from liftlog.server.cleaning.next_segments import Unsketched

    fs, log = history(0)
    next_segments.SKETCHED_BYTES, before = 0, next_segments.SKETCHED_BYTES
    try:
        job = Unsketched(with_subjects=False).find(log, log.segments[:1])
        assert job is not None
        assert not job.with_subjects
        make_sketch(job, fs)
        path, sketch = log.segments[0].path, files_of(log.segments[0].path)[2]
        assert not fs.exists(subject_index_path(path))
        assert Unsketched(with_subjects=False).find(log, log.segments[:1]) is None
        made = fs.read(sketch)
        job = Unsketched().find(log, log.segments[:1])
        assert job is not None
        make_sketch(job, fs)
        assert fs.exists(subject_index_path(path))
        assert fs.read(sketch) == made
        assert Unsketched().find(log, log.segments[:1]) is None
    finally:
        next_segments.SKETCHED_BYTES = before
