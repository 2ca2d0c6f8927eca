"""Pulls are answered as JetStream answers them: the same messages, statuses and headers.

A real JetStream and the daemon get the same messages and the same pulls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from support.clients.ingesting import assert_no_traceback, until
from support.clients.raw_nats import RawMessage, RawNats, header_block
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

pytestmark = pytest.mark.integration

SECOND = 10**9
PATIENCE = 60
ACK = re.compile(r"\$JS\.ACK\.s\.c\.1\.(\d+)\.(\d+)\.\d+\.(\d+)")


class Sides(NamedTuple):
    """Connections to a JetStream, and to a NATS server with a daemon."""

    theirs: RawNats
    ours: RawNats
    daemon: Daemon


@pytest.fixture(scope="module")
def connected() -> Iterator[Sides]:
    with (
        NatsServer(jetstream=True) as real,
        NatsServer(leafnodes={"listen": "127.0.0.1:-1"}) as server,
        RawNats(real.port, timeout=PATIENCE) as theirs,
        RawNats(server.port, timeout=PATIENCE) as ours,
    ):
        found = re.search(r"Listening for leafnode connections on (\S+:\d+)", server.log)
        assert found is not None, server.log
        nats = {"jetstream_api": True, "leafnode": found[1]}
        with Daemon(server.url, {"nats": nats}) as daemon:
            until(lambda: "jetstream-api-answers" in daemon.log and "leaf-connected" in daemon.log)
            yield Sides(theirs, ours, daemon)
            assert_no_traceback(daemon)


@pytest.fixture
def sides(connected: Sides) -> Iterator[tuple[RawNats, RawNats]]:
    """Each has the stream `s` with the subjects `s.>`, until the test ends."""
    both = connected.theirs, connected.ours
    for raw in both:
        config = {"name": "s", "subjects": ["s.>"]}
        assert "error" not in asked(raw, "STREAM.CREATE.s", config)
    yield both
    for raw in both:
        assert asked(raw, "STREAM.DELETE.s", {})["success"]
        raw.ping()
        raw.messages.clear()


def asked(raw: RawNats, method: str, body: Any) -> Any:
    return raw.request(f"$JS.API.{method}", json.dumps(body).encode()).json()


def consumer(raw: RawNats, **config: Any) -> None:
    common = {"name": "c", "ack_policy": "none", "inactive_threshold": 600 * SECOND}
    body = {"stream_name": "s", "config": {**common, **config}}
    answer = asked(raw, "CONSUMER.CREATE.s.c", body)
    assert "error" not in answer, answer


def publish(raw: RawNats, *payloads: bytes, headers: bytes = b"") -> None:
    for payload in payloads:
        assert "seq" in raw.request(b"s.%d" % len(payload), payload, headers=headers).json()


def pull(raw: RawNats, body: Any) -> bytes:
    """Send a pull; returns its reply subject."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = raw.new_reply()
    raw.pub("$JS.API.CONSUMER.MSG.NEXT.s.c", payload, reply=reply)
    return reply


def next_of(raw: RawNats) -> str:
    """The next message or status in words: all that a client can see but times."""
    return described(raw.next_message(timeout=PATIENCE))


def described(message: RawMessage) -> str:
    head = message.headers.decode()
    found = ACK.fullmatch(message.reply.decode())
    numbers = found.groups() if found else message.reply
    return f"{message.subject.decode()[:2]} {numbers} {head!r} {message.payload!r}"


def pulled(raw: RawNats, body: Any, count: int) -> list[str]:
    """The next `count` messages and statuses after a pull. Then the server must be silent."""
    pull(raw, body)
    found = [next_of(raw) for _ in range(count)]
    raw.ping()
    assert not raw.messages, described(raw.messages[0])
    return found


def same(theirs: list[str], ours: list[str]) -> list[str]:
    """Compare; subjects of statuses are inboxes, of which only the start is shown."""
    assert ours == theirs
    return ours


