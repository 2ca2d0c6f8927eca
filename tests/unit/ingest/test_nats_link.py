"""The link to NATS against a scripted server: what nats-py leaves open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import pytest

from liftlog.errors import NatsRefused, NatsUnavailable
from liftlog.sequencing import MessageRun
from liftlog.server.ingest import nats_link
from liftlog.server.ingest.connection import NatsConnection
from liftlog.server.ingest.dialing import Dialer
from liftlog.server.ingest.nats_link import NatsLink
from liftlog.server.ingest.servers import NatsServerAddress
from liftlog.server.ingest.subscriptions import LinkSubscription
from liftlog.settings import NatsSettings

INFO = b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576,"headers":true}\r\n'


class Server:
    """Speaks just enough: INFO, PONG, and whatever a test sends on the newest connection."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.connections = 0
        self.mute = False
        self.refuse_subjects: set[bytes] = set()
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def send(self, data: bytes) -> None:
        self._writers[-1].write(data)

    def drop(self) -> None:
        self._writers[-1].transport.abort()

    def hang_up(self) -> None:
        """Close after what was sent."""
        self._writers[-1].close()

    @property
    def subscriptions(self) -> list[bytes]:
        return [line.split(b" ")[1].strip() for line in self.lines if line.startswith(b"SUB ")]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        writer.write(INFO)
        try:
            while line := await reader.readline():
                self.lines.append(line)
                if line.startswith(b"SUB ") and line.split(b" ")[1] in self.refuse_subjects:
                    subject = line.split(b" ")[1].decode()
                    text = f"-ERR 'Permissions Violation for Subscription to \"{subject}\"'\r\n"
                    writer.write(text.encode())
                if line == b"PING\r\n" and not self.mute:
                    writer.write(b"PONG\r\n")
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


class Harness:
    def __init__(self, seam: str) -> None:
        self.server = Server()
        self.gaps: list[str] = []
        self.runs: list[MessageRun] = []
        self.chunk_ends = 0
        self.wanted: list[LinkSubscription] = []
        self._seam = seam
        self.link: NatsLink

    async def start(self, *, server: bool = True) -> None:
        await self.server.start()
        if not server:
            await self.server.stop()
        settings = NatsSettings.model_validate({"reconnect_wait": 0.02, "connect_timeout": 1})
        self.link = NatsLink(
            settings,
            [f"nats://127.0.0.1:{self.server.port}"],
            self._seam,
            on_chunk_end=self._chunk_end,
            wait_until_ready_to_read=self._ready,
            reading_is_held=lambda: False,
        )
        self.link.start()

    def _chunk_end(self) -> None:
        self.chunk_ends += 1

    async def _ready(self) -> None:
        return

    async def stop(self) -> None:
        await self.link.drain()
        await self.link.close()
        await self.server.stop()

    async def attach(self, *subjects: str) -> LinkSubscription:
        wanted = self.link.want(subjects, None, self.runs.append, self.gaps.append)
        self.wanted.append(wanted)
        await self.link.attach(wanted)
        return wanted

    @property
    def payloads(self) -> list[bytes]:
        return [payload for run in self.runs for payload in run.payloads]


def connection_of(harness: Harness) -> NatsConnection:
    """The one that it has now."""
    connection = harness.link._connection
    assert connection is not None
    return connection


def client_of(harness: Harness) -> Any:
    return connection_of(harness)._client


def changes_of(harness: Harness) -> asyncio.Lock:
    """Whoever holds it changes subscriptions or the connection; others wait for their turn."""
    return harness.link._lock


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


Start = Callable[..., Awaitable[Harness]]


@pytest.fixture(params=["parser", "client"])
async def start(request: pytest.FixtureRequest) -> AsyncIterator[Start]:
    harness = Harness(request.param)

    async def begin(*, server: bool = True) -> Harness:
        await harness.start(server=server)
        if server:
            await until(lambda: harness.link.connected)
            await until(lambda: harness.link.counters.connects == 1)
        return harness

    yield begin
    await harness.stop()


async def test_messages_arrive(start: Start) -> None:
    harness = await start()
    await harness.attach("a.>")
    harness.server.send(b"MSG a.b 1 2\r\nhi\r\nMSG a.c 1 r 0\r\n\r\n")
    await until(lambda: len(harness.payloads) == 2)
    assert harness.payloads == [b"hi", b""]
    assert harness.chunk_ends >= 1
    assert harness.gaps == []


