"""Reading parts of batches: what the checksums in a sketch let through is what reading everything
gives, and where they fail, reading everything decides."""

from __future__ import annotations

import random
import struct
from typing import Any, NamedTuple

import pytest
from crc32c import crc32c
from support.clients.raw_pull import RawPull
from support.daemons.pull_broker import LogBroker, pull_server
from support.disks.logs import BASE_NS, flip
from support.disks.simfs import SimFileSystem
from support.rounds import seeds
from support.worlds.rewriting import Row, add, compact_fully, keyed, row, sketch_segments

from liftlog.errors import CorruptRange
from liftlog.log import Log, LogSlice
from liftlog.log.files.filesystem import OsFileSystem
from liftlog.log.read import partial, sparse
from liftlog.log.read.partial import PartialPiece
from liftlog.log.segment import sketched
from liftlog.log.segment.derived import sketch_path
from liftlog.log.segment.segment import Segment
from liftlog.log.segment.sketch import Probe, read_sketch, read_value_checks, write_sketch
from liftlog.records import Record, iter_batches
from liftlog.records.columns.selection import Selection, parse_selection
from liftlog.server.reading import filtering
from liftlog.server.reading.filtering import scan_log
from liftlog.server.reading.scan import Scan

SELECTIONS: list[dict[str, Any]] = [
    {"columns": ["offset"]},
    {"columns": ["offset", "timestamp", "subject", "key", "headers"]},
    {"columns": ["offset", "key"], "subjects": ["orders.1.*"]},
    {"subjects": ["orders.1.*"]},
    {"subjects": ["orders.>"]},
    {"keys": [b"k7", b""]},
    {"keys": [b"k7"], "columns": ["offset", "value"]},
    {"headers": ["Trace=7"]},
    {"subjects": ["orders.7.größe", "orders.8.größe", "orders.none"]},
    {"subjects": ["orders.*.größe"], "readable": ("orders.9.>", "orders.1.>")},
    {"columns": ["offset", "value"]},
]


class Outcome(NamedTuple):
    """All that a reader learns: the records, and what is damaged."""

    records: list[Record]
    damaged: list[tuple[int, int]]


@pytest.fixture(autouse=True)
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtering, "_READ_BYTES", 8 * 1024)
    monkeypatch.setattr(filtering, "_PARTIAL_READ_BYTES", 48 * 1024)
    monkeypatch.setattr(filtering, "_SPARSE_READ_BYTES", 96 * 1024)
    monkeypatch.setattr(sparse, "SPARSE_VALUE_BYTES", 512)
    monkeypatch.setattr(partial, "_READ_ALONG_BYTES", 512)


