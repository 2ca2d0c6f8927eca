"""Signals, reloads, and the end of a daemon that works."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import time
from pathlib import Path

import pytest
import yaml
from support.clients.ingesting import (
    AckedPublisher,
    assert_all_stored,
    assert_no_traceback,
    number_of,
    until,
)
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.daemons.ports import free_port

from liftlog.client import connect_sync

pytestmark = pytest.mark.integration

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OPEN_ACL = """\
principals: {anonymous: {}}
roles: {all: [{allow: [read, commit, admin, create, delete], streams: ["*"], attach: [">"]}]}
bindings: {anonymous: [all]}
"""


class Heard:
    """A service manager's end of the socket."""

    def __init__(self) -> None:
        self.address = f"@liftlog-test-{secrets.token_hex(8)}"
        self.lines: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + self.address[1:])
        self._socket.settimeout(60)

    def until(self, wanted: str) -> list[str]:
        """The next datagram that has this line."""
        while True:
            lines = self._socket.recv(4096).decode().splitlines()
            self.lines += lines
            if wanted in lines:
                return lines

    def close(self) -> None:
        self._socket.close()


def test_systemd_is_told(server: NatsServer) -> None:
    heard = Heard()
    environ = {"NOTIFY_SOCKET": heard.address, "WATCHDOG_USEC": "300000"}
    daemon = Daemon(
        server.url, {"streams": {"s": {"subject": "told.>"}}}, environ=environ, fresh=True
    )
    with daemon.spawn():
        assert "STATUS=serving 2 streams" in heard.until("READY=1")
        for _ in range(3):
            heard.until("WATCHDOG=1")
        daemon.wait_ready()
        daemon.process.send_signal(signal.SIGHUP)
        heard.until("RELOADING=1")
        heard.until("READY=1")
        assert daemon.metric("liftlog_reloads_total", result="ok") == 1
        assert daemon.stop().exit_code == 0
        heard.until("STOPPING=1")
        assert heard.lines.count("READY=1") == 2
        assert heard.lines.count("STOPPING=1") == 1
        assert_no_traceback(daemon)
    heard.close()


def test_a_long_drain_is_no_hang_for_systemd(server: NatsServer) -> None:
    """The watchdog hears of it like of everything before, and the time to stop is as long as the
    settings say."""
    heard = Heard()
    environ = {"NOTIFY_SOCKET": heard.address, "WATCHDOG_USEC": "300000"}
    settings = {"streams": {"s": {"subject": "long.>"}}, "drain_timeout": "4s"}
    with Daemon(server.url, settings, environ=environ, fresh=True) as daemon:
        server.pause()  # the drain waits for an answer
        try:
            os.kill(daemon.pid, signal.SIGTERM)
            assert "EXTEND_TIMEOUT_USEC=24000000" in heard.until("STOPPING=1")
            for _ in range(6):  # twice the deadline of 0.3 s
                heard.until("WATCHDOG=1")
            assert daemon.running
        finally:
            server.resume()
        assert daemon.wait(15).exit_code in (0, 1)
        assert_no_traceback(daemon)
    heard.close()


def test_quit_shows_stacks_and_usr1_opens_the_log_anew(server: NatsServer, tmp_path: Path) -> None:
    own, rotated = tmp_path / "own.log", tmp_path / "own.log.1"
    settings = {"logging": {"file": str(own), "format": "json"}}
    with Daemon(server.url, settings, fresh=True) as daemon:
        daemon.process.send_signal(signal.SIGQUIT)
        until(lambda: "Tasks of the event loop" in daemon.log)
        assert "most recent call first" in daemon.log
        assert "Task cleaner (most recent call last):" in daemon.log
        assert "in Daemon._serve\n" in daemon.log
        own.rename(rotated)
        daemon.process.send_signal(signal.SIGUSR1)
        until(own.exists)
        assert daemon.get("/readyz")[0] == 200
        assert daemon.stop().exit_code == 0
    old = [json.loads(line)["event"] for line in rotated.read_text().splitlines()]
    new = [json.loads(line)["event"] for line in own.read_text().splitlines()]
    assert old[0] == "starting"
    assert new[0] == "log-file-reopened"
    assert new[-1] == "closed"


