"""Consumers with acks on a daemon of their own: rights, restarts, limits of NATS, bad states."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clients.ingesting import assert_no_traceback, until
from support.clients.raw_nats import RawMessage, RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from acl.tokens import hash_token

pytestmark = pytest.mark.integration

SECOND = 10**9
PATIENCE = 60


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer(leafnodes={"listen": "127.0.0.1:-1"}) as server:
        yield server


def started(server: NatsServer, **more: Any) -> Daemon:
    found = re.search(r"Listening for leafnode connections on (\S+:\d+)", server.log)
    assert found is not None, server.log
    settings = {
        "nats": {"jetstream_api": True, "leafnode": found[1]},
        "streams": {"jobs": {"subject": "jobs.>"}},
        **more,
    }
    return Daemon(server.url, settings)


def answers(daemon: Daemon) -> bool:
    return "jetstream-api-answers" in daemon.log and "leaf-connected" in daemon.log


def asked(raw: RawNats, method: str, body: Any) -> Any:
    return raw.request(f"$JS.API.{method}", json.dumps(body).encode()).json()


def is_back(raw: RawNats) -> bool:
    answer = raw.request("$JS.API.CONSUMER.INFO.jobs.c", b"").payload
    return bool(answer) and "error" not in json.loads(answer)


def create(raw: RawNats, **config: Any) -> Any:
    body = {
        "stream_name": "jobs",
        "config": {"durable_name": "c", "ack_policy": "explicit", **config},
    }
    return asked(raw, "CONSUMER.DURABLE.CREATE.jobs.c", body)


def pulled(raw: RawNats, batch: int = 100) -> list[RawMessage]:
    """All that is there now, at most `batch`."""
    body = json.dumps({"batch": batch, "no_wait": True})
    raw.pub("$JS.API.CONSUMER.MSG.NEXT.jobs.c", body, reply=raw.new_reply())
    found = []
    while (message := raw.next_message()).reply:
        found.append(message)
        if len(found) == batch:
            break
    return found


def payloads(messages: list[RawMessage]) -> list[bytes]:
    return [one.payload for one in messages]


def publish(raw: RawNats, *subjects: str) -> None:
    for subject in subjects:
        assert "seq" in raw.request(f"jobs.{subject}", subject.encode()).json()


def acl(file: Path, *subjects: str) -> None:
    rule = {"allow": ["create", "read"], "streams": ["jobs"], "attach": [">"]}
    limits = {"subjects": list(subjects)} if subjects else {}
    principals = {"somebody": {"token_hash": hash_token("0123456789abcdef0123")}}
    file.write_text(json.dumps({"principals": principals, "roles": {}, "bindings": {},
                                "nats": {**rule, **limits}}))  # fmt: skip
    file.chmod(0o600)


def test_a_restart_gives_no_more_rights(server: NatsServer, tmp_path: Path) -> None:
    file = tmp_path / "acl.yaml"
    acl(file, "jobs.a")
    with (
        started(server, acl={"file": str(file)}) as daemon,
        RawNats(server.port, timeout=PATIENCE) as raw,
    ):
        until(lambda: answers(daemon))
        publish(raw, "a", "b")
        assert "error" not in create(raw)
        assert payloads(pulled(raw)) == [b"a"]
        daemon.kill()
        daemon.restart()
        daemon.wait_ready()
        until(lambda: is_back(raw))
        publish(raw, "b", "a")
        assert payloads(pulled(raw, 1)) == [b"a"]
        acl(file)
        os.kill(daemon.pid, signal.SIGHUP)
        until(lambda: '"reloaded"' in daemon.log)
        publish(raw, "b")
        assert payloads(pulled(raw, 1)) == [b"b"]
        assert_no_traceback(daemon)


def test_an_ack_of_a_deleted_stream_does_nothing(server: NatsServer) -> None:
    with started(server) as daemon, RawNats(server.port, timeout=PATIENCE) as raw:
        until(lambda: answers(daemon))
        stream = {"name": "other", "subjects": ["other.>"]}
        body = {"stream_name": "other", "config": {"durable_name": "c", "ack_policy": "explicit"}}
        replies = []
        for _ in range(2):
            assert "error" not in asked(raw, "STREAM.CREATE.other", stream)
            assert "seq" in raw.request("other.a", b"x").json()
            assert "error" not in asked(raw, "CONSUMER.DURABLE.CREATE.other.c", body)
            raw.pub("$JS.API.CONSUMER.MSG.NEXT.other.c", b"1", reply=raw.new_reply())
            replies.append(raw.next_message().reply)
            if len(replies) == 1:
                assert asked(raw, "STREAM.DELETE.other", {})["success"]
        raw.pub(replies[0], b"+ACK")
        raw.ping()
        assert asked(raw, "CONSUMER.INFO.other.c", {})["num_ack_pending"] == 1
        raw.request(replies[1], b"+ACK")
        assert asked(raw, "CONSUMER.INFO.other.c", {})["num_ack_pending"] == 0
        assert_no_traceback(daemon)


def test_waiting_pulls_end_after_a_kill(server: NatsServer) -> None:
    """Clients pull again at once then, and need not miss two heartbeats first."""
    with started(server) as daemon, RawNats(server.port, timeout=PATIENCE) as raw:
        until(lambda: answers(daemon))
        assert "error" not in create(raw)
        publish(raw, "a")
        body = json.dumps({"batch": 5, "expires": 600 * SECOND})
        raw.pub("$JS.API.CONSUMER.MSG.NEXT.jobs.c", body, reply=raw.new_reply())
        assert raw.next_message().payload == b"a"
        daemon.kill()
        daemon.restart()
        status = raw.next_message().headers
        assert status.startswith(b"NATS/1.0 408 Request Timeout")
        assert b"Nats-Pending-Messages: 4\r\n" in status
        assert_no_traceback(daemon)


def test_a_pull_that_the_killed_daemon_has_not_read_ends(server: NatsServer) -> None:
    """Its client counts it, and would pull again only after two missed heartbeats: 30 s with the
    clients' defaults."""
    with started(server) as daemon, RawNats(server.port, timeout=PATIENCE) as raw:
        until(lambda: answers(daemon))
        assert "error" not in create(raw)
        inbox = raw.new_reply()

        def pull(batch: int) -> None:
            body = {"batch": batch, "expires": 600 * SECOND, "idle_heartbeat": 300 * SECOND}
            raw.pub("$JS.API.CONSUMER.MSG.NEXT.jobs.c", json.dumps(body), reply=inbox)

        for batch in (3, 2):
            pull(batch)
            publish(raw, *"abc"[:batch])
            for _ in range(batch):
                raw.request(raw.next_message().reply, b"+ACK")
        os.kill(daemon.pid, signal.SIGSTOP)
        pull(2)
        raw.ping()  # NATS has the pull
        daemon.kill()
        daemon.restart()
        status = raw.next_message().headers
        assert status.startswith(b"NATS/1.0 408 Request Timeout")
        assert b"Nats-Pending-Messages: 3\r\n" in status, "all that it may expect"
        pull(3)
        publish(raw, "d")
        assert raw.next_message().payload == b"d"
        assert_no_traceback(daemon)


