"""A run judged by column comes to the same as its messages judged one by one.

The messages are what anybody may publish: header blocks put together from fragments, envelopes
whole and broken, reply subjects good and bad.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import envelope
from envelope import liftbridge, same_shape
from envelope.liftbridge import Publish, encode_publish
from liftlog.sequencing import DedupeWindow, Destinations, MessageRun, Sequencer, SequencerConfig
from liftlog.sequencing.acks import published
from liftlog.sequencing.control import NO_CONTROL, parse_control
from liftlog.sequencing.header_columns import (
    MAX_BLOCK_BYTES,
    MAX_FOREIGN_LINES,
    _by_expression,
    header_columns,
)
from liftlog.sequencing.refusals import STORE_FAILED
from liftlog.sequencing.subject_sequences import SubjectSequences

EXAMPLES = settings.default.max_examples
"""The number in the profile: 15 in `make test`, 50 in CI, many more in `make fuzz`."""
T0 = 10**15
WINDOW_NS = 10_000
MAX_MESSAGE_BYTES = 6_000


def expanded(raw: bytes) -> bytes:
    """Long text has short names, since Hypothesis shows what it draws from."""
    raw = raw.replace(b"<255>", b"x" * 255).replace(b"<long>", b"y" * MAX_BLOCK_BYTES)
    return raw.replace(b"<many>", b"Z: z\r\n" * (MAX_FOREIGN_LINES + 1))


FRAGMENTS = st.sampled_from(
    [
        b"NATS/1.0\r\n",
        b"NATS/1.0 503\r\n",
        b"\r\n",
        b"\0",
        b"\r",
        b"\n",
        b" ",
        b"Nats-Msg-Id: a\r\n",
        b"Nats-Msg-Id:b \t\r\n",
        b"Nats-Msg-Id:\t c d\r\n",
        b"Nats-Msg-Id: \r\n",
        b"Nats-Msg-Id: <255>\r\n",
        b"Nats-Msg-Id: <255>x\r\n",
        b"nats-msg-id: a\r\n",
        b"Nats-Msg-Id : a\r\n",
        b"Nats-Nats-Msg-Id: a\r\n",
        b"Liftlog-Liftlog-Key: k\r\n",
        b"Liftlog-Nats-Msg-Id: a\r\n",
        b"X-Liftlog-Key: k\r\n",
        b"Liftlog-Key: k\r\n",
        b"Liftlog-Key:l\xff\r\n",
        b"Liftlog-Key:\r\n",
        b"Liftlog-Tombstone: true\r\n",
        b"Liftlog-Correlation-Id: c\r\n",
        b"Nats-Expected-Stream: s\r\n",
        b"Nats-Expected-Stream: other\r\n",
        b"Nats-Expected-Last-Sequence: 1\r\n",
        b"Nats-Expected-Last-Msg-Id: a\r\n",
        b"Nats-Expected-Last-Subject-Sequence: 0\r\n",
        b"Nats-TTL: 1s\r\n",
        b"Nats-Batch-Id: 1\r\n",
        b"traceparent: 00-0-0-01\r\n",
        b"X: Nats-Msg-Id: a\r\n",
        b"no colon\r\n",
        b"Y: <long>\r\n",
        b"<many>",
    ]
)
LINES = st.lists(FRAGMENTS, max_size=4).map(lambda fragments: expanded(b"".join(fragments)))
GOOD_LINES = st.sampled_from(
    [
        b"Nats-Msg-Id: a\r\n",
        b"Nats-Msg-Id: b\r\n",
        b"Nats-Msg-Id: c\r\n",
        b"Nats-Msg-Id: d\r\n",
        b"Liftlog-Key: k\r\n",
        b"X: y\r\nNats-Msg-Id: e\r\nLiftlog-Key: l\r\nZ: z\r\n",
        b"Liftlog-Key: m\r\ntraceparent: 00-0-0-01\r\nNats-Msg-Id: f\r\n",
        b"X: y\r\n",
    ]
)
BLOCKS = st.one_of(
    st.just(b""),
    GOOD_LINES.map(lambda lines: b"NATS/1.0\r\n" + lines + b"\r\n"),
    GOOD_LINES.map(lambda lines: b"NATS/1.0\r\n" + lines + b"\r\n"),
    LINES.map(lambda lines: b"NATS/1.0\r\n" + lines + b"\r\n"),
    LINES,
)
IDS = st.sampled_from(["a", "b", "c", "g", "ü" * 127, "x" * 255])
ENVELOPES = st.fixed_dictionaries(
    {"value": st.sampled_from([b"", b"v"])},
    optional={
        "key": st.sampled_from([b"k", b"", b"\xff"]),
        "headers": st.sampled_from([{}, {"X": "1"}, {"Nats-Msg-Id": "a"}, {"Nats-TTL": "1s"}]),
        "ack_subject": st.sampled_from(["acks.1", "_INBOX.e", "in.loop"]),
        "correlation_id": st.sampled_from(["c1", 'ü"\\']),
        "ack_policy": st.sampled_from(envelope.ACK_POLICIES),
        "message_id": IDS,
        "expected_last_offset": st.integers(0, 4),
        "crc": st.booleans(),
    },
).map(lambda fields: envelope.encode(**fields))
TOMBSTONES = st.sampled_from([envelope.encode(None, key=b"k"), envelope.encode(None, key=b"l")])
LIFTBRIDGE = st.fixed_dictionaries(
    {
        "offset": st.sampled_from([0, 0, -1, 2, -5]),
        "key": st.sampled_from([0, 1, 5_700, 66_000]).map(b"k".__mul__),
        "value": st.sampled_from([b"", b"v", b"v" * 200]),
        "headers": st.sampled_from([{}, {}, {"X": b"1"}, {"bad name": b"\xff"}]),
        "ack_inbox": st.sampled_from(["", "_INBOX.l", "acks.1", "in.loop", "a *"]),
        "correlation_id": st.sampled_from(["", "c1", "ü", "bad\n", "x" * 256]),
        "ack_policy": st.sampled_from([liftbridge.LEADER, liftbridge.ALL, liftbridge.NONE, 7]),
    }
).map(lambda fields: encode_publish(Publish(**fields)))
BROKEN = st.one_of(ENVELOPES, LIFTBRIDGE).flatmap(
    lambda data: st.integers(0, len(data)).map(lambda cut: data[:cut] + b"!" + data[cut + 1 :])
)
PAYLOADS = st.one_of(
    st.sampled_from([0, 1, 300, MAX_MESSAGE_BYTES]).map(b"w".__mul__),
    st.sampled_from([b"v", b"w"]),
    ENVELOPES,
    TOMBSTONES,
    LIFTBRIDGE,
    BROKEN,
)
REPLIES = st.sampled_from(
    [b"", b"_INBOX.1", b"_INBOX.2.x", b"acks.1", b"$JS.API.X", b"in.loop", b"a *", b"_INBOX.a.$FI"]
)
GOOD_REPLIES = st.sampled_from([b"_INBOX.1", b"_INBOX.2"])
MESSAGES = st.tuples(
    st.sampled_from([b"in.a", b"in.b", b"in.\xff"]),
    st.one_of(GOOD_REPLIES, GOOD_REPLIES, REPLIES),
    BLOCKS,
    PAYLOADS,
)
PLAINER = st.tuples(
    st.just(b"in.a"), GOOD_REPLIES, GOOD_LINES.map(b"NATS/1.0\r\n%b\r\n".__mod__), st.just(b"v")
)
WORDS = st.sampled_from(["a", "b", "c", " "])


@st.composite
def alike_runs(draw: st.DrawFn) -> list[tuple[bytes, bytes, bytes, bytes]]:
    """Return envelopes as one publisher sends them, with others between them."""
    names = draw(st.sets(st.sampled_from(["key", "correlation_id", "message_id", "inbox"])))
    is_theirs, policy = draw(st.booleans()), draw(st.sampled_from(["leader", "none"]))
    run = []
    for _ in range(draw(st.integers(1, 8))):
        subject, reply, block, payload = draw(MESSAGES)
        if draw(st.integers(0, 5)):
            fields: dict[str, Any] = {"value": draw(WORDS).encode()}
            for name in names - {"inbox"}:
                fields[name] = draw(WORDS) if name == "key" else draw(WORDS).strip() or "d"
            if "inbox" in names:
                fields["ack_subject"] = draw(st.sampled_from(["acks.1", "acks.2", "in.aaa"]))
            if is_theirs:
                fields.pop("message_id", None)
                fields["key"] = fields.get("key", "").encode()
                fields["ack_inbox"] = fields.pop("ack_subject", "")
                payload = encode_publish(Publish(**fields))
            else:
                payload = envelope.encode(**fields, ack_policy=policy)
            block = draw(st.sampled_from([b"", b"", b"", block]))
        run.append((subject, reply, block, payload))
    return run


RUNS = st.lists(st.one_of(PLAINER, PLAINER, MESSAGES), min_size=1, max_size=10)
STEPS = st.lists(
    st.one_of(
        RUNS,
        RUNS,
        RUNS,
        alike_runs(),
        alike_runs(),
        st.integers(0, WINDOW_NS),
        st.sampled_from(["commit", "fail"]),
    ),
    max_size=12,
)


@pytest.fixture(autouse=True, scope="module")
def few_are_enough() -> Iterator[None]:
    """Let short runs take the paths of long runs, because Hypothesis needs short runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(same_shape, "MIN_ROWS", 1)
        yield


