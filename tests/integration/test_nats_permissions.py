"""What NATS refuses: subscriptions and acks, told with their subjects, and tried again."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import nats
import pytest
from support.clients.command_line import Cli
from support.clients.ingesting import assert_no_traceback, describe, publish, until, values_of
from support.clients.raw_nats import RawNats
from support.clients.victims import AckVictim, assert_nobody_waits
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.client import connect_sync
from liftlog.errors import NatsRefused, StreamNotFound

pytestmark = pytest.mark.integration

LOGIN = {"user": "daemon", "password": "secret"}
IN = {"in": {"subject": "in.>"}}
CHECKPOINTS = "liftlog.liftlog.offsets.*.*"


def users(subscribe: Any, publish: Any = ">") -> dict[str, Any]:
    """The daemon may do this and no more; a client without a login may do everything."""
    permissions = {"subscribe": subscribe, "publish": publish}
    everybody = {"user": "all", "password": "all"}
    daemon = {"user": "daemon", "password": "secret", "permissions": permissions}
    return {"authorization": {"users": [daemon, everybody]}, "no_auth_user": "all"}


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer(**users(["in.>"], ["_INBOX.>"])) as server:
        yield server


def serving(server: NatsServer, streams: dict[str, Any] = IN, **settings: Any) -> Daemon:
    nats = {**LOGIN, "reconnect_wait": "50ms"}
    return Daemon(server.url, {"streams": streams, "nats": nats, **settings})


def readiness(daemon: Daemon) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(daemon.get("/readyz")[1])
    return found


def health_of(daemon: Daemon, server: NatsServer) -> tuple[int, dict[str, Any]]:
    done = Cli(daemon, server)("health", "--output", "json")
    return done.exit_code, json.loads(done.stdout)


def test_only_what_it_needs(server: NatsServer) -> None:
    """Subject and inboxes: the built-in subscription for checkpoints is only an offer."""
    with serving(server) as daemon, RawNats(server.port) as raw:
        assert publish(raw, "in.a", b"1")["seq"] == 1
        found = readiness(daemon)
        assert found["problems"] == {}
        assert CHECKPOINTS in found["warnings"]["nats_refused"]
        assert "Permissions Violation for Subscription" in found["warnings"]["nats_refused"]
        assert health_of(daemon, server)[0] == 0
        assert daemon.metric("liftlog_nats_refused_subjects") == 1
        assert daemon.metric("liftlog_acks_refused_total") == 0
        assert_no_traceback(daemon)


def test_checkpoints_over_nats_that_somebody_wants(server: NatsServer) -> None:
    with serving(server, checkpoints={"over_nats": True}).spawn() as daemon:
        daemon.wait_listening()
        until(lambda: CHECKPOINTS in readiness(daemon)["problems"].get("streams", ""))
        server.reload(**users(["in.>", "liftlog.>"], ["_INBOX.>"]))
        daemon.wait_ready()


@pytest.mark.parametrize("how", ["by itself", "SIGHUP"])
def test_permission_is_given_later(server: NatsServer, how: str) -> None:
    server.reload(**users(["liftlog.>"], ["_INBOX.>"]))
    with serving(server).spawn() as daemon:
        daemon.wait_listening()
        until(lambda: "streams" in readiness(daemon)["problems"])
        until(lambda: "in.>" in readiness(daemon)["problems"]["streams"])
        problem = readiness(daemon)["problems"]["streams"]
        assert problem.startswith("NATS refuses in.> (stream in): Permissions Violation")
        code, found = health_of(daemon, server)
        assert (code, found["problems"]) == (11, {"streams": problem})
        assert describe(daemon, "in").state == "detached"
        server.reload(**users([">"], ["_INBOX.>"]))
        if how == "SIGHUP":
            os.kill(daemon.pid, signal.SIGHUP)
        daemon.wait_ready(40)
        assert health_of(daemon, server)[0] == 0
        with RawNats(server.port) as raw:
            assert publish(raw, "in.a", b"1")["seq"] == 1
        # Messages may have been published before.
        [loss] = describe(daemon, "in").possible_losses
        assert (loss["offset"], loss["reason"]) == (1, "NATS refused the subscription for a while")
        assert daemon.metric("liftlog_nats_disconnects_total") == 0


def test_permission_is_taken_away(server: NatsServer) -> None:
    with serving(server, {**IN, "other": {"subject": "other"}}).spawn() as daemon:
        daemon.wait_listening()
        server.reload(**users(["in.>", "other"], ["_INBOX.>"]))
        daemon.wait_ready()
        with RawNats(server.port) as raw:
            assert publish(raw, "in.a", b"1")["seq"] == 1
            server.reload(**users(["other"], ["_INBOX.>"]))
            until(lambda: "in.>" in readiness(daemon)["problems"].get("streams", ""))
            assert publish(raw, "other", b"1")["seq"] == 1
            [loss] = describe(daemon, "in").possible_losses
            assert loss["offset"] == 2
            assert loss["reason"].startswith("NATS ended the subscription: Permissions Violation")
            server.reload(**users(["in.>", "other"], ["_INBOX.>"]))
            until(lambda: daemon.ready, 40)
            assert publish(raw, "in.a", b"2")["seq"] == 2
        assert values_of(daemon, "in") == [b"1", b"2"]
        assert daemon.metric("liftlog_nats_disconnects_total") == 0


def test_acks_that_nats_refuses(server: NatsServer) -> None:
    server.reload(**users([">"], ["nothing"]))
    with serving(server) as daemon, RawNats(server.port) as raw:
        for _ in range(200):
            raw.send(b"PUB in.a _INBOX.x.y 1\r\n1\r\n")
        until(lambda: daemon.metric("liftlog_acks_refused_total") == 200)
        until(lambda: "acks_refused" in readiness(daemon)["warnings"])
        found = readiness(daemon)
        assert found["problems"] == {}
        assert "200 acks, the last to _INBOX.x.y" in found["warnings"]["acks_refused"]
        assert daemon.log.count("nats-ack-refused") == 1, "one line, not one for each"
        assert len(values_of(daemon, "in")) == 200


def test_acks_that_nats_refuses_on_ever_other_subjects(server: NatsServer) -> None:
    """Publishers choose the subjects of the acks. A refusal costs the same whatever came before."""
    server.reload(**users([">"], ["_INBOX.>"]))
    streams = {**IN, "victim": {"subject": "victim"}}
    with serving(server, streams) as daemon, RawNats(server.port) as raw:
        burst = 1000

        def attack() -> None:
            for first in range(0, 20 * burst, burst):
                last = first + burst
                raw.send(b"".join(b"PUB in.a x.%d 1\r\n1\r\n" % n for n in range(first, last)))
                until(lambda last=last: daemon.metric("liftlog_acks_refused_total") == last)

        began = daemon.cpu_seconds
        assert_nobody_waits(
            lambda: [AckVictim(server.port, "victim")], attack, bound_seconds=0.5, attempts=1
        )
        assert daemon.cpu_seconds - began < 8
        assert daemon.log.count("nats-ack-refused") == 1
        assert daemon.metric("liftlog_nats_disconnects_total") == 0


def test_create_leaves_nothing_behind(server: NatsServer) -> None:
    with serving(server) as daemon, connect_sync(daemon.pull_address) as client:
        with pytest.raises(NatsRefused, match=r"subscription to secret\.>"):
            client.create_stream("secret", subject="secret.>")
        with pytest.raises(StreamNotFound):
            client.describe_stream("secret")
        assert not (daemon.data_dir / "streams" / "secret").exists()
        done = Cli(daemon, server)("stream", "create", "secret", "--subject", "secret.>")
        assert done.exit_code == 9, done.stderr
        assert "NATS refused the subscription to secret.>" in done.stderr
        assert readiness(daemon)["problems"] == {}
        # A subscription that exists stays, whatever is asked for again.
        server.reload(**users(["nothing"], ["_INBOX.>"]))
        with pytest.raises(NatsRefused):
            client.create_stream("in", subject="in.>")
        assert client.describe_stream("in").state == "detached"


def test_too_many_subscriptions() -> None:
    """A refusal that names no subject."""
    streams = {f"s{number}": {"subject": f"s{number}"} for number in range(4)}
    with (
        NatsServer(max_subscriptions=2) as server,
        Daemon(server.url, {"streams": streams, "nats": {"reconnect_wait": "50ms"}}).spawn() as one,
    ):
        one.wait_listening()
        until(lambda: "maximum subscriptions" in str(readiness(one)["problems"]).lower())
        states = [describe(one, name).state for name in streams]
        assert 1 <= states.count("attached") <= 2, "the built-in subscription may be one of the two"
        assert one.metric("liftlog_nats_disconnects_total") == 0
        server.stop()
        server.configure(max_subscriptions=100)
        server.start()
        until(lambda: one.ready)


# --- doctor ---


def findings(server: NatsServer, daemon: Daemon) -> dict[str, list[str]]:
    """By status, what doctor says of the permissions."""
    found = Cli(daemon, server)("doctor", "-c", str(daemon.config_path), "-o", "jsonl")
    said: dict[str, list[str]] = {}
    for line in found.stdout.splitlines():
        one = json.loads(line)
        if one["check"] == "nats permissions":
            said.setdefault(one["status"], []).append(one["detail"])
    return said


@pytest.mark.long
def test_doctor_asks_for_what_the_daemon_needs(server: NatsServer) -> None:
    streams = {**IN, "shared": {"subject": "shared", "queue_group": "q"}}
    with serving(server, streams).spawn() as daemon:
        daemon.wait_listening()
        server.reload(**users([">"]))
        assert findings(server, daemon) == {
            "ok": ["may subscribe for 2 configured streams, and send acks to inboxes"]
        }
        server.reload(**users(["in.>", "shared q"], ["_INBOX.>"]))
        found = findings(server, daemon)
        assert set(found) == {"warning"}
        queue, checkpoints = sorted(found["warning"], reverse=True)
        assert queue.startswith("stream shared: shared: permissions violation")
        assert "without its queue group" in queue
        assert checkpoints.startswith("consumers cannot store checkpoints over NATS")
        server.reload(**users(["shared", "liftlog.>"], ["nothing"]))
        stream, acks = sorted(findings(server, daemon)["failed"], reverse=True)
        assert stream.startswith("stream in: in.>: permissions violation")
        assert acks.startswith("acks are refused: permissions violation for publish")


@pytest.mark.long
def test_doctor_takes_no_messages(server: NatsServer) -> None:
    """It asks without the queue group: as a member it would get every other message."""
    server.reload(**users([">"]))
    streams = {"shared": {"subject": "shared", "queue_group": "q"}}
    with serving(server, streams) as daemon, RawNats(server.port) as raw:
        count = 0
        for _ in range(2):
            doctor = Cli(daemon, server).spawn("doctor", "-c", str(daemon.config_path))
            while doctor.poll() is None:
                count += 1
                assert publish(raw, "shared", b"%d" % count)["seq"] == count
            doctor.communicate()
        assert count > 100


# --- JetStream, and where acks go ---


def add_stream(server: NatsServer, name: str, subject: str) -> None:
    async def add() -> None:
        client = await nats.connect(server.url)
        await client.jetstream().add_stream(name=name, subjects=[subject])
        await client.close()

    asyncio.run(add())


def test_jetstream_on_the_same_subject_is_told() -> None:
    streams = {**IN, "quiet": {"subject": "in.a", "acks": "off"}}
    with NatsServer(jetstream=True) as server:
        add_stream(server, "OTHER", "elsewhere")
        with serving(server, streams, logging={"level": "debug"}) as daemon:
            until(lambda: "jetstream-looked" in daemon.log)
            assert "jetstream" not in readiness(daemon)["warnings"]
            add_stream(server, "JS", "in.*")
            os.kill(daemon.pid, signal.SIGHUP)
            until(lambda: "jetstream" in readiness(daemon)["warnings"])
            assert readiness(daemon)["problems"] == {}
            assert readiness(daemon)["warnings"]["jetstream"].startswith("in: ")
            assert "JetStream acks the same" in " ".join(describe(daemon, "in").warnings)
            assert "JetStream" not in " ".join(describe(daemon, "quiet").warnings)
            assert "jetstream-on-the-same-subject" in daemon.log
        with serving(server, streams) as daemon:
            until(lambda: "jetstream" in readiness(daemon)["warnings"])


def test_the_look_at_jetstream_may_be_forbidden(server: NatsServer) -> None:
    with serving(server) as daemon, RawNats(server.port) as raw:
        os.kill(daemon.pid, signal.SIGHUP)
        until(lambda: '"event": "reloaded"' in daemon.log)
        assert publish(raw, "in.a", b"1")["seq"] == 1
        assert daemon.metric("liftlog_acks_refused_total") == 0
        assert "acks_refused" not in readiness(daemon)["warnings"]
        assert daemon.metric("liftlog_nats_refused_subjects") == 1, "that of the checkpoints"
        server.reload(**users([">"], ["_INBOX.>"]))
        os.kill(daemon.pid, signal.SIGHUP)
        until(lambda: "Publish Violation" in server.log and "$JS.API" in server.log)
        assert publish(raw, "in.a", b"2")["seq"] == 2
        assert daemon.metric("liftlog_acks_refused_total") == 0


def test_acks_only_where_the_operator_lets_them_go() -> None:
    with NatsServer() as server, RawNats(server.port) as raw, RawNats(server.port) as other:
        nats_settings = {"ack_subjects": ["_INBOX.>", "replies.*"]}
        with Daemon(server.url, {"streams": IN, "nats": nats_settings}) as daemon:
            other.sub("orders.cancel")
            other.sub("replies.a")
            other.ping()
            raw.pub("in.a", b"1", reply="orders.cancel")
            raw.pub("in.a", b"2", reply="replies.a")
            assert publish(raw, "in.a", b"3")["seq"] == 3
            assert other.next_message().subject == b"replies.a"
            assert other.no_message()
            assert daemon.metric("liftlog_acks_suppressed_total", stream="in") == 1


@pytest.mark.parametrize(
    ("subscribe", "publish", "reason"),
    [
        (["in.>", "_INBOX.>", "$JS.API.>"], ["_INBOX.>"], "does not let the daemon publish"),
        (["in.>", "$JS.API.>"], ["_INBOX.>", "$JS.API.>"], "refused the subscription to _INBOX."),
        (["in.>", "_INBOX.>"], ["_INBOX.>", "$JS.API.>"], "refused the subscription to $JS.API."),
    ],
)
def test_jetstreams_clients_get_no_answer_until_nats_allows_it(
    subscribe: list[str], publish: list[str], reason: str
) -> None:
    """A daemon that cannot ask whether JetStream is on does not answer in its place."""
    nats = {**LOGIN, "reconnect_wait": "50ms", "jetstream_api": True}
    with (
        NatsServer(**users(subscribe, publish)) as server,
        Daemon(server.url, {"streams": IN, "nats": nats}) as daemon,
        RawNats(server.port) as raw,
    ):
        until(lambda: reason in daemon.log)
        assert raw.request("$JS.API.INFO", b"").payload == b""
        server.reload(**users(["in.>", "_INBOX.>", "$JS.API.>"], ["_INBOX.>", "$JS.API.>"]))
        os.kill(daemon.pid, signal.SIGHUP)
        until(lambda: b"account_info" in raw.request("$JS.API.INFO", b"").payload)
        assert_no_traceback(daemon)


WORKERS = ["s.>", "$JS.API.>", "_INBOX.>", "$JS.FC.>"]
FOR_WORKERS = ["_INBOX.>", "$JS.API.INFO"]
ACKS = "$JS.ACK.s.>"


def test_acks_of_workers() -> None:
    """A consumer is not created where NATS refuses its acks; one that exists is shown."""
    leafnodes = {"listen": "127.0.0.1:-1"}
    with NatsServer(**users(WORKERS, FOR_WORKERS), leafnodes=leafnodes) as server:
        found = re.search(r"Listening for leafnode connections on (\S+:\d+)", server.log)
        assert found is not None, server.log
        nats = {**LOGIN, "reconnect_wait": "50ms", "jetstream_api": True, "leafnode": found[1]}
        with Daemon(server.url, {"nats": nats}) as daemon, RawNats(server.port) as raw:
            until(lambda: "jetstream-api-answers" in daemon.log)

            def asked(method: str, body: Any) -> Any:
                return raw.request(f"$JS.API.{method}", json.dumps(body).encode()).json()

            config = {"durable_name": "c", "ack_policy": "explicit"}
            wish = {"stream_name": "s", "config": config}
            assert "error" not in asked("STREAM.CREATE.s", {"name": "s", "subjects": ["s.>"]})
            refused = asked("CONSUMER.DURABLE.CREATE.s.c", wish)["error"]
            assert f"permission to subscribe to {ACKS}" in refused["description"]
            assert "worker_acks" not in readiness(daemon)["warnings"]
            leafnodes = {"listen": found[1]}
            server.reload(**users([*WORKERS, "$JS.ACK.>"], FOR_WORKERS), leafnodes=leafnodes)
            until(lambda: "error" not in asked("CONSUMER.DURABLE.CREATE.s.c", wish))
            server.reload(**users(WORKERS, FOR_WORKERS), leafnodes=leafnodes)
            until(lambda: "worker_acks" in readiness(daemon)["warnings"])
            warning = readiness(daemon)["warnings"]["worker_acks"]
            assert warning.startswith(f"NATS refuses {ACKS}: Permissions Violation")
            assert_no_traceback(daemon)
