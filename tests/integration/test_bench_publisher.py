"""The benchmark's publisher counts exactly, else its figures would mean nothing."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench.liftbench.figures import ROWS, SPREAD, Measurements, Row
from bench.liftbench.pacer import publish as pace
from bench.liftbench.processes import WorkerFailed
from bench.liftbench.publisher import Failed, Load, publish
from bench.liftbench.report import render
from bench.liftbench.systems import ALWAYS, CEILING, DEFAULT, LIFTLOG, Ceiling
from support.clients.raw_nats import RawNats
from support.daemons.nats_server import NatsServer

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer(jetstream=True) as server:
        yield server


@contextmanager
def stream(server: NatsServer, config: str) -> Iterator[RawNats]:
    with RawNats(server.port) as client:
        created = client.request(
            "$JS.API.STREAM.CREATE.S", f'{{"name":"S","subjects":["s"],"storage":"file"{config}}}'
        ).json()
        assert "error" not in created, created
        try:
            yield client
        finally:
            client.request("$JS.API.STREAM.DELETE.S")


def held(client: RawNats) -> int:
    return int(client.request("$JS.API.STREAM.INFO.S").json()["state"]["messages"])


@pytest.mark.parametrize(("connections", "in_flight"), [(1, 1), (3, 1), (1, 100), (5, 40)])
def test_a_count_is_published_and_acked_exactly(
    server: NatsServer, connections: int, in_flight: int
) -> None:
    with stream(server, "") as client:
        outcome = publish(Load(server.port, "s", connections, in_flight, count=1003))
        assert (outcome.sent, outcome.acked, outcome.errors) == (1003, 1003, 0)
        assert held(client) == 1003
    assert (outcome.p50_us is not None) == (in_flight == 1)


def test_a_timed_run_waits_for_its_last_acks(server: NatsServer) -> None:
    with stream(server, "") as client:
        outcome = publish(Load(server.port, "s", 4, 64, seconds=0.1, warmup_seconds=0.05))
        assert outcome.acked == outcome.sent == held(client)
        assert 0 < outcome.rate * outcome.seconds <= outcome.acked


def test_a_paced_run_offers_and_acks_exactly(server: NatsServer) -> None:
    """More messages than there are distinct frames."""
    with stream(server, "") as client:
        spec = {"port": server.port, "subject": "s", "payload_bytes": 16}
        told = pace({**spec, "rate": 20_000, "seconds": 1.0})
        assert (told["offered"], told["acked"], told["errors"]) == (20_000, 20_000, 0)
        assert held(client) == 20_000
        assert told["acked_in_time"] <= told["acked"]
        assert 0 < told["p50_us"] <= told["p99_us"]


def test_an_ack_that_is_late_counts_from_when_its_message_was_due() -> None:
    """The acks of half a second come together at its end."""
    with _silent_server(answer_after=0.5) as port:
        told = pace(
            {"port": port, "subject": "s", "payload_bytes": 1, "rate": 1000, "seconds": 0.5}
        )
    assert told["acked"] == told["offered"] == 500
    assert told["p50_us"] > 200_000
    assert told["p99_us"] > 450_000


@contextmanager
def _silent_server(answer_after: float) -> Iterator[int]:
    """Takes messages, and acks all of them `answer_after` seconds after the first."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                received, first = b"", None
                while b"PING" not in received:
                    received += connection.recv(65536)
                connection.sendall(b"PONG\r\n")
                received = b""
                while received.count(b"PUB ") < 500:
                    received += connection.recv(65536)
                    first = first or time.monotonic()
                assert first is not None
                time.sleep(max(first + answer_after - time.monotonic(), 0))
                connection.sendall(b'{"stream":"S","seq":1}\r\n' * 500)
                connection.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


def test_a_flood_arrives_whole(server: NatsServer) -> None:
    with stream(server, "") as client:
        outcome = publish(Load(server.port, "s", in_flight=0, payload_bytes=128, count=2000))
        assert (outcome.sent, outcome.acked) == (2000, 0)
        deadline = time.monotonic() + 20
        while held(client) < 2000 and time.monotonic() < deadline:
            pass  # JetStream stores them a moment after it has answered the PING
        assert held(client) == 2000


def test_error_acks_void_the_run(server: NatsServer) -> None:
    with stream(server, ',"max_msgs":10,"discard":"new"'), pytest.raises(Failed, match="errors"):
        publish(Load(server.port, "s", 1, 5, count=20))