def sequencer(
    config: SequencerConfig, max_ids: int, *, columns_from_rows: int, next_offset: int = 1
) -> Sequencer:
    dedupe = DedupeWindow(WINDOW_NS, max_ids)
    dedupe.restore({"key": "00" * 16, "remembered": []})
    made = Sequencer(config, dedupe, Destinations(["in.>"]), next_offset=next_offset)
    made.columns_from_rows = columns_from_rows
    made.sibling_streams = {b"other": ("in.*",)}
    made.subjects = SubjectSequences(100, known_from=1, log_start_offset=lambda: 1)
    return made


def state_of(one: Sequencer) -> tuple[Any, ...]:
    assert one.subjects is not None
    subjects = {name: one.subjects.last_offset(name) for name in (b"in.a", b"in.b", b"in.\xff")}
    return (
        one.next_offset,
        one.last_message_id,
        one.refused,
        one.duplicates,
        one.acks_suppressed,
        one.pending_bytes,
        one.pending_messages,
        one.dedupe.snapshot(),
        one.dedupe.evicted_early,
        subjects,
    )


def commands_in(commands: bytes) -> list[bytes]:
    found = []
    while commands:
        head, _, rest = commands.partition(b"\r\n")
        size = int(head.rsplit(b" ", 1)[1])
        found.append(head + rest[:size])
        commands = rest[size + 2 :]
    assert not answered_too_soon(found), found
    return sorted(found)


