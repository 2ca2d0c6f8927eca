"""Ways to NATS, and the reasons for which a connection ends: told, counted, and noted."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from support.clients.raw_nats import RawNats, ServerError
from support.daemons.certificates import Authority
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.daemons.ports import free_port

pytestmark = pytest.mark.integration

STILL_SECONDS = 1.5
STREAMS = {"in": {"subject": "in.>", "max_message_bytes": "2MiB"}}


def serving(url: str, **nats: Any) -> Daemon:
    return Daemon(url, {"streams": STREAMS, "nats": {"reconnect_wait": "50ms", **nats}})


def lost(daemon: Daemon, cause: str) -> float:
    return daemon.metric("liftlog_nats_disconnects_by_cause_total", cause=cause)


# --- WebSockets ---


@pytest.mark.long
@pytest.mark.parametrize("seam", ["parser", "client"])
@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_websockets(scheme: str, seam: str, tmp_path: Path) -> None:
    port = free_port()
    websocket: dict[str, Any] = {"listen": f"127.0.0.1:{port}", "no_tls": scheme == "ws"}
    nats: dict[str, Any] = {"seam": seam}
    if scheme == "wss":
        authority = Authority(tmp_path)
        pair = authority.issue("server")
        websocket["tls"] = {"cert_file": str(pair.cert), "key_file": str(pair.key)}
        nats["tls"] = {"ca": str(authority.ca)}
    authorization = {"users": [{"user": "u", "password": "p"}, {"user": "all", "password": "all"}]}
    with (
        NatsServer(websocket=websocket, authorization=authorization, no_auth_user="all") as server,
        serving(f"{scheme}://u:p@localhost:{port}", **nats) as daemon,
    ):
        publisher = AckedPublisher(server.port, "in.load", in_flight=200, pad=300)
        publisher.start()
        until(lambda: len(publisher.acked) > 3000)
        publisher.finish()
        assert len(assert_all_stored(daemon, "in", publisher)) == publisher.published
        large = os.urandom(1_000_000)
        with RawNats(server.port) as raw:
            offset = publish(raw, "in.large", large)["seq"]
        assert values_of(daemon, "in")[offset - 1] == large
        server.kill()
        until(lambda: not daemon.ready)
        server.start()
        until(lambda: daemon.ready)
        with RawNats(server.port) as raw:
            assert publish(raw, "in.a", b"again")["seq"] == offset + 1
        assert len(describe(daemon, "in").possible_losses) == 1
        assert "u:p" not in daemon.log
        assert daemon.stop().exit_code == 0
        assert_no_traceback(daemon)


def test_a_websocket_that_is_none(tmp_path: Path) -> None:
    with NatsServer() as server, serving(f"ws://127.0.0.1:{server.port}").spawn() as daemon:
        daemon.wait_listening()
        problem = f"not connected to NATS: 127.0.0.1:{server.port}: no WebSocket at ws://127.0.0.1"
        until(lambda: problem in daemon.get("/readyz")[1])
        assert_no_traceback(daemon)


# --- certificates ---


def test_a_renewed_certificate_is_used(tmp_path: Path) -> None:
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    ours = first.issue("server")
    client = first.issue("client")

    def tls(authority: Authority) -> dict[str, Any]:
        return {
            "cert_file": str(ours.cert),
            "key_file": str(ours.key),
            "ca_file": str(authority.ca),
            "verify": True,
        }

    nats = {"tls": {"ca": str(first.ca), "cert": str(client.cert), "key": str(client.key)}}
    with NatsServer(tls=tls(first)) as server:
        url = server.url.replace("nats://", "tls://")
        with serving(url, **nats) as daemon:
            server.stop()
            server.configure(tls=tls(second))
            server.start()
            until(lambda: "UNKNOWN_CA" in daemon.get("/readyz")[1])
            (tmp_path / "new").mkdir()
            second.directory = tmp_path / "new"
            renewed = second.issue("client")
            shutil.copy(renewed.key, client.key)  # for a moment they do not fit
            shutil.copy(renewed.cert, client.cert)
            until(lambda: daemon.ready)
            assert_no_traceback(daemon)


# --- logins ---


def test_a_login_that_is_refused() -> None:
    user = {"user": "daemon", "password": "right"}
    with NatsServer(authorization={"users": [user]}) as server:
        with serving(server.url, user="daemon", password="wrong").spawn() as daemon:
            daemon.wait_listening()
            until(lambda: "Authorization Violation" in daemon.get("/readyz")[1])
            assert "wrong" not in daemon.log


def test_servers_of_the_cluster_get_the_login() -> None:
    """The daemon knows one server by a URL with a login; the other one it hears of."""
    ports = [free_port(), free_port()]
    routes = [f"nats://127.0.0.1:{port}" for port in ports]
    login = {"users": [{"user": "daemon", "password": "secret"}]}
    first, second = (
        NatsServer(
            cluster={"name": "c", "listen": f"127.0.0.1:{port}", "routes": routes},
            authorization=login,
        )
        for port in ports
    )
    with first, second:
        url = first.url.replace("nats://", "nats://daemon:secret@")
        until(lambda: "Route connection created" in first.log or "rid:" in first.log)
        with serving(url) as daemon:
            first.stop()
            until(lambda: f'"server": "127.0.0.1:{second.port}"' in daemon.log)
            until(lambda: daemon.ready)
            assert "secret" not in daemon.log


# --- reasons ---


def frozen(daemon: Daemon, what: Callable[[], None]) -> None:
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        what()
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


def test_a_slow_consumer() -> None:
    """More than `max_pending` while the daemon stands still: NATS closes the connection and says
    nothing."""
    with NatsServer(max_pending=4_000_000) as server:
        with serving(server.url) as daemon:

            def flood() -> None:
                with RawNats(server.port) as raw:
                    for _ in range(400):
                        raw.pub("in.a", b"x" * 100_000)
                    raw.ping()
                until(lambda: "Slow Consumer" in server.log)

            frozen(daemon, flood)
            until(lambda: lost(daemon, "slow_consumer") == 1)
            assert daemon.metric("liftlog_nats_slow_consumer_errors_total") == 1
            until(lambda: daemon.ready)
            [loss] = describe(daemon, "in").possible_losses
            assert "slow consumer" in loss["reason"]
            assert 0 < loss["offset"] < 401


class Relay:
    """Passes one connection on to `port`, and resets it as the kernel does for nats-server once it
    has given up a client that does not read."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._to = port
        self._client: socket.socket | None = None
        self._all: list[socket.socket] = [self._listener]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                self._client = client
                self._all += [client, server]
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        assert self._client is not None
        linger = struct.pack("ii", 1, 0)
        self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._client.shutdown(socket.SHUT_RD)  # wakes the thread that holds it
        self._client.close()

    def close(self) -> None:
        for one in self._all:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # wakes the thread that holds it
            one.close()