def test_a_large_payload_survives_a_full_socket(server: NatsServer) -> None:
    with stream(server, "") as client:
        outcome = publish(Load(server.port, "s", 2, 200, payload_bytes=60_000, count=500))
        assert outcome.acked == held(client) == 500


def test_acks_torn_at_every_byte_are_counted_once() -> None:
    ack = b'MSG _INBOX.x.1 1 26\r\n{"stream":"S","seq":12345}\r\n'

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(b"INFO {}\r\n")
            while lines.readline() != b"PING\r\n":
                pass
            connection.sendall(b"PONG\r\n")
            for cut in range(len(ack) + 1):
                line = lines.readline()
                while line == b"PONG\r\n":  # two, if the last one left behind its message
                    line = lines.readline()
                assert line.startswith(b"PUB s ")
                lines.read(3)  # one byte of payload, which may be a line break
                connection.sendall(ack[:cut])
                # The client is idle, so it nearly always receives the two pieces one by one.
                connection.sendall(ack[cut:] + b"PING\r\n")
            while connection.recv(1 << 16):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        outcome = publish(Load(listener.getsockname()[1], "s", payload_bytes=1, count=len(ack) + 1))
        thread.join()
    assert (outcome.acked, outcome.errors) == (len(ack) + 1, 0)


def test_verdicts() -> None:
    higher = Row("k", "t", (), lambda _: 0.0, must=0.8, reach=1.2)
    assert [higher.verdict(v) for v in (0.79, 0.8, 1.19, 1.2)] == ["SHORT", "met", "met", "reached"]
    lower = Row("k", "t", (), lambda _: 0.0, must=1.6, reach=1.0, lower_is_better=True)
    assert [lower.verdict(v) for v in (1.61, 1.6, 1.0)] == ["SHORT", "met", "reached"]
    measured = Measurements()
    for value in (5.0, 1.0, 3.0):
        measured.add("a", "b", value)
    assert measured.median(("a", "b")) == 3.0
    assert not measured.has(("a", "b"), ("a", "c"))


def test_the_ceiling_acks_every_message_once(tmp_path: Path) -> None:
    with Ceiling(tmp_path) as ceiling:
        for connections, in_flight in ((1, 1), (5, 40)):
            ceiling.create("S", "s")
            outcome = publish(Load(ceiling.port, "s", connections, in_flight, count=1003))
            assert outcome.acked == ceiling.stored("S") == 1003
            ceiling.delete("S")


def test_a_ceiling_that_gives_up_says_why(tmp_path: Path) -> None:
    with Ceiling(tmp_path) as ceiling:
        ceiling.create("S", "s")
        with RawNats(ceiling.port) as client:
            client.pub("s", b"too short", reply=b"r")
            ceiling.responder.wait(timeout=20)
        with pytest.raises(WorkerFailed, match="gave up: not what the benchmark publishes"):
            ceiling.delete("S")


def test_musts_that_the_ceiling_misses_are_named_and_stay() -> None:
    measured = Measurements()
    for who, best in ((CEILING, 150.0), (DEFAULT, 120.0), (LIFTLOG, 100.0)):
        for load in SPREAD:
            measured.add(who, load, best / 5 if load == "128x1" else best)
    for who, rate in ((CEILING, 500.0), (LIFTLOG, 300.0), (ALWAYS, 10.0)):
        measured.add(who, "64x100", rate)
    (spread,) = (row for row in ROWS if row.key == "spread")
    assert spread.ceiling_value(measured) == spread.value(measured) == 0.2
    names = ("cpu", "cores", "kernel", "file_system", "python", "build", "nats_server")
    about = dict.fromkeys(names, "x")
    text = render(measured, {**about, "fdatasync_us": 1.0, "load_average": 1.0}, rounds=1)
    named = [line for line in text.splitlines() if line.startswith("- ")]
    assert len(named) == 1  # 64x100 is within the ceiling
    assert named[0].startswith(f"- {spread.title}: ")
    assert named[0].endswith("reaches 0.2x, the must is 0.6x.")
    cells = {line.split("|")[1].strip(): line for line in text.splitlines() if "|" in line}
    assert "SHORT" in cells[spread.title]
    assert "0.667x" in cells["128x1"]
    assert cells["worst / best"].count("0.2 ") == 3
