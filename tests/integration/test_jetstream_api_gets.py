"""Gets of single messages, answered as JetStream answers them: each question is asked of both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.clients.ingesting import assert_no_traceback, until
from support.clients.raw_nats import RawNats, header_block, pub_frame
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

pytestmark = pytest.mark.integration

STREAM = {"name": "s", "subjects": ["s.>"], "allow_direct": True}
SUBJECTS = ["s.a", "s.b", "s.a", "s.c.d", "s.a", "s.b", "s.c.e", "s.a"]


class Both(NamedTuple):
    ours: RawNats
    theirs: RawNats
    times: list[str]
    """When JetStream stored each message; ours are a little later."""


@pytest.fixture(scope="module")
def both() -> Iterator[Both]:
    with (
        NatsServer() as plain,
        NatsServer(jetstream=True) as jetstream,
        Daemon(plain.url, {"nats": {"jetstream_api": True}}) as daemon,
        RawNats(plain.port) as ours,
        RawNats(jetstream.port) as theirs,
    ):
        until(lambda: ours.request("$JS.API.INFO", b"").payload != b"")
        for client in (theirs, ours):
            answer = client.request("$JS.API.STREAM.CREATE.s", json.dumps(STREAM))
            assert "error" not in json.loads(answer.payload)
            for number, subject in enumerate(SUBJECTS):
                headers = header_block({"Number": str(number)}) if number % 2 else b""
                ack = client.request(subject, b"%d" % number * number, headers=headers)
                assert json.loads(ack.payload)["seq"] == number + 1
            # The purge takes the first one away.
            answer = client.request("$JS.API.STREAM.PURGE.s", b'{"seq": 2}')
            assert json.loads(answer.payload)["purged"] == 1
        yield Both(ours, theirs, [])
        assert_no_traceback(daemon)


def without_time(answer: dict[str, Any]) -> dict[str, Any]:
    message = answer.get("message")
    if message is not None:
        message["time"] = "T" if message["time"] else ""
    return answer


GETS: list[dict[str, Any]] = [
    *({"seq": number} for number in range(11)),
    {},
    {"last_by_subj": "s.a"},
    {"last_by_subj": "s.b"},
    {"last_by_subj": "s.missing"},
    {"last_by_subj": "s.c.*"},
    {"last_by_subj": "s.>"},
    {"last_by_subj": "other"},
    {"next_by_subj": "s.b"},
    {"next_by_subj": "s.b", "seq": 2},
    {"next_by_subj": "s.b", "seq": 3},
    {"next_by_subj": "s.b", "seq": 7},
    {"next_by_subj": "s.*", "seq": 4},
    {"next_by_subj": "s.c.>", "seq": 5},
    {"seq": 3, "last_by_subj": "s.a"},
    {"next_by_subj": "s.a", "last_by_subj": "s.a"},
    {"start_time": "2000-01-01T00:00:00Z"},
    {"start_time": "2000-01-01T00:00:00.123456789+01:00", "next_by_subj": "s.b"},
    {"start_time": "2100-01-01T00:00:00Z"},
    {"start_time": "2000-01-01T00:00:00Z", "seq": 4},
    {"seq": 4, "no_hdr": True},
]


@pytest.mark.parametrize("wish", GETS, ids=json.dumps)
def test_a_message_in_json(both: Both, wish: dict[str, Any]) -> None:
    question = json.dumps(wish).encode() if wish else b""
    ours, theirs = (
        without_time(json.loads(client.request("$JS.API.STREAM.MSG.GET.s", question).payload))
        for client in (both.ours, both.theirs)
    )
    assert ours == theirs


def direct(
    client: RawNats, subject: str, payload: bytes
) -> list[tuple[str, dict[str, str], bytes]]:
    """All answers: the status line, the headers, the payload."""
    reply = client.new_reply()
    client.pub(f"$JS.API.DIRECT.GET.{subject}", payload, reply=reply)
    is_batch = b"batch" in payload or b"multi_last" in payload
    found = []
    while True:
        message = client.next_message()
        assert message.subject == reply
        lines = message.headers.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        if "Nats-Time-Stamp" in headers:
            headers["Nats-Time-Stamp"] = "T"
        found.append((lines[0], headers, message.payload))
        is_last = not is_batch or " " in lines[0]
        if is_last:
            return found


DIRECT = [
    *GETS,
    {"batch": 2, "seq": 1},
    {"batch": 3, "seq": 4},
    {"batch": 100, "seq": 1},
    {"batch": 1, "seq": 9},
    {"batch": 2, "next_by_subj": "s.a"},
    {"batch": 100, "next_by_subj": "s.a", "seq": 4},
    {"batch": 100, "next_by_subj": "s.c.*", "seq": 1},
    {"batch": 100, "next_by_subj": "s.missing", "seq": 1},
    {"batch": 100, "seq": 2, "max_bytes": 10},
    {"batch": 3, "start_time": "2000-01-01T00:00:00Z"},
    {"batch": 3, "last_by_subj": "s.a"},
    {"multi_last": ["s.a", "s.b"]},
    {"multi_last": ["s.>"]},
    {"multi_last": ["s.c.*", "s.b"]},
    {"multi_last": ["s.missing"]},
    {"multi_last": ["s.>"], "up_to_seq": 5},
    {"multi_last": ["s.a"], "up_to_seq": 4},
    {"multi_last": ["s.>"], "seq": 7},
    {"multi_last": ["s.>"], "batch": 2},
    {"multi_last": ["s.>"], "up_to_time": "2000-01-01T00:00:00Z"},
    {"multi_last": ["s.>"], "up_to_time": "2100-01-01T00:00:00Z"},
    {"multi_last": ["s.>"], "up_to_seq": 5, "up_to_time": "2100-01-01T00:00:00Z"},
]


@pytest.mark.parametrize("wish", DIRECT, ids=json.dumps)
def test_a_message_as_it_is(both: Both, wish: dict[str, Any]) -> None:
    question = json.dumps(wish).encode() if wish else b""
    assert direct(both.ours, "s", question) == direct(both.theirs, "s", question)


@pytest.mark.parametrize("subject", ["s.a", "s.c.e", "s.missing", "s.*", "s.>", "other"])
def test_the_last_of_a_subject_named_in_the_subject(both: Both, subject: str) -> None:
    asked = f"s.{subject}"
    assert direct(both.ours, asked, b"") == direct(both.theirs, asked, b"")


@pytest.mark.parametrize("payload", [b"{", b"[]", b'{"seq": -1}', b'{"seq": "1"}', b'{"seq": 1.5}'])
def test_what_is_malformed_is_refused(both: Both, payload: bytes) -> None:
    assert direct(both.ours, "s", payload) == direct(both.theirs, "s", payload)


@pytest.mark.parametrize("payload", [b"", b"null", b"{}", b" null\n"])
def test_null_is_a_request_without_wishes(both: Both, payload: bytes) -> None:
    for client in (both.ours, both.theirs):
        answer = json.loads(client.request("$JS.API.STREAM.INFO.s", payload).payload)
        assert answer["config"]["name"] == "s"
        assert client.request("$JS.API.STREAM.NAMES", payload).json()["streams"] != []
    ours, theirs = [
        client.request("$JS.API.STREAM.DELETE.missing", payload).json()["error"]["err_code"]
        for client in both[:2]
    ]
    assert ours == theirs


@pytest.mark.parametrize("pattern", [">", "s.a", "s.*", "s.c.*", "other"])
def test_subjects_are_counted(both: Both, pattern: str) -> None:
    question = json.dumps({"subjects_filter": pattern})
    found = []
    for client in (both.ours, both.theirs):
        answer = json.loads(client.request("$JS.API.STREAM.INFO.s", question).payload)
        state = answer["state"]
        found.append((state.get("subjects"), state["num_subjects"], answer.get("total", 0)))
        assert state["messages"] == len(SUBJECTS) - 1
    ours, theirs = found
    assert ours == theirs


@pytest.mark.parametrize("stream", ["quiet", "missing"])
def test_no_one_responds_to_direct_gets_that_are_not_allowed(both: Both, stream: str) -> None:
    config = {"name": "quiet", "subjects": ["quiet"]}
    lines = set()
    for client in (both.ours, both.theirs):
        client.request("$JS.API.STREAM.CREATE.quiet", json.dumps(config))
        [(line, _, payload)] = direct(client, stream, b'{"seq": 1}')
        lines.add((line, payload))
    assert lines == {("NATS/1.0 503", b"")}


def asked_of_both(both: Both, subject: str, body: Any) -> list[dict[str, Any]]:
    text = json.dumps(body) if isinstance(body, dict) else body
    return [json.loads(client.request(subject, text).payload) for client in both[:2]]


@pytest.mark.parametrize(
    "subjects",
    [["m.a", "m.b.>", "m.c.*"], ["m.a", "m.a"], ["m.>", "m.a"], ["m.a.*", "m.*.b"], ["m.a", "s.a"]],
)
def test_several_subjects(both: Both, subjects: list[str]) -> None:
    ours, theirs = asked_of_both(
        both, "$JS.API.STREAM.CREATE.m", {"name": "m", "subjects": subjects}
    )
    assert ours.get("error") == theirs.get("error")
    if "error" in ours:
        return
    assert ours["config"]["subjects"] == theirs["config"]["subjects"] == subjects
    for changed in (["m.b.>", "m.d"], ["m.>"], ["m.d", "s.b"]):
        body = {"name": "m", "subjects": changed}
        ours, theirs = asked_of_both(both, "$JS.API.STREAM.UPDATE.m", body)
        assert ours.get("error") == theirs.get("error"), changed
        for subject in ("m.a", "m.b.x", "m.d", "m.x.y"):
            ours, theirs = (
                json.loads(client.request(subject, b"x").payload or "null") for client in both[:2]
            )
            assert (ours and ours["seq"]) == (theirs and theirs["seq"]), (changed, subject)
    for answer in asked_of_both(both, "$JS.API.STREAM.DELETE.m", b""):
        assert answer["success"]


def test_a_full_stream_refuses_messages(both: Both) -> None:
    config = {"name": "full", "subjects": ["full"], "max_msgs": 3, "discard": "new"}
    ours, theirs = asked_of_both(both, "$JS.API.STREAM.CREATE.full", config)
    assert ours["config"]["discard"] == theirs["config"]["discard"] == "new"
    twice = header_block({"Nats-Msg-Id": "1"})

    def publish(headers: bytes = b"") -> tuple[Any, Any]:
        answers = [client.request("full", b"x", headers=headers) for client in both[:2]]
        return tuple((one.get("error"), one["seq"]) for one in (each.json() for each in answers))

    for headers in (twice, b"", twice, b"", b"", twice, header_block({"Nats-Msg-Id": "2"})):
        ours, theirs = publish(headers)
        assert ours == theirs
    assert ours[0] == {
        "code": 503,
        "err_code": 10077,
        "description": "maximum messages exceeded",
    }
    asked_of_both(both, "$JS.API.STREAM.PURGE.full", {"keep": 1})
    for _ in range(3):
        ours, theirs = publish()
        assert ours == theirs
    states = [one["state"] for one in asked_of_both(both, "$JS.API.STREAM.INFO.full", b"")]
    assert [(one["messages"], one["first_seq"], one["last_seq"]) for one in states] == [
        (3, 3, 5)
    ] * 2
    asked_of_both(both, "$JS.API.STREAM.UPDATE.full", {**config, "max_msgs": 4})
    ours, theirs = publish()
    assert ours == theirs == (None, 6)
    asked_of_both(both, "$JS.API.STREAM.DELETE.full", b"")


def test_what_is_denied_is_refused_in_the_same_words(both: Both) -> None:
    config = {"name": "denied", "subjects": ["denied"], "deny_delete": True, "deny_purge": True}
    asked_of_both(both, "$JS.API.STREAM.CREATE.denied", config)
    for method, body in (("MSG.DELETE", {"seq": 1}), ("PURGE", {})):
        ours, theirs = asked_of_both(both, f"$JS.API.STREAM.{method}.denied", body)
        assert ours["error"] == theirs["error"]
    asked_of_both(both, "$JS.API.STREAM.DELETE.denied", b"")
    too_many = {"name": "copies", "subjects": ["copies"], "num_replicas": 3}
    ours, theirs = asked_of_both(both, "$JS.API.STREAM.CREATE.copies", too_many)
    assert ours["error"] == theirs["error"]


def test_a_subject_that_has_its_message_refuses_another(both: Both) -> None:
    config = {"name": "once", "subjects": ["once.>"], "discard": "new", "max_msgs_per_subject": 1}
    config["discard_new_per_subject"] = True
    for answer in asked_of_both(both, "$JS.API.STREAM.CREATE.once", config):
        assert answer["config"]["discard_new_per_subject"]

    def publish(subject: str, headers: bytes = b"") -> tuple[Any, Any]:
        answers = [client.request(subject, b"x", headers=headers).json() for client in both[:2]]
        return tuple((one.get("error"), one["seq"], "duplicate" in one) for one in answers)

    twice = header_block({"Nats-Msg-Id": "1"})
    last = header_block({"Nats-Expected-Last-Subject-Sequence": "1"})
    for subject, headers in (
        *(("once.a", twice), ("once.b", b""), ("once.a", twice), ("once.a", b"")),
        *(("once.a", last), ("once.b", last), ("once.c", b"")),
    ):
        ours, theirs = publish(subject, headers)
        assert ours == theirs
    asked_of_both(both, "$JS.API.STREAM.PURGE.once", {"seq": 2})
    for subject in ("once.b", "once.a", "once.a"):
        ours, theirs = publish(subject)
        assert ours == theirs
    assert ours[0]["description"] == "maximum messages per subject exceeded"
    asked_of_both(both, "$JS.API.STREAM.DELETE.once", b"")


def test_what_is_superseded_is_not_counted(both: Both) -> None:
    config = {"name": "latest", "subjects": ["latest.>"], "max_msgs_per_subject": 1}
    asked_of_both(both, "$JS.API.STREAM.CREATE.latest", config)
    for token in "abacab":
        for client in both[:2]:
            assert client.request(f"latest.{token}", b"x").json()["seq"]
    ours, theirs = (one["state"] for one in asked_of_both(both, "$JS.API.STREAM.INFO.latest", b""))
    for key in ("messages", "num_subjects", "last_seq"):
        assert ours[key] == theirs[key], key
    assert ours["messages"] + ours["num_deleted"] == 6
    asked_of_both(both, "$JS.API.STREAM.DELETE.latest", b"")


def test_each_of_many_gets_under_way_is_answered(both: Both) -> None:
    """Gets of the last record, with hundreds under way on several connections, while it changes."""
    rounds, under_way = 30, 60
    client = both.ours
    with ExitStack() as stack:
        port = client.socket.getpeername()[1]
        others = [stack.enter_context(RawNats(port)) for _ in range(4)]
        for number in range(rounds):
            asked = []
            for one in others:
                subjects = [
                    f"s.{'abc'[i % 3]}{'.e' if i % 3 == 2 else ''}" for i in range(under_way)
                ]
                replies = [one.new_reply() for _ in subjects]
                one.send(
                    b"".join(
                        pub_frame(f"$JS.API.DIRECT.GET.s.{subject}", reply=reply)
                        for subject, reply in zip(subjects, replies, strict=True)
                    )
                )
                asked.append(dict(zip(replies, subjects, strict=True)))
            newest = f"newest {number}".encode()
            assert json.loads(client.request("s.a", newest).payload)["seq"]
            for one, wanted in zip(others, asked, strict=True):
                while wanted:
                    answer = one.next_message(30)
                    subject = wanted.pop(answer.subject)
                    assert f"Nats-Subject: {subject}\r\n".encode() in answer.headers
            found = direct(others[0], "s.s.a", b"")
            assert found[0][2] == newest  # an ack means that the next get returns the message


ACL = """
principals: {local: {unix_uid: 0}}
nats: {allow: [create, read], streams: ["mine"], attach: ["s.>"]}
"""


@pytest.mark.parametrize("allowed", ["create", "create, read"])
def test_a_refused_get_is_one_line_of_the_audit_log(tmp_path: Path, allowed: str) -> None:
    """A right to read is missing, or the reply subject is not an inbox."""
    acl = tmp_path / "acl.yaml"
    acl.write_text(ACL.replace("create, read", allowed))
    acl.chmod(0o600)
    settings = {"nats": {"jetstream_api": True}, "acl": {"file": str(acl)}}
    with NatsServer() as server, Daemon(server.url, settings) as daemon:
        with RawNats(server.port) as client:
            until(lambda: client.request("$JS.API.INFO", b"").payload != b"")
            client.request("$JS.API.STREAM.CREATE.mine", json.dumps(STREAM | {"name": "mine"}))
            assert json.loads(client.request("s.a", b"x").payload)["seq"] == 1
            before = daemon.log.count('"liftlog.audit"')
            reply = client.new_reply() if allowed == "create" else "elsewhere"
            if reply == "elsewhere":
                client.sub(reply)
            for number, (subject, payload) in enumerate(
                [
                    ("$JS.API.DIRECT.GET.mine.s.a", b""),
                    ("$JS.API.STREAM.MSG.GET.mine", b'{"last_by_subj": "s.a"}'),
                ]
            ):
                client.pub(subject, payload, reply=reply)
                answer = client.next_message(10)
                assert b"403" in answer.headers + answer.payload
                assert daemon.log.count('"liftlog.audit"') == before + number + 1
        assert_no_traceback(daemon)
