"""Answers to the members of consumer groups: a log is divided by slots, and what several members
read of it is kept."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest
from crc32c import crc32c
from support.clients.raw_pull import RawPull
from support.daemons.pull_broker import LogBroker, LoggedStream, pull_server
from support.rounds import seeds

from compaction import CompactionPolicy, plan_compaction
from liftlog.client.groups.arrived import slots_of
from liftlog.errors import CorruptRange, OffsetOutOfRange
from liftlog.log import LogSlice
from liftlog.log.files.filesystem import OsFileSystem
from liftlog.log.rewrite import CompactJob, apply_compaction, compact
from liftlog.records.columns.selection import parse_selection
from liftlog.records.decode import Record, iter_batches
from liftlog.server.reading import filtering, pieces
from liftlog.server.reading.filtering import scan_log
from liftlog.server.reading.pieces import SharedPieces
from liftlog.server.reading.scan import Scan

SLOTS = 16


def publish(chance: random.Random, stream: LoggedStream) -> None:
    count = chance.choice((1, 1, 3, 40, 200))
    keyed = chance.random() < 0.8
    keys = [
        b"key %d" % chance.randrange(60) if chance.random() < 0.9 else None for _ in range(count)
    ]
    stream.append(
        [None if chance.random() < 0.1 else b"%d" % chance.randrange(10**9) for _ in range(count)],
        subject=b"orders.%d" % chance.randrange(20),
        keys=keys if keyed else None,
    )


def roll_and_compact(stream: LoggedStream) -> None:
    log = stream.real_log
    log.writer.roll()
    plan = plan_compaction(
        log.segments,
        CompactionPolicy(min_dirty_ratio=0, tombstone_retention_ns=1),
        cleaned_below=log.view.manifest.cleaned_below,
        log_start_offset=log.log_start_offset,
        bound_offset=log.high_watermark,
        segment_max_bytes=1 << 16,
        now_ns=2 * 10**18,
        on_demand=True,
    )
    if plan is None:
        return
    directory = str(log.segments[0].path.parent)
    sources = tuple(one.entry() for one in log.segments[: plan.sources])
    job = CompactJob(
        directory,
        plan,
        sources,
        log_start_offset=log.log_start_offset,
        memory_bytes=1 << 20,
        epochs=log.view.manifest.epochs,
    )
    apply_compaction(log, compact(job, OsFileSystem()))


def all_records(stream: LoggedStream) -> Iterator[Record]:
    log = stream.real_log
    offset = log.log_start_offset
    while offset < log.high_watermark:
        piece = log.read(offset, 1 << 20)
        if piece is None:
            return
        offset = piece.next_offset
        for batch in iter_batches(piece.pread()):
            yield from batch.records()
        piece.release()


class Member:
    """Reads its slots with one scan after another, as a client does."""

    def __init__(self, slots: list[int], shared: SharedPieces, start: int) -> None:
        self.slots = slots
        self.position = start
        self.found: list[Record] = []
        self._shared = shared

    def scan(self, stream: LoggedStream, max_bytes: int) -> bool:
        """Whether there was anything to look at."""
        chosen = parse_selection(slots=self.slots, slot_count=SLOTS)
        assert chosen.slots is not None
        self._shared.note(stream.real_log, chosen.slots)
        scanned = scan_log(
            stream.real_log, Scan(self.position, None, max_bytes, chosen, self._shared)
        )
        assert scanned.next_offset >= self.position
        moved, self.position = scanned.next_offset > self.position, scanned.next_offset
        for batch in iter_batches(scanned.body):
            self.found += batch.records()
        return moved


@pytest.mark.parametrize("seed", seeds(2, of=8))
def test_all_members_together_get_the_log_as_it_is(
    broker: LogBroker, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While records come, are compacted away, cut off, and written again. A member finds in its
    range what is stored there at the time, neither less nor what is gone."""
    chance = random.Random(seed)
    monkeypatch.setattr(filtering, "_SHARED_READ_BYTES", chance.choice((1000, 8000, 1 << 20)))
    monkeypatch.setattr(pieces, "SHARED_BYTES", chance.choice((3 << 16, 64 << 20)))
    monkeypatch.setattr(pieces, "_MOST_SUBJECTS", chance.choice((3, 4096)))
    stream = broker.streams["orders"]
    shared = SharedPieces()
    order = list(range(SLOTS))
    chance.shuffle(order)
    cuts = sorted(chance.sample(range(1, SLOTS), 3))
    parts = [order[a:b] for a, b in zip([0, *cuts], [*cuts, SLOTS], strict=True)]
    for _ in range(80):
        log = stream.real_log
        act = chance.random()
        if act < 0.5:
            publish(chance, stream)
        elif act < 0.55:
            roll_and_compact(stream)
        elif act < 0.6:
            cut = chance.randrange(
                max(log.log_start_offset, log.log_end_offset - 50), log.log_end_offset
            )
            log.truncate_suffix(cut + 1)
            publish(chance, stream)
        elif act < 0.63:
            log.truncate_prefix(min(log.log_start_offset + 20, log.high_watermark))
        elif act < 0.66:
            log.writer.begin_epoch(log.leader_epoch + 1)
        else:
            start = chance.randrange(log.log_start_offset, log.high_watermark + 1)
            members = [Member(slots, shared, start) for slots in parts]
            expected = [one for one in all_records(stream) if one.offset >= start]
            some = chance.choice((300, 5000, 1 << 20))
            going = list(members)
            while going:
                member = chance.choice(going)
                if not member.scan(stream, some):
                    assert member.position == log.high_watermark
                    going.remove(member)
            for member in members:
                mine = [
                    one
                    for one, slot in zip(expected, slots_of(expected, SLOTS), strict=True)
                    if slot in member.slots
                ]
                assert member.found == mine