class Counted:
    """The reads in part, and how many bytes they took."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pieces = self.piece_bytes = self.read_bytes = 0
        real_read, real = LogSlice.read_some, PartialPiece.__init__

        def begun(made: PartialPiece, piece: LogSlice, *more: Any) -> None:
            self.pieces += 1
            self.piece_bytes += piece.length
            real(made, piece, *more)

        def read(piece: LogSlice, position: int, length: int) -> bytes:
            self.read_bytes += length
            return real_read(piece, position, length)

        monkeypatch.setattr(PartialPiece, "__init__", begun)
        monkeypatch.setattr(LogSlice, "read_some", read)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def random_row(rng: random.Random, kind: int, stamp: int) -> Row:
    size = (0, 30, 64, 200, 1000)[kind]
    key = b"k%d" % rng.randrange(200)
    value = rng.randbytes(rng.randrange(2 * size + 1))
    return row(
        rng.choice([key, key, b"", None]) if kind != 1 else None,
        None if kind == 2 and rng.random() < 0.1 else value,
        subject=f"orders.{rng.randrange(100) if kind != 3 else 1}.größe",
        stamp=stamp + 1000 * (rng.randrange(1000) if kind != 4 else 0),
        headers=rng.choice([b"", b"NATS/1.0\r\nTrace: %d\r\n\r\n" % rng.randrange(20)])
        if kind >= 3
        else b"",
    )


def history(seed: int) -> tuple[SimFileSystem, Log]:
    """The same one for each seed: every optional column, none, small and large batches, some of
    them compressed, compacted segments with holes and batches without records."""
    rng, fs = random.Random(seed), SimFileSystem()
    log = keyed(fs)
    for number in range(24):
        stamp, kind = BASE_NS + number * 10_000_000, rng.randrange(5)
        rows = [random_row(rng, kind, stamp) for _ in range(rng.choice([1, 2, 60, 200]))]
        add(log, [rows], compression=rng.choice(["none", "none", "none", "zstd"]))
        if number in (8, 9, 18):
            log.writer.roll()
        if number == 12 and seed % 2:
            compact_fully(log, fs)
    log.writer.roll()
    return fs, log


def read_all(log: Log, selection: Selection, start: int | None = None) -> Outcome:
    outcome, at = Outcome([], []), log.log_start_offset if start is None else start
    while True:
        try:
            scanned = scan_log(log, Scan(at, None, 128 * 1024, selection))
        except CorruptRange as damage:
            at = int(damage.details["next_offset"])
            outcome.damaged.append((int(damage.details["first_offset"]), at))
            continue
        for batch in iter_batches(scanned.body):
            outcome.records.extend(batch.records())
        at = scanned.next_offset
        if scanned.caught_up:
            return outcome


@pytest.mark.parametrize("seed", seeds(2, of=4))
def test_what_is_read_in_part_is_what_reading_all_gives(seed: int, counted: Counted) -> None:
    (_, plain), (fs, sketched) = history(seed), history(seed)
    sketch_segments(sketched, fs)
    for asked in SELECTIONS:
        selection, before = parse_selection(**asked), counted.pieces
        expected = read_all(plain, selection)
        assert counted.pieces == before
        assert read_all(sketched, selection) == expected, asked
        wants_values = asked == {"columns": ["offset", "value"]}
        assert (counted.pieces > before) is not wants_values
        assert expected.records
        for start in random.Random(seed).sample(range(1, plain.high_watermark), 4):
            rest = [one for one in expected.records if one.offset >= start]
            found = read_all(sketched, selection, start)
            assert [one for one in found.records if one.offset >= start] == rest


@pytest.mark.parametrize("seed", seeds(2, of=4))
def test_rot_is_found_as_who_reads_all_finds_it(seed: int) -> None:
    """In a head, in a wanted value, in one that nobody wants, and in each part of the sketch."""
    rng = random.Random(seed)
    for _ in range(3):
        (plain_fs, plain), (fs, log) = history(seed), history(seed)
        sketch_segments(log, fs)
        segment, part = rng.choice(parts_of(fs, log))
        in_head = rng.random() < 0.5
        place = part[0] + (rng.randrange(part[1]) if in_head else part[1] + rng.randrange(4000))
        flip(plain_fs, segment.path, place)
        flip(fs, segment.path, place)
        for asked in rng.sample(SELECTIONS[:-1], 3):
            selection = parse_selection(**asked)
            expected, found = read_all(plain, selection), read_all(log, selection)
            if in_head:
                assert found == expected
                assert found.damaged
            elif found != expected:
                # The damage is in a value that was not asked for.
                assert not found.damaged
                (unread,) = expected.damaged
                rest = [one for one in found.records if not unread[0] <= one.offset < unread[1]]
                assert rest == expected.records


def parts_of(fs: SimFileSystem, log: Log) -> list[tuple[Segment, tuple[int, int, int, int]]]:
    """Those with a head, and the segments that they lie in."""
    found = []
    for segment in log.segments[:-1]:
        sketch = read_sketch(fs, segment.path, segment.entry(), log.view.manifest.lineage)
        assert sketch is not None
        found += [(segment, part) for part in sketch.parts.tolist() if part[1]]
    return found


@pytest.mark.parametrize("wanted", [True, False])
def test_a_rotten_value_is_damage_for_who_wants_it(wanted: bool, counted: Counted) -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    for _ in range(8):
        add(log, [[row(b"k%d" % i, b"%03d" % i * 100) for i in range(100)]])
    log.writer.roll()
    sketch_segments(log, fs)
    segment = log.segments[0]
    sketch = read_sketch(fs, segment.path, segment.entry(), log.view.manifest.lineage)
    assert sketch is not None
    position, head_bytes, _, first = sketch.parts[5].tolist()
    assert first == 500
    flip(fs, segment.path, position + head_bytes + 300 * 42 + 7)
    found = read_all(log, parse_selection(keys=[b"k42" if wanted else b"k90"]))
    assert counted.pieces
    assert counted.read_bytes < counted.piece_bytes / 2 or wanted
    assert found.damaged == ([(501, 601)] if wanted else [])
    assert len(found.records) == (7 if wanted else 8)


def test_a_sketch_that_contradicts_the_segment_is_not_believed(counted: Counted) -> None:
    """One with correct checksums, of other bytes of the same length."""
    (fs, log), (other_fs, other) = history(2), history(2)
    sketch_segments(other, other_fs)
    expected = [read_all(other, parse_selection(**asked)) for asked in SELECTIONS]
    sketch_segments(log, fs)
    segment, before = log.segments[0], counted.pieces
    write_sketch(fs, segment.path, forged(fs.read(sketch_path(segment.path))))
    sketch = read_sketch(fs, segment.path, segment.entry(), log.view.manifest.lineage)
    assert sketch is not None
    assert read_value_checks(fs, segment.path, sketch.value_checks) is not None
    for asked, one in zip(SELECTIONS, expected, strict=True):
        assert read_all(log, parse_selection(**asked)) == one
    assert counted.pieces > before


def forged(raw: bytes) -> bytes:
    """The same sketch with other checks of heads and values, and checksums that fit."""
    made = bytearray(raw)
    blocks, parts = struct.unpack_from("<I", raw, 8)[0], struct.unpack_from("<I", raw, 36)[0]
    end = 48 + 32 * blocks + 16 * parts
    for at in range(48 + 32 * blocks + 8, end, 48):
        made[at] ^= 1
    filters = end + sum(struct.unpack_from("<II", raw, 48 + 32 * (blocks - 1) + 24))
    for at in range(filters, len(raw), 4):
        made[at] ^= 1
    made[40:44] = struct.pack("<I", crc32c(made[filters:]))
    made[44:48] = struct.pack("<I", crc32c(made[48:end], crc32c(made[:44])))
    return bytes(made)


def test_batches_that_are_small_on_average_have_no_parts(counted: Counted) -> None:
    """One with a head among many small ones. The filters are used all the same."""
    fs = SimFileSystem()
    log = keyed(fs)
    for i in range(30):
        add(log, [[row(b"k%d" % i, b"v" * (50_000 if i == 3 else 5000))]])
    for i in range(400):
        add(log, [[row(b"s%d" % i, b"v" * 100)]])
    log.writer.roll()
    sketch_segments(log, fs)
    segment = log.segments[0]
    assert segment.size_bytes < 430 * 4096
    sketch = read_sketch(fs, segment.path, segment.entry(), log.view.manifest.lineage)
    assert sketch is not None
    assert len(sketch.parts) == 0
    assert sketch.value_checks.size_bytes == 0
    skipped = [one for one in log.extents(1, 1, Probe(key=b"k3")) if not one.size_bytes]
    assert skipped
    for key in (b"k3", b"s399"):
        found = read_all(log, parse_selection(keys=[key]))
        assert [one.key for one in found.records] == [key]
    assert not counted.pieces


def small_log() -> tuple[SimFileSystem, Log]:
    """Five batches of values of 300 bytes."""
    fs = SimFileSystem()
    log = keyed(fs)
    for _ in range(5):
        add(log, [[row(b"k%d" % i, b"%03d" % i * 100) for i in range(100)]])
    log.writer.roll()
    sketch_segments(log, fs)
    return fs, log


def test_no_parts_of_a_segment_with_quarantined_ranges(counted: Counted) -> None:
    """Damage that was found after the sketch was made."""
    fs, log = small_log()
    selection = parse_selection(keys=[b"k90"])
    assert len(read_all(log, selection).records) == 5
    assert counted.pieces
    before = counted.pieces
    sketch = read_sketch(
        fs, log.segments[0].path, log.segments[0].entry(), log.view.manifest.lineage
    )
    assert sketch is not None
    flip(fs, log.segments[0].path, sketch.parts["position"][1] + 20_000)
    log.quarantine_damage(101, 201)
    assert [(one.first_offset, one.next_offset) for one in log.view.manifest.quarantined] == [
        (101, 201)
    ]
    found = read_all(log, selection)
    assert found.damaged == [(101, 201)]
    assert len(found.records) == 4
    assert counted.pieces == before


def test_a_damaged_sketch_is_read_once_until_another_is_there(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, log = small_log()
    path = log.segments[0].path
    good = fs.read(sketch_path(path))
    flip(fs, sketch_path(path), 50)
    tried: list[object] = []
    real = sketched.read_sketch

    def read(*what: Any) -> Any:
        tried.append(what)
        return real(*what)

    monkeypatch.setattr(sketched, "read_sketch", read)
    selection = parse_selection(keys=[b"k90"])
    for _ in range(3):
        assert len(read_all(log, selection).records) == 5
    assert len(tried) == 1
    assert not counted.pieces
    # The same size, and a head that differs from the damaged one's.
    other = bytearray(good)
    other[32] ^= 1
    write_sketch(fs, path, bytes(other))
    read_all(log, selection)
    read_all(log, selection)
    assert len(tried) == 2
    write_sketch(fs, path, good)
    assert len(read_all(log, selection).records) == 5
    assert len(tried) == 3
    assert counted.pieces


@pytest.mark.parametrize("seed", seeds(2, of=4))
def test_offsets_alone_take_no_step_for_each_batch(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With holes, tombstones, and a range that ends inside a batch."""
    rng, fs = random.Random(seed), SimFileSystem()
    log = keyed(fs)
    for number in range(12):
        rows = [random_row(rng, rng.choice([2, 4]), BASE_NS + number) for _ in range(150)]
        add(log, [rows])
    log.writer.roll()
    if seed % 2:
        compact_fully(log, fs)
    selection = parse_selection(columns=["offset"])
    expected = read_all(log, selection)
    assert any(one.value is None for one in expected.records)
    sketch_segments(log, fs)
    steps: list[int] = []
    real = filtering.project_batch

    def counting(batch: Any, columns: Any) -> bytearray:
        steps.append(len(batch))
        return real(batch, columns)

    monkeypatch.setattr(filtering, "project_batch", counting)
    monkeypatch.setattr(filtering, "_MARKED_BATCH_RECORDS", rng.choice([64, 100]))
    assert read_all(log, selection) == expected
    assert sum(steps) < len(expected.records) / 2, "only of the first, small piece of each answer"
    for _ in range(10):
        start = rng.randrange(1, log.high_watermark)
        stop = rng.randrange(start + 1, log.high_watermark + 1)
        at, found = start, []
        while at < stop:
            scanned = scan_log(log, Scan(at, stop, rng.choice([1, 2000, 10**6]), selection))
            for batch in iter_batches(scanned.body):
                found += batch.records()
            assert scanned.next_offset > at
            at = scanned.next_offset
        assert at == stop
        assert found == [one for one in expected.records if start <= one.offset < stop]