async def test_an_ended_read_loop_is_noticed(start: Start) -> None:
    """nats-py says "connected", and its read loop has ended: some inputs did that."""
    harness = await start()
    await harness.attach("a.>")
    client_of(harness)._reading_task.cancel()
    await until(lambda: harness.link.counters.watchdog_reconnects == 1)
    await until(lambda: harness.server.connections == 2 and harness.link.connected)
    await until(lambda: harness.gaps)
    assert harness.gaps == ["the read loop ended"]
    harness.server.send(b"MSG a.b 1 2\r\nhi\r\n")
    await until(lambda: harness.payloads)
    assert harness.payloads == [b"hi"]
    assert harness.server.subscriptions == [b"a.>", b"a.>"]


async def test_a_reason_is_told_once(start: Start) -> None:
    """Each gap has its own, also when the one before cost the whole client."""
    harness = await start()
    await harness.attach("a.>")
    for gaps, what in enumerate([b"Slow Consumer", b"Server Shutdown", b""], 1):
        if what:
            harness.server.send(b"-ERR '%b'\r\n" % what)
        else:
            harness.server.drop()
        await until(lambda count=gaps: len(harness.gaps) == count)
        await until(lambda: harness.link.connected)
    # The words are in lower case where they have passed nats-py's own parser.
    assert [gap.replace("Server Shutdown", "server shutdown") for gap in harness.gaps] == [
        "NATS dropped us as a slow consumer",
        "NATS ended the connection: server shutdown",
        "NATS closed the connection without a reason",
    ]
    assert harness.link.counters.slow_consumer_errors == 1


async def test_a_port_that_says_nothing_is_told_in_words(start: Start) -> None:
    """Without them the log had the bare name of an exception."""
    harness = await start(server=False)

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(hold, "127.0.0.1", harness.server.port)
    try:
        await until(lambda: "does not answer like a NATS server" in harness.link.problem)
    finally:
        silent.close()


async def test_garbage_is_a_counted_reconnect(start: Start) -> None:
    harness = await start()
    await harness.attach("a.>")
    harness.server.send(b"MSG a.b 1 2\r\nhi\r\nNONSENSE\r\nMSG a.b 1 2\r\nno\r\n")
    await until(lambda: harness.server.connections == 2 and harness.link.connected)
    await until(lambda: harness.gaps)
    assert harness.gaps == ["input that could not be parsed"]
    assert harness.link.counters.protocol_errors == 1
    assert harness.payloads == [b"hi"]


async def test_a_message_cut_by_a_disconnect_does_not_spoil_the_next(start: Start) -> None:
    harness = await start()
    await harness.attach("a.>")
    harness.server.send(b"MSG a.b 1 100\r\nabc")
    harness.server.hang_up()
    await until(lambda: harness.server.connections == 2 and harness.link.connected)
    await until(lambda: harness.gaps)
    harness.server.send(b"MSG a.b 1 2\r\nhi\r\n")
    await until(lambda: harness.payloads)
    assert harness.payloads == [b"hi"]


async def test_a_flush_that_timed_out_does_not_end_the_read_loop(start: Start) -> None:
    harness = await start()
    await harness.attach("a.>")
    client = client_of(harness)
    harness.server.mute = True
    with pytest.raises(Exception, match=r"flush|timeout"):
        await client.flush(0.05)  # type: ignore[arg-type]
    harness.server.mute = False
    harness.server.send(b"PONG\r\nMSG a.b 1 2\r\nhi\r\n")
    await until(lambda: harness.payloads)
    assert harness.link.connected
    assert harness.server.connections == 1


async def test_wanted_while_there_was_no_connection(start: Start) -> None:
    harness = await start(server=False)
    with pytest.raises(NatsUnavailable):
        await harness.attach("a.>")
    await harness.server.start()
    await until(lambda: harness.wanted[0].confirmed)
    assert harness.server.subscriptions == [b"a.>"]
    assert harness.gaps == [], "nothing can have been missed before the first connection"


async def test_wanted_between_two_connections(start: Start) -> None:
    harness = await start()
    await harness.server.stop()
    await until(lambda: not harness.link.connected)
    with pytest.raises(NatsUnavailable):
        await harness.attach("late.>")
    await harness.server.start()
    await until(lambda: harness.wanted[0].confirmed)
    assert harness.server.subscriptions == [b"late.>"]


