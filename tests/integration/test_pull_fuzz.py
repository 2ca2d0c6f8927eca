"""The real daemon under whatever clients can send over a real socket.

Every kind of request that the protocol knows is sent, with values that fit and values that do
not; frames are cut, flipped and mixed; thousands of clients say nothing. A witness reads a stream
meanwhile, no answer may be INTERNAL, and memory is measured.
"""

from __future__ import annotations

import os
import random
import resource
import select
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.clients.ingesting import assert_no_traceback, publish, until
from support.clients.raw_nats import RawNats
from support.clients.raw_pull import AUTH, HELLO, BlockingPull, frame
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.client import connect_sync
from liftlog.protocol.messages import REQUESTS
from liftlog.protocol.wire import wire_fields
from liftlog.server.vitals.descriptors import raise_open_file_limit

pytestmark = pytest.mark.integration

ROUNDS = int(os.environ.get("TORTURE_ROUNDS", "30"))
IDLE_CLIENTS = 2000
STREAMS = {
    "fuzzed": {"subject": "fuzzed.>", "compaction": {}},
    "witness": {"subject": "witness"},
}


@pytest.fixture(scope="module")
def daemon(server: NatsServer) -> Iterator[Daemon]:
    settings = {
        "streams": STREAMS,
        "pull": {"max_connections": 3000, "hello_timeout": "3s"},
    }
    with Daemon(server.url, settings) as daemon:
        with RawNats(server.port) as raw:
            for number in range(50):
                publish(raw, "fuzzed.a", b"%d" % number, Liftlog_Key=f"k{number % 7}")
            publish(raw, "witness", b"here")
        yield daemon
        assert daemon.running
        assert_no_traceback(daemon)


@pytest.fixture(autouse=True)
def _undisturbed(daemon: Daemon) -> Iterator[None]:
    """Whatever a test did: a reader is served at once afterwards."""
    yield
    began = time.monotonic()
    with connect_sync(daemon.pull_address) as client:
        values = [record.value for record in client.read("witness", start=1, until="end")]
    assert values == [b"here"]
    assert time.monotonic() - began < 5


# --- every request, with anything in it ---

NAMES = ["fuzzed", "fuzzed", "nothing", "_offsets", "made1", "made2", "../x", "", "x" * 300, "a\0"]
TEXTS = ["earliest", "latest", "fuzzed.>", ">", "*", "a..b", "k1", "billing", "\u0000", "x" * 2000]
NUMBERS = [
    0,
    1,
    2,
    7,
    50,
    51,
    52,
    1000,
    -1,
    2**31,
    2**32,
    2**53,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
]
JUNK: list[Any] = [
    None, True, False, 1.5, float("nan"), b"", b"\xff" * 40, [], [[]], {}, {"a": {}},
    [1, "a", None], "\ud7ff", *NUMBERS, *TEXTS,
]  # fmt: skip
SETTINGS: list[Any] = [
    {"subject": "made.>"}, {"subject": ">"}, {"subject": "$JS.>"}, {"subject": "a b"}, {},
    {"retention": {"max_messages": 5}}, {"retention": {"max_age": "1s"}}, {"retention": None},
    {"durability": "os"}, {"acks": "off"}, {"compaction": None}, {"compaction": {"min_lag": "-1"}},
    {"subject": {"deep": [[[]]]}}, {"no_such": 1}, {"dedupe_window": 2**60},
]  # fmt: skip


def some_request(chance: random.Random) -> dict[str, Any]:
    kind, cls = chance.choice(sorted(REQUESTS.items()))
    message: dict[str, Any] = {"k": kind}
    for field in wire_fields(cls):
        key, wire_type = field.key, field.kind
        dice = chance.random()
        if dice < 0.15:
            message[key] = chance.choice(JUNK)
        elif dice < 0.3 and not field.required:
            continue
        elif field.name == "stream":
            message[key] = chance.choice(NAMES)
        else:
            fitting = [one for one in (*JUNK, *SETTINGS) if wire_type.accepts(one)]
            message[key] = chance.choice(fitting or JUNK)
    if kind == "fetch":
        message["w"] = chance.choice([0, 0, 1, 50, 2**31])
    return message


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_any_request_is_answered_once_and_none_breaks_the_daemon(seed: int, daemon: Daemon) -> None:
    chance = random.Random(seed)
    with BlockingPull(daemon.pull_port) as peer:
        asked: dict[int, dict[str, Any]] = {}
        for number in range(1, 41):
            message = some_request(chance)
            if message["k"] == "cancel":
                message["i"] = chance.choice([*asked, 10**6])
            else:
                message["i"] = number
                asked[number] = message
            try:
                peer.send(frame(message))
            except (OverflowError, UnicodeEncodeError):
                asked.pop(message["i"], None)  # msgpack itself cannot carry it
        # Cancel what waits for records: the answer to the ping need not be the last.
        peer.send(b"".join(frame({"k": "cancel", "i": number}) for number in asked))
        while asked:
            answer = peer.receive()
            assert answer["i"] in asked, (answer, "no such request is open")
            message = asked.pop(answer["i"])
            assert answer.get("n") != "INTERNAL", (message, answer, daemon.log_tail(5))
        peer.send(frame({"k": "ping", "i": 1}))
        assert peer.receive() == {"k": "pong", "i": 1}


