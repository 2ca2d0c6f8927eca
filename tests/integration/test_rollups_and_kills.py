"""Roll-ups by a daemon that is killed: after each start, readers get exactly the messages that no
later roll-up has erased, over NATS and over the pull socket."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from support.clients.ingesting import assert_no_traceback, until
from support.clients.raw_nats import RawNats, header_block, hpub_frame, pub_frame
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.rounds import chance_of, rounds

from liftlog.client import connect_sync

pytestmark = pytest.mark.integration

SUBJECTS = ("s.a", "s.b", "s.c.d")
KEPT = "s.kept"
"""Its newest message always exists after the first one."""


class Message(NamedTuple):
    subject: str
    kind: str


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


def asked(raw: RawNats, method: str, body: Any) -> Any:
    return raw.request(f"$JS.API.{method}", json.dumps(body).encode()).json()


def left(messages: list[Message]) -> list[int]:
    """The sequences of the messages that no later roll-up has erased."""
    kept: dict[int, str] = {}
    for seq, (subject, kind) in enumerate(messages, 1):
        if kind == "all":
            kept.clear()
        elif kind == "sub":
            kept = {one: name for one, name in kept.items() if name != subject}
        kept[seq] = subject
    return [*kept]


def frame(raw: RawNats, message: Message) -> bytes:
    reply = raw.new_reply()
    if not message.kind:
        return pub_frame(message.subject, b"x", reply=reply)
    block = header_block({"Nats-Rollup": message.kind})
    return hpub_frame(message.subject, block, b"x", reply=reply)


class Watcher:
    """Gets the newest message of `KEPT` all the time: there always is one, and it never becomes
    older."""

    def __init__(self, port: int) -> None:
        self.problem = ""
        self.found = self._last = 0
        self._port = port
        self._is_over = False
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._is_over and not self.problem:
            # A connection for each daemon: a request that a killed daemon had is never answered.
            with contextlib.suppress(OSError, ValueError, AssertionError):
                with RawNats(self._port, timeout=0.5) as raw:
                    self._ask(raw)
            time.sleep(0.02)

    def _ask(self, raw: RawNats) -> None:
        while not self._is_over and not self.problem:
            answer = asked(raw, "STREAM.MSG.GET.s", {"last_by_subj": KEPT})
            seq = answer.get("message", {}).get("seq", 0)
            if answer.get("error", {}).get("err_code") == 10037 or 0 < seq < self._last:
                self.problem = f"{answer} after {self._last}"
            self._last = max(self._last, seq)
            self.found += bool(seq)

    def end(self) -> None:
        self._is_over = True
        self._thread.join(60)


def test_what_is_left_after_kills(server: NatsServer) -> None:
    chance = chance_of("roll-ups and kills")
    with (
        Daemon(server.url, {"nats": {"jetstream_api": True}}) as daemon,
        RawNats(server.port, timeout=60) as raw,
    ):
        until(lambda: raw.request("$JS.API.INFO", b"").payload != b"")
        config = {"name": "s", "subjects": ["s.>"], "allow_rollup_hdrs": True}
        assert "error" not in asked(raw, "STREAM.CREATE.s", config)
        assert raw.request(KEPT, b"x").json()["seq"] == 1
        messages = [Message(KEPT, "")]
        watcher = Watcher(server.port)
        for number in range(rounds(4)):
            sent = [
                Message(KEPT, "sub")
                if chance.random() < 0.2
                else Message(chance.choice(SUBJECTS), chance.choice(("", "", "", "sub")))
                for _ in range(200)
            ]
            if number % 2:
                sent[chance.randrange(100)] = Message(KEPT, "all")
            for start in range(0, len(sent), 10):
                raw.send(b"".join(frame(raw, one) for one in sent[start : start + 10]))
            for _ in range(chance.randrange(1, 200)):
                assert "seq" in raw.next_message().json()
            if chance.random() < 0.5:
                time.sleep(chance.random() / 5)  # the hidden records may be listed meanwhile
            daemon.kill()
            daemon.start()
            raw.forget()
            until(lambda: raw.request("$JS.API.INFO", b"").payload != b"")
            state = asked(raw, "STREAM.INFO.s", {"deleted_details": True})["state"]
            messages = [*messages, *sent][: state["last_seq"]]
            assert len(messages) == state["last_seq"]
            expected = left(messages)
            assert state["messages"] == len(expected)
            assert state["first_seq"] == expected[0]
            assert {*range(state["first_seq"], state["last_seq"] + 1)} - {*expected} == {
                *state.get("deleted", ())
            }
            with connect_sync(daemon.pull_address) as client:
                found = [one.offset for one in client.read("s", start="earliest", until="end")]
            assert found == expected
        until(lambda: watcher.found or watcher.problem)
        watcher.end()
        assert not watcher.problem
        assert watcher.found > 0
        assert_no_traceback(daemon)