# --- where other records may be left out, but need not ---

FEW: list[dict[str, Any]] = [
    {"subjects": ["orders.7.größe"]},
    {"subjects": ["orders.7.größe", "orders.none", "orders.8.größe", "orders.7.größe"]},
    {"subjects": ["orders.3.*", "*.4.größe"]},
    {"subjects": ["orders.none"]},
    {"subjects": [f"orders.{n}.größe" for n in range(5, 15)]},
]


def alike_history(seed: int) -> tuple[SimFileSystem, Log]:
    """Each batch large enough to have a head; several epochs, holes, columns that some lack."""
    rng, fs = random.Random(seed), SimFileSystem()
    log = keyed(fs)
    for number in range(20):
        stamp, kind = BASE_NS + number * 10_000_000, rng.choice([1, 3, 3, 4, 4])
        rows = [random_row(rng, kind, stamp) for _ in range(rng.choice([150, 300]))]
        rows += [
            row(b"k", rng.randbytes(200), subject=f"orders.{n}.größe", stamp=stamp)
            for n in range(30)
            if rng.random() < 0.2
        ]
        add(log, [rows])
        if number == 9:
            log.writer.begin_epoch(log.leader_epoch + 1)
        if number in (6, 13):
            log.writer.roll()
        if number == 14 and seed % 2:
            compact_fully(log, fs)
    log.writer.roll()
    return fs, log