@pytest.mark.parametrize("greet", [False, True], ids=["before hello", "after welcome"])
def test_bytes_that_are_no_frames_end_in_a_code(greet: bool, daemon: Daemon) -> None:
    chance = random.Random(11)
    good = [frame(HELLO), frame(AUTH), frame({"k": "list", "i": 7}),
            frame({"k": "fetch", "i": 8, "s": "fuzzed", "o": 1})]  # fmt: skip
    for _ in range(ROUNDS * 4):
        data = bytearray(b"".join(chance.choices(good, k=3)))
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(data))
            action = chance.randrange(3)
            if action == 0:
                data[at] ^= 1 << chance.randrange(8)
            elif action == 1:
                del data[at : at + chance.randint(1, 9)]
            else:
                data[at:at] = chance.randbytes(chance.randint(1, 9))
        with BlockingPull(daemon.pull_port, greet=greet) as peer:
            peer.send(data)
            peer.sock.shutdown(socket.SHUT_WR)
            try:
                while True:
                    answer = peer.receive()
                    assert answer.get("n") != "INTERNAL", (bytes(data), answer)
            except ConnectionError:
                pass


# --- many who do little ---


@pytest.fixture(scope="module")
def many_files() -> None:
    raise_open_file_limit()
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 5000:
        pytest.skip("needs 5000 open files: raise the hard limit (ulimit -Hn)")


@pytest.mark.usefixtures("many_files")
def test_thousands_of_silent_connections(daemon: Daemon) -> None:
    """Each costs some KiB; those that never say hello are told so and gone after its timeout."""
    before = daemon.rss_bytes
    greeted = [BlockingPull(daemon.pull_port) for _ in range(IDLE_CLIENTS // 2)]
    half = struct.pack("<I", 1 << 20) + b"x" * 100
    for peer in greeted:
        peer.send(half)
    silent = [BlockingPull(daemon.pull_port, greet=False) for _ in range(IDLE_CLIENTS // 2)]
    with BlockingPull(daemon.pull_port) as witness:
        witness.send(frame({"k": "ping", "i": 1}))
        assert witness.receive()["k"] == "pong"
    grown = daemon.rss_bytes - before
    assert grown < IDLE_CLIENTS * 32 * 1024, f"{grown / IDLE_CLIENTS / 1024:.1f} KiB each"
    for peer in silent:
        assert peer.receive()["n"] == "TIMEOUT"
        peer.sock.close()
    for peer in greeted:
        peer.sock.close()


@pytest.mark.long
@pytest.mark.usefixtures("many_files")
def test_more_silent_connections_than_places(daemon: Daemon) -> None:
    silent = [BlockingPull(daemon.pull_port, greet=False) for _ in range(3200)]
    for _ in range(20):
        with BlockingPull(daemon.pull_port) as peer:  # gets a place all the same
            peer.send(frame({"k": "ping", "i": 1}))
            assert peer.receive()["k"] == "pong"
    for peer in silent:
        peer.sock.close()
    until(lambda: daemon.metric("liftlog_pull_connections") == 0)


def test_deaf_clients_cost_bounded_memory(daemon: Daemon) -> None:
    before = daemon.rss_bytes
    requests = b"".join(frame({"k": "list", "i": number}) for number in range(1, 20_001))
    deaf = [BlockingPull(daemon.pull_port) for _ in range(20)]
    for peer in deaf:
        peer.sock.setblocking(False)
    # Until the daemon reads none of them any more.
    waiting = {peer.sock.fileno(): (peer, memoryview(requests)) for peer in deaf}
    poll = select.poll()
    for number in waiting:
        poll.register(number, select.POLLOUT)
    while ready := poll.poll(300):
        for number, _ in ready:
            peer, rest = waiting[number]
            sent = peer.sock.send(rest)
            waiting[number] = (peer, rest[sent:])
            if sent == len(rest):
                poll.unregister(number)
    with BlockingPull(daemon.pull_port) as witness:
        witness.send(frame({"k": "ping", "i": 1}))
        assert witness.receive()["k"] == "pong"
    assert daemon.rss_bytes - before < 128 << 20
    for peer in deaf:
        peer.sock.close()