def watch_decoding(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the pieces that are decoded from now on."""
    decoded: list[int] = []
    real = pieces._batches_in

    def counted(raw: bytes, place: Any) -> Any:
        decoded.append(len(raw))
        return real(raw, place)

    monkeypatch.setattr(pieces, "_batches_in", counted)
    return decoded


def test_a_piece_is_decoded_once_for_all_members(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = broker.streams["orders"]
    for _ in range(50):
        stream.append([b"v" * 100] * 100, keys=[b"key %d" % n for n in range(100)])
    decoded = watch_decoding(monkeypatch)
    shared = SharedPieces()
    # Each begins elsewhere, and they take turns.
    members = [Member([slot], shared, 1 + 7 * slot) for slot in range(SLOTS)]
    going = members
    while going:
        going = [member for member in going if member.scan(stream, 1 << 20)]
    assert sum(len(member.found) for member in members) > 4900
    size = sum(segment.size_bytes for segment in stream.real_log.segments)
    assert 0.9 * size < sum(decoded) < 1.2 * size


def test_small_pieces_are_kept_up_to_a_number(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quiet stream leaves one for each record: they take more memory than their bytes, and a
    member that looks for what is new looks through all."""
    monkeypatch.setattr(pieces, "SHARED_BYTES", 10 << 16)
    stream = broker.streams["orders"]
    shared = SharedPieces()
    member = Member([*range(SLOTS)], shared, 101)
    for _ in range(40):
        stream.append([b"v"], keys=[b"key"])
        member.scan(stream, 1 << 20)
    assert len(member.found) == 40
    assert len(shared) == 10


class CutAfterRead:
    """A log that gives up its newest records, and gets others instead, just after they were looked
    up in it the first time: as in an election without a replica that is in sync."""

    def __init__(self, stream: LoggedStream, first_offset: int, values: list[bytes]) -> None:
        self._stream = stream
        self._first_offset, self._values = first_offset, values

    def read(self, offset: int, max_bytes: int, *, masked: bool) -> LogSlice | None:
        log = self._stream.real_log
        piece = log.read(offset, max_bytes, masked=masked)
        values, self._values = self._values, []
        if values:
            log.truncate_suffix(self._first_offset)
            self._stream.append(values)
        return piece

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream.real_log, name)


def test_what_the_log_gives_up_while_it_is_read_is_not_kept(broker: LogBroker) -> None:
    stream = broker.stream("orders")
    stream.append([b"first"])
    stream.real_log.writer.roll()  # the file is removed as a whole, so its bytes can still be read
    cut = stream.real_log.log_end_offset
    stream.append([b"old"] * 9)
    log: Any = CutAfterRead(stream, cut, [b"new"] * 9)
    shared = SharedPieces()
    for _ in range(2):
        found = []
        for half in (range(8), range(8, SLOTS)):
            chosen = parse_selection(slots=[*half], slot_count=SLOTS)
            scanned = scan_log(log, Scan(cut, None, 1 << 20, chosen, shared))
            for batch in iter_batches(scanned.body):
                found += batch.values()
    assert found == [b"new"] * 9