BODIES: list[tuple[bytes, int]] = [
    (b"", 1),
    (b"2", 2),
    (b"-2", 1),
    (b"two", 1),
    (b'{"batch": 3}', 3),
    (b'{"batch": 9, "no_wait": true}', 4),
    (b'{"batch": 9, "no_wait": true, "expires": 300000000}', 4),
    (b'{"batch": 9, "expires": 300000000}', 4),
    (b'{"batch": 5, "idle_heartbeat": 1}', 1),
    (b'{"batch": 5, "expires": 5, "idle_heartbeat": 3}', 1),
    (b'{"min_pending": 5, "group": "a"}', 1),
    (b'{"min_ack_pending": 5, "group": "a"}', 1),
    (b'{"id": "a", "group": "a"}', 1),
    (b'{"priority": 11, "group": "a"}', 1),
]


@pytest.mark.parametrize(("body", "count"), BODIES, ids=[repr(body) for body, _ in BODIES])
def test_what_a_pull_brings(sides: tuple[RawNats, RawNats], body: bytes, count: int) -> None:
    seen = []
    for raw in sides:
        publish(raw, b"a", b"bb", b"ccc", headers=header_block({"A": "b"}))
        consumer(raw)
        seen.append(pulled(raw, body, count))
    same(*seen)


