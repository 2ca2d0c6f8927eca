"""The log API against clients that are slow, deaf, many or broken."""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.clients.ingesting import assert_no_traceback, records_of, until
from support.clients.log_api import HTTP, STREAMS, Caller
from support.clients.victims import AckVictim
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def daemon(server: NatsServer) -> Iterator[Daemon]:
    with Daemon(server.url, {"streams": STREAMS, "http": HTTP}) as daemon:
        yield daemon
        assert daemon.running
        assert_no_traceback(daemon)


@pytest.fixture
def call(daemon: Daemon) -> Iterator[Caller]:
    with Caller(daemon) as caller:
        yield caller


# --- slow and hostile clients ---


def raw_http(daemon: Daemon, data: bytes) -> socket.socket:
    host, port = daemon.http_address.rsplit(":", 1)
    sock = socket.create_connection((host, int(port)), timeout=10)
    sock.sendall(data)
    return sock


def everything(sock: socket.socket) -> bytes:
    found = b""
    with sock:
        try:
            while part := sock.recv(65_536):
                found += part
        except ConnectionResetError:
            pass
    return found


HEAD = b"POST /api/v1/streams/single/records HTTP/1.1\r\nHost: localhost\r\n"
OCTETS = HEAD + b"Content-Type: application/octet-stream\r\n"


def test_a_body_that_does_not_arrive(daemon: Daemon) -> None:
    answer = everything(raw_http(daemon, OCTETS + b"Content-Length: 10\r\n\r\nx"))
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_chunked_body_that_is_too_large(daemon: Daemon) -> None:
    body = (b"1000\r\n" + b"x" * 4096 + b"\r\n") * 20
    sock = raw_http(daemon, OCTETS + b"Transfer-Encoding: chunked\r\n\r\n" + body)
    assert sock.recv(12) == b"HTTP/1.1 413"
    sock.close()


@pytest.mark.parametrize(
    "data",
    [b"", b"GET /livez", HEAD, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\nGET /l"],
    ids=["nothing", "half a line", "half a head", "half of a second"],
)
def test_a_head_that_does_not_arrive(daemon: Daemon, data: bytes) -> None:
    answer = everything(raw_http(daemon, data))
    assert answer.count(b"HTTP/1.1 200") == data.count(b"\r\n\r\n")


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,
        b"\xff" * 10_000 + b"\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 5_000 + b"\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nA: " + b"a" * 100_000 + b"\r\n\r\n",
        OCTETS + b"Content-Length: -1\r\n\r\n",
        OCTETS + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        OCTETS + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OCTETS + b"Content-Length: 99999999999999999999\r\n\r\n",
    ],
    ids=["TLS", "bytes", "version", "many headers", "long line", "long header", "negative length",
         "two lengths", "no chunk", "huge length"],
)  # fmt: skip
def test_broken_http(daemon: Daemon, call: Caller, data: bytes) -> None:
    end = call("GET", "single/bounds").json["log_end_offset"]
    answer = everything(raw_http(daemon, data))
    assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))
    assert not answer or b"\r\nServer: liftlog\r\n" in answer
    assert call("GET", "single/bounds").json["log_end_offset"] == end


def test_an_append_whose_sender_has_gone_is_not_half_stored(daemon: Daemon, call: Caller) -> None:
    end = call("GET", "single/bounds").json["log_end_offset"]
    with raw_http(daemon, OCTETS + b"Content-Length: 10\r\n\r\nhalf"):
        pass
    call.append("single", value="whole")
    (record,) = records_of(daemon, "single", end)
    assert record.value == b"whole"


# --- many and deaf clients ---


@pytest.fixture(scope="module")
def narrow(server: NatsServer) -> Iterator[Daemon]:
    """A daemon with few places, and a record of 512 KiB at offset 1."""
    settings = {
        "streams": {"large": {"subject": "large"}},
        "http": {**HTTP, "max_connections": 8, "max_body": "1MiB"},
    }
    with Daemon(server.url, settings) as daemon:
        with Caller(daemon) as caller:
            assert caller.append_raw("large", b"x" * 524_288).json["offset"] == 1
        yield daemon
        assert daemon.running
        assert_no_traceback(daemon)


def test_idle_connections_make_room(narrow: Daemon) -> None:
    idle = [raw_http(narrow, b"") for _ in range(64)]
    assert narrow.get("/livez")[0] == 200
    with Caller(narrow) as caller:
        assert caller("GET", "large/bounds").json["high_watermark"] == 2
    for sock in idle:
        assert everything(sock) == b""


def test_a_client_that_takes_no_answers_is_cut_off_and_costs_little(narrow: Daemon) -> None:
    narrow.reset_peak_rss()
    before = narrow.rss_bytes
    get = b"GET /api/v1/streams/large/records/1?format=raw HTTP/1.1\r\nHost: localhost\r\n\r\n"
    deaf = []
    for _ in range(7):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = narrow.http_address.rsplit(":", 1)
        sock.connect((host, int(port)))
        sock.settimeout(10)
        sock.sendall(get * 50)
        deaf.append(sock)
    with Caller(narrow) as caller:
        assert caller("GET", "large/bounds").json["high_watermark"] == 2
    for sock in deaf:
        _wait_for_reset(sock)
        sock.close()
    assert narrow.peak_rss_bytes - before < 64 << 20


def _wait_for_reset(sock: socket.socket) -> None:
    """Without taking anything of what has arrived."""
    poll = select.poll()
    poll.register(sock, select.POLLHUP | select.POLLERR)
    assert poll.poll(10_000), "it is still connected"


# --- floods ---