def test_a_full_stop_and_start_keeps_everything(server: NatsServer) -> None:
    with started(server) as daemon, RawNats(server.port, timeout=PATIENCE) as raw:
        until(lambda: answers(daemon))
        publish(raw, *"abcdefgh")
        assert "error" not in create(
            raw, deliver_policy="last_per_subject", filter_subject="jobs.>"
        )
        first = pulled(raw, 5)
        for message in first[:3]:
            raw.request(message.reply, b"+ACK")
        raw.request(first[3].reply, b"-NAK")
        daemon.stop()
        daemon.restart()
        daemon.wait_ready()
        until(lambda: is_back(raw))
        info = asked(raw, "CONSUMER.INFO.jobs.c", {})
        assert (info["num_ack_pending"], info["ack_floor"]["stream_seq"]) == (2, 3)
        assert payloads(pulled(raw)) == [b"d", b"f", b"g", b"h"]
        assert_no_traceback(daemon)


def test_snapshots_between_acks_and_turns(server: NatsServer) -> None:
    """The journal asks for snapshots while acks have changed the state that no turn has written."""
    with started(server) as daemon, RawNats(server.port, timeout=PATIENCE) as raw:
        until(lambda: answers(daemon))
        for number in range(12_000):
            raw.pub("jobs.a", b"%d" % number)
        publish(raw, "last")
        assert "error" not in create(raw, max_ack_pending=20_000)
        messages = pulled(raw, 12_001)
        # Acks do not wait for each other while a pull waits for messages.
        body = json.dumps({"batch": 1, "expires": 600 * 10**9})
        raw.pub("$JS.API.CONSUMER.MSG.NEXT.jobs.c", body, reply=raw.new_reply())
        for message in messages[::2]:
            raw.pub(message.reply, b"+ACK")
            raw.ping()
        raw.request(messages[2].reply, b"+ACK")
        before = asked(raw, "CONSUMER.INFO.jobs.c", {})
        assert before["num_ack_pending"] == 6000
        if not daemon.metric("liftlog_journal_snapshots_total"):
            pytest.skip(
                "turns of many acks made too few changes for a snapshot: the machine is busy"
            )
        daemon.kill()
        daemon.restart()
        daemon.wait_ready()
        until(lambda: is_back(raw))
        after = asked(raw, "CONSUMER.INFO.jobs.c", {})
        for key in ("num_ack_pending", "num_redelivered", "num_pending"):
            assert after[key] == before[key], key
        # The time of the last ack is not stored.
        assert after["ack_floor"].items() <= before["ack_floor"].items()
        assert_no_traceback(daemon)


@pytest.mark.long
def test_a_backup_has_the_states_of_consumers(server: NatsServer, tmp_path: Path) -> None:
    """After a restore, messages that were acked before the backup are not delivered again. Those
    that were acked later are."""
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    restored.mkdir()
    with (
        started(server) as daemon,
        RawNats(server.port, timeout=PATIENCE) as raw,
    ):
        until(lambda: answers(daemon))
        assert "error" not in create(raw)
        publish(raw, *"abcde")
        early = pulled(raw, 4)
        for message in early[::2]:
            assert raw.request(message.reply, b"+ACK").payload == b""
        liftlog("backup", "create", str(daemon.data_dir), str(backup))
        publish(raw, "f", "g")
        for message in [early[1], *pulled(raw)]:
            assert raw.request(message.reply, b"+ACK").payload == b""
        liftlog("backup", "verify", str(backup))
        liftlog("backup", "restore", str(backup), str(restored))
    again = started(server, data_dir=str(restored))
    again.data_dir = restored
    with again, RawNats(server.port, timeout=PATIENCE) as raw:
        until(lambda: answers(again) and is_back(raw))
        info = json.loads(raw.request("$JS.API.CONSUMER.INFO.jobs.c", b"").payload)
        assert (info["num_pending"], info["num_ack_pending"]) == (1, 2)
        assert payloads(pulled(raw)) == [b"e"]
        # An ack of a record that only the lost history had.
        assert raw.request(early[1].reply, b"+ACK").payload == b""
        assert_no_traceback(again)


def liftlog(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "liftlog", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