def answered_too_soon(commands: list[bytes]) -> list[bytes]:
    """Return the offsets for which a duplicate is answered before the original message."""
    stored, doubled = {}, {}
    for place, command in enumerate(commands):
        if (
            offset := re.search(rb'"seq":(\d+)', command)
        ) is not None and b'"error"' not in command:
            answers = doubled if b'"duplicate"' in command else stored
            answers.setdefault(offset[1], place)
    return [offset for offset in stored if doubled.get(offset, len(commands)) < stored[offset]]


def end_group(one: Sequencer, step: str) -> Any:
    group = one.take_group()
    if group is None:
        return None
    encoded = [
        (bytes(data), *rest)
        for data, *rest in (
            group.encode(leader_epoch=1, commit_group=1, max_records=5, max_bytes=4096)
            if len(group)
            else []
        )
    ]
    sent = one.committed(group) if step == "commit" else one.failed(group, STORE_FAILED)
    return group.received, group.size_bytes, encoded, group.id_marks, commands_in(sent)


@settings(max_examples=EXAMPLES)
@given(
    STEPS,
    st.sampled_from(["on", "on", "on", "off", "envelope"]),
    st.sampled_from(["fsync", "os"]),
    st.sampled_from([1, 2, 3, 1000]),
    st.sampled_from([1, 1, 98, 9_995, 120_000]),
    st.booleans(),
    st.booleans(),
)
def test_columns_come_to_the_same_as_single_messages(
    steps: list[Any],
    acks: str,
    durability: str,
    max_ids: int,
    next_offset: int,
    recognise_envelopes: bool,
    recognise_liftbridge: bool,
) -> None:
    config = SequencerConfig(
        "s",
        acks=acks,
        durability=durability,
        max_message_bytes=MAX_MESSAGE_BYTES,
        recognise_envelopes=recognise_envelopes,
        recognise_liftbridge=recognise_liftbridge,
        subjects=("in.>",),
    )
    by_column = sequencer(config, max_ids, columns_from_rows=1, next_offset=next_offset)
    one_by_one = sequencer(config, max_ids, columns_from_rows=10**9, next_offset=next_offset)
    now = T0
    for step in [*steps, "commit"]:
        if isinstance(step, int):
            now += step
        elif isinstance(step, str):
            assert end_group(by_column, step) == end_group(one_by_one, step)
        else:
            subjects, replies, blocks, payloads = (
                list(column) for column in zip(*step, strict=True)
            )
            run = MessageRun(
                subjects,
                replies,
                payloads,
                blocks if any(blocks) else None,
                has_cookie=any(payload.startswith(envelope.COOKIES) for payload in payloads),
            )
            by_column.judge(run, now)
            one_by_one.judge(run, now)
        assert state_of(by_column) == state_of(one_by_one)