def test_reloads_under_load_drop_nothing(server: NatsServer, tmp_path: Path) -> None:
    acl = tmp_path / "acl.yaml"
    acl.write_text(OPEN_ACL)
    settings = {"acl": {"file": str(acl)}, "streams": {"s": {"subject": "load.>"}}}
    with Daemon(server.url, settings) as daemon, connect_sync(daemon.pull_address) as client:
        publisher = AckedPublisher(server.port, "load.x")
        publisher.start()
        records = client.read("s", start="earliest")
        for number in range(1, 21):
            acl.write_text("not: [an, acl" if number % 4 == 0 else f"# {number}\n{OPEN_ACL}")
            result = "refused" if number % 4 == 0 else "ok"
            before = daemon.metric("liftlog_reloads_total", result=result)
            daemon.process.send_signal(signal.SIGHUP)
            until(lambda r=result, b=before: daemon.metric("liftlog_reloads_total", result=r) > b)
            next(records)
        assert daemon.metric("liftlog_reloads_total", result="refused") == 5
        assert daemon.metric("liftlog_last_reload_successful") == 0
        ready, body = daemon.get("/readyz")
        assert ready == 200
        assert "acl was not reloaded" in json.loads(body)["warnings"]["reload"]
        publisher.finish()
        assert publisher.nacked == {}
        assert publisher.unheard == 0
        assert len(publisher.acked) == publisher.published > 100
        for _ in range(publisher.published - 20):  # the same connection goes on to the end
            assert next(records)
        assert daemon.metric("liftlog_nats_disconnects_total") == 0
        assert daemon.metric("liftlog_pull_connections_accepted_total") == 1
        assert daemon.metric("liftlog_possible_loss_events_total", stream="s") == 0
        records.close()
        assert_all_stored(daemon, "s", publisher)
        assert_no_traceback(daemon)


def test_a_reload_tells_what_needs_a_restart(server: NatsServer) -> None:
    """Only the ACL and certificates are reloaded; the log and `/readyz` name the rest."""
    with Daemon(server.url, {"streams": {"s": {"subject": "restart.>"}}}) as daemon:

        def reload(**changes: object) -> None:
            text = yaml.safe_dump({**daemon.settings, **changes}, sort_keys=False)
            daemon.config_path.write_text(text)
            before = reloads(daemon)
            daemon.process.send_signal(signal.SIGHUP)
            until(lambda: reloads(daemon) > before)

        def warnings() -> dict[str, str]:
            found: dict[str, str] = json.loads(daemon.get("/readyz")[1])["warnings"]
            return found

        reload()
        assert warnings() == {}
        # From here on the test waits, because the list of conditions may be a second old.
        changed = {"s": {"subject": "restart.>", "retention": {"max_age": "7d"}}}
        reload(streams=changed, name="other")
        needed = {"restart": "changed since the start: name, streams.s.retention.max_age"}
        until(lambda: warnings() == needed)
        assert '"event": "restart-needed"' in daemon.log
        reload(drain_timeout="soon")
        until(lambda: "settings was not reloaded" in warnings().get("reload", ""))
        reload()  # changed back
        until(lambda: warnings() == {})


def test_term_under_full_load(server: NatsServer) -> None:
    streams = {name: {"subject": f"full.{name}"} for name in ("a", "b", "c")}
    with Daemon(server.url, {"streams": streams}) as daemon:
        publishers = {
            name: [
                AckedPublisher(server.port, f"full.{name}", in_flight=256, pad=256)
                for _ in range(2 if name == "a" else 1)
            ]
            for name in streams
        }
        everyone = [publisher for group in publishers.values() for publisher in group]
        for publisher in everyone:
            publisher.start()
        for _ in range(2):
            acked = [len(publisher.acked) for publisher in everyone]
            until(
                lambda before=acked: all(
                    len(publisher.acked) > count + 200
                    for publisher, count in zip(everyone, before, strict=True)
                )
            )
            stopped = daemon.stop()
            assert stopped.exit_code == 0, daemon.log_tail()
            assert stopped.seconds < 5
            daemon.start()
        for publisher in everyone:
            publisher.finish()
        for name, group in publishers.items():
            by_offset = {}
            with connect_sync(daemon.pull_address) as client:
                for record in client.read(name, start="earliest", until="end"):
                    by_offset[record.offset] = number_of(record.value)
            for publisher in group:
                wrong = [n for n, offset in publisher.acked.items() if by_offset[offset] != n]
                assert not wrong
        assert_no_traceback(daemon)
        assert daemon.log.count('"event": "drained", "code": 0') == 2
        assert '"clean": false' not in daemon.log


def test_term_before_it_serves(server: NatsServer, tmp_path: Path) -> None:
    streams = {f"s-{number}": {"subject": f"early.{number}"} for number in range(15)}
    with Daemon(server.url, {"streams": streams}, directory=tmp_path) as daemon:
        daemon.stop()
        daemon.spawn()
        until(lambda: '"event": "stream-opened"' in daemon.log, timeout=60)
        assert daemon.stop().exit_code == 0
        opened = daemon.log.count('"event": "stream-opened"')
        assert opened > 0
        # What was not opened is as clean as it was.
        daemon.start()
        assert '"clean": false' not in daemon.log
        assert daemon.metric("liftlog_streams") == 16
        assert_no_traceback(daemon)


