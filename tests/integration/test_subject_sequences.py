"""`Nats-Expected-Last-Subject-Sequence`: the answers of JetStream, also after whatever happens to
the log."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support.clients.ingesting import ack_of, assert_no_traceback, publish, until
from support.clients.raw_nats import RawNats, header_block, hpub_frame
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.client import connect_sync

pytestmark = pytest.mark.integration

EXPECTED = "Nats-Expected-Last-Subject-Sequence"
ABOUT = f"{EXPECTED}-Subject"
STREAMS = {
    "ours": {"subject": "ours.>", "subject_sequences": {}},
    "kv": {
        "subject": "kv.>",
        "subject_sequences": {},
        "compaction": {"tombstone_retention": "0s"},
        "dedupe_window": "0s",
    },
    "few": {"subject": "few.>", "subject_sequences": {"max_subjects": 3}},
    "off": {"subject": "off.>"},
}


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer(jetstream=True) as server:
        yield server


@pytest.fixture(scope="module")
def daemon(server: NatsServer) -> Iterator[Daemon]:
    with Daemon(server.url, {"streams": STREAMS}) as daemon:
        yield daemon
        assert_no_traceback(daemon)


@pytest.fixture
def raw(server: NatsServer, daemon: Daemon) -> Iterator[RawNats]:
    with RawNats(server.port) as client:
        yield client


def ask(raw: RawNats, subject: str, headers: Mapping[str, Any] | None = None) -> Any:
    """The offset, or (code, err_code, description)."""
    block = header_block({name: str(value) for name, value in (headers or {}).items()})
    answer = ack_of(raw.request(subject, b"v", headers=block if headers else b""))
    error = answer.get("error")
    if error is None:
        return answer["seq"]
    return error["code"], error["err_code"], error["description"]


def expecting(last: int | str, about: str | None = None) -> dict[str, Any]:
    return {EXPECTED: last} | ({} if about is None else {ABOUT: about})


def wrong(last: int) -> tuple[int, int, str]:
    return 400, 10071, f"wrong last sequence: {last}"


# --- beside JetStream itself ---


def jetstream(raw: RawNats, call: str, **arguments: Any) -> Any:
    answer = raw.request(f"$JS.API.STREAM.{call}", json.dumps(arguments)).json()
    assert "error" not in answer, answer
    return answer


def test_the_answers_of_jetstream(raw: RawNats, daemon: Daemon) -> None:
    """The same messages to both, one after the other; purges of the oldest in between."""
    jetstream(
        raw,
        "CREATE.theirs",
        name="theirs",
        subjects=["theirs.>"],
        storage="memory",
    )
    chance = random.Random(11)
    names = ["a", "b", "a.b", "caf\u00e9", "d"]
    last = dict.fromkeys(names, 0)
    offset = refused = 0
    with connect_sync(daemon.pull_address) as client:
        for step in range(600):
            if step % 50 == 49:
                first = chance.randint(max(1, offset - 20), offset + 1)
                client.truncate_prefix("ours", first)
                jetstream(raw, "PURGE.theirs", seq=first)
            name = chance.choice(names)
            headers: dict[str, Any] = {}
            kind = chance.random()
            if kind < 0.7:
                headers[EXPECTED] = chance.choice([last[name], last[name], 0, offset, "x", ""])
            if kind > 0.5:
                headers[ABOUT] = chance.choice(["a", "b", "nobody", ""])
                if EXPECTED in headers and headers[ABOUT]:
                    about = headers[ABOUT]
                    headers[EXPECTED] = chance.choice([last.get(about, 0), last[name]])
                    headers[ABOUT] = "{}." + about
            theirs, ours = (
                ask(
                    raw,
                    f"{prefix}.{name}",
                    {k: str(v).format(prefix) for k, v in headers.items()},
                )
                for prefix in ("theirs", "ours")
            )
            assert ours == theirs, (step, name, headers)
            if isinstance(ours, int):
                offset = last[name] = ours
            else:
                refused += 1
    assert 100 < refused < 500


def test_one_of_many_gets_it(raw: RawNats) -> None:
    """In one chunk, in the order of arrival: each expectation is judged by what came before it,
    committed or not."""
    first = ask(raw, "ours.race")
    inbox = raw.new_reply().rpartition(b".")[0]
    frames = [
        hpub_frame(
            "ours.race",
            header_block(expecting(first + number // 3)),
            b"%d" % number,
            reply=inbox + b".%d" % number,
        )
        for number in range(300)
    ]
    raw.send(b"".join(frames))
    answers = {}
    for _ in range(300):
        message = raw.next_message()
        answers[int(message.subject.rpartition(b".")[2])] = message.json()
    winners = {number: answer["seq"] for number, answer in answers.items() if answer["seq"]}
    assert winners == {number: first + 1 + number // 3 for number in range(0, 300, 3)}


# --- what happens to the log ---


def test_exact_after_a_kill_and_after_a_stop(raw: RawNats, daemon: Daemon) -> None:
    offsets = {name: ask(raw, f"ours.{name}") for name in ("k1", "k2", "k3")}
    offsets["k1"] = ask(raw, "ours.k1", expecting(offsets["k1"]))
    for end in (daemon.kill, daemon.stop):
        end()
        daemon.start()
        for name, offset in offsets.items():
            assert ask(raw, f"ours.{name}", expecting(offset - 1)) == wrong(offset)
            offsets[name] = ask(raw, f"ours.{name}", expecting(offset))
        assert ask(raw, "ours.never", expecting(7)) == wrong(0)


def test_a_tombstone_that_is_gone_lets_a_subject_be_new(raw: RawNats, daemon: Daemon) -> None:
    def put(name: str, expected: int, *, tombstone: bool = False) -> Any:
        headers = expecting(expected) | {"Liftlog-Key": name}
        if tombstone:
            headers["Liftlog-Tombstone"] = "true"
        return ask(raw, f"kv.{name}", headers)

    with connect_sync(daemon.pull_address) as client:
        first = put("deleted", 0)
        assert isinstance(first, int)
        assert put("deleted", 0) == wrong(first)
        kept = put("kept", 0)
        deleted = put("deleted", first, tombstone=True)
        assert put("deleted", 0) == wrong(deleted)

        def compacted() -> bool:
            client.compact_stream("kv")
            return bool(put("deleted", 1) == wrong(0))

        until(compacted, 60)
        assert put("kept", 0) == wrong(kept)
        again = put("deleted", 0)
        assert isinstance(again, int)
    daemon.kill()
    daemon.start()
    assert put("deleted", 1) == wrong(again)
    assert put("kept", 0) == wrong(kept)


def test_more_subjects_than_are_kept(raw: RawNats, daemon: Daemon) -> None:
    offsets = [ask(raw, f"few.{name}", expecting(0)) for name in "abc"]
    assert offsets == [1, 2, 3]
    assert ask(raw, "few.d") == 4
    unknown = ask(raw, "few.a", expecting(1))
    assert unknown[:2] == (503, 10163)
    assert ask(raw, "few.new", expecting(0))[:2] == (503, 10163)
    assert ask(raw, "few.b", expecting(2)) == 5
    assert ask(raw, "few.a") == 6, "without an expectation it is stored"
    assert ask(raw, "few.a", expecting(6)) == 7
    with connect_sync(daemon.pull_address) as client:
        client.truncate_prefix("few", 5)
    assert ask(raw, "few.new", expecting(0)) == 8, "what it had to let go is not there any more"


# --- where it is not done ---


def test_off(raw: RawNats) -> None:
    for headers in (expecting(0), expecting(""), {ABOUT: "off.x"}):
        code, err_code, text = ask(raw, "off.x", headers)
        assert (code, err_code) == (400, 10003)
        assert "subject_sequences" in text
    assert ask(raw, "off.x") == 1


def test_wildcards_are_refused_by_name(raw: RawNats) -> None:
    for about in ("ours.*", "ours.>", ">"):
        code, err_code, text = ask(raw, "ours.x", expecting(0, about))
        assert (code, err_code) == (400, 10003)
        assert ABOUT in text


def test_switched_on_and_off_while_the_stream_runs(raw: RawNats, daemon: Daemon) -> None:
    with connect_sync(daemon.pull_address) as client:
        client.create_stream("late", "late.>")
        assert publish(raw, "late.a")["seq"] == 1
        assert ask(raw, "late.a", expecting(1))[1] == 10003
        client.update_stream("late", {"subject_sequences": {}})
        until(lambda: ask(raw, "late.a", expecting(9))[1] != 10163)
        assert ask(raw, "late.a", expecting(0)) == wrong(1)
        assert ask(raw, "late.b", expecting(0)) == 2
        assert ask(raw, "late.a", expecting(1)) == 3
        client.update_stream("late", {"subject_sequences": None})
        assert ask(raw, "late.a", expecting(3))[1] == 10003
        client.delete_stream("late")