@settings(max_examples=EXAMPLES)
@given(
    st.one_of(RUNS, alike_runs()),
    st.sampled_from(["on", "on", "off", "envelope"]),
    st.booleans(),
    st.booleans(),
)
def test_a_run_is_refused_as_each_of_its_messages(
    rows: list[tuple[bytes, bytes, bytes, bytes]],
    acks: str,
    recognise_envelopes: bool,
    recognise_liftbridge: bool,
) -> None:
    config = SequencerConfig(
        "s",
        acks=acks,
        max_message_bytes=MAX_MESSAGE_BYTES,
        recognise_envelopes=recognise_envelopes,
        recognise_liftbridge=recognise_liftbridge,
        subjects=("in.>",),
    )
    by_column = sequencer(config, 10, columns_from_rows=1)
    one_by_one = sequencer(config, 10, columns_from_rows=1)
    subjects, replies, blocks, payloads = (list(column) for column in zip(*rows, strict=True))
    run = MessageRun(subjects, replies, payloads, blocks if any(blocks) else None)
    sent = by_column.refuse_run(run, STORE_FAILED)
    wanted = []
    if acks != "off":
        for subject, reply, block, payload in rows:
            wanted += one_by_one._nack(STORE_FAILED, subject, reply, block, payload)
    assert [(one.subject, one.payload) for one in published(sent)] == wanted
    assert by_column.refused[STORE_FAILED.reason] == len(rows)
    assert by_column.acks_suppressed == one_by_one.acks_suppressed


@settings(max_examples=2 * EXAMPLES)
@given(st.lists(BLOCKS, min_size=1, max_size=8))
def test_header_columns_hold_what_each_block_says(blocks: list[bytes]) -> None:
    found = header_columns(blocks)
    keys = found.keys or [None] * len(blocks)
    message_ids = found.message_ids or [None] * len(blocks)
    assert len(keys) == len(message_ids) == len(blocks)
    for row in set(range(len(blocks))) - set(found.odd):
        control = parse_control(blocks[row])
        expected = NO_CONTROL._replace(key=keys[row], message_id=message_ids[row] or b"")
        assert control == expected