def test_damage_is_told_to_the_member_that_meets_it(broker: LogBroker) -> None:
    stream = broker.streams["orders"]
    stream.append([b"v" * 50] * 50, keys=[b"key %d" % n for n in range(50)])
    stream.append([b"v" * 50] * 50, keys=[b"key %d" % n for n in range(50)])
    log = stream.real_log
    piece = log.read(110, 1)
    assert piece is not None
    position = piece.position + 100
    piece.release()
    with log.segments[-1].path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))
    shared = SharedPieces()
    for slot in range(SLOTS):
        member = Member([slot], shared, 1)
        while member.position < 101:
            member.scan(stream, 1 << 20)
        assert member.position == 101
        with pytest.raises(CorruptRange) as told:
            member.scan(stream, 1 << 20)
        assert (told.value.first_offset, told.value.next_offset) == (101, 151)
        member.position = 151
        member.scan(stream, 1 << 20)
        assert [one.offset for one in member.found if one.offset > 100] == [
            151 + n for n in range(50) if crc32c(b"key %d" % n) * SLOTS >> 32 == slot
        ]


def test_a_start_below_the_log_start_is_told(broker: LogBroker) -> None:
    stream = broker.streams["orders"]
    shared = SharedPieces()
    Member([0], shared, 1).scan(stream, 1 << 20)
    stream.real_log.truncate_prefix(51)
    with pytest.raises(OffsetOutOfRange):
        Member([1], shared, 1).scan(stream, 1 << 20)
    member = Member([1], shared, 51)
    member.scan(stream, 1 << 20)
    assert all(one.offset > 50 for one in member.found)


def fetch(request_id: int, slots: list[int], count: int = SLOTS, **more: Any) -> dict[str, Any]:
    asked = {"k": "fetch", "i": request_id, "s": "orders", "o": 101, "fg": slots, "fp": count}
    return asked | more


async def test_a_member_with_more_than_half_gets_all(broker: LogBroker) -> None:
    stream = broker.streams["orders"]
    keys = [b"key %d" % n for n in range(200)]
    stream.append([b"v"] * 200, keys=[*keys])
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, list(range(9))))
        answer = await peer.receive()
        assert "q" not in answer
        assert [len(batch) for batch in iter_batches(answer["body"])] == [200]
        peer.send(fetch(2, list(range(8))))
        answer = await peer.receive()
        assert (answer["q"], answer["n"]) == (True, 301)
        found = [record.key for batch in iter_batches(answer["body"]) for record in batch]
        assert found == [key for key in keys if crc32c(key) * SLOTS >> 32 < 8]


@pytest.mark.parametrize(
    "wrong", [fetch(1, []), fetch(1, [3], 3), fetch(1, [0, 16]), fetch(1, [0], 0)]
)
async def test_slots_that_are_not_there_are_refused(
    broker: LogBroker, wrong: dict[str, Any]
) -> None:
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(wrong)
        assert (await peer.receive())["n"] == "INVALID_ARGUMENT"


async def test_at_the_end_members_wait_for_records_to_come_together(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the stream commits, each looks into it now and then; and a member of which
    nothing came hears, when its time is up, how far the stream was searched."""
    scans: list[float] = []
    loop = asyncio.get_running_loop()

    def counted(*arguments: Any) -> Any:
        scans.append(loop.time())
        return scan_log(*arguments)

    monkeypatch.setattr("liftlog.server.pull.fetches.scan_log", counted)
    stream = broker.streams["orders"]
    key = next(b"%d" % n for n in range(100) if crc32c(b"%d" % n) * SLOTS >> 32 == 3)
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, [4], w=600))
        began = loop.time()
        while loop.time() < began + 0.4:
            stream.append([b"v"], keys=[key])
            await asyncio.sleep(0.001)
        answer = await peer.receive()
        assert answer.get("b", 0) == 0
        assert answer["n"] > 101
        # At most once in each rest, whose times are the same for all members: the first and the
        # last look come when they come.
        assert 2 < len(scans) - 2 <= (scans[-1] - scans[0]) / (0.0016 * SLOTS)


async def test_members_that_look_at_the_same_time_share_one_piece(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came since the first of them looked is left for the next time."""
    decoded = watch_decoding(monkeypatch)
    monkeypatch.setattr(pieces, "_NEW_SECONDS", 60.0)
    stream = broker.streams["orders"]
    shared = SharedPieces()
    members = [Member([slot], shared, 101) for slot in range(SLOTS)]
    for looks in range(1, 4):
        end = stream.real_log.high_watermark + 50
        for member in members:
            stream.append([b"v"] * 50, keys=[b"key %d" % n for n in range(50)])
            member.scan(stream, 1 << 20)
            assert member.position == end
        assert len(decoded) == looks
