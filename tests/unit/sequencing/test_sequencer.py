"""What the model of tests/property does not cover: clocks, bounds, refusing unjudged."""

from __future__ import annotations

import json
import logging
import time

import pytest

import envelope
from envelope import AckPolicy
from liftlog.sequencing import DedupeWindow, Destinations, MessageRun, Sequencer, SequencerConfig
from liftlog.sequencing.acks import published
from liftlog.sequencing.refusals import OVERLOADED

S = 1_000_000_000
T0 = 1_700_000_000 * S


def make(**config: object) -> Sequencer:
    return Sequencer(
        SequencerConfig("orders", **config),  # type: ignore[arg-type]
        DedupeWindow(120 * S, 1000),
        Destinations(["orders.>"]),
        next_offset=1,
    )


def run_of(
    payloads: list[bytes],
    *,
    reply: bytes = b"_INBOX.r",
    headers: list[bytes] | None = None,
    has_cookie: bool = False,
) -> MessageRun:
    count = len(payloads)
    return MessageRun(
        [b"orders.a"] * count, [reply] * count, payloads, headers, has_cookie=has_cookie
    )


def bodies(commands: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in commands.split(b"\r\n")[1::2]]


def answers_in(commands: bytes) -> dict[bytes, bytes]:
    return {one.subject: one.payload for one in published(commands)}


