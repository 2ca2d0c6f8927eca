"""Damaged records: readers get the exact lost offsets, and all other records."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from support.daemons.pull_broker import LogBroker
from support.disks.logs import set_manifest

from liftlog.client.reading.batches import FetchAnswer, find_good_batch
from liftlog.client.reading.read_ahead import ReadAhead
from liftlog.errors import CorruptRange, InvalidArgument
from liftlog.log.files.manifest import QuarantinedRange
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.messages import Fetch, FetchHeader
from liftlog.records import encode_batch, parse_header
from liftlog.records.format import HEADER_SIZE

if TYPE_CHECKING:
    from tests.unit.client.conftest import Both
else:
    Both = Any

BODY, HEADER = HEADER_SIZE + 40, 10
ALL = set(range(1, 101))


def damage(broker: LogBroker, batch: int, position_in_batch: int) -> None:
    """Flip a bit of one of the ten batches on disk."""
    path = broker.streams["orders"].real_log.segments[-1].path
    raw = path.read_bytes()
    position = 0
    for _ in range(batch):
        position += int.from_bytes(raw[position + 4 : position + 8], "little")
    with path.open("r+b") as file:
        file.seek(position + position_in_batch)
        file.write(bytes([raw[position + position_in_batch] ^ 4]))


def offsets_of(*batches: int) -> set[int]:
    return {offset for batch in batches for offset in range(10 * batch + 1, 10 * batch + 11)}


def covered(errors: list[CorruptRange]) -> set[int]:
    gone: set[int] = set()
    for error in errors:
        extent = set(range(error.first_offset, error.next_offset))
        assert extent
        assert not extent & gone, "told twice"
        gone |= extent
    return gone


@pytest.mark.parametrize("kind", [BODY, HEADER], ids=["body", "header"])
@pytest.mark.parametrize("batch", [0, 3, 9])
async def test_one_bad_batch_costs_itself_exactly(
    both: Both, broker: LogBroker, batch: int, kind: int
) -> None:
    damage(broker, batch, kind)
    with pytest.raises(CorruptRange) as raised:
        await both.records("orders", until="end")
    error = raised.value
    assert (error.first_offset, error.next_offset) == (10 * batch + 1, 10 * batch + 11)
    rest = await both.records("orders", start=error.next_offset, until="end")
    assert [record.offset for record in rest] == list(range(error.next_offset, 101))


async def test_what_lies_before_the_damage_is_handed_out_first(
    both: Both, broker: LogBroker
) -> None:
    damage(broker, 3, HEADER)
    seen: list[int] = []

    with pytest.raises(CorruptRange):
        await both.offsets("orders", until="end", into=seen)
    assert seen == list(range(1, 31))


@pytest.mark.parametrize(
    "bad",
    [
        [(3, HEADER)],
        [(0, HEADER)],
        [(9, HEADER)],
        [(9, BODY)],
        [(2, HEADER), (7, HEADER)],
        [(2, BODY), (3, BODY), (7, HEADER)],
        [(4, HEADER), (5, HEADER)],
        [(n, BODY) for n in range(10)],
    ],
)
@pytest.mark.parametrize("fetch_bytes", [4096, 1 << 20])
async def test_reading_goes_on_behind_it_when_asked(
    both: Both, broker: LogBroker, bad: list[tuple[int, int]], fetch_bytes: int
) -> None:
    for batch, position in bad:
        damage(broker, batch, position)
    told: list[CorruptRange] = []
    records = await both.records(
        "orders", until="end", on_corrupt=told.append, fetch_bytes=fetch_bytes
    )
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    assert set(offsets) | covered(told) == ALL
    assert not set(offsets) & covered(told)
    gone = offsets_of(*(batch for batch, _ in bad))
    assert covered(told) >= gone
    if len([position for _, position in bad if position == HEADER]) <= 1:
        assert covered(told) == gone  # two bad headers without an index entry between are one


async def test_skip_logs_what_was_skipped(
    both: Both, broker: LogBroker, caplog: pytest.LogCaptureFixture
) -> None:
    damage(broker, 3, HEADER)
    with caplog.at_level(logging.WARNING, "liftlog.client"):
        records = await both.records("orders", until="end", on_corrupt="skip")
    assert {record.offset for record in records} == ALL - offsets_of(3)
    assert "first_offset=31 next_offset=41" in caplog.text


async def test_the_callable_may_end_the_read(both: Both, broker: LogBroker) -> None:
    damage(broker, 3, BODY)

    def enough(error: CorruptRange) -> None:
        raise KeyError(error.first_offset)

    with pytest.raises(KeyError, match="31"):
        await both.records("orders", until="end", on_corrupt=enough)
    assert len(await both.records("orders", until=31)) == 30, "the connection is usable"


async def test_a_senseless_choice_is_refused(both: Both) -> None:
    with pytest.raises(InvalidArgument):
        await both.records("orders", until="end", on_corrupt="ignore")


@pytest.mark.parametrize("kind", [BODY, HEADER], ids=["body", "header"])
async def test_damage_that_was_not_asked_for_is_no_error(
    both: Both, broker: LogBroker, kind: int
) -> None:
    damage(broker, 3, kind)
    before = await both.records("orders", start=1, until=31)
    behind = await both.records("orders", start=41, until="end")
    assert len(before) + len(behind) == 90


async def test_known_losses_are_told_as_well(both: Both, broker: LogBroker) -> None:
    damage(broker, 3, BODY)
    log = broker.streams["orders"].real_log
    position = sum(_lengths(log.segments[-1].path.read_bytes(), 3))
    length = _lengths(log.segments[-1].path.read_bytes(), 4)[-1]
    name = log.segments[-1].path.name
    bad = QuarantinedRange(31, 41, name, position, position + length, "rot")
    set_manifest(log, quarantined=(bad,))
    told: list[CorruptRange] = []
    records = await both.records("orders", until="end", on_corrupt=told.append)
    assert {record.offset for record in records} == ALL - offsets_of(3)
    assert covered(told) == offsets_of(3)
    assert "rot" in told[0].message


def _lengths(raw: bytes, count: int) -> list[int]:
    lengths, position = [], 0
    for _ in range(count):
        lengths.append(int.from_bytes(raw[position + 4 : position + 8], "little"))
        position += lengths[-1]
    return lengths


# --- one answer by itself ---


def answer(bad: list[tuple[int, int]], batches: int = 5, skip: int = 0) -> FetchAnswer:
    """Return an answer of batches of ten records from offset 1 on, with flipped bits, without the
    first `skip` batches."""
    parts = []
    for number in range(batches):
        values = [b"value %d" % n for n in range(10)]
        first = 10 * number + 1
        parts.append(
            bytearray(
                encode_batch(
                    base_offset=first,
                    leader_epoch=1,
                    commit_group=number,
                    stamps=[(1_700_000_000_000_000_000, 10)],
                    subjects=[b"a"] * 10,
                    values=values,
                )
            )
        )
    for number, position in bad:
        parts[number][position] ^= 4
    body = b"".join(parts[skip:])
    start = 10 * skip + 1
    end = 10 * batches + 1
    header = FetchHeader(
        offset=start,
        first_offset=start,
        next_offset=end,
        record_count=end - start,
        high_watermark=end,
        log_start_offset=1,
        log_end_offset=end,
        leader_epoch=1,
        incarnation="0" * 32,
        body_length=len(body),
    )
    return FetchAnswer("orders", header, memoryview(body))


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("kind", [BODY, HEADER, 4, 56])
def test_an_answer_says_where_to_fetch_on(number: int, kind: int) -> None:
    found: list[int] = []
    with pytest.raises(CorruptRange) as raised:
        for batch in answer([(number, kind)]).batches():
            found += batch.offsets()
    assert found == list(range(1, 10 * number + 1))
    error = raised.value
    assert (error.first_offset, error.next_offset) == (10 * number + 1, 10 * number + 11)


def test_where_nothing_is_proven_no_good_record_is_passed_over() -> None:
    """After the first bad header, no chain leads to the end of the answer."""
    with pytest.raises(CorruptRange) as raised:
        list(answer([(1, HEADER), (3, HEADER)]).batches())
    assert (raised.value.first_offset, raised.value.next_offset) == (11, 12)


def test_a_batch_inside_a_value_is_not_taken_for_one_of_the_log() -> None:
    def batch(first: int, values: list[bytes]) -> bytearray:
        return bytearray(
            encode_batch(
                base_offset=first,
                leader_epoch=1,
                commit_group=1,
                stamps=[(1_700_000_000_000_000_000, len(values))],
                subjects=[b"a"] * len(values),
                values=values,
            )
        )

    inner = batch(2, [b"foreign"])
    outer = batch(1, [b"x" * 8 + bytes(inner), b"y"])
    at = outer.index(bytes(inner))
    outer = batch(1, [b"x" * (8 + -at % 8) + bytes(inner), b"y"])
    assert parse_header(outer, outer.index(bytes(inner))).base_offset == 2
    assert outer.index(bytes(inner)) % 8 == 0
    following = batch(3, [b"z"])
    outer[HEADER] ^= 1
    plain = batch(1, [b"x", b"y"])
    plain[HEADER] ^= 1
    body = memoryview(bytes(outer + following))
    assert find_good_batch(body, 0, 1, 4) is None
    assert find_good_batch(memoryview(bytes(plain + following)), 0, 1, 4) == 3


# --- one read by itself ---


class Server:
    """Answers each fetch at once with a prepared answer."""

    def __init__(self, *answers: FetchAnswer) -> None:
        self.answers = list(answers)
        self.asked: list[Fetch] = []

    def request(self, message: Fetch, exchange: Exchange) -> None:
        self.asked.append(message)
        if not self.answers:
            return
        answer = self.answers.pop(0)
        exchange.body, exchange.arrived_bytes = answer._body, len(answer)
        assert exchange.on_header is not None
        exchange.on_header(answer.header)
        exchange.finish(answer.header, None)

    def give_up(self, exchange: Exchange) -> None:
        pass


def read_all(ahead: ReadAhead) -> list[int]:
    found: list[int] = []
    while (batch := ahead.next_batch()) is not None:
        found += batch.offsets()
    assert ahead.finished
    return found


def test_damage_on_the_way_heals() -> None:
    server = Server(answer([(3, HEADER)]), answer([], batches=4, skip=3), answer([], skip=4))
    told: list[CorruptRange] = []
    ahead = ReadAhead(server, "orders", 1, 51, on_corrupt=told.append)
    assert read_all(ahead) == list(range(1, 51))
    assert not told
    assert [(fetch.start, fetch.incarnation) for fetch in server.asked] == [
        (1, None),
        (31, "0" * 32),
        (41, "0" * 32),
    ]
    assert server.asked[1].max_bytes == 1


def test_damage_on_the_way_that_stays_costs_one_batch() -> None:
    """The daemon's batch is good, but it arrives damaged each time."""
    server = Server(
        answer([(3, HEADER)]),
        answer([(3, HEADER)], batches=4, skip=3),
        answer([], skip=4),  # sent before the second damage was seen, and dropped
        answer([], skip=4),
    )
    told: list[CorruptRange] = []
    ahead = ReadAhead(server, "orders", 1, 51, on_corrupt=told.append)
    assert set(read_all(ahead)) == set(range(1, 51)) - offsets_of(3)
    assert covered(told) == offsets_of(3)


def test_a_daemon_that_passes_the_damage_over_meanwhile_is_understood() -> None:
    server = Server(answer([(3, HEADER)]), _at(31, answer([], skip=4)), answer([], skip=4))
    told: list[CorruptRange] = []
    ahead = ReadAhead(server, "orders", 1, 51, on_corrupt=told.append)
    assert set(read_all(ahead)) == set(range(1, 51)) - offsets_of(3)
    assert covered(told) == offsets_of(3)


def _at(offset: int, given: FetchAnswer) -> FetchAnswer:
    return FetchAnswer("orders", given.header.replaced(offset=offset), given._body)
