"""Messages are deleted and purged as JetStream does it: the same answers, the same state after each
step, the same deliveries.

A real JetStream and the daemon get the same messages and the same requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.clients.jetstream_sides import (
    SECOND,
    Sides,
    ack,
    answered,
    asked,
    both_sides,
    consumer,
    fetched,
    figures,
    publish,
    pull,
    shown,
)
from support.clients.raw_nats import RawNats, header_block
from support.rounds import chance_of, rounds

pytestmark = pytest.mark.integration

FEW = 2
SUBJECTS = ("s.a", "s.b", "s.c.d")
STATE = ("messages", "first_seq", "last_seq", "num_deleted", "deleted", "num_subjects", "subjects")
WHOLE = {"deleted_details": True, "subjects_filter": ">"}


@pytest.fixture(scope="module")
def connected() -> Iterator[Sides]:
    with both_sides() as sides:
        yield sides


@pytest.fixture
def sides(connected: Sides) -> Iterator[Sides]:
    yield connected
    for raw in connected:
        answered(raw, "STREAM.DELETE.s", {})
    for raw in connected:
        raw.forget()


def create(sides: Sides, **config: Any) -> None:
    for raw in sides:
        body = {"name": "s", "subjects": ["s.>"], "allow_direct": True, **config}
        asked(raw, "STREAM.CREATE.s", body)


def store(sides: Sides, *subjects: str) -> None:
    for raw in sides:
        for subject in subjects:
            assert "seq" in raw.request(subject, b"x" * len(subject)).json()


def same(sides: Sides, method: str, body: Any) -> Any:
    """Send a request to both, compare the answers, and return them."""
    theirs, ours = (answered(raw, method, body) for raw in sides)
    if "error" in theirs:
        theirs.pop("purged", None)  # 0
    assert ours == theirs, (method, body)
    return theirs


def state(raw: RawNats) -> dict[str, Any]:
    found = asked(raw, "STREAM.INFO.s", WHOLE)["state"]
    is_zero = found["first_ts"].startswith("0001-")
    # JetStream leaves the number of subjects out if it is 0.
    return {name: found.get(name) or None for name in STATE} | {"is_zero": is_zero}


def same_state(sides: Sides) -> dict[str, Any]:
    theirs, ours = map(state, sides)
    assert ours == theirs
    return theirs


def got(raw: RawNats, body: dict[str, Any]) -> Any:
    answer = answered(raw, "STREAM.MSG.GET.s", body)
    message = answer.get("message")
    return (message["seq"], message["subject"]) if message else answer["error"]


def direct(raw: RawNats, body: dict[str, Any]) -> Any:
    answer = raw.request("$JS.API.DIRECT.GET.s", json.dumps(body).encode())
    lines = answer.headers.decode().split("\r\n")
    return [line for line in lines if not line.startswith(("Nats-Time", "Nats-UpTo"))]


def same_reads(sides: Sides, last: int) -> None:
    bodies: list[dict[str, Any]] = [{"seq": number} for number in range(1, last + 3)]
    for subject in (*SUBJECTS, "s.*", "s.>"):
        bodies += [{"last_by_subj": subject}, {"next_by_subj": subject, "seq": last // 2}]
    for body in bodies:
        theirs, ours = (got(raw, body) for raw in sides)
        assert ours == theirs, body
        theirs, ours = (direct(raw, body) for raw in sides)
        assert ours == theirs, body


def batch(raw: RawNats, body: dict[str, Any]) -> list[Any]:
    """The answers to a direct get of several messages, up to the status at the end."""
    reply = raw.new_reply()
    raw.pub("$JS.API.DIRECT.GET.s", json.dumps(body), reply=reply)
    found: list[Any] = []
    while True:
        message = raw.next_message()
        lines = message.headers.decode().split("\r\n")
        found.append([line for line in lines if not line.startswith("Nats-Time")])
        if lines[0] != "NATS/1.0":
            return found


# --- STREAM.MSG.DELETE ---


@pytest.mark.parametrize("no_erase", [False, True])
def test_single_messages(sides: Sides, no_erase: bool) -> None:
    chance = chance_of(f"single messages {no_erase}")
    create(sides)
    assert same(sides, "STREAM.MSG.DELETE.s", {"seq": 1})["error"]["err_code"] == 10057
    assert same(sides, "STREAM.MSG.DELETE.s", {"seq": 0, "no_erase": no_erase})
    last = 0
    for _ in range(rounds(FEW)):
        subjects = chance.choices(SUBJECTS, k=8)
        store(sides, *subjects)
        last += len(subjects)
        for _ in range(10):
            body = {"seq": chance.randrange(last + 3), "no_erase": no_erase}
            same(sides, "STREAM.MSG.DELETE.s", body)
            same_state(sides)
        same_reads(sides, last)
        for body in ({"seq": 1, "batch": 20}, {"multi_last": ["s.>"]}, {"multi_last": ["s.a"]}):
            theirs, ours = (batch(raw, body) for raw in sides)
            assert ours == theirs, body


def test_everything_from_both_ends(sides: Sides) -> None:
    """At the end the stream is empty: its first sequence is above its last."""
    create(sides)
    store(sides, *("s.a", "s.b", "s.c.d") * 3)
    for seq in (1, 9, 2, 8, 4, 5, 3, 7, 6):
        assert same(sides, "STREAM.MSG.DELETE.s", {"seq": seq})["success"]
        same_state(sides)
        same_reads(sides, 9)
        for again in (seq, 10, 11):
            same(sides, "STREAM.MSG.DELETE.s", {"seq": again})
    assert same_state(sides)["first_seq"] == 10
    store(sides, "s.a")
    same_state(sides)
    same_reads(sides, 10)


@pytest.mark.parametrize(
    "payload",
    [b"", b"{}", b" ", b"null", b"{", b"[]", b'{"seq":"1"}', b'{"seq":-1}', b'{"seq":1.5}',
     b'{"seq":18446744073709551615}', b'{"seq":18446744073709551616}', b'{"no_erase":true}',
     b'{"seq":1,"no_erase":1}', b'{"seq":9223372036854775808}', b'{ }'],
)  # fmt: skip
def test_bad_requests(sides: Sides, payload: bytes) -> None:
    create(sides)
    store(sides, "s.a", "s.b")
    for method in ("STREAM.MSG.DELETE.s", "STREAM.MSG.DELETE.none"):
        theirs, ours = (raw.request(f"$JS.API.{method}", payload).json() for raw in sides)
        for answer in (theirs, ours):
            if answer.get("error", {}).get("err_code") == 10025:
                answer["error"].pop("description")  # the words of the JSON parser
        assert ours == theirs
    same_state(sides)


def test_deletes_that_the_configuration_denies(sides: Sides) -> None:
    create(sides, deny_delete=True, deny_purge=True)
    store(sides, "s.a", "s.b")
    assert same(sides, "STREAM.MSG.DELETE.s", {"seq": 1})["error"]["err_code"] == 10057
    for body in ({}, {"filter": "s.a"}, {"keep": 1}, {"seq": 2}, {"seq": 1, "keep": 1}):
        assert "error" in same(sides, "STREAM.PURGE.s", body)
    for raw in sides:
        config = asked(raw, "STREAM.INFO.s", {})["config"]
        assert config["deny_delete"] is config["deny_purge"] is True
        for name in ("deny_delete", "deny_purge"):
            answer = answered(raw, "STREAM.UPDATE.s", config | {name: False})
            assert answer["error"]["err_code"] == 10052, answer
            assert "can not cancel deny" in answer["error"]["description"]
    same_state(sides)


def test_a_sealed_stream(sides: Sides) -> None:
    create(sides)
    store(sides, "s.a", "s.b")
    for raw in sides:
        config = asked(raw, "STREAM.INFO.s", {})["config"]
        asked(raw, "STREAM.UPDATE.s", config | {"sealed": True})
    assert same(sides, "STREAM.MSG.DELETE.s", {"seq": 1})["error"]["err_code"] == 10109
    assert same(sides, "STREAM.PURGE.s", {"filter": "s.a"})["error"]["err_code"] == 10109
    assert same(sides, "STREAM.PURGE.s", {})["error"]["err_code"] == 10109
    same_state(sides)


def test_conditions_know_the_last_message_that_is_left(sides: Sides) -> None:
    """No wait is needed: the daemon answers the deletion after it has updated the conditions."""
    create(sides)
    store(sides, *("s.a", "s.b") * 3)

    def expecting(subject: str, last: int) -> Any:
        headers = header_block({"Nats-Expected-Last-Subject-Sequence": str(last)})
        theirs, ours = (raw.request(subject, b"", headers=headers).json() for raw in sides)
        assert ours == theirs
        return theirs

    same(sides, "STREAM.MSG.DELETE.s", {"seq": 6})
    assert "error" in expecting("s.b", 6)
    assert expecting("s.b", 4)["seq"] == 7
    for seq in (1, 3, 5):
        same(sides, "STREAM.MSG.DELETE.s", {"seq": seq})
    assert expecting("s.a", 0)["seq"] == 8
    same(sides, "STREAM.PURGE.s", {"filter": "s.b"})
    assert expecting("s.b", 0)["seq"] == 9
    same(sides, "STREAM.PURGE.s", {"filter": "s.*", "keep": 1})
    assert expecting("s.b", 9)["seq"] == 10
    assert expecting("s.a", 0)["seq"] == 11
    same_state(sides)


# --- STREAM.PURGE ---


def test_purges(sides: Sides) -> None:
    chance = chance_of("purges")
    create(sides)
    last = 0
    for _ in range(rounds(FEW) * 10):
        subjects = chance.choices(SUBJECTS, k=6)
        store(sides, *subjects)
        last += len(subjects)
        body: dict[str, Any] = {}
        if chance.random() < 0.8:
            body["filter"] = chance.choice(
                (*SUBJECTS, "s.*", "s.>", ">", "s.none", "other", "s.c.*")
            )
        if chance.random() < 0.4:
            body["keep"] = chance.randrange(9)
        if chance.random() < 0.4:
            body["seq"] = chance.randrange(last + 1)
        if chance.random() < 0.2:
            same(sides, "STREAM.MSG.DELETE.s", {"seq": chance.randrange(last + 2)})
        same(sides, "STREAM.PURGE.s", body)
        same_state(sides)
    same_reads(sides, last)


# --- consumers ---


def deleted(sides: Sides, *sequences: int) -> None:
    for seq in sequences:
        assert same(sides, "STREAM.MSG.DELETE.s", {"seq": seq, "no_erase": True})["success"]


@pytest.mark.parametrize(
    "filters",
    [{"filter_subject": "s.>"}, {"filter_subject": "s.1"}, {"filter_subjects": ["s.1", "s.2"]}],
)
@pytest.mark.parametrize("policy", ["all", "last_per_subject"])
def test_a_consumer_with_acks(sides: Sides, filters: dict[str, Any], policy: str) -> None:
    create(sides)
    for raw in sides:
        publish(raw, 30)
        consumer(raw, ack_wait=3600 * SECOND, deliver_policy=policy, **filters)

    def same_figures() -> Any:
        theirs, ours = map(figures, sides)
        assert ours == theirs
        return theirs

    pending = same_figures()["num_pending"]
    deleted(sides, 30, 2, 29)
    same_figures()
    count = min(4, same_figures()["num_pending"])
    if not count:
        return
    messages = [fetched(raw, count) for raw in sides]
    assert [*map(shown, messages[0])] == [*map(shown, messages[1])]
    same_figures()
    if policy == "all":
        offsets = [int(one.reply.split(b".")[5]) for one in messages[0]]
        deleted(sides, offsets[1], 20, 21, 22)  # pending, and not delivered yet
        same_figures()
        for raw, found in zip(sides, messages, strict=True):
            assert ack(raw, found[0]) == ""
        same_figures()
        left = same_figures()["num_pending"]
        rest = [[*map(shown, fetched(raw, left))] for raw in sides]
        assert rest[0] == rest[1]
        assert rest[0][-1].endswith(" 0 left")
        same_figures()
    assert pending


@pytest.mark.parametrize("filters", [{}, {"filter_subject": "s.1"}])
def test_an_ordered_consumer(sides: Sides, filters: dict[str, Any]) -> None:
    create(sides)
    config = {"name": "c", "ack_policy": "none", "inactive_threshold": 600 * SECOND, **filters}
    for raw in sides:
        publish(raw, 300)
        asked(raw, "CONSUMER.CREATE.s.c", {"stream_name": "s", "config": config})

    def same_pending() -> int:
        theirs, ours = (asked(raw, "CONSUMER.INFO.s.c", {})["num_pending"] for raw in sides)
        assert ours == theirs
        return int(theirs)

    deleted(sides, 1, 2, 5, 299)
    same_pending()
    for seq in (3, 8, 50, 11):
        theirs, ours = ([*map(shown, fetched(raw, 5))] for raw in sides)
        assert ours == theirs
        left = same_pending()
        deleted(sides, 200 + seq, 290 - seq)
        assert same_pending() <= left
    left = same_pending()
    theirs, ours = ([*map(shown, fetched(raw, left))] for raw in sides)
    assert ours == theirs
    assert theirs[-1].endswith(" 0 left")
    assert not same_pending()


def test_a_pull_that_waits_for_a_place(sides: Sides) -> None:
    """A pending message that is deleted makes room for another one."""
    create(sides)
    for raw in sides:
        publish(raw, 6)
        consumer(raw, ack_wait=3600 * SECOND, max_ack_pending=2)
        fetched(raw, 2)
        pull(raw, 1)
    deleted(sides, 1)
    theirs, ours = (shown(raw.next_message()) for raw in sides)
    assert ours == theirs


# --- buckets ---


@pytest.mark.parametrize("history", [1, 3])
def test_buckets(sides: Sides, history: int) -> None:
    """A message that was superseded does not come back, whatever is deleted."""
    chance = chance_of(f"buckets {history}")
    create(sides, max_msgs_per_subject=history, allow_rollup_hdrs=True)
    last = 0
    names = ("messages", "last_seq", "num_subjects", "subjects")
    for _ in range(rounds(FEW) * 5):
        subjects = chance.choices(SUBJECTS, k=5)
        store(sides, *subjects)
        last += len(subjects)
        for _ in range(5):
            seq = chance.randrange(1, last + 2)
            theirs, ours = (
                answered(raw, "STREAM.MSG.DELETE.s", {"seq": seq}).get("success", False)
                for raw in sides
            )
            assert ours == theirs, seq
            theirs, ours = (
                {name: found.get(name) or None for name in names} for found in map(state, sides)
            )
            assert ours == theirs
    for seq in range(1, last + 1):
        theirs, ours = (got(raw, {"seq": seq}) for raw in sides)
        assert ours == theirs