def read_optionally(log: Log, selection: Selection) -> tuple[list[Record], int]:
    """The wanted records, as a client gets them that takes others, too; and of how many answers
    the daemon left others out."""
    found, at, made = [], log.log_start_offset, 0
    everything = parse_selection()
    while at < log.high_watermark:
        scanned = scan_log(log, Scan(at, None, 64 * 1024, selection, is_optional=True))
        if scanned.is_refused:
            assert (scanned.record_count, scanned.next_offset) == (0, at)
            whole = scan_log(log, Scan(at, None, 16 * 1024, everything))
            records = [one for batch in iter_batches(whole.body) for one in batch.records()]
            wanted = {one.offset for one in read_all(log, selection, at).records}
            found += [one for one in records if one.offset in wanted and one.offset >= at]
            at = whole.next_offset
            continue
        made += 1
        place = scanned.first_offset
        for batch in iter_batches(scanned.body):
            assert batch.header.base_offset == place  # they tile the offsets
            place = batch.header.next_offset
            found.extend(batch.records())
        assert place == scanned.next_offset or not scanned.record_count
        at = scanned.next_offset
    return found, made


@pytest.mark.parametrize("seed", seeds(2, of=6))
def test_few_records_are_found_as_by_reading_all(seed: int) -> None:
    make = alike_history if seed < 4 else history
    (_, plain), (fs, log) = make(seed), make(seed)
    sketch_segments(log, fs)
    total = 0
    for asked in FEW:
        selection = parse_selection(**asked)
        expected = read_all(plain, selection).records
        found, made = read_optionally(log, selection)
        assert found == expected, asked
        assert not read_optionally(plain, selection)[1]
        total += made
        stop = plain.high_watermark * 2 // 3
        for start in random.Random(seed).sample(range(1, stop), 3):
            some = scan_log(log, Scan(start, stop, 1 << 20, selection, is_optional=True))
            records = [one for batch in iter_batches(some.body) for one in batch.records()]
            assert some.next_offset <= stop
            assert records == [o for o in expected if start <= o.offset < some.next_offset]
    assert total > 5 or seed >= 4