class Flood(threading.Thread):
    """Connections at a rate, each left to `treat`; at most `kept` of them stay open. A busy machine
    makes the rate lower: what was missed is not made up for in a burst that no daemon is told to
    survive."""

    def __init__(self, daemon: Daemon, treat: Callable[[socket.socket], bool], kept: int) -> None:
        super().__init__(daemon=True)
        host, port = daemon.http_address.rsplit(":", 1)
        self._address = host, int(port)
        self._treat = treat
        self._open: deque[socket.socket] = deque()
        self._kept = kept
        self._ended = threading.Event()
        self.made = 0

    def run(self) -> None:
        due = time.monotonic()
        while not self._ended.wait(due - time.monotonic()):
            due = max(due, time.monotonic() - 1 / FLOOD_RATE) + 1 / FLOOD_RATE
            sock = socket.socket()
            with contextlib.suppress(OSError):
                sock.settimeout(1)
                sock.connect(self._address)
                if not self._treat(sock):
                    sock.close()
            self._open.append(sock)
            if len(self._open) > self._kept:
                self._open.popleft().close()
            self.made += 1

    def __enter__(self) -> Flood:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join(30)
        for sock in self._open:
            sock.close()


FLOOD_RATE = 300.0
PROBES = 60


def half_a_form(sock: socket.socket) -> bool:
    sock.sendall(
        b"POST /ui/login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n"
        b"Content-Type: application/x-www-form-urlencoded\r\n\r\na"
    )
    return True


def half_a_body(sock: socket.socket) -> bool:
    sock.sendall(OCTETS + b"Content-Length: 9\r\n\r\na")
    return True


def many_requests(sock: socket.socket) -> bool:
    """No faster than they are answered: who asks for more than the processor can do, from the
    address of the probes, delays these."""
    sock.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 3)
    sock.recv(1)
    return True


def reset(sock: socket.socket) -> bool:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return False


@pytest.mark.parametrize(
    "treat",
    [lambda _: False, reset, lambda _: True, half_a_form, half_a_body, many_requests],
    ids=["closed at once", "reset at once", "silent", "half a form", "half a body", "requests"],
)
def test_health_checks_get_through_a_flood(
    server: NatsServer, flooded: Daemon, treat: Callable[[socket.socket], bool]
) -> None:
    """From the same address as the probes; the victim publishes meanwhile."""
    suffering = AckVictim(server.port, "large", flooded.pid)
    with suffering as victim, Flood(flooded, treat, kept=1000) as flood:
        for number in range(PROBES):
            for path in ("/livez", "/readyz"):
                status, body = flooded.get(path)
                assert status == 200, (number, path, status, body)
            made = flood.made
            until(lambda made=made: flood.made > made + 5)  # type: ignore[misc]
    assert max(victim.prices) < 0.5
    # Of a rate that the machine may be too busy for, more than there are places.
    assert flood.made > 2 * 144, "this was no flood"


@pytest.fixture(scope="module")
def flooded(server: NatsServer) -> Iterator[Daemon]:
    """With the bounds that a daemon has by default."""
    settings = {"streams": {"large": {"subject": "large"}}, "http": {"log_api": True}}
    with Daemon(server.url, settings) as daemon:
        yield daemon
        assert daemon.running
        assert_no_traceback(daemon)


# --- a page that lets its own name resolve to this machine ---

REBOUND = ["evil.example", "127.0.0.1.evil.example:80", "localhost.evil.example", "evil.example."]
OURS = [
    "localhost",
    "127.0.0.1:1",
    "[::1]",
    "liftlog:8292",
    "log.example.org",
    "LOG.example.org:80",
]


@pytest.fixture(scope="module", params=["no ACL", "anonymous"])
def open_to_all(
    request: pytest.FixtureRequest, server: NatsServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Daemon]:
    """As the compose file has it: on all interfaces, for everybody."""
    settings: dict[str, Any] = {
        "allow_anonymous": True,
        "streams": {"large": {"subject": "large"}},
        "http": {"listen": "0.0.0.0:0", "log_api": True, "allowed_hosts": ["log.example.org"]},
    }
    if request.param == "anonymous":
        acl = tmp_path_factory.mktemp("acl") / "acl.yaml"
        acl.write_text(
            "principals: {anonymous: {}}\n"
            'roles: {all: [{allow: [read, admin, delete], streams: ["*"]}]}\n'
            "bindings: {anonymous: [all]}\n"
        )
        settings["acl"] = {"file": str(acl)}
    with Daemon(server.url, settings) as daemon:
        yield daemon
        assert_no_traceback(daemon)


def as_host(daemon: Daemon, host: str, path: str, method: str = "GET") -> tuple[int, bytes]:
    port = int(daemon.http_address.rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/ui/streams"), ("GET", "/ui/streams/large.json"), ("GET", "/ui/access"),
     ("POST", "/ui/streams/large/pause"), ("GET", "/api/v1/streams/large/bounds"),
     ("DELETE", "/api/v1/streams/large/records?before=1"), ("GET", "/metrics")],
)  # fmt: skip
def test_a_name_of_somebody_else_opens_nothing(open_to_all: Daemon, method: str, path: str) -> None:
    for host in REBOUND:
        status, body = as_host(open_to_all, host, path, method)
        assert status == 403, (host, body)
        assert b"large" not in body
    for host in OURS:
        status, body = as_host(open_to_all, host, path, method)
        assert status == 200 or (method == "POST" and b"a form of this page" in body), (host, body)


def test_probes_are_answered_under_any_name_and_say_no_more(open_to_all: Daemon) -> None:
    for host in REBOUND:
        assert as_host(open_to_all, host, "/readyz") == (200, b'{"status": "ok"}')
        assert as_host(open_to_all, host, "/livez") == (200, b'{"status": "ok"}')
    assert b"checks" in as_host(open_to_all, OURS[0], "/readyz")[1]
