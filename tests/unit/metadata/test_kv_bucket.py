"""The bucket of the metadata: names, what may be wrong with it, and answers that make no sense."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftlog.cluster.store import Entry, StoreUnavailable
from liftlog.server.metadata.kv_bucket import (
    ABSENT,
    Bucket,
    Found,
    Notice,
    Refused,
    found_message,
)
from liftlog.server.metadata.kv_view import BucketView

BUCKET = Bucket("prod")


def info(**changes: Any) -> bytes:
    answer = {
        "created": "2026-01-01T00:00:00Z",
        "config": BUCKET.configuration(3),
        "state": {"messages": 4, "last_seq": 11},
    }
    return json.dumps(answer | changes).encode()


def test_names() -> None:
    assert BUCKET.subject("stream.orders-1") == "$KV.liftlog_prod.stream.orders-1"
    assert BUCKET.key("$KV.liftlog_prod.stream.orders-1") == "stream.orders-1"
    assert BUCKET.subjects("") == "$KV.liftlog_prod.>"
    assert BUCKET.subjects("stream.") == "$KV.liftlog_prod.stream.>"
    assert BUCKET.subjects("stream.or") == "$KV.liftlog_prod.stream.>"
    assert BUCKET.subjects("st") == "$KV.liftlog_prod.>"


@pytest.mark.parametrize("key", ["", ".", "a.", ".a", "a..b", "a b", "a.*", ">", "a\r\nPUB", "é"])
def test_what_cannot_be_a_key(key: str) -> None:
    with pytest.raises(ValueError, match="key"):
        BUCKET.subject(key)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, ""),
        ({"num_replicas": 1}, ""),
        ({"allow_direct": True}, "allow_direct"),
        ({"storage": "memory"}, "storage"),
        ({"max_msgs_per_subject": 5}, "max_msgs_per_subject"),
        ({"max_age": 1_000}, "max_age"),
        ({"max_bytes": 1_000}, "max_bytes"),
        ({"max_msg_size": 1_000}, "max_msg_size"),
        ({"max_msg_size": -1, "max_age": 0, "max_msgs": -1}, ""),
        ({"allow_msg_ttl": None}, "allow_msg_ttl"),
        ({"subject_delete_marker_ttl": None}, "subject_delete_marker_ttl"),
        ({"republish": None}, "republished"),
        ({"republish": {"src": "$KV.liftlog_prod.>", "dest": "elsewhere.>"}}, "republished"),
        ({"sealed": True}, "sealed"),
    ],
)
def test_a_bucket_that_cannot_be_used_says_why(changes: dict[str, Any], problem: str) -> None:
    config = BUCKET.configuration(3) | changes
    state = BUCKET.state(info(config={k: v for k, v in config.items() if v is not None}))
    assert problem in state.problem
    assert bool(state.problem) == bool(problem)
    assert (state.last_sequence, state.messages) == (11, 4)


# --- answers ---


def message(headers: bytes = b"", data: bytes = b"{}", **more: Any) -> bytes:
    told = {
        "seq": 7,
        "hdrs": base64.b64encode(headers).decode(),
        "data": base64.b64encode(data).decode(),
    }
    return json.dumps({"message": told | more}).encode()


def refusal(code: int, status: int = 400, **more: Any) -> bytes:
    error = {"code": status, "err_code": code, "description": "no"}
    return json.dumps({"error": error} | more).encode()


def test_what_a_key_holds() -> None:
    assert found_message(message()) == Found(7, b"{}")
    assert found_message(message(data=b"")) == Found(7, b"")
    for line in (b"KV-Operation: DEL", b"KV-Operation: PURGE", b"Nats-Marker-Reason: MaxAge"):
        found = found_message(message(b"NATS/1.0\r\n" + line + b"\r\n\r\n", b""))
        assert found == Found(7, None)
        assert found.entry is None
    assert found_message(refusal(10037, 404)) == ABSENT
    with pytest.raises(Refused) as raised:
        found_message(refusal(10059, 404))
    assert raised.value.code == 10059


def test_acks_of_others_are_not_ours() -> None:
    """A stream of liftlog that records `>` answers too, and so may anyone."""
    assert BUCKET.revision(b'{"stream":"KV_liftlog_prod","seq":5}') == (5, True)
    again = b'{"stream":"KV_liftlog_prod","seq":5,"duplicate":true}'
    assert BUCKET.revision(again) == (5, False)
    assert Refused(400, 10071, "wrong last sequence: 12").found_sequence == 12
    assert Refused(400, 10164, "wrong last sequence").found_sequence is None
    for other in (
        b'{"stream":"orders","seq":5}',
        refusal(10071, stream="orders"),
        refusal(10071),
        b"",
        b"+OK",
        b"[]",
        b'{"stream":"KV_liftlog_prod"}',
        b'{"stream":"KV_liftlog_prod","seq":"x"}',
    ):
        assert BUCKET.revision(other) is None
    with pytest.raises(Refused):
        BUCKET.revision(refusal(10071, stream="KV_liftlog_prod"))
    assert Refused(400, 10071, "").is_certain
    assert not Refused(503, 10077, "").is_certain


@given(st.binary() | st.recursive(
    st.none() | st.integers() | st.text() | st.sampled_from(["message", "state", "error"]),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["message", "error", "code", "err_code", "seq", "hdrs", "data", "config",
                         "state", "subjects", "stream", "created", "last_seq"]), inner),
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_answers_that_make_no_sense(payload: bytes) -> None:
    judge(payload)


def judge(payload: bytes) -> None:
    for parse in (found_message, BUCKET.state, BUCKET.keys, BUCKET.revision):
        with contextlib.suppress(Refused, StoreUnavailable):
            parse(payload)


def test_answers_that_are_hostile() -> None:
    judge(b"[" * 100_000)
    judge(info(config=BUCKET.configuration(3) | {"republish": "x", "max_age": "1"}))
    judge(info(state={"messages": 1, "last_seq": 1, "subjects": ["x"]}))
    judge(message(data=b"") + b"x")
    with pytest.raises(StoreUnavailable, match="another service"):
        found_message(json.dumps({"message": {"seq": 1, "hdrs": "!"}}).encode())


HEADERS = (
    b"NATS/1.0\r\nNats-Stream: KV_liftlog_prod\r\nNats-Subject: $KV.liftlog_prod.stream.a\r\n"
    b"Nats-Sequence: 9\r\nNats-Last-Sequence: 4\r\n\r\n"
)
SUBJECT = b"liftlog.prod.meta.stream.a"


def test_notices() -> None:
    assert BUCKET.notice(SUBJECT, HEADERS, b"{}") == Notice("stream.a", Found(9, b"{}"))
    marker = HEADERS.replace(b"Nats-Last", b"Nats-Marker-Reason: MaxAge\r\nNats-Last")
    assert BUCKET.notice(SUBJECT, marker, b"") == Notice("stream.a", Found(9, None))
    for old, new in (
        (b"Nats-Stream: KV_liftlog_prod", b"Nats-Stream: KV_other"),
        (b"Nats-Sequence: 9", b"Nats-Sequence: -9"),
        (b"Nats-Sequence: 9", b"Nats-Sequence: " + b"9" * 30),
        (b"Nats-Sequence: 9", b"X: y"),
        (b"stream.a", b"stream.b"),
    ):
        assert BUCKET.notice(SUBJECT, HEADERS.replace(old, new), b"{}") is None
    assert BUCKET.notice(SUBJECT, b"", b"{}") is None


# --- what is known ---


def notice(key: str, sequence: int, value: bytes | None = b"") -> Notice:
    return Notice(key, Found(sequence, value))


def test_notices_that_follow_each_other_miss_nothing() -> None:
    view = BucketView()
    assert view.has_missed
    assert view.scanned({"a": Found(2, b"1"), "b": Found(4, None)}, 4) == {"a": Entry(2, b"1")}
    assert not view.has_missed
    assert view.note(notice("a", 5, b"2")) == {"a": Entry(5, b"2")}
    assert view.note(notice("b", 6, b"3")) == {"b": Entry(6, b"3")}
    assert view.note(notice("a", 7, None)) == {"a": None}
    assert not view.has_missed
    assert view.note(notice("b", 6, b"3")) == {}  # again
    assert view.note(notice("b", 5, b"x")) == {}  # late
    assert not view.has_missed
    assert view.note(notice("c", 9, b"4")) == {"c": Entry(9, b"4")}
    assert view.has_missed
    assert view.entries("") == {"b": Entry(6, b"3"), "c": Entry(9, b"4")}


def test_a_scan_by_a_server_that_lags_takes_nothing_back() -> None:
    view = BucketView()
    view.scanned({"a": Found(9, b"new"), "b": Found(8, b"b"), "c": Found(3, b"c")}, 9)
    assert view.scanned({"a": Found(2, b"old"), "c": Found(3, b"c")}, 4) == {}
    assert view.highest == 9
    # What a later scan does not find is gone, unless it was listed.
    assert view.scanned({"a": Found(9, b"new"), "c": ABSENT}, 10) == {"b": None}
    assert set(view.entries("")) == {"a", "c"}


def test_a_bucket_that_was_set_back_is_believed_once_that_is_certain() -> None:
    view = BucketView()
    view.scanned({"a": Found(9, b"new"), "b": Found(8, b"b"), "c": Found(3, b"c")}, 9)
    view.set_back()
    assert view.has_missed
    assert view.note(notice("c", 3, b"c")) == {"c": Entry(3, b"c")}
    told = view.scanned({"a": Found(2, b"old"), "c": Found(3, b"c")}, 4)
    assert told == {"a": Entry(2, b"old"), "b": None}
    assert (view.highest, view.has_missed) == (3, False)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.booleans())), st.data())
def test_any_mix_of_notices_and_scans_ends_with_what_the_bucket_holds(
    changes: list[tuple[str, bool, bool]], data: st.DataObject
) -> None:
    """Notices are lost, late or repeated; scans come from the newest state or from older ones."""
    view, told = BucketView(), dict[str, Entry | None]()
    states: list[dict[str, Found]] = [{}]
    notices: list[Notice] = []
    for sequence, (key, exists, is_heard) in enumerate(changes, 1):
        one = notice(key, sequence, b"%d" % sequence if exists else None)
        states.append(states[-1] | {key: one.found})
        notices.append(one)
        if is_heard:
            told |= view.note(one)
        if data.draw(st.booleans()):
            told |= view.note(data.draw(st.sampled_from(notices)))
        if data.draw(st.booleans()):
            at = data.draw(st.integers(0, sequence))
            told |= view.scanned(states[at], at)
    told |= view.scanned(states[-1], len(changes))
    truth = {key: one.entry for key, one in states[-1].items() if one.value is not None}
    assert view.entries("") == truth
    assert {key: one for key, one in told.items() if one is not None} == truth