@pytest.mark.parametrize("seed", seeds(3, of=8))
def test_of_what_is_damaged_nothing_is_left_out(seed: int) -> None:
    """Bytes that are used and fail their check are left to whoever gets all of them."""
    rng = random.Random(seed)
    asked = parse_selection(**FEW[seed % 3])
    (_, plain), (fs, log) = alike_history(seed), alike_history(seed)
    sketch_segments(log, fs)
    segment, (position, head_bytes, _, _) = rng.choice(parts_of(fs, log))
    in_head = seed % 2 == 0
    place = position + (rng.randrange(head_bytes) if in_head else head_bytes + 2000)
    flip(fs, segment.path, place)
    expected = read_all(plain, asked).records
    at, found = log.log_start_offset, []
    refused = False
    while at < log.high_watermark:
        scanned = scan_log(log, Scan(at, None, 1 << 20, asked, is_optional=True))
        if scanned.is_refused:
            refused = True
            piece = log.read(at, 1)
            assert piece is not None
            at = piece.next_offset
            piece.release()
            expected = [o for o in expected if not piece.first_offset <= o.offset < at]
            continue
        found += [one for batch in iter_batches(scanned.body) for one in batch.records()]
        at = scanned.next_offset
    lost = {one.offset for one in found}
    assert found == [one for one in expected if one.offset in lost]
    assert {one.offset for one in expected} == lost
    assert refused or not in_head


@pytest.mark.parametrize("used", [b"the key", b"the value", b"orders.rare", b"Trace: 7"])
def test_bytes_that_are_used_and_do_not_match_are_refused(used: bytes) -> None:
    fs, selection = SimFileSystem(), parse_selection(subjects=["orders.rare"])
    log = keyed(fs)
    rows = [row(b"k%d" % i, b"%03d" % i * 100) for i in range(100)]
    headers = b"NATS/1.0\r\nTrace: 7\r\n\r\n"
    rows[50] = row(b"the key", b"the value" * 30, subject="orders.rare", headers=headers)
    add(log, [rows])
    log.writer.roll()
    sketch_segments(log, fs)

    def scan() -> Any:
        return scan_log(log, Scan(1, None, 1 << 20, selection, is_optional=True))

    [record] = [one for batch in iter_batches(scan().body) for one in batch.records()]
    assert (record.offset, record.key, record.headers["Trace"]) == (51, b"the key", "7")
    path = log.segments[0].path
    flip(fs, path, fs.read(path).index(used) + 3)
    assert scan().is_refused