def test_a_slow_consumer_whose_connection_is_reset() -> None:
    """A reset discards what had not arrived, so the daemon finds hardly anything unread: it knows
    only that it stood still."""
    with NatsServer() as server, contextlib.closing(Relay(server.port)) as relay:
        with serving(f"nats://127.0.0.1:{relay.port}") as daemon:

            def stand_still() -> None:
                with RawNats(server.port) as raw:
                    for _ in range(10):
                        raw.pub("in.a", b"x" * 100)
                    raw.ping()
                time.sleep(STILL_SECONDS)  # nothing announces it
                relay.reset()

            frozen(daemon, stand_still)
            until(lambda: daemon.metric("liftlog_nats_disconnects_total") == 1)
            assert lost(daemon, "slow_consumer") == 1
            assert daemon.metric("liftlog_nats_slow_consumer_errors_total") == 1
            until(lambda: daemon.ready)
            assert "slow consumer" in describe(daemon, "in").possible_losses[0]["reason"]


def test_a_server_that_is_killed_under_load_is_no_slow_consumer() -> None:
    with NatsServer() as server, serving(server.url) as daemon:
        publisher = AckedPublisher(server.port, "in.load", in_flight=500, pad=200)
        publisher.start()
        until(lambda: len(publisher.acked) > 2000)
        server.kill()
        until(lambda: daemon.metric("liftlog_nats_disconnects_total") == 1)
        assert lost(daemon, "slow_consumer") == 0
        assert lost(daemon, "closed") + lost(daemon, "network") == 1
        publisher.join(20)


