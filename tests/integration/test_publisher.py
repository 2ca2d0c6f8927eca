"""The publisher helper with a real nats-server and a real daemon, through their outages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import nats
import pytest
from support.clients.ingesting import assert_no_traceback, describe, records_of, refused, values_of
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

import envelope
from liftlog.client.publisher import (
    Ack,
    NotPublished,
    Order,
    OrderBroken,
    Published,
    Publisher,
    PublishRefused,
    PublishUnknown,
)
from liftlog.errors import InvalidArgument, LiftlogError, NatsRefused, NatsUnavailable

pytestmark = pytest.mark.integration

STREAMS: dict[str, Any] = {
    "orders": {"subject": "orders.>"},
    "first": {"subject": "twin.>"},
    "second": {"subject": "twin.*"},
    "small": {"subject": "small", "max_message_bytes": "100"},
    "closed": {"subject": "closed", "read_only": True},
    "paused": {"subject": "paused", "paused": True},
    "weak": {"subject": "weak", "durability": "os"},
    "wrapped": {"subject": "wrapped", "acks": "envelope"},
    "silent": {"subject": "silent", "acks": "off"},
    "series": {"subject": "series"},
    "series-any": {"subject": "series.any"},
    "series-one_in_flight": {"subject": "series.one_in_flight"},
    "series-sequence": {"subject": "series.sequence"},
}


@pytest.fixture(scope="module")
def daemon(server: NatsServer) -> Iterator[Daemon]:
    with Daemon(server.url, {"streams": STREAMS}) as daemon:
        yield daemon
        assert_no_traceback(daemon)


@pytest.fixture
async def publisher(server: NatsServer, daemon: Daemon) -> AsyncIterator[Publisher]:
    async with Publisher(server.url, ack_timeout=0.5, retry_for=1.0) as publisher:
        yield publisher


async def test_what_was_published_is_what_is_stored(publisher: Publisher, daemon: Daemon) -> None:
    plain = await publisher.publish("orders.a", b"1")
    keyed = await publisher.publish("orders.b", "ü", key="kü", headers={"A": "b"}, message_id="m")
    gone = await publisher.publish("orders.b", None, key=b"k")
    assert plain.acks == (Ack("orders", plain.offset),)
    found = records_of(daemon, "orders", start=plain.offset)
    assert [(r.offset, r.subject, r.key, r.value) for r in found] == [
        (plain.offset, "orders.a", None, b"1"),
        (keyed.offset, "orders.b", "kü".encode(), "ü".encode()),
        (gone.offset, "orders.b", b"k", None),
    ]
    assert found[0].headers["Nats-Msg-Id"] == plain.message_id
    assert (found[1].headers["A"], found[1].headers["Nats-Msg-Id"]) == ("b", "m")
    again = await publisher.publish("orders.b", b"other", message_id="m")
    assert (again.offset, again.duplicate) == (keyed.offset, True)
    assert (await publisher.publish("weak", b"")).acks[0].durability == "os"


async def test_an_ack_of_every_expected_stream(publisher: Publisher, daemon: Daemon) -> None:
    both = await publisher.publish("twin.a", b"v", expect=["second", "first"])
    assert [ack.stream for ack in both.acks] == ["second", "first"]
    with pytest.raises(PublishUnknown) as caught:
        await publisher.publish("twin.a.b", b"w", expect=["first", "second"])
    failure = caught.value
    assert failure.missing == ("second",)
    assert [ack.stream for ack in failure.acks] == ["first"]
    # It was repeated until the time was over, and stored once.
    assert values_of(daemon, "first") == [b"v", b"w"]
    assert daemon.metric("liftlog_duplicates_total", stream="first") >= 1


async def test_refusals(publisher: Publisher, daemon: Daemon) -> None:
    with pytest.raises(PublishRefused) as caught:
        await publisher.publish("small", b"x" * 101)
    assert caught.value.err_code == 10054
    assert refused(daemon, "small", "too_large") == 1
    with pytest.raises(PublishRefused) as caught:
        await publisher.publish("closed", b"")
    assert (caught.value.err_code, caught.value.retriable) == (10109, False)
    # Paused: tried again until the time is over, for it may pass.
    with pytest.raises(PublishRefused) as caught:
        await publisher.publish("paused", b"")
    assert caught.value.refusal.retriable
    assert refused(daemon, "paused", "paused") > 2
    with pytest.raises(InvalidArgument, match="NATS allows"):
        await publisher.publish("orders.big", b"x" * (1 << 20), key="k")
    assert (await publisher.publish("orders.big", b"x" * ((1 << 20) - 200))).offset


async def test_nobody_listens_and_nobody_answers(
    publisher: Publisher, server: NatsServer, daemon: Daemon
) -> None:
    with pytest.raises(NotPublished, match="no one listens"):
        await publisher.publish("nobody.here", b"")
    with pytest.raises(PublishUnknown):
        await publisher.publish("silent", b"once")
    async with Publisher(server.url, ack_timeout=0.2, retry_for=0) as once:
        with pytest.raises(PublishUnknown, match="1 attempt"):
            await once.publish("silent", b"twice")
    assert set(values_of(daemon, "silent")) == {b"once", b"twice"}
    assert values_of(daemon, "silent").count(b"twice") == 1


async def test_envelopes_reach_streams_that_ack_nothing_else(
    server: NatsServer, daemon: Daemon
) -> None:
    async with Publisher(server.url, use_envelope=True) as publisher:
        ack = await publisher.publish("wrapped", b"v", key=b"\xff\r\n", headers={"A": "b"})
        assert ack.acks == (Ack("wrapped", 1),)
        assert (await publisher.publish("wrapped", None, key=b"\xff\r\n")).offset == 2
    found = [(r.key, r.value) for r in records_of(daemon, "wrapped")]
    assert found == [(b"\xff\r\n", b"v"), (b"\xff\r\n", None)]


async def test_expected_sequences_inside_envelopes(server: NatsServer, daemon: Daemon) -> None:
    def in_sequence(last_sequence: int) -> Publisher:
        return Publisher(
            server.url,
            expect=["wrapped"],
            use_envelope=True,
            order="sequence",
            last_sequence=last_sequence,
        )

    last = describe(daemon, "wrapped").log_end_offset - 1
    async with in_sequence(last) as publisher:
        acks = [await publisher.submit("wrapped", b"w") for _ in range(20)]
        assert [(await ack).offset for ack in acks] == list(range(last + 1, last + 21))
    async with in_sequence(last) as publisher:
        with pytest.raises(PublishRefused, match="wrong last sequence"):
            await publisher.publish("wrapped", b"late")


async def test_the_callers_connection_stays_the_callers(server: NatsServer, daemon: Daemon) -> None:
    nc = await nats.connect(server.url)
    async with Publisher(nc, expect=["orders"]) as publisher:
        await publisher.publish("orders.own", b"")
    assert nc.is_connected
    assert nc._subs == {}
    with pytest.raises(LiftlogError, match="closed"):
        await publisher.publish("orders.own", b"")
    async with Publisher(nc, ack_timeout=0.5) as publisher:
        await nc.close()
        with pytest.raises(LiftlogError, match="closed"):
            await publisher.publish("orders.own", b"")
    with pytest.raises(InvalidArgument):
        Publisher(nc, user="u")


async def test_no_server() -> None:
    with pytest.raises(NatsUnavailable, match="cannot connect"):
        async with Publisher("nats://127.0.0.1:1", connect_timeout=0.3):
            pass


async def test_through_outages() -> None:
    """Acked means stored, everything is acked in the end, once; and in order where asked."""
    # Not the servers of the module: what a thread has started ends with the thread.
    with NatsServer() as server, Daemon(server.url, {"streams": STREAMS}) as daemon:
        await publish_through_outages(server, daemon)


async def publish_through_outages(server: NatsServer, daemon: Daemon) -> None:
    orders: list[Order] = ["any", "one_in_flight", "sequence"]
    count = 400
    started = [asyncio.Event(), asyncio.Event()]

    async def publish_all(order: Order) -> list[Published]:
        async with Publisher(
            server.url, expect=[f"series-{order}"], order=order, ack_timeout=1.0, max_in_flight=32
        ) as publisher:
            futures = []
            for i in range(count):
                if i == 3 * count // 4:
                    await started[1].wait()  # the second outage hits the rest
                futures.append(await publisher.submit(f"series.{order}", b"%d" % i))
                if order == "one_in_flight" and i == count // 4:
                    started[0].set()
            return await asyncio.gather(*futures)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(publish_all(order)) for order in orders]
        await started[0].wait()
        server.kill()
        await asyncio.to_thread(server.start)
        started[1].set()
        daemon.kill()
        await asyncio.to_thread(daemon.start)
    for order, task in zip(orders, tasks, strict=True):
        offsets = [result.offset for result in task.result()]
        stored = {r.offset: r.value for r in records_of(daemon, f"series-{order}")}
        assert {offset: b"%d" % i for i, offset in enumerate(offsets)} == stored
        if order != "any":
            assert offsets == sorted(offsets)


async def test_a_publisher_waits_for_a_server_that_hangs(
    server: NatsServer, daemon: Daemon
) -> None:
    async with Publisher(server.url, max_in_flight=3, ack_timeout=0.2) as publisher:
        first = (await publisher.publish("orders.a", b"0")).offset
        server.pause()
        try:
            futures = [await publisher.submit("orders.a", b"%d" % i) for i in (1, 2, 3)]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await publisher.submit("orders.a", b"no room")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(futures[2], 0.01)
        finally:
            server.resume()
        assert [(await f).offset for f in futures[:2]] == [first + 1, first + 2]
        await publisher.flush()  # also the one that no caller waits for
        assert (await publisher.publish("orders.a", b"4")).offset == first + 4

        server.pause()
        try:
            late = await publisher.submit("orders.a", b"5")
            while not next(iter(publisher._pending.values())).attempts:
                await asyncio.sleep(0)
            async with asyncio.timeout(10):
                await publisher.close()
            with pytest.raises(PublishUnknown, match="closed"):
                await late
        finally:
            server.resume()


async def test_another_writer_breaks_the_sequence(server: NatsServer, daemon: Daemon) -> None:
    nc = await nats.connect(server.url)
    async with Publisher(nc, expect=["series"], order="sequence") as publisher:
        first = await publisher.publish("series", b"mine 1")
        await nc.request("series", b"foreign")
        with pytest.raises(PublishRefused) as caught:
            await publisher.publish("series", b"mine 2")
        assert caught.value.err_code == 10071
        with pytest.raises(OrderBroken):
            await publisher.publish("series", b"mine 3")
        publisher.resume(describe(daemon, "series").log_end_offset - 1)
        again: Published = await publisher.publish("series", b"mine 2")
        assert again.offset == first.offset + 2
        with pytest.raises(InvalidArgument):
            await publisher.publish("orders.a", b"", expect=["orders"])
    await nc.close()
    assert values_of(daemon, "series") == [b"mine 1", b"foreign", b"mine 2"]


async def test_a_sequence_in_a_stream_that_does_not_exist(
    server: NatsServer, daemon: Daemon
) -> None:
    async with Publisher(server.url, expect=["missing"], order="sequence") as publisher:
        async with asyncio.timeout(3):
            with pytest.raises(PublishUnknown, match="is there a stream 'missing'") as caught:
                await publisher.publish("orders.a", b"")
            assert caught.value.missing == ("missing",)
            with pytest.raises(OrderBroken):
                await publisher.publish("orders.a", b"")


def test_settings_that_cannot_work() -> None:
    for settings in (
        {"expect": "orders"},
        {"order": "alphabetical"},
        {"order": "sequence"},
        {"order": "sequence", "expect": ["a", "b"]},
        {"max_in_flight": 0},
        {"ack_timeout": 0},
        {"retry_for": 61.0},
        {"retry_for": 6.0, "dedupe_window": 10.0},
    ):
        with pytest.raises(InvalidArgument):
            Publisher(**settings)  # type: ignore[arg-type]


# --- without acks, and what NATS reports ---

LIMITED: dict[str, Any] = {
    "authorization": {
        "users": [
            {"user": "u", "password": "p", "permissions": {"publish": {"deny": "secret.>"}}},
        ]
    }
}


async def test_send_asks_for_no_ack_and_keeps_the_order(
    publisher: Publisher, server: NatsServer, daemon: Daemon
) -> None:
    for number in range(300):
        await publisher.send("silent", b"%d" % number, key="k", message_id=f"id-{number}")
    await publisher.flush()
    listener = await nats.connect(server.url)
    try:
        heard = await listener.subscribe("wrapped")
        await listener.flush()
        async with Publisher(server.url, use_envelope=True) as enveloping:
            await enveloping.send("wrapped", None, key=b"\xff\n")
        message = await heard.next_msg(timeout=5)
    finally:
        await listener.close()
    opened = envelope.decode(message.data)
    assert opened is not None
    assert (opened.key, opened.value, opened.ack_subject, message.reply) == (
        b"\xff\n", None, None, "",
    )  # fmt: skip
    with pytest.raises(InvalidArgument, match="does not fit"):
        await publisher.send("silent", b"", key=" k")
    with pytest.raises(InvalidArgument, match="NATS allows"):
        await publisher.send("silent", b"x" * 2_000_000)
    async with Publisher(server.url, order="one_in_flight") as ordered:
        with pytest.raises(InvalidArgument, match="any"):
            await ordered.send("silent", b"")
    # What came later on the same connection path is stored: so are the messages before it.
    deadline = asyncio.get_running_loop().time() + 10
    found: list[bytes | None] = []
    while len(found) < 300 and asyncio.get_running_loop().time() < deadline:
        found = values_of(daemon, "silent")
    assert found[-300:] == [b"%d" % number for number in range(300)]


async def test_what_nats_refuses_is_named() -> None:
    with NatsServer(**LIMITED) as limited:
        address = limited.url.replace("://", "://u:p@")
        async with Publisher(address, ack_timeout=0.3, retry_for=0) as publisher:
            with pytest.raises(PublishUnknown) as caught:
                await publisher.publish("secret.a", b"")
            assert "ermissions" in caught.value.hint
            await publisher.send("secret.a", b"")
            with pytest.raises(NatsRefused, match="ermissions"):
                await publisher.flush()
            await publisher.flush()  # what was told once is over
            for _ in range(2000):
                await publisher.send("open.a", bytes(1000))
            await publisher.send("secret.a", b"")  # behind all that nats-py still holds
            with pytest.raises(NatsRefused, match="ermissions"):
                await publisher.flush()
            await publisher.send("open.a", b"")
            await publisher.flush()


async def test_a_lost_connection_is_told_apart() -> None:
    with NatsServer() as gone:
        publisher = await Publisher(gone.url, retry_for=0, allow_reconnect=False).open()
        try:
            assert publisher.closed == ""
            listener = await nats.connect(gone.url, allow_reconnect=False)
            await listener.subscribe("a")
            await listener.flush()
            future = await publisher.submit("a", b"")
            gone.kill()
            with pytest.raises((PublishUnknown, NotPublished), match="closed"):
                await asyncio.wait_for(future, 20)
            assert "connection to NATS is closed" in publisher.closed
            with pytest.raises(LiftlogError, match="connection to NATS is closed"):
                await publisher.send("a", b"")
            await listener.close()
        finally:
            await publisher.close()
