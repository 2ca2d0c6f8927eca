"""Deletions over NATS by a daemon that is killed: exactly the messages of the answered requests
stay deleted. Also tests the permissions for deletions."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clients.ingesting import assert_no_traceback, until
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.rounds import chance_of, rounds

from acl.tokens import hash_token

pytestmark = pytest.mark.integration

COUNT = 300
"""Messages, on three subjects."""
ACL = f"""
principals: {{p: {{token_hash: "{hash_token("a-token-of-some-length")}"}}}}
nats: {{allow: [%s], streams: [a*], attach: ['a.>']}}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


def answers(raw: RawNats) -> None:
    until(lambda: raw.request("$JS.API.INFO", b"").payload != b"")


def asked(raw: RawNats, method: str, body: Any) -> Any:
    return raw.request(f"$JS.API.{method}", json.dumps(body).encode()).json()


@pytest.mark.parametrize("history", [-1, 1000])
def test_what_was_answered_stays_deleted(server: NatsServer, history: int) -> None:
    chance = chance_of(f"deleted {history}")
    with (
        Daemon(server.url, {"nats": {"jetstream_api": True}}) as daemon,
        RawNats(server.port, timeout=60) as raw,
    ):
        answers(raw)
        name = "k" if history > 0 else "s"
        config = {"name": name, "subjects": [f"{name}.>"], "max_msgs_per_subject": history}
        assert "error" not in asked(raw, f"STREAM.CREATE.{name}", config)
        for number in range(COUNT):
            assert "seq" in raw.request(f"{name}.{number % 3}", b"%d" % number).json()
        requested: set[int] = set()
        answered: set[int] = set()
        for _ in range(rounds(3)):
            left = sorted(set(range(1, COUNT + 1)) - requested)
            some = chance.sample(left, 40)
            replies = {raw.new_reply(): seq for seq in some}
            for reply, seq in replies.items():
                raw.pub(f"$JS.API.STREAM.MSG.DELETE.{name}", json.dumps({"seq": seq}), reply=reply)
            requested |= set(some)
            for _ in range(chance.randrange(1, 30)):
                message = raw.next_message()
                assert message.json().get("success"), message.payload
                answered.add(replies[message.subject])
            time.sleep(chance.random() / 50)
            daemon.kill()
            daemon.start()
            raw.forget()
            answers(raw)
            state = asked(
                raw, f"STREAM.INFO.{name}", {"deleted_details": True, "subjects_filter": ">"}
            )
            gone = set(state["state"].get("deleted", ()))
            gone |= set(range(1, state["state"]["first_seq"]))
            assert answered <= gone <= requested
            assert state["state"]["messages"] == COUNT - len(gone)
            kept = set(range(1, COUNT + 1)) - gone
            for number in range(3):
                last = max(seq for seq in kept if (seq - 1) % 3 == number)
                found = asked(raw, f"STREAM.MSG.GET.{name}", {"last_by_subj": f"{name}.{number}"})
                assert found["message"]["seq"] == last
            requested = gone
            answered &= gone
        assert_no_traceback(daemon)
        asked(raw, f"STREAM.DELETE.{name}", {})


def test_who_may_delete(server: NatsServer, tmp_path: Path) -> None:
    acl = tmp_path / "acl.yaml"
    acl.touch(mode=0o600)
    acl.write_text(ACL % "create, read")
    settings = {"nats": {"jetstream_api": True}, "acl": {"file": str(acl)}}
    with Daemon(server.url, settings) as daemon, RawNats(server.port, timeout=60) as raw:
        answers(raw)
        assert "error" not in asked(raw, "STREAM.CREATE.a", {"name": "a", "subjects": ["a.>"]})
        assert raw.request("a.1", b"x").json()["seq"] == 1
        for method, body in (
            ("STREAM.MSG.DELETE.a", {"seq": 1}),
            ("STREAM.PURGE.a", {"filter": "a.1"}),
        ):
            error = asked(raw, method, body)["error"]
            assert error["code"] == 403, error
        assert asked(raw, "STREAM.INFO.a", {})["state"]["messages"] == 1
        acl.write_text(ACL % "create, read, delete")
        os.kill(daemon.pid, signal.SIGHUP)
        until(lambda: asked(raw, "STREAM.MSG.DELETE.a", {"seq": 1}).get("success", False))