def test_a_server_that_dies_while_the_daemon_stands_still_is_no_slow_consumer() -> None:
    """As on a machine that has stalled. Nobody is at its address any more."""
    with NatsServer() as server, serving(server.url) as daemon:

        def die() -> None:
            time.sleep(STILL_SECONDS)
            server.kill()

        frozen(daemon, die)
        until(lambda: daemon.metric("liftlog_nats_disconnects_total") == 1)
        assert lost(daemon, "slow_consumer") == 0
        assert lost(daemon, "closed") == 1
        assert daemon.metric("liftlog_nats_slow_consumer_errors_total") == 0


def test_a_connection_that_nats_finds_stale() -> None:
    with (
        NatsServer(ping_interval="300ms", ping_max=1, debug=True) as server,
        serving(server.url, ping_interval="1h") as daemon,
    ):
        frozen(daemon, lambda: until(lambda: "Stale Client Connection" in server.log))
        until(lambda: lost(daemon, "stale") == 1)
        until(lambda: daemon.ready)
        [loss] = describe(daemon, "in").possible_losses
        assert loss["reason"] == "NATS ended the connection: Stale Connection"


def test_a_server_that_we_find_stale() -> None:
    with (
        NatsServer() as server,
        serving(server.url, ping_interval="200ms", max_outstanding_pings=1) as daemon,
    ):
        server.pause()
        until(lambda: lost(daemon, "stale") == 1)
        server.resume()
        until(lambda: daemon.ready)
        [loss] = describe(daemon, "in").possible_losses
        assert loss["reason"] == "NATS did not answer our pings"


def test_a_user_that_is_removed() -> None:
    users = [{"user": "daemon", "password": "secret"}, {"user": "all", "password": "all"}]
    with NatsServer(authorization={"users": users}) as server:
        with serving(server.url, user="daemon", password="secret") as daemon:
            server.reload(authorization={"users": users[1:]})
            until(lambda: lost(daemon, "closed") == 1)  # NATS says no more
            until(lambda: "Authorization Violation" in daemon.get("/readyz")[1])
            server.reload(authorization={"users": users})
            until(lambda: daemon.ready)
            assert len(describe(daemon, "in").possible_losses) == 1


@pytest.mark.long
@pytest.mark.long
def test_without_a_connection_for_the_api_the_daemon_becomes_ready() -> None:
    """It stores messages, and a warning says that clients of JetStream's API get no answer."""
    with NatsServer(max_connections=1) as server:
        with serving(server.url, jetstream_api=True).spawn() as daemon:
            daemon.wait_listening()
            until(lambda: daemon.get("/readyz")[0] == 200, 40)
            warnings = json.loads(daemon.get("/readyz")[1])["warnings"]
            assert "JetStream's clients get no answer" in warnings["jetstream_api"]


def test_too_many_connections() -> None:
    with NatsServer(max_connections=1) as server:
        others: list[RawNats] = []

        def is_full() -> bool:
            with contextlib.suppress(OSError, ServerError):
                others.append(RawNats(server.port))
            return bool(others)

        until(is_full)  # the probe of the start may take the place for a moment
        with serving(server.url).spawn() as daemon:
            daemon.wait_listening()
            # NATS hangs up behind its reason: on a busy machine the end may be seen before it.
            until(lambda: "maximum connections" in daemon.get("/readyz")[1].lower(), 60)
        others[0].close()