def test_a_second_interrupt_ends_it_at_once(server: NatsServer) -> None:
    with Daemon(server.url, {"streams": {"s": {"subject": "twice.>"}}}) as daemon:
        server.pause()  # the drain waits for an answer
        try:
            os.kill(daemon.pid, signal.SIGTERM)
            until(lambda: '"event": "signal", "name": "SIGTERM"' in daemon.log)
            os.kill(daemon.pid, signal.SIGINT)
            assert daemon.wait(10).exit_code == 128 + signal.SIGINT
        finally:
            server.resume()
        assert '"event": "stopping-at-once"' in daemon.log
        daemon.start()


def test_traceparent_passes_through_untouched(server: NatsServer) -> None:
    """Header by header, byte by byte: also the case of the name and what else is there."""
    block = (
        b"NATS/1.0\r\ntraceparent: " + TRACE.encode() + b"\r\n"
        b"tracestate: congo=t61rcWkgMzE,rojo=00f067aa0ba902b7\r\nTraceParent: other\r\n\r\n"
    )
    with Daemon(server.url, {"streams": {"s": {"subject": "trace.>"}}}) as daemon:
        with RawNats(server.port) as raw, connect_sync(daemon.pull_address) as client:
            raw.request("trace.a", b"v", headers=block)
            (record,) = client.read("s", start="earliest", until="end")
            assert record.headers["traceparent"] == TRACE
            assert record.headers.raw == block


def test_alive_but_not_ready_while_nats_is_away_and_while_it_drains(server: NatsServer) -> None:
    settings = {"streams": {"s": {"subject": "drain.>"}}, "drain_timeout": "3s"}
    with NatsServer() as other, Daemon(other.url, settings) as daemon:
        # NATS stands still, so the daemon waits for the end of its drain.
        os.kill(other.pid, signal.SIGSTOP)
        try:
            os.kill(daemon.pid, signal.SIGTERM)
            seen = ""
            deadline = time.monotonic() + 3
            while seen != "the daemon is stopping" and time.monotonic() < deadline:
                seen = json.loads(daemon.get("/readyz")[1])["problems"].get("draining", "")
            assert seen == "the daemon is stopping"
            assert json.loads(daemon.get("/livez")[1])["phase"] == "draining"
        finally:
            os.kill(other.pid, signal.SIGCONT)
        assert daemon.wait(15).exit_code in (0, 1)


def test_alive_but_not_ready_while_it_recovers(server: NatsServer, tmp_path: Path) -> None:
    port = free_port()
    settings = {
        "http": {"listen": f"127.0.0.1:{port}", "log_api": True},
        "streams": {name: {"subject": f"slow.{name}"} for name in ("a", "b", "c")},
    }
    with Daemon(server.url, settings, directory=tmp_path) as daemon:
        daemon.stop()
        manifest = daemon.data_dir / "streams" / "b" / "manifest"
        manifest.unlink()
        os.mkfifo(manifest)  # opening it blocks until a writer opens it too
        daemon.spawn()
        daemon.addresses = {"http": f"127.0.0.1:{port}"}  # announced once it serves
        # _offsets and a
        until(lambda: answers(daemon) and daemon.metric("liftlog_streams") == 2, timeout=60)
        assert json.loads(daemon.get("/livez")[1])["phase"] == "recovering"
        status, body = daemon.get("/readyz")
        assert (status, set(json.loads(body)["problems"])) == (503, {"recovery"})
        assert daemon.metric("liftlog_ready") == 0
        status, body = daemon.get("/api/v1/streams/c/bounds")
        assert status == 503, "a stream that is not open yet must not look like one that is not"
        assert json.loads(body)["error"]["name"] == "STREAM_UNAVAILABLE"
        assert json.loads(body)["error"]["hint"] == "try again"
        os.close(os.open(manifest, os.O_WRONLY))  # ends the wait; b cannot be opened then
        daemon.wait_ready()
        assert json.loads(daemon.get("/livez")[1])["phase"] == "serving"
        assert daemon.get("/api/v1/streams/c/bounds")[0] == 200


def reloads(daemon: Daemon) -> float:
    return sum(daemon.metric("liftlog_reloads_total", result=one) for one in ("ok", "refused"))


def answers(daemon: Daemon) -> bool:
    try:
        return daemon.get("/livez")[0] == 200
    except OSError:
        return False