def block(*lines: str) -> bytes:
    return ("NATS/1.0\r\n" + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode()


def test_stamps_never_run_back() -> None:
    sequencer = make()
    sequencer.judge(run_of([b"1"]), T0)
    sequencer.judge(run_of([b"2"]), T0 - 30 * S)
    sequencer.judge(run_of([b"3"]), T0 + 1999)
    group = sequencer.take_group()
    assert group is not None
    assert group.stamps == [(T0, 2), (T0 + 1000, 1)]  # in whole microseconds


def test_a_clock_that_was_far_ahead_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    sequencer = make()
    sequencer.judge(run_of([b"1"]), T0 + 3600 * S)
    with caplog.at_level(logging.WARNING):
        sequencer.judge(run_of([b"2"]), T0)
        sequencer.judge(run_of([b"3"]), T0 + 1000)
    group = sequencer.take_group()
    assert group is not None
    assert group.stamps == [(T0 + 3600 * S, 1), (T0, 1), (T0 + 1000, 1)]
    assert caplog.text.count("clock-stepped-back") == 1


def test_groups_are_bounded() -> None:
    sequencer = make(group_max_bytes=10_000)
    for _ in range(10):
        sequencer.judge(run_of([b"x" * 4000]), T0)
    sizes = []
    while (group := sequencer.take_group()) is not None:
        sizes.append(len(group))
        sequencer.committed(group)
    assert sizes == [3, 3, 3, 1]
    assert sequencer.pending_bytes == 0


def test_a_flood_of_empty_messages_is_seen() -> None:
    sequencer = make(group_max_bytes=1_000_000)
    sequencer.judge(run_of([b""] * 10_000, reply=b""), T0)
    assert sequencer.pending_bytes > 1_000_000
    sequencer.judge(run_of([b""], reply=b""), T0)
    first = sequencer.take_group()
    assert first is not None
    assert len(first) == 10_000
    assert sequencer.pending_messages == 1


@pytest.mark.parametrize("has_cookie", [False, True])
def test_one_large_message_does_not_hide_behind_small_ones(has_cookie: bool) -> None:
    sequencer = make(max_message_bytes=100)
    sequencer.judge(run_of([b"a" * 100, b"b" * 101, b"c" * 100], has_cookie=has_cookie), T0)
    group = sequencer.take_group()
    assert group is not None
    assert group.values == [b"a" * 100, b"c" * 100]
    assert sequencer.refused == {"too_large": 1}
    answers = bodies(sequencer.committed(group))
    assert sorted(str(answer["seq"]) for answer in answers) == ["0", "1", "2"]


@pytest.mark.parametrize("place", [0, 3, 6])
def test_headers_that_are_too_large_do_not_hide_among_others_that_ask_nothing(place: int) -> None:
    sequencer = make()
    blocks = [block(f"X-Trace: {number}") for number in range(6)]
    blocks.insert(place, block("X-Trace: " + "x" * 65_536))
    values = [b"%d" % number for number in range(7)]
    sequencer.judge(run_of(values, headers=blocks), T0)
    group = sequencer.take_group()
    assert group is not None
    assert group.values == [*values[:place], *values[place + 1 :]]
    assert sequencer.refused == {"headers_too_large": 1}


def test_a_duplicate_waits_for_its_original() -> None:
    sequencer = make()
    blocks = [block("Nats-Msg-Id: a")]
    sequencer.judge(run_of([b"1"], headers=blocks), T0)
    first = sequencer.take_group()
    sequencer.judge(run_of([b"1"], headers=blocks), T0)
    assert first is not None
    assert (
        bodies(sequencer.failed(first, OVERLOADED))
        == [
            {
                "error": {"code": 429, "err_code": 10167, "description": "too many requests"},
                "stream": "orders",
                "seq": 0,
            }
        ]
        * 2
    )
    sequencer.judge(run_of([b"1"], headers=blocks), T0)
    again = sequencer.take_group()
    assert again is not None
    assert bodies(sequencer.committed(again)) == [{"stream": "orders", "seq": 1}]


def test_numbering_may_go_on_elsewhere_after_a_failure() -> None:
    sequencer = make()
    sequencer.judge(run_of([b"1"]), T0)
    group = sequencer.take_group()
    assert group is not None
    sequencer.failed(group, OVERLOADED, next_offset=50)
    sequencer.judge(run_of([b"1"]), T0)
    group = sequencer.take_group()
    assert group is not None
    assert group.base_offset == 50


# --- refusing a whole run unjudged ---


def answered(sequencer: Sequencer, run: MessageRun) -> list[dict[str, object]]:
    sequencer.judge(run, T0)
    group = sequencer.take_group()
    assert group is not None
    return bodies(sequencer.committed(group))


@pytest.mark.parametrize("last", [b"\x01" * 600_000, "\U0001f600".encode() * 64, b"\xff" * 255])
def test_a_refusal_repeats_little_of_what_publishers_sent(last: bytes) -> None:
    """Older versions stored ids of any length."""
    sequencer = make()
    sequencer.last_message_id = last
    headers = [block("Nats-Expected-Last-Msg-Id: other")]
    [answer] = answered(sequencer, run_of([b"v"], headers=headers))
    assert answer["error"]["err_code"] == 10070  # type: ignore[index]
    assert len(json.dumps(answer)) < 2000
    # The very id is still recognised.
    again = [b"NATS/1.0\r\nNats-Expected-Last-Msg-Id: " + last + b"\r\n\r\n"]
    if len(last) < 60_000:
        assert answered(sequencer, run_of([b"v"], headers=again)) == [
            {"stream": "orders", "seq": 1}
        ]


@pytest.mark.parametrize(
    ("padding", "enveloped", "stored"),
    [(65_535, False, True), (65_536, False, False), (250_000, False, False), (65_535, True, False)],
)
def test_header_blocks_are_bounded_as_in_jetstream(
    padding: int, enveloped: bool, stored: bool
) -> None:
    lines = b"NATS/1.0\r\n" + b"a:b\r\n" * 20_000
    headers = [lines[: padding - 4] + b"\r\n\r\n"]
    assert len(headers[0]) == min(padding, len(lines) + 4)
    payload = envelope.encode(b"v") if enveloped else b"v"
    sequencer = make()
    [answer] = answered(sequencer, run_of([payload], headers=headers, has_cookie=True))
    if stored:
        assert answer == {"stream": "orders", "seq": 1}
    else:
        assert answer["error"]["err_code"] == 10097  # type: ignore[index]
        assert sequencer.refused == {"headers_too_large": 1}
    witness = make(acks="off")
    assert answered(witness, run_of([payload], headers=headers, has_cookie=True)) == []
    assert witness.next_offset == 2


@pytest.mark.parametrize("name", [b"Nats-Msg-Id", b"Nats-TTL", b"Liftlog-Key", b"Nats-", b"a"])
def test_many_header_lines_cost_little(name: bytes) -> None:
    """Whatever they are called: a megabyte of them in 16 messages."""
    lines = b"NATS/1.0\r\n" + (name + b":\r\n") * 30_000
    headers = [lines[:65_000] + b"\r\n\r\n"] * 16
    sequencer = make()
    best = 1.0
    for _ in range(5):
        began = time.thread_time()
        sequencer.judge(run_of([b""] * 16, headers=headers), T0)
        best = min(best, time.thread_time() - began)
    assert best < 0.06


def test_fast_batches_are_refused_as_jetstream_does_with_its_own_off() -> None:
    sequencer = make()
    replies = [b"_INBOX.u.10.fail.1.0.$FI", b"_INBOX.r", b"x.$FI", b"_INBOX.$FI.a"]
    run = MessageRun([b"orders.a"] * 4, replies, [b"1", b"2", b"3", b"4"], has_cookie=False)
    found = answered(sequencer, run)
    assert [answer["seq"] for answer in found if "error" not in answer] == [1, 2]
    refused = [answer["error"] for answer in found if "error" in answer]
    assert (
        refused
        == [{"code": 400, "err_code": 10205, "description": "batch publish is disabled"}] * 2
    )
    assert sequencer.refused == {"unsupported_batch": 2}
    silent = make(acks="envelope")
    assert answered(silent, run) == []
    assert silent.next_offset == 5


def test_refusing_plain_messages() -> None:
    sequencer = make()
    run = MessageRun([b"orders.a"] * 3, [b"_INBOX.r", b"", b"$JS.x"], [b"1"] * 3, has_cookie=False)
    [answer] = bodies(sequencer.refuse_run(run, OVERLOADED))
    assert answer["seq"] == 0
    assert sequencer.refused == {"overloaded": 3}
    assert sequencer.acks_suppressed == 1
    assert sequencer.next_offset == 1


def test_refusing_is_silent_when_a_sibling_is_meant() -> None:
    sequencer = make()
    sequencer.sibling_streams = {
        b"audit": ["other", "orders.*"],
        b"far": ["payments"],
        b"orders": ["orders.*"],
    }
    blocks = [block(f"Nats-Expected-Stream: {name}") for name in ("audit", "far", "orders")]
    commands = sequencer.refuse_run(run_of([b""] * 3, headers=blocks), OVERLOADED)
    assert len(bodies(commands)) == 2
    meant = [
        envelope.encode(b"v", headers={"Nats-Expected-Stream": name}, ack_subject="my.acks")
        for name in ("audit", "far", "orders")
    ]
    commands = sequencer.refuse_run(run_of(meant, has_cookie=True), OVERLOADED)
    assert len(bodies(commands)) == 2


@pytest.mark.parametrize(("acks", "answers"), [("on", 2), ("envelope", 1), ("off", 0)])
def test_refusing_enveloped_messages(acks: str, answers: int) -> None:
    sequencer = make(acks=acks)
    wrapped = envelope.encode(b"v", ack_subject="my.acks", correlation_id="c")
    quiet = envelope.encode(b"v", ack_subject="my.acks", ack_policy="none")
    run = run_of([wrapped, b"plain", quiet], has_cookie=True)
    commands = sequencer.refuse_run(run, OVERLOADED)
    assert len(bodies(commands)) == answers
    assert sequencer.refused == {"overloaded": 3}
    if answers:
        assert commands.startswith(b"PUB my.acks ")
        assert bodies(commands)[0]["correlation_id"] == "c"


@pytest.mark.parametrize("columns_from_rows", [1, 100])
@pytest.mark.parametrize("policy", ["leader", "all"])
def test_acks_by_policy(policy: AckPolicy, columns_from_rows: int) -> None:
    """Under `leader` they leave as soon as the group is durable here; so do answers to duplicates,
    and refusals that count on what was judged before."""
    config = SequencerConfig("orders", is_replicated=True, ack_policy=policy, leader_epoch=3)
    one = Sequencer(config, DedupeWindow(10**9, 100), Destinations(["orders.>"]), next_offset=1)
    one.columns_from_rows = columns_from_rows
    wanted: list[AckPolicy | None] = [None, "leader", "all"]
    names = {b"plain": policy, b"again": policy, b"refused": policy}
    rows: list[tuple[bytes, bytes, bytes]] = [
        (b"plain", block("Nats-Msg-Id: a"), b"1"),
        (b"again", block("Nats-Msg-Id: a"), b"1"),
    ]
    enveloped = []
    for wish in wanted:
        for number in range(2):
            reply = b"%a.%d" % (wish, number)
            names[reply] = wish or policy
            payload = envelope.encode(
                b"v", ack_policy=wish, message_id=f"{wish}", correlation_id=f"c{number}"
            )
            enveloped.append((reply, b"", payload))
    expecting = block("Nats-Expected-Last-Sequence: 77")
    for batch in (rows, enveloped, [(b"refused", expecting, b"2")]):
        replies, blocks, payloads = map(list, zip(*batch, strict=True))
        run = MessageRun(
            [b"orders.x"] * len(batch), replies, payloads, blocks, has_cookie=batch is enveloped
        )
        one.judge(run, 10**15)
    group = one.take_group()
    assert group is not None
    early = answers_in(one.hold(group))
    released = one.release(group.next_offset)
    assert released is not None
    late = answers_in(released.answers)
    assert early.keys() | late.keys() == names.keys()
    assert early.keys() == {reply for reply, named in names.items() if named == "leader"}
    for reply, body in (early | late).items():
        answer = json.loads(body)
        assert ("error" in answer) == (reply == b"refused")
        if "error" not in answer:
            assert bool(answer.get("duplicate")) == (reply == b"again" or reply.endswith(b"1"))
            assert answer.get("policy", "all") == names[reply]
            assert ("epoch" in answer) == ("correlation_id" in answer) == (b"." in reply)


# --- buckets ---


def test_a_bucket_has_subjects_for_keys_and_takes_roll_ups() -> None:
    sequencer = make(is_bucket=True)
    blocks = [
        block("Liftlog-Key: own"),
        block("X: y"),
        block("Nats-Rollup: sub"),
        block("Nats-Rollup: all"),
        block("Nats-Rollup:"),
        block("Nats-Rollup: sub", "Nats-TTL: 1s"),
    ]
    values = [b"%d" % number for number in range(len(blocks))]
    sequencer.judge(run_of([b"plain"]), T0)
    sequencer.judge(run_of(values, headers=blocks), T0)
    group = sequencer.take_group()
    assert group is not None
    assert group.values == [b"plain", b"0", b"1", b"2", b"4"]  # an empty header has no effect
    assert group.keys == [b"orders.a", b"own", b"orders.a", b"orders.a", b"orders.a"]
    assert group.rollups is None
    answers = bodies(sequencer.committed(group))
    codes = [answer["error"]["err_code"] for answer in answers if "error" in answer]  # type: ignore[index]
    assert codes == [10111, 10166]


def test_a_group_names_its_roll_ups() -> None:
    sequencer = make(rolls_up=True)
    kinds = ["sub", "ALL", "what", ""]
    blocks = [block("X: y"), *[block(f"Nats-Rollup: {one}") for one in kinds]]
    sequencer.judge(run_of([b"v"] * 5, headers=blocks), T0)
    group = sequencer.take_group()
    assert group is not None
    assert len(group) == 4
    assert group.rollups == [(1, b"orders.a"), (2, b"")]
    [answer] = [one for one in bodies(sequencer.committed(group)) if "error" in one]
    assert answer["error"]["description"] == 'rollup value invalid: "what"'  # type: ignore[index]


def test_no_other_stream_takes_roll_ups() -> None:
    [answer] = answered(make(), run_of([b"v"], headers=[block("Nats-Rollup: sub")]))
    assert answer["error"]["err_code"] == 10111  # type: ignore[index]
