"""One party tries to delay or starve all others; what the others wait for is measured.

Whatever one client sends over the pull API, and however often: a publisher on another stream
gets its ack, and a reader its answer, within half a second.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.clients.hostile_frames import hostile_maps
from support.clients.ingesting import assert_no_traceback, publish
from support.clients.raw_nats import RawNats
from support.clients.raw_pull import BlockingPull, frame
from support.clients.victims import AckVictim, Victim, assert_nobody_waits
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.rounds import is_short, rounds

pytestmark = pytest.mark.integration

WORST_SECONDS = 0.5
ATTACK_SECONDS = 10.0 if rounds(0) else 1.0 if is_short() else 2.0
MEMORY_MIB = 64
STREAMS = {
    "attacked": {"subject": "attacked.>", "compaction": {}},
    "victim": {"subject": "victim"},
}


@pytest.fixture(scope="module")
def daemon(server: NatsServer) -> Iterator[Daemon]:
    settings = {"streams": STREAMS, "pull": {"max_unsent_memory_bytes": f"{MEMORY_MIB}MiB"}}
    with Daemon(server.url, settings) as daemon:
        with RawNats(server.port) as raw:
            for number in range(50):
                publish(raw, "attacked.a", b"%d" % number, Liftlog_Key=f"k{number % 7}")
        yield daemon
        assert daemon.running
        assert_no_traceback(daemon)


@pytest.fixture
def publisher(server: NatsServer) -> Callable[[], list[Victim]]:
    return lambda: [AckVictim(server.port, "victim")]


class Attacker(BlockingPull):
    """The daemon may hang up whenever it wants."""

    def __init__(self, daemon: Daemon, *, greet: bool = True) -> None:
        super().__init__(daemon.pull_port, greet=greet)

    def send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            super().send(data)


def paced(rate: float) -> Iterator[int]:
    """0, 1, 2, ... at most `rate` a second, for as long as an attack takes."""
    began = time.monotonic()
    for number in itertools.count():
        now = time.monotonic() - began
        if now > ATTACK_SECONDS:
            return
        time.sleep(max(number / rate - now, 0))
        yield number


def framed(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


# --- frames that cost more than their bytes ---


def test_hostile_hellos(daemon: Daemon, publisher: Callable[[], list[Victim]]) -> None:
    hellos = [framed(data) for data in hostile_maps(4096).values()]

    def attack() -> None:
        for number in paced(150):
            with Attacker(daemon, greet=False) as attacker:
                attacker.send(hellos[number % len(hellos)])

    assert_nobody_waits(publisher, attack, bound_seconds=WORST_SECONDS)


@pytest.mark.parametrize("size", [65_536, 1_000_000])
def test_hostile_requests(size: int, daemon: Daemon, publisher: Callable[[], list[Victim]]) -> None:
    requests = [framed(data) for data in hostile_maps(size).values()]

    def attack() -> None:
        for number in paced(50):
            with Attacker(daemon) as attacker:
                attacker.send(requests[number % len(requests)])

    assert_nobody_waits(publisher, attack, bound_seconds=WORST_SECONDS)


# --- requests that wait ---


@pytest.mark.parametrize("whole", [True, False], ids=["parked fetches", "half frames"])
def test_many_long_requests(
    whole: bool, daemon: Daemon, publisher: Callable[[], list[Victim]]
) -> None:
    """300 MB of filters, and of frames whose last byte does not come."""
    keys = [bytes([number]) * 50_000 for number in range(20)]
    request = {"k": "fetch", "i": 1, "s": "attacked", "o": 51, "w": 60_000, "fk": keys}
    data = frame(request)[: None if whole else -1]
    before = daemon.rss_bytes
    daemon.reset_peak_rss()

    def attack() -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(300):
                stack.enter_context(Attacker(daemon)).send(data)

    assert_nobody_waits(publisher, attack, bound_seconds=WORST_SECONDS)
    assert daemon.peak_rss_bytes - before < 2 * MEMORY_MIB << 20


# --- requests that make the daemon write or look ---


def flood(daemon: Daemon, requests: list[dict[str, Any]], connections: int = 8) -> None:
    """Each connection has as many in flight as it may; whatever they are answered with."""
    ends = time.monotonic() + ATTACK_SECONDS
    frames = [frame({**request, "i": number + 1}) for number, request in enumerate(requests)]
    with contextlib.ExitStack() as stack:
        attackers = [stack.enter_context(Attacker(daemon)) for _ in range(connections)]
        while time.monotonic() < ends:
            for attacker in attackers:
                attacker.send(b"".join(frames))
            for attacker in attackers:
                for _ in requests:
                    attacker.receive()


FLOODS: dict[str, list[dict[str, Any]]] = {
    "leases": [{"k": "lease", "s": "attacked", "o": "earliest", "t": 1000}] * 60,
    "checkpoints": [
        {"k": "commit", "s": "attacked", "c": f"c{n}", "o": 1, "m": "x" * 4000} for n in range(60)
    ],
    "filtered reads": [
        {"k": "fetch", "s": "attacked", "o": 1, "fk": [b"k1"] * 100, "fs": ["attacked.>"] * 60}
    ]
    * 60,
    "descriptions": [{"k": kind} for kind in ("list", "checkpoints", "metadata") * 20],
}


@pytest.mark.parametrize("name", FLOODS)
def test_floods_of_requests(
    name: str, daemon: Daemon, publisher: Callable[[], list[Victim]]
) -> None:
    assert_nobody_waits(publisher, lambda: flood(daemon, FLOODS[name]), bound_seconds=WORST_SECONDS)


def test_a_flood_of_leases_on_the_stream_of_the_victim(daemon: Daemon, server: NatsServer) -> None:
    """Granting one, and giving it back, takes the place of a commit each time."""
    renewals = [{"k": "release", "s": "attacked", "l": "none"}, FLOODS["leases"][0]] * 30

    def publisher() -> list[Victim]:
        return [AckVictim(server.port, "attacked.b")]

    assert_nobody_waits(publisher, lambda: flood(daemon, renewals), bound_seconds=WORST_SECONDS)


# --- many connections, each with very little ---

SMALL: dict[str, dict[str, Any]] = {
    "pings": {"k": "ping"},
    "cancels": {"k": "cancel"},
    "unknown kinds": {"k": "none"},
    "streams that are not there": {"k": "fetch", "s": "none", "o": 1, "w": 0},
    "reads": {"k": "fetch", "s": "attacked", "o": 1, "w": 0},
}


@pytest.mark.parametrize("name", SMALL)
def test_many_connections_with_small_requests(
    name: str, daemon: Daemon, publisher: Callable[[], list[Victim]]
) -> None:
    """All of them can be read from in each turn of the loop, however fast the daemon reads."""
    requests = [frame({**SMALL[name], "i": number + 1}) for number in range(60)] * 5
    attackers = [Attacker(daemon) for _ in range(250)]

    def attack() -> None:
        for attacker in attackers:
            attacker.sock.setblocking(False)
        unsent = {attacker: b"".join(requests) for attacker in attackers}
        for _ in paced(1000):
            for attacker in attackers:
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    left = unsent[attacker] or b"".join(requests)
                    unsent[attacker] = left[attacker.sock.send(left) :]
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    attacker.sock.recv(1 << 18)

    try:
        assert_nobody_waits(publisher, attack, bound_seconds=WORST_SECONDS)
    finally:
        for attacker in attackers:
            # What the daemon has not read yet goes with it: the next attack is another one.
            no_time = struct.pack("ii", 1, 0)
            attacker.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_time)
            attacker.sock.close()