async def test_a_forbidden_subject_is_told_to_who_asks(start: Start) -> None:
    harness = await start()
    harness.server.refuse_subjects.add(b"secret.>")
    with pytest.raises(NatsRefused, match=r"refused the subscription to secret\.>"):
        await harness.attach("secret.>")
    await harness.attach("a.>")
    assert [wanted.confirmed for wanted in harness.wanted] == [False, True]
    # Permission is given, and the next connection finds it.
    harness.server.refuse_subjects.clear()
    harness.server.drop()
    await until(lambda: harness.server.connections == 2)
    await until(lambda: all(wanted.confirmed for wanted in harness.wanted))


async def test_hundreds_of_changes_at_once_take_a_few_round_trips(start: Start) -> None:
    harness = await start()
    harness.server.refuse_subjects.add(b"s.7")
    harness.server.lines.clear()
    attached = await asyncio.gather(
        *(harness.attach(f"s.{number}") for number in range(200)), return_exceptions=True
    )
    refused = [number for number, one in enumerate(attached) if isinstance(one, NatsRefused)]
    assert refused == [7]
    assert len(set(harness.server.subscriptions)) == 200  # the refused one perhaps twice
    assert harness.server.lines.count(b"PING\r\n") <= 3
    harness.server.lines.clear()
    subscriptions = [one for one in attached if isinstance(one, LinkSubscription)]
    ended = await asyncio.gather(*map(harness.link.unwant, subscriptions))
    assert ended == [True] * 199
    assert sum(line.startswith(b"UNSUB ") for line in harness.server.lines) == 199
    assert harness.server.lines.count(b"PING\r\n") <= 3
    assert not any(one.confirmed for one in subscriptions)


async def test_what_was_given_up_before_its_turn_is_not_subscribed_to_in_the_end(
    start: Start,
) -> None:
    harness = await start()
    async with changes_of(harness):
        link, handler = harness.link, harness.runs.append
        left, kept = (link.want((subject,), None, handler) for subject in ("left", "kept"))
        leaving = asyncio.create_task(link.unwant(left))
        attaching = [asyncio.create_task(link.attach(one)) for one in (left, kept)]
        await asyncio.sleep(0)
    await asyncio.gather(leaving, *attaching)
    assert list(connection_of(harness).sids) == [kept]


async def test_one_that_is_cancelled_costs_those_that_end_with_it_no_messages(
    start: Start,
) -> None:
    harness = await start()
    link, server = harness.link, harness.server
    one, other = [await harness.attach(subject) for subject in ("one", "other")]
    (sid,) = connection_of(harness).sids[other].values()
    server.mute = True
    server.lines.clear()
    async with changes_of(harness):  # another change is under way
        leaving = [asyncio.create_task(link.unwant(each)) for each in (one, other)]
        await asyncio.sleep(0)
    await until(lambda: server.lines[-1:] == [b"PING\r\n"])
    leaving[0].cancel()
    await asyncio.gather(leaving[0], return_exceptions=True)
    server.mute = False
    server.send(b"MSG other %d 2\r\nhi\r\nPONG\r\n" % sid)
    assert await leaving[1]
    assert harness.payloads == [b"hi"]
    assert not connection_of(harness).sids


async def test_one_that_is_cancelled_before_its_turn_is_ended_before_its_successor_begins(
    start: Start,
) -> None:
    harness = await start()
    link, lines = harness.link, harness.server.lines
    one = await harness.attach("one")
    (sid,) = connection_of(harness).sids[one].values()
    async with changes_of(harness):  # another change is under way, and the next one waits already
        attaching = [asyncio.create_task(harness.attach("other"))]
        await asyncio.sleep(0)
        leaving = asyncio.create_task(link.unwant(one))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        attaching.append(asyncio.create_task(harness.attach("one")))
        await asyncio.sleep(0)
    attached = await asyncio.gather(*attaching)
    await until(lambda: link.connected and len(connection_of(harness).sids) == 2)
    assert list(connection_of(harness).sids) == attached
    assert lines.index(b"UNSUB %d\r\n" % sid) < lines.index(b"SUB one %d\r\n" % (sid + 2))


