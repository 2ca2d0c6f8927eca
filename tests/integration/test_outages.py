"""NATS away, the daemon killed, stopped, started twice: what was acked is there."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.ingesting import (
    AckedPublisher,
    assert_all_stored,
    assert_no_traceback,
    describe,
    publish,
    until,
    values_of,
)
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.rounds import rounds

from liftlog.client import connect_sync
from liftlog.errors import NatsUnavailable

pytestmark = pytest.mark.integration

STREAMS = {"in": {"subject": "in.>"}}
QUICK = {"nats": {"reconnect_wait": "50ms"}}


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


# --- NATS is away ---


def test_nats_down_at_start(server: NatsServer) -> None:
    url, port = server.url, server.port
    server.stop()
    with Daemon(url, {"streams": STREAMS, **QUICK}).spawn() as daemon:
        daemon.wait_listening()
        status, body = daemon.get("/readyz")
        assert status == 503
        assert list(json.loads(body)["problems"]) == ["nats"]
        until(lambda: f"not connected to NATS: 127.0.0.1:{port}: " in daemon.get("/readyz")[1])
        assert daemon.get("/livez")[0] == 200
        with connect_sync(daemon.pull_address) as client:
            with pytest.raises(NatsUnavailable):
                client.create_stream("late", subject="late.>")
            assert client.describe_stream("late").state == "detached"
            assert client.describe_stream("in").state == "detached"
            server.start()
            assert server.port == port
            daemon.wait_ready()
            assert client.describe_stream("late").state == "attached"
            # And now it is idempotent.
            assert client.create_stream("late", subject="late.>").state == "attached"
        with RawNats(port) as raw:
            assert publish(raw, "in.a", b"1")["seq"] == 1
            assert publish(raw, "late.a", b"1") == {"stream": "late", "seq": 1}
        assert_no_traceback(daemon)


def test_nats_goes_and_comes_back(server: NatsServer) -> None:
    with Daemon(server.url, {"streams": STREAMS, **QUICK}) as daemon:
        with RawNats(server.port) as raw:
            for i in range(3):
                assert publish(raw, "in.a", b"%d" % i)["seq"] == i + 1
        server.kill()
        until(lambda: not daemon.ready)
        problems = json.loads(daemon.get("/readyz")[1])["problems"]
        assert list(problems) == ["nats"]
        assert problems["nats"].startswith("not connected to NATS: ")
        with connect_sync(daemon.pull_address) as client:
            assert client.describe_stream("in").state == "detached"
            # Reading goes on without NATS.
            assert len(list(client.read("in", start="earliest", until="end"))) == 3
            with pytest.raises(NatsUnavailable):
                client.create_stream("meanwhile", subject="meanwhile")
        server.start()
        until(lambda: daemon.ready)
        with RawNats(server.port) as raw:
            assert publish(raw, "in.a", b"3")["seq"] == 4
            assert publish(raw, "meanwhile", b"1")["seq"] == 1
        [loss] = describe(daemon, "in").possible_losses
        assert loss["offset"] == 4
        assert daemon.metric("liftlog_nats_disconnects_total") == 1
        # The note survives a crash of ours.
        daemon.kill()
        daemon.start()
        assert describe(daemon, "in").possible_losses[0] == loss
        assert values_of(daemon, "in") == [b"0", b"1", b"2", b"3"]
        assert_no_traceback(daemon)


def test_publishers_ride_out_a_restart_of_nats(server: NatsServer) -> None:
    with Daemon(server.url, {"streams": STREAMS, **QUICK}) as daemon:
        first = AckedPublisher(server.port, "in.first")
        first.start()
        until(lambda: len(first.acked) > 500)
        server.kill()
        first.join(20)  # its connection is gone
        assert isinstance(first.error, OSError)
        server.start()
        until(lambda: daemon.ready)
        second = AckedPublisher(server.port, "in.second")
        second.start()
        until(lambda: len(second.acked) > 500)
        second.finish()
        assert assert_all_stored(daemon, "in", first)
        assert assert_all_stored(daemon, "in", second)
        assert_no_traceback(daemon)


# --- the daemon is killed ---


@pytest.mark.long
def test_kill_under_load_loses_nothing_acked(server: NatsServer) -> None:
    chance = random.Random(1)
    settings = {"streams": {"in": {"subject": "in.>", "segment": {"max_bytes": "256KiB"}}}}
    with Daemon(server.url, settings | QUICK) as daemon:
        publisher = AckedPublisher(server.port, "in.load", in_flight=200, pad=100)
        publisher.start()
        epoch = describe(daemon, "in").leader_epoch
        kills = rounds(2)
        for _ in range(kills):
            seen = len(publisher.acked)
            wanted = seen + chance.randint(100, 4000)
            until(lambda wanted=wanted: len(publisher.acked) > wanted)  # type: ignore[misc]
            daemon.kill()
            daemon.start()
        until(lambda: len(publisher.acked) > seen + 4100)
        publisher.finish()
        records = assert_all_stored(daemon, "in", publisher)
        offsets = [record.offset for record in records]
        assert offsets == sorted(offsets)
        assert len(publisher.acked) > 1000
        info = describe(daemon, "in")
        assert info.leader_epoch == epoch + kills
        assert info.quarantined == []
        assert publisher.nacked == {}
        assert_no_traceback(daemon)


# --- stopping ---


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_under_load_ends_cleanly(server: NatsServer, number: signal.Signals) -> None:
    streams = {name: {"subject": f"{name}.>"} for name in ("in", "more")}
    with Daemon(server.url, {"streams": streams}) as daemon:
        publishers = [
            AckedPublisher(server.port, f"{n}.x", in_flight=500, pad=200) for n in streams
        ]
        for publisher in publishers:
            publisher.start()
        until(lambda: all(len(p.acked) > 2000 for p in publishers))
        stopped = daemon.signal_and_wait(number, 10)
        for publisher in publishers:
            publisher.finish()
        assert stopped.exit_code == 0
        assert stopped.seconds < 5
        assert '"drained"' in daemon.log
        for publisher in publishers:
            assert set(publisher.nacked.values()) <= {10077}
        daemon.start()
        for name, publisher in zip(streams, publishers, strict=True):
            assert_all_stored(daemon, name, publisher)
            assert describe(daemon, name).leader_epoch == 1, "a clean stop"
        assert_no_traceback(daemon)


def test_what_was_sent_before_the_signal_is_stored(server: NatsServer) -> None:
    """No acks asked, everything in the server's hands: the drain takes it in."""
    with Daemon(server.url, {"streams": STREAMS}) as daemon:
        with RawNats(server.port) as raw:
            raw.send(b"PUB in.x 100\r\n%b\r\n" % (b"x" * 100) * 50_000)
            raw.ping()
            stopped = daemon.stop()
        assert stopped.exit_code == 0
        daemon.start()
        assert describe(daemon, "in").log_end_offset == 50_001