@st.composite
def blocks_of_one_form(draw: st.DrawFn) -> list[bytes]:
    """Return blocks, mostly of one length, with a few different bytes."""
    names = [b"Liftlog-Key", b"Nats-Msg-Id", b"Nats-TTL", b"X", b"Nats-Msg-Ie", b"traceparent"]
    lines = draw(st.lists(st.sampled_from(names), max_size=3))
    block = b"".join([b"NATS/1.0\r\n", *(line + b": abcd\r\n" for line in lines), b"\r\n"])
    blocks = []
    for _ in range(draw(st.integers(1, 6))):
        changed = bytearray(block)
        for place in draw(st.lists(st.integers(0, len(block) - 1), max_size=2)):
            changed[place] = draw(st.sampled_from(b"abcd: \t\r\n\0\xff"))
        blocks.append(bytes(changed))
    return blocks + draw(st.lists(BLOCKS, max_size=2))


@settings(max_examples=2 * EXAMPLES)
@given(blocks_of_one_form())
def test_blocks_of_one_form_say_what_the_expression_finds(blocks: list[bytes]) -> None:
    nothing = [None] * len(blocks)
    found, wanted = header_columns(blocks), _by_expression(blocks)
    assert found.odd == wanted.odd
    for row in set(range(len(blocks))) - set(wanted.odd):
        assert (found.keys or nothing)[row] == (wanted.keys or nothing)[row]
        assert (found.message_ids or nothing)[row] == (wanted.message_ids or nothing)[row]


NAMES = st.tuples(
    st.sampled_from([b"", b"Nats-", b"Liftlog-", b"X-", b"nats-"]),
    st.sampled_from([b"", b"Nats-", b"Liftlog-"]),
    st.sampled_from([b"Msg-Id", b"Key", b"X"]),
).map(b"".join)
"""Names made of pieces for which the expression searches."""
LINES_OF_PIECES = st.tuples(NAMES, st.sampled_from([b": a", b": a", b":b ", b":", b""]))
BLOCKS_OF_PIECES = st.lists(LINES_OF_PIECES.map(b"".join), max_size=5).map(
    lambda lines: b"NATS/1.0\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"
)


@settings(max_examples=4 * EXAMPLES)
@given(blocks=st.lists(BLOCKS_OF_PIECES, min_size=1, max_size=6), copies=st.sampled_from([1, 60]))
def test_names_that_resemble_each_other(blocks: list[bytes], copies: int) -> None:
    """Each row of the columns is odd, or has the same content as the block alone."""
    rows = blocks * copies
    found = header_columns(rows)
    nothing = [None] * len(rows)
    odd = set(found.odd)
    for row, block in enumerate(rows):
        if row in odd:
            continue
        wanted = parse_control(block)
        assert (found.keys or nothing)[row] == wanted.key, block
        assert (found.message_ids or nothing)[row] == (wanted.message_id or None), block


@pytest.mark.parametrize("line", [b"Nats-Nats-Msg-Id: same\r\n", b"Liftlog-Liftlog-Key: k\r\n"])
def test_a_doubled_prefix_names_no_header_of_ours(line: bytes) -> None:
    columns = header_columns([b"NATS/1.0\r\n" + line + b"\r\n"] * 60)
    assert columns.keys is None
    assert columns.message_ids is None


def test_ordinary_blocks_are_not_odd() -> None:
    lines = [b"", b"X: y\r\n", b"Liftlog-Key: k\r\n", b"Nats-Msg-Id: a\r\n"]
    blocks = [b"NATS/1.0\r\n" + one + two + b"\r\n" for one in lines for two in lines if one != two]
    assert header_columns([b"", *blocks]).odd == []


def test_a_duplicate_is_answered_after_its_original() -> None:
    config = SequencerConfig("s", acks="envelope", recognise_envelopes=True, subjects=("in.>",))
    one = sequencer(config, 1000, columns_from_rows=1)
    asked = envelope.encode(b"v", ack_subject="acks.1", message_id="i", correlation_id="c")
    again = envelope.encode(b"v", ack_subject="acks.1", message_id="i")
    one.judge(MessageRun([b"in.a"] * 2, [b""] * 2, [asked, again], has_cookie=True), T0)
    group = one.take_group()
    assert group is not None
    sent = one.committed(group)
    assert 0 < sent.index(b'"correlation_id"') < sent.index(b'"duplicate"')