async def test_what_ends_while_nats_is_away_is_not_made_again_and_not_said_to_be_whole(
    start: Start,
) -> None:
    harness = await start()
    link, lock = harness.link, cast(Any, changes_of(harness))
    one = await harness.attach("one")
    async with changes_of(harness):
        harness.server.drop()
        await until(lambda: lock._waiters)  # the next connection is to be used
        leaving = asyncio.create_task(link.unwant(one))
        await asyncio.sleep(0)
    assert not await leaving
    await until(lambda: link.connected)
    assert harness.server.subscriptions == [b"one"]


async def test_the_messages_of_several_subjects_come_in_one_order(start: Start) -> None:
    harness = await start()
    await harness.attach("a.>", "b", "c.*")
    sent = [(b"a.x", 1), (b"b", 2), (b"a.y", 1), (b"c.x", 3), (b"b", 2)]
    harness.server.send(
        b"".join(b"MSG %b %d 1\r\n%d\r\n" % (*one, i) for i, one in enumerate(sent))
    )
    await until(lambda: len(harness.payloads) == 5)
    assert harness.payloads == [b"0", b"1", b"2", b"3", b"4"]
    assert [one for run in harness.runs for one in run.subjects] == [one for one, _ in sent]


async def test_a_part_that_nats_refuses_is_asked_for_again(start: Start) -> None:
    """The other part arrives all the time, once."""
    harness = await start()
    harness.server.refuse_subjects.add(b"secret")
    with pytest.raises(NatsRefused, match=r"refused the subscription to secret: .*secret"):
        await harness.attach("a.>", "secret", "b")
    (wanted,) = harness.wanted
    assert not wanted.confirmed
    harness.server.send(b"MSG a.b 1 1\r\n1\r\nMSG b 3 1\r\n2\r\n")
    await until(lambda: harness.payloads == [b"1", b"2"])
    harness.server.refuse_subjects.clear()
    harness.link.ask_again()
    await until(lambda: wanted.confirmed)
    asked = harness.server.subscriptions
    assert [one for one in asked if one != b"secret"] == [b"a.>", b"b"]
    assert len(harness.gaps) == 1
    harness.server.send(b"MSG secret %d 1\r\n3\r\nMSG a.b 1 1\r\n4\r\n" % len(asked))
    await until(lambda: harness.payloads == [b"1", b"2", b"3", b"4"])


async def test_subjects_are_changed_without_a_gap_for_those_that_stay(start: Start) -> None:
    harness = await start()
    wanted = await harness.attach("a", "b")
    harness.link.retarget(wanted, ("b", "c"))
    assert not wanted.confirmed
    await harness.link.attach(wanted)
    assert wanted.confirmed
    assert harness.server.subscriptions == [b"a", b"b", b"c"]
    assert harness.server.lines.count(b"UNSUB 1\r\n") == 1
    harness.server.send(b"MSG b 2 1\r\n1\r\nMSG c 3 1\r\n2\r\n")
    await until(lambda: len(harness.payloads) == 2)
    assert (harness.payloads, harness.gaps) == ([b"1", b"2"], [])
    # One that overlaps with another that goes: NATS may miss some in between.
    harness.link.retarget(wanted, ("b", "*"))
    await until(lambda: wanted.confirmed)
    assert harness.gaps == ["its subjects were changed"]


async def test_subjects_that_change_while_nats_is_asked_for_others(start: Start) -> None:
    harness = await start()
    wanted = await harness.attach("a")
    harness.server.mute = True
    harness.link.retarget(wanted, ("a", "b"))
    await until(lambda: b"b" in harness.server.subscriptions)
    harness.link.retarget(wanted, ("a", "c"))
    harness.server.mute = False
    harness.server.send(b"PONG\r\n")
    await until(lambda: wanted.confirmed)
    assert harness.server.subscriptions == [b"a", b"b", b"c"]
    assert b"UNSUB 2\r\n" in harness.server.lines