@pytest.mark.parametrize("state", ["down", "frozen"])
def test_stopping_without_nats(server: NatsServer, state: str) -> None:
    with Daemon(server.url, {"streams": STREAMS, **QUICK}) as daemon:
        with RawNats(server.port) as raw:
            assert publish(raw, "in.a", b"1")["seq"] == 1
        if state == "down":
            server.kill()
            until(lambda: not daemon.ready)
        else:
            server.pause()
        stopped = daemon.stop()
        if state == "frozen":
            server.resume()
        else:
            server.start()
        assert stopped.exit_code == 0
        assert stopped.seconds < (5 if state == "down" else 8)
        daemon.start()
        assert values_of(daemon, "in") == [b"1"]
        assert describe(daemon, "in").leader_epoch == 1
        assert_no_traceback(daemon)


def test_a_second_daemon_on_the_same_data_is_refused(server: NatsServer, tmp_path: Path) -> None:
    with Daemon(server.url, {"streams": STREAMS}) as daemon:
        settings = {"data_dir": str(daemon.data_dir)}
        second = Daemon(server.url, settings, directory=tmp_path).spawn()
        stopped = second.wait(60)
        assert stopped.exit_code not in (0, -9)
        assert f"is in use by process {daemon.pid}" in second.log
        assert "Traceback" not in second.log
        with RawNats(server.port) as raw:
            assert publish(raw, "in.a", b"1")["seq"] == 1
        assert daemon.ready
        # After a crash the lock is free at once.
        daemon.kill()
        started = time.monotonic()
        daemon.start()
        assert time.monotonic() - started < 15
        assert values_of(daemon, "in") == [b"1"]
