"""One read alone: its position and its fetches, in rare orders of events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from liftlog.client import Reset
from liftlog.client.reading.next_fetch import NextFetch
from liftlog.client.reading.read_ahead import ReadAhead
from liftlog.errors import ConnectionLost, CorruptRange, LiftlogError, StaleIncarnation
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.described import StreamInfo
from liftlog.protocol.messages import Fetch, FetchHeader


class Requests:
    """The requests of a read. A test answers them."""

    def __init__(self) -> None:
        self.sent: list[Fetch] = []
        self.exchanges: list[Exchange] = []

    def request(self, message: Fetch, exchange: Exchange) -> None:
        self.sent.append(message)
        self.exchanges.append(exchange)

    def give_up(self, exchange: Exchange) -> None:
        pass

    def header(self, first_offset: int, next_offset: int, **fields: Any) -> FetchHeader:
        """Answer the newest request with these records, whose body has not arrived."""
        start = self.sent[-1].start
        assert isinstance(start, int)
        values: dict[str, Any] = {
            "offset": start,
            "record_count": next_offset - first_offset,
            "high_watermark": 101,
            "log_start_offset": 1,
            "log_end_offset": 101,
            "leader_epoch": 3,
            "incarnation": "0" * 32,
            "body_length": 500,
            **fields,
        }
        header = FetchHeader(first_offset=first_offset, next_offset=next_offset, **values)
        exchange = self.exchanges[-1]
        exchange.body = memoryview(bytearray(header.body_length))
        assert exchange.on_header is not None
        exchange.on_header(header)
        return header

    def fail(self, *errors: LiftlogError) -> None:
        """Answer the newest request, or several that were sent with these, with an error."""
        for exchange, error in zip(self.exchanges[-len(errors) :], errors, strict=True):
            exchange.finish(None, error)


@pytest.fixture
def requests() -> Requests:
    return Requests()


def corrupt(first_offset: int, next_offset: int) -> CorruptRange:
    return CorruptRange("damaged", first_offset=first_offset, next_offset=next_offset)


def sizes(sent: Sequence[Fetch]) -> list[int | None]:
    return [one.max_bytes for one in sent]


def test_fetches_stay_within_the_limit_after_a_reconnect(requests: Requests) -> None:
    ahead = ReadAhead(requests, "orders", 1, None, fetch_bytes=100_000)
    assert ahead.next_batch() is None
    requests.fail(ConnectionLost("gone"))
    assert ahead.next_batch() is None
    assert ahead.interruption is not None
    ahead.resume()
    assert sizes(requests.sent) == [100_000, 100_000]


def test_after_damage_at_its_start_a_read_still_states_the_incarnation(requests: Requests) -> None:
    """It contains no epoch, because a later epoch may begin after the damage."""
    ahead = ReadAhead(requests, "orders", 31, None, incarnation="mine", epoch=2, on_corrupt="skip")
    assert ahead.next_batch() is None
    requests.fail(corrupt(31, 41))
    assert ahead.next_batch() is None
    assert [(one.start, one.incarnation, one.epoch) for one in requests.sent] == [
        (31, "mine", 2),
        (41, "mine", None),
    ]


def test_damage_where_a_reset_leads_is_skipped_in_the_new_history(requests: Requests) -> None:
    resets: list[Reset] = []
    options: dict[str, Any] = {"on_reset": "earliest", "reset_callback": resets.append}
    ahead = ReadAhead(requests, "orders", 31, None, on_corrupt="skip", **options)
    assert ahead.next_batch() is None
    requests.header(31, 31, body_length=0)
    requests.fail(StaleIncarnation("created again"))
    assert ahead.next_batch() is None
    requests.fail(corrupt(1, 5))
    assert ahead.next_batch() is None
    assert [(one.start, one.incarnation) for one in requests.sent[1:]] == [
        (31, "0" * 32),
        ("earliest", None),
        (5, None),
    ]
    requests.header(5, 5, incarnation="1" * 32, body_length=0)
    assert ahead.next_batch() is None
    assert [(one.from_offset, one.to_offset, one.incarnation) for one in resets] == [
        (31, 5, "1" * 32)
    ]


def test_a_read_that_stops_before_its_first_fetch_sends_none(requests: Requests) -> None:
    ahead = ReadAhead(requests, "orders", 1, None)
    ahead.stop()
    assert ahead.next_batch() is None
    assert ahead.finished
    assert requests.sent == []


def test_the_position_stays_before_damage_that_is_not_reported_yet(requests: Requests) -> None:
    """The daemon has skipped the damage, in an answer that was not read yet."""
    told: list[CorruptRange] = []
    ahead = ReadAhead(requests, "orders", 1, None, on_corrupt=told.append)
    assert ahead.next_batch() is None
    requests.header(1, 11)  # 500 bytes that are no batch
    requests.exchanges[-2].arrived_bytes = 500
    assert ahead.next_batch() is None
    assert (requests.sent[-1].start, requests.sent[-1].max_bytes) == (1, 1)
    requests.header(6, 11)
    assert ahead.position == 1
    assert not told
    ahead.stop()
    assert ahead.position == 1


def test_the_bound_of_a_copy_never_falls() -> None:
    def fetch(start: Any) -> NextFetch:
        return NextFetch(
            "orders", start, None, {}, fetch_bytes=1 << 20, incarnation=None, epoch=None,
            replica="*", poll_ms=0,
        )  # fmt: skip

    info = StreamInfo(
        name="orders", subject="orders.>", state="attached", incarnation="mine",
        log_start_offset=1, high_watermark=50, log_end_offset=50, size_bytes=0, segment_count=1,
        leader_epoch=1, settings={}, compaction={},
    )  # fmt: skip
    latest = fetch("latest")
    latest.take_bound(info)
    assert latest.take(at_once=True).start == 50

    one = fetch(1)
    assert one.take(at_once=True).at_least is None
    one.take_bound(info)
    assert one.take(at_once=True).at_least == 50
    one.move_to(70)
    assert one.take(at_once=True).at_least == 70
    one.move_to(60)
    assert one.examine().at_least == 70


def test_fetches_grow_up_to_the_limit() -> None:
    fetch = NextFetch(
        "orders", 1, 5, {}, fetch_bytes=3 << 19, incarnation=None, epoch=None, replica=None,
        poll_ms=0,
    )  # fmt: skip
    taken = [fetch.take(at_once=False) for _ in range(3)]
    assert sizes(taken) == [1 << 19, 1 << 20, 3 << 19]
    assert {one.max_records for one in taken} == {4}
    fetch.begin_small(1)
    assert sizes([fetch.take(at_once=False) for _ in range(2)]) == [1, 4096]
