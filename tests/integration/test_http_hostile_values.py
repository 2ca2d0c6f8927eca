"""Values and headers that are expensive to show: what that costs other clients.

One client publishes them, others look at them again and again; a victim uses another stream.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle

import pytest
from support.clients.ingesting import assert_no_traceback, records_of, until
from support.clients.log_api import HTTP
from support.clients.priced_victims import processor_seconds
from support.clients.raw_nats import RawNats
from support.clients.victims import AckVictim
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.rounds import fewer

from envelope import encode

pytestmark = pytest.mark.integration

ROWS = 50
KIB = 1024
WORST_ACK_SECONDS = 0.25
WORST_PAGE_SECONDS = 0.5
"""Seconds of the daemon's processor time until the answer is there."""
ATTEMPTS = 4
"""Others on the machine slow some attempts down, but never make one quicker."""


# As much as a header block may hold.
LINES_8000 = b"NATS/1.0\r\n" + b"".join(b"%d:\r\n" % number for number in range(8000)) + b"\r\n"
LINES_15000 = b"NATS/1.0\r\n" + b"a:\r\n" * 15_000 + b"\r\n"
LONG_LINE = b"NATS/1.0\r\nlong: " + b"v" * 60 * KIB + b"\r\n\r\n"
LONG_KEY = encode(b"x", key=b"k" * 65_535)


DEEP_MSGPACK = b"\x91" * 60 + b"\xdc\xfd\xe8" + b"\x01" * 65_000
DEEP_JSON = b"[" * 60 + b",".join([b"1"] * 32_000) + b"]" * 60
HOSTILE: dict[str, tuple[bytes, bytes]] = {
    "deep msgpack": (b"", DEEP_MSGPACK),
    "too deep msgpack": (b"", b"\x91" * 500 + b"\x01" * 60_000),
    "false sizes": (b"", b"\xdc\xff\xff" * 20_000),
    "empty maps": (b"", b"\xdc\xfd\xe8" + b"\x80" * 65_000),
    "deep json": (b"", DEEP_JSON),
    "control characters": (b"", "\u202e\x9b\x1b[2J".encode() * 8_000),
    "bytes in msgpack": (b"", b"\xc5\xff\x00" + b"\xff" * 0xFF00),
    "8,000 header lines": (LINES_8000, b"x"),
    "one header of 60 KiB": (LONG_LINE, b"x"),
    "15,000 header lines": (LINES_15000, b"x"),
    "key of 64 KiB": (b"", LONG_KEY),
}


def name_of(kind: str) -> str:
    return "".join(char if char.isalnum() else "-" for char in kind)


@pytest.fixture(scope="module")
def daemon(server: NatsServer) -> Iterator[Daemon]:
    streams = {name_of(kind): {"subject": name_of(kind)} for kind in HOSTILE}
    streams["victim"] = {"subject": "victim"}
    with Daemon(server.url, {"streams": streams, "http": HTTP | {"timeout": "60s"}}) as daemon:
        with RawNats(server.port) as client:
            for kind, (headers, value) in HOSTILE.items():
                rows = ROWS if len(headers) + len(value) < 200 * KIB else 8
                for _ in range(rows):
                    ack = client.request(name_of(kind), value, headers=headers).json()
                    assert "error" not in ack, (kind, ack)
        yield daemon
        assert daemon.running
        assert_no_traceback(daemon)


def get(daemon: Daemon, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(daemon.http_address, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@contextmanager
def readers(look: Callable[[], None], count: int = 2) -> Iterator[list[BaseException]]:
    """Some threads that `look` again and again."""
    ended, failures = threading.Event(), list[BaseException]()

    def go_on() -> None:
        try:
            while not ended.is_set():
                look()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=go_on, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield failures
    finally:
        ended.set()
        for thread in threads:
            thread.join(90)
    assert not failures, failures


@pytest.mark.parametrize("kind", HOSTILE)
def test_pages_of_hostile_records_hold_nobody_up(
    daemon: Daemon, server: NatsServer, kind: str
) -> None:
    for _ in range(ATTEMPTS):
        worst_ack, pages = look_at(daemon, server, name_of(kind))
        if worst_ack < WORST_ACK_SECONDS and max(pages.values()) < WORST_PAGE_SECONDS:
            return
    raise AssertionError(f"an ack cost {worst_ack:.2f} s; pages: {pages}")


def look_at(daemon: Daemon, server: NatsServer, stream: str) -> tuple[float, dict[str, float]]:
    """All pages of its records, while a victim publishes: what its worst ack and each page
    cost, in seconds of the daemon's processor time."""
    paths = [
        f"/ui/streams/{stream}/records{page}view={view}"
        for view in ("auto", "msgpack", "json")
        for page in ("?limit=50&", ".json?limit=50&offset=1&", "/1?", "/1.json?")
    ]
    paths += [f"/api/v1/streams/{stream}/records/1{form}" for form in ("", "?format=raw")]
    took: dict[str, float] = {}
    turns = cycle(paths)

    def look() -> None:
        path = next(turns)
        before = processor_seconds(daemon.pid)
        status, _ = get(daemon, path)
        took[path] = max(took.get(path, 0.0), processor_seconds(daemon.pid) - before)
        assert status == 200 or (status == 406 and path.endswith("raw")), (path, status)

    with AckVictim(server.port, "victim", daemon.pid) as victim, readers(look) as failures:
        until(
            lambda: (
                (len(took) == len(paths) and len(victim.waits) > fewer(100))
                or failures
                or not victim.is_alive()
            ),
            60,
        )
    return max(victim.prices), took


def test_all_header_lines_of_a_record_are_in_the_log_api(daemon: Daemon) -> None:
    status, text = get(daemon, "/api/v1/streams/8-000-header-lines/records/1")
    assert status == 200
    assert json.loads(text)["headers"] == {str(number): "" for number in range(8_000)}
    (record, *_) = records_of(daemon, "8-000-header-lines")
    assert len(record.headers) == 8_000