def test_a_pull_that_does_not_wait(sides: tuple[RawNats, RawNats]) -> None:
    """It ends with 404 where there is nothing more, also after some messages, and without the
    headers that a timeout has."""
    seen = []
    for raw in sides:
        consumer(raw)
        steps = pulled(raw, {"batch": 5, "no_wait": True}, 1)
        publish(raw, b"a", b"b")
        steps += pulled(raw, {"batch": 5, "no_wait": True}, 3)
        steps += pulled(raw, {"batch": 5, "no_wait": True, "expires": SECOND // 5}, 1)
        seen.append(steps)
    steps = same(*seen)
    assert "404 No Messages\\r\\n\\r\\n" in steps[0]
    assert "404 No Messages\\r\\n\\r\\n" in steps[3]
    assert "408 Request Timeout\\r\\nNats-Pending-Messages: 5\\r\\n" in steps[4]


@pytest.mark.parametrize("config", [{}, {"headers_only": True}], ids=["whole", "headers only"])
@pytest.mark.parametrize("headers", [b"", header_block({"Key": "value"})], ids=["plain", "headers"])
def test_the_bytes_of_a_pull(
    sides: tuple[RawNats, RawNats], config: dict[str, Any], headers: bytes
) -> None:
    """Subject, reply, headers and payload count. The limit moves over each border by single
    bytes, and the same pulls end in the same way."""
    payloads = [b"x" * 10, b"x" * 200, b"x" * 30]
    seen = []
    for raw in sides:
        publish(raw, *payloads, headers=headers)
        consumer(raw, **config)
        [whole] = pulled(raw, {"batch": 1}, 1)
        assert asked(raw, "CONSUMER.DELETE.s.c", {})["success"]
        size = size_of_first(raw, config)
        steps = [whole, str(size)]
        for most in (1, size - 1, size, size + 1, 400, 2 * size, 3000):
            assert asked(raw, "CONSUMER.DELETE.s.c", {})["success"]
            consumer(raw, **config)
            pull(raw, {"batch": 3, "max_bytes": most, "expires": SECOND // 4})
            while True:
                steps.append(next_of(raw))
                if re.search(r"NATS/1.0 4", steps[-1]):
                    break
                if most == size:
                    break  # the limit is met to the byte: nothing tells the end
        seen.append(steps)
    steps = same(*seen)
    assert any("Message Size Exceeds MaxBytes" in one for one in steps)
    assert any("Batch Completed" in one for one in steps)


def size_of_first(raw: RawNats, config: dict[str, Any]) -> int:
    """The size of the first message as the server counts it: found by what is left of a limit."""
    consumer(raw, **config)
    pull(raw, {"batch": 1, "max_bytes": 10_000, "expires": SECOND})
    first, status = raw.next_message(timeout=PATIENCE), raw.next_message(timeout=PATIENCE)
    found = re.search(rb"409 Batch Completed\r\n.*Nats-Pending-Bytes: (\d+)", status.headers, re.S)
    assert found is not None, status
    size = 10_000 - int(found[1])
    counted = len(first.subject) + len(first.reply) + len(first.headers) + len(first.payload)
    assert size == counted  # as the client counts it
    return size


def test_the_limits_of_a_consumer_are_kept(sides: tuple[RawNats, RawNats]) -> None:
    limits = {"max_batch": 2, "max_bytes": 500, "max_expires": 90 * SECOND + SECOND // 2}
    seen = []
    for raw in sides:
        publish(raw, b"a", b"b", b"c")
        consumer(raw, **limits)
        steps = pulled(raw, {"batch": 3}, 1)
        steps += pulled(raw, {"batch": 2, "expires": 91 * SECOND}, 1)
        steps += pulled(raw, {"batch": 2, "max_bytes": 501}, 1)
        steps += pulled(raw, {"batch": 2, "expires": 90 * SECOND, "max_bytes": 500}, 3)
        info = asked(raw, "CONSUMER.INFO.s.c", {})["config"]
        seen.append([*steps, str({name: info[name] for name in limits})])
    steps = same(*seen)
    assert "409 Exceeded MaxRequestExpires of 1m30.5s" in steps[1]


def test_a_limit_of_time_below_a_millisecond_is_refused(sides: tuple[RawNats, RawNats]) -> None:
    config = {"name": "c", "ack_policy": "none", "max_expires": 999_999}
    body = {"stream_name": "s", "config": config}
    theirs, ours = (asked(raw, "CONSUMER.CREATE.s.c", body)["error"] for raw in sides)
    assert ours == theirs
    assert ours["err_code"] == 10115


def test_too_many_pulls_that_wait(sides: tuple[RawNats, RawNats]) -> None:
    """A client with heartbeats gets no status: it would ask again at once, without end."""
    seen = []
    for raw in sides:
        consumer(raw, max_waiting=2)
        first = pull(raw, {"batch": 1, "expires": 30 * SECOND})
        pull(raw, {"batch": 1, "expires": 30 * SECOND})
        steps = pulled(raw, {"batch": 1, "expires": 30 * SECOND}, 1)
        beating = {"batch": 1, "expires": 30 * SECOND, "idle_heartbeat": 15 * SECOND}
        refused = pull(raw, beating)
        publish(raw, b"a")
        message = raw.next_message(timeout=PATIENCE)
        assert message.payload == b"a"
        publish(raw, b"b")
        assert raw.next_message(timeout=PATIENCE).payload == b"b"
        publish(raw, b"c")
        steps += pulled(raw, {"batch": 1}, 1)
        assert first != refused
        seen.append(steps)
    steps = same(*seen)
    assert "409 Exceeded MaxWaiting" in steps[0]
    assert steps[1].endswith("b'c'")


def test_heartbeats_of_a_pull_show_how_far_the_consumer_is(sides: tuple[RawNats, RawNats]) -> None:
    """The consumer's sequence counts deliveries; the stream's is that of the last message that was
    looked at, also if no filter wants it."""
    asks = {"batch": 5, "expires": 10 * SECOND, "idle_heartbeat": SECOND // 5}
    seen = []
    for raw in sides:
        publish(raw, b"a", b"b", b"cc")
        consumer(raw, filter_subject="s.1")
        seen.append(pulled(raw, asks, 3))
    steps = same(*seen)
    assert "Nats-Last-Consumer: 2\\r\\nNats-Last-Stream: 3" in steps[2]


@pytest.mark.parametrize("ack_policy", ["none", "explicit"])
def test_messages_for_several_pulls_of_a_client_come_in_order(
    sides: tuple[RawNats, RawNats], ack_policy: str
) -> None:
    """Clients pull again before the pull before has ended, and read both on one connection. The
    pulls take turns at the messages of one commit."""

    def seen(raw: RawNats) -> list[int]:
        consumer(raw, ack_policy=ack_policy)
        for _ in range(3):
            pull(raw, {"batch": 7, "expires": 30 * SECOND})
        asked(raw, "CONSUMER.INFO.s.c", {})  # all of them wait
        for number in range(21):
            raw.pub("s.a", b"%d" % number)
        return [int(raw.next_message(timeout=PATIENCE).payload) for _ in range(21)]

    theirs, ours = map(seen, sides)
    assert theirs == list(range(21))
    assert ours == theirs


def test_other_consumers_do_not_take_pulls(sides: tuple[RawNats, RawNats]) -> None:
    seen = []
    for raw in sides:
        steps = pulled(raw, {"batch": 1}, 1)
        inbox = raw.new_reply().decode()
        consumer(raw, deliver_subject=inbox)
        steps += pulled(raw, {"batch": 1}, 1)
        seen.append(steps)
    steps = same(*seen)
    assert "503" in steps[0]
    assert "409 Consumer is push based" in steps[1]


def test_a_server_that_stops_says_what_was_not_delivered() -> None:
    """Clients count by it: without it they wait for missed heartbeats."""
    seen = []
    with NatsServer(jetstream=True) as real, RawNats(real.port, timeout=PATIENCE) as theirs:
        assert "error" not in asked(theirs, "STREAM.CREATE.s", {"name": "s", "subjects": ["s.>"]})
        seen.append(waiting(theirs))
        real.stop()
        seen.append(next_of(theirs))
    with NatsServer(leafnodes={"listen": "127.0.0.1:-1"}) as server:
        found = re.search(r"Listening for leafnode connections on (\S+:\d+)", server.log)
        assert found is not None, server.log
        nats = {"jetstream_api": True, "leafnode": found[1]}
        with RawNats(server.port, timeout=PATIENCE) as ours:
            with Daemon(server.url, {"nats": nats}) as daemon:
                until(lambda: "jetstream-api-answers" in daemon.log)
                until(lambda: "leaf-connected" in daemon.log)
                config = {"name": "s", "subjects": ["s.>"]}
                assert "error" not in asked(ours, "STREAM.CREATE.s", config)
                seen.append(waiting(ours))
            seen.append(next_of(ours))
    assert seen[0] == seen[2]
    assert seen[1] == seen[3]
    assert "409 Server Shutdown\\r\\nNats-Pending-Messages: 4\\r\\nNats-Pending-Bytes: " in seen[3]


def waiting(raw: RawNats) -> str:
    """A pull of 5 that has got one message, and waits."""
    publish(raw, b"a")
    consumer(raw)
    [first] = pulled(raw, {"batch": 5, "max_bytes": 1000, "expires": 50 * SECOND}, 1)
    return first


def test_a_pull_of_a_client_that_is_gone_takes_no_messages(sides: tuple[RawNats, RawNats]) -> None:
    """A request may come before the news of its subscription, so this takes two seconds."""
    seen = []
    _, ours = sides
    for raw in sides:
        consumer(raw)
        asks = json.dumps({"batch": 5, "expires": 50 * SECOND}).encode()
        raw.pub("$JS.API.CONSUMER.MSG.NEXT.s.c", asks, reply="_INBOX.gone")
        if raw is ours:  # JetStream finds out when it has a message for the client
            until(lambda: asked(ours, "CONSUMER.INFO.s.c", {})["num_waiting"] == 1)
            until(lambda: asked(ours, "CONSUMER.INFO.s.c", {})["num_waiting"] == 0)
        publish(raw, b"a")
        seen.append(pulled(raw, {"batch": 1}, 1))
    [step] = same(*seen)
    assert step.endswith("b'a'")


def test_subscribers_of_a_deliver_subject_get_messages_and_no_status(
    sides: tuple[RawNats, RawNats],
) -> None:
    seen = []
    for raw in sides:
        raw.sub("_INBOX.pushed")
        consumer(raw, deliver_subject="_INBOX.pushed")
        publish(raw, b"a")
        steps = [next_of(raw)]
        assert asked(raw, "CONSUMER.DELETE.s.c", {})["success"]
        raw.ping()
        seen.append(steps + [described(one) for one in raw.messages])
    assert len(same(*seen)) == 1