async def test_the_first_of_several_subjects_is_taken_away(start: Start) -> None:
    """NATS has reloaded its permissions."""
    harness = await start()
    wanted = await harness.attach("a.>", "b")
    refusal = b'-ERR \'Permissions Violation for Subscription to "a.>" using sid "1"\'\r\n'
    harness.server.send(refusal)
    await until(lambda: harness.gaps)
    assert (wanted.confirmed, list(wanted.refusals)) == (False, ["a.>"])
    harness.server.send(b"MSG b 2 1\r\n1\r\n")
    await until(lambda: harness.payloads == [b"1"])
    # The same again with the rest: then nothing is left that could be delivered.
    harness.server.send(refusal.replace(b"a.>", b"b").replace(b'"1"', b'"2"'))
    await until(lambda: len(harness.gaps) == 2)
    assert list(wanted.refusals) == ["a.>", "b"]


async def test_an_answer_that_came_too_late_does_not_subscribe_twice(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = await start()
    monkeypatch.setattr("liftlog.server.ingest.connection.CONFIRM_SECONDS", 0.05)
    confirm = connection_of(harness).confirm
    monkeypatch.setattr(connection_of(harness), "confirm", lambda seconds=0.05: confirm(seconds))
    harness.server.mute = True
    with pytest.raises(NatsUnavailable):
        await harness.attach("a.>", "b")
    harness.server.mute = False
    harness.server.send(b"PONG\r\n" * harness.server.lines.count(b"PING\r\n"))
    (wanted,) = harness.wanted
    await until(lambda: wanted.confirmed)
    assert harness.server.subscriptions == [b"a.>", b"b"]


async def test_acks_without_a_connection_are_counted(start: Start) -> None:
    harness = await start()
    await harness.server.stop()
    await until(lambda: not harness.link.connected)
    harness.link.send(b"PUB a 1\r\nx\r\nPUB b 1\r\ny\r\n")
    assert harness.link.counters.acks_dropped == 2


async def test_nothing_larger_than_the_server_takes_is_sent(start: Start) -> None:
    harness = await start()

    def send(body: bytes) -> None:
        harness.link.send(
            b"PUB a 1\r\nx\r\nPUB b %d\r\n%b\r\nPUB c 2\r\n\r\n\r\n" % (len(body), body)
        )

    send(b"PUB d 9999999\r\n" + b"y" * 1_048_576)
    await until(lambda: b"PUB c 2\r\n" in harness.server.lines)
    assert [line for line in harness.server.lines if b"PUB" in line] == [
        b"PUB a 1\r\n",
        b"PUB c 2\r\n",
    ]
    assert harness.link.counters.acks_oversized == 1
    harness.server.lines.clear()
    harness.server.send(INFO.replace(b"1048576", b"10") + b"PING\r\n")
    await until(lambda: b"PONG\r\n" in harness.server.lines)
    send(b"y" * 11)
    await until(lambda: b"PUB c 2\r\n" in harness.server.lines)
    assert harness.link.counters.acks_oversized == 2
    send(b"y" * 10)
    await until(lambda: b"PUB b 10\r\n" in harness.server.lines)
    assert harness.link.counters.acks_oversized == 2
    assert harness.server.connections == 1


async def test_the_drain_takes_in_what_is_under_way(start: Start) -> None:
    harness = await start()
    await harness.attach("a.>")
    harness.server.send(b"MSG a.b 1 1\r\n1\r\n")
    await harness.link.drain()
    assert harness.payloads == [b"1"]
    assert any(line.startswith(b"UNSUB") for line in harness.server.lines)
    harness.server.send(b"MSG a.b 1 1\r\n2\r\nPING\r\n")
    await until(lambda: b"PONG\r\n" in harness.server.lines)
    assert harness.payloads == [b"1"], "nothing after the drain"


async def test_a_silent_server_does_not_hold_up_the_end(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_link, "_DRAIN_SECONDS", 0.2)
    harness = await start()
    await harness.attach("a.>")
    harness.server.mute = True
    async with asyncio.timeout(6):
        await harness.link.drain()
        await harness.link.close()


async def test_a_swallowed_cancellation_does_not_keep_the_link(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Client.close` and `Client.flush` of nats-py swallow it."""
    attempts = 0

    async def open_until_cancelled(dialer: Dialer, address: NatsServerAddress) -> None:
        nonlocal attempts
        attempts += 1
        if attempts > 2:
            await asyncio.sleep(3600)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)

    monkeypatch.setattr(Dialer, "open", open_until_cancelled)
    harness = await start(server=False)
    await until(lambda: attempts)
    async with asyncio.timeout(10):
        await harness.link.close()
    assert attempts > 1