def test_a_few_bytes_are_read_where_few_records_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    fs, log = small_log()
    read: list[int] = []
    real = LogSlice.read_many

    def counting(piece: LogSlice, places: Any) -> list[bytes]:
        found = real(piece, places)
        read.extend(map(len, found))
        return found

    monkeypatch.setattr(LogSlice, "read_many", counting)
    add(log, [[row(b"k", b"v" * 300, subject="orders.rare") for _ in range(2)]
              + [row(b"k%d" % i, b"%03d" % i * 100) for i in range(100)]])  # fmt: skip
    log.writer.roll()
    sketch_segments(log, fs)
    found, made = read_optionally(log, parse_selection(subjects=["orders.rare"]))
    assert len(found) == 2
    assert made
    assert read.count(300) == 2
    assert sum(read) < sum(one.size_bytes for one in log.segments) / 3


@pytest.mark.parametrize("more", [{"max_bytes": 1}, {"stop_offset": 2}])
def test_little_is_read_where_few_offsets_are_wanted(
    more: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, log = small_log()
    sparsely: list[LogSlice] = []
    monkeypatch.setattr(Log, "read_sparsely", lambda log, piece, **_: sparsely.append(piece))
    scan = {"stop_offset": None, "max_bytes": 1 << 20, **more}
    selection = parse_selection(columns=["offset"])
    assert scan_log(log, Scan(1, selection=selection, **scan)).record_count >= 1
    assert not sparsely


def test_without_checks_of_values_no_heads_are_read_for_few_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sketches have none where values are smaller than 64 bytes on average."""
    fs = SimFileSystem()
    log = keyed(fs)
    for _ in range(5):
        add(log, [[row(b"k%d" % i, b"%05d" % i * 8) for i in range(300)]])
    log.writer.roll()
    sketch_segments(log, fs)
    assert parts_of(fs, log)
    monkeypatch.setattr(LogSlice, "read_many", None)
    selection = parse_selection(subjects=["orders.new"])
    assert scan_log(log, Scan(1, None, 1 << 20, selection, is_optional=True)).is_refused


async def test_what_need_not_be_sent_is_left_out_where_that_is_little_work(
    broker: LogBroker,
) -> None:
    stream = broker.streams["orders"]
    end = stream.real_log.log_end_offset
    for number in range(40):
        value = b"%03d" % number * 4000
        stream.append([value], subject=b"orders.%s" % (b"few" if number % 20 == 7 else b"many"))
    log = stream.real_log
    log.writer.roll()
    sketch_segments(log, OsFileSystem())
    stream.append([b"in the active segment"], subject=b"orders.many")

    def ask(number: int, subject: str, start: int = end, **more: Any) -> dict[str, Any]:
        asked = {"k": "fetch", "i": number, "s": "orders", "o": start, "m": 1 << 20}
        return asked | {"fo": [subject]} | more

    def offsets(answer: dict[str, Any]) -> list[int]:
        return [one.offset for batch in iter_batches(answer["body"]) for one in batch.records()]

    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(ask(1, "*.few"))
        answer = await peer.receive()
        assert (answer["q"], answer["n"]) == (True, end + 40)
        assert offsets(answer) == [end + 7, end + 27]
        peer.send(ask(2, "orders.none"))
        answer = await peer.receive()
        assert (answer["q"], answer["n"], answer["b"]) == (True, end + 40, 0)
        for request in (
            ask(3, "orders.>", start=end),
            ask(4, "orders.few", start=end + 40),
            {"k": "fetch", "i": 5, "s": "orders", "o": end, "m": 1 << 20},
        ):
            peer.send(request)
            answer = await peer.receive()
            assert "q" not in answer
            assert len(offsets(answer)) == (1 if request["i"] == 4 else 40)
        peer.send(ask(6, "orders.few", fs=["orders.many"]))
        answer = await peer.receive()
        assert answer["q"] is True
        assert len(offsets(answer)) >= 38
        peer.send(ask(7, "orders..few"))
        assert (await peer.receive())["n"] == "INVALID_ARGUMENT"
