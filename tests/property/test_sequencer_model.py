"""Judging messages in runs and committing them in groups gives the same result as one message at a
time."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from support.rounds import examples
from support.worlds.sequencer_model import (
    MAX_MESSAGE_BYTES,
    SIBLING,
    SIBLING_SUBJECT,
    STREAM,
    WINDOW_NS,
    Message,
    Model,
    Record,
)

import envelope
from envelope.liftbridge import decode_ack
from liftlog.records import decode_batch
from liftlog.records.message_headers import header_lines
from liftlog.sequencing import DedupeWindow, Destinations, MessageRun, Sequencer, SequencerConfig
from liftlog.sequencing.refusals import STORE_FAILED
from liftlog.sequencing.room import Room, Stored
from liftlog.sequencing.subject_sequences import SubjectSequences

T0 = 10**15
# Ids that differ in case only, that JSON has to escape, and around the longest that is allowed.
# Those that fit no header of an envelope come last.
IDS_IN_ENVELOPES = st.sampled_from(["a", "b", "A", 'c"\\', "x" * 255, "x" * 256, "ü" * 128])
IDS = st.one_of(IDS_IN_ENVELOPES, st.sampled_from(["ü\u2028", "\x01"]))
SEQUENCES = st.sampled_from(["0", "1", "2", "3", "4", "x"])
OTHER_SUBJECTS = st.sampled_from(["in.a", "in.a.b", "in.c", "in.*", ""])


def header_maps(ids: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, str]]:
    return st.fixed_dictionaries(
        {},
        optional={
            "Nats-Msg-Id": ids,
            "nats-msg-id": ids,
            "Nats-Expected-Stream": st.sampled_from([STREAM, SIBLING, "nobody"]),
            "Nats-Expected-Last-Sequence": SEQUENCES,
            "Nats-Expected-Last-Msg-Id": ids,
            "Nats-Expected-Last-Subject-Sequence": st.one_of(SEQUENCES, st.just("")),
            "Nats-Expected-Last-Subject-Sequence-Subject": OTHER_SUBJECTS,
            "Nats-TTL": st.just("1s"),
            "Liftlog-Key": st.sampled_from(["k", "l"]),
            "Liftlog-Tombstone": st.sampled_from(["true", "false", "maybe"]),
            "Trace": st.just("1"),
        },
    )


HEADERS = header_maps(IDS)
# Most headers alone, so that most messages are stored.
SOME_HEADERS = st.one_of(
    st.just({}),
    IDS.map(lambda name: {"Nats-Msg-Id": name}),
    st.just({"Trace": "1"}),
    SEQUENCES.map(lambda number: {"Nats-Expected-Last-Subject-Sequence": number}),
    HEADERS,
)
WRAPPED = st.fixed_dictionaries(
    {},
    optional={
        "key": st.sampled_from([b"k", b"\xff"]),
        "headers": st.one_of(st.just({"X": "1"}), header_maps(IDS_IN_ENVELOPES)),
        "ack_subject": st.sampled_from(["acks.1", "acks.2", "in.loop"]),
        "correlation_id": st.sampled_from(["c1", "ü"]),
        "ack_policy": st.sampled_from(envelope.ACK_POLICIES),
        "message_id": st.sampled_from(["a", "b", "c", "x" * 255]),
        "expected_last_offset": st.integers(0, 4),
    },
)
MESSAGES = st.builds(
    Message,
    value=st.sampled_from([b"", b"v", b"w" * 50, b"x" * (MAX_MESSAGE_BYTES + 1), envelope.COOKIE]),
    subject=st.sampled_from([b"in.a", b"in.a.b", b"in.\xff"]),
    reply=st.sampled_from(
        [b"", b"_INBOX.1", b"_INBOX.2", b"$JS.API.X", b"in.loop", b"a *", b"a.$FI"]
    ),
    headers=SOME_HEADERS,
    padding=st.sampled_from([0] * 20 + [998, 999, 5400, 5800]),
    wrapped=st.one_of(st.none(), st.none(), WRAPPED),
)


@st.composite
def liftbridge_messages(draw: st.DrawFn) -> Message:
    wrapped = draw(WRAPPED)
    wrapped.pop("message_id", None)
    if draw(st.booleans()):
        wrapped["ack_subject"] = draw(st.sampled_from(["acks.3", "acks.4"]))
    return replace(draw(MESSAGES), wrapped=wrapped, is_liftbridge=True)


@st.composite
def tombstones(draw: st.DrawFn) -> Message:
    wrapped = draw(WRAPPED) | {"key": b"k", "tombstone": True}
    return Message(value=b"", reply=b"_INBOX.3", wrapped=wrapped)


# A step: messages that come together, a tick of the clock, a group that is taken to be written, one
# that is durable here and held, or what becomes of one of those that are out or held.
STEPS = st.lists(
    st.one_of(
        st.lists(
            st.one_of(MESSAGES, MESSAGES, MESSAGES, liftbridge_messages(), tombstones()),
            min_size=1,
            max_size=6,
        ),
        st.integers(1, WINDOW_NS // 1000),
        st.sampled_from(["take", "take", "commit", "commit", "hold", "hold"]),
        st.sampled_from(["retain", "compact", "fail_judged"]),
        st.tuples(st.sampled_from(["fail", "fail", "release"]), st.integers(0, 3)),
    ),
    max_size=30,
)


class Harness:
    """Runs the sequencer and the model in parallel."""

    def __init__(
        self,
        acks: str,
        durability: str,
        group_max_bytes: int,
        *,
        keeps_subjects: bool,
        columns_from_rows: int,
        is_replicated: bool = False,
        ack_policy: str = "all",
        max_messages: int | None = None,
    ) -> None:
        config = SequencerConfig(
            STREAM,
            acks=acks,
            durability=durability,
            max_message_bytes=MAX_MESSAGE_BYTES,
            group_max_bytes=group_max_bytes,
            recognise_liftbridge=True,
            subjects=("in.>",),
            is_replicated=is_replicated,
            ack_policy=ack_policy,
            leader_epoch=7,
        )
        self.config = config
        self.dedupe = DedupeWindow(WINDOW_NS, 1000)
        self.sequencer = Sequencer(config, self.dedupe, Destinations(["in.>"]), next_offset=1)
        self.sequencer.columns_from_rows = columns_from_rows
        self.sequencer.sibling_streams = {SIBLING.encode(): (SIBLING_SUBJECT,)}
        self.model = Model(acks, keeps_subjects=keeps_subjects, max_messages=max_messages)
        if max_messages is not None:
            self.sequencer.room = Room(
                max_messages, None, lambda: Stored(self.model.log_start, 1 + len(self.records), 0)
            )
        if keeps_subjects:
            self.sequencer.subjects = SubjectSequences(
                100, known_from=1, log_start_offset=lambda: self.model.log_start
            )
        self.now = T0
        self.out: list[Any] = []
        self.held: list[tuple[int, int]] = []
        """Messages and next offset of each held group."""
        self.runs: list[tuple[int, int]] = []
        """Messages and bytes of each run without an answer."""
        self.records: list[Record] = []
        self.told_early: list[Any] = []

    def judge(self, messages: list[Message]) -> None:
        blocks = [message.block for message in messages]
        payloads = [message.payload for message in messages]
        run = MessageRun(
            [message.subject for message in messages],
            [message.reply for message in messages],
            payloads,
            blocks if any(blocks) else None,
            has_cookie=any(payload.startswith(envelope.COOKIES) for payload in payloads),
        )
        before = self.sequencer.pending_bytes
        self.sequencer.judge(run, self.now)
        self.runs.append((len(run), self.sequencer.pending_bytes - before))
        for message in messages:
            self.model.judge(message, self.now)

    # --- what becomes of groups ---

    def take(self) -> None:
        group = self.sequencer.take_group()
        if group is not None:
            assert group.base_offset == self.model.next_offset_after(
                self.held_messages + sum(one.received for one in self.out)
            )
            self.out.append(group)

    @property
    def held_messages(self) -> int:
        return sum(received for received, _ in self.held)

    def oldest_out(self) -> Any:
        if not self.out:
            self.take()
        return self.out.pop(0) if self.out else None

    def write(self, group: Any) -> None:
        """It is durable here."""
        if len(group):
            self.records += stored(group)

    def commit(self) -> None:
        """Commit the oldest group that is out, and all groups that were held before."""
        self.release(len(self.held))
        group = self.oldest_out()
        if group is None:
            return
        assert group.base_offset == self.model.committed.next_offset
        self.write(group)
        self.answered(self.sequencer.committed(group), group.received)

    def hold(self) -> None:
        group = self.oldest_out()
        if group is None:
            return
        self.write(group)
        early = self.sequencer.hold(group)
        expected = self.model.early(
            self.held_messages,
            group.received,
            self.config.ack_policy,
            is_replicated=self.config.is_replicated,
        )
        assert answers_in(early) == sorted(expected, key=repr)
        self.told_early += expected
        self.held.append((group.received, group.next_offset))

    def release(self, count: int) -> None:
        """The high watermark passes the first `count` held groups, and all answers that wait for
        the same offset."""
        reached = self.held[min(count, len(self.held)) - 1][1] if count and self.held else 0
        going = [received for received, next_offset in self.held if next_offset <= reached]
        self.held = self.held[len(going) :]
        before = len(self.model.records)
        released = self.sequencer.release(reached)
        if not going:
            assert released is None
            return
        assert released is not None
        assert [group.received for group in released.groups] == going
        self.answered(released.answers, sum(going))
        records = sum(group.records for group in released.groups)
        assert records == len(self.model.records) - before

    def answered(self, sent: bytes, messages: int) -> None:
        expected = self.model.commit(messages)
        for one in [one for one in self.told_early if one in expected]:
            self.told_early.remove(one)
            expected.remove(one)
        assert answers_in(sent) == sorted(expected, key=repr)
        while messages:
            messages -= self.runs.pop(0)[0]
        assert messages == 0

    def retain(self) -> None:
        """Retention removes half of the records."""
        model = self.model
        model.log_start += (model.committed.next_offset - model.log_start + 1) // 2

    def compact(self) -> None:
        """Every second record is removed. A scan finds the remaining committed records."""
        model, table = self.model, self.sequencer.subjects
        left = [stored for stored in model.committed.stored if model.has(stored[0])]
        model.removed |= {offset for offset, _ in left[::2]}
        if table is None:
            return
        scan = table.new_scan()
        for offset, subject in left[1::2]:
            scan.add([subject], [offset])
        scan.end = model.committed.next_offset
        assert table.adopt(scan)
        assert table.is_complete

    def fail(self, at: int) -> None:
        """One of the groups that are out fails, together with all later groups."""
        if not self.out:
            self.take()
        if not self.out:
            return
        at %= len(self.out)
        group, self.out = self.out[at], self.out[:at]
        self.failed(self.sequencer.failed(group, STORE_FAILED))
        assert self.sequencer.next_offset == group.base_offset

    def fail_judged(self) -> None:
        """Undo the messages that no group has taken."""
        self.failed(self.sequencer.failed(None, STORE_FAILED))

    def failed(self, nacks: bytes) -> None:
        kept = self.held_messages + sum(group.received for group in self.out)
        answers = self.model.fail(STORE_FAILED.err_code, kept)
        assert answers_in(nacks) == sorted(answers, key=repr)
        while sum(count for count, _ in self.runs) > kept:
            self.runs.pop()
        assert self.sequencer.pending_messages == 0

    def check_tail(self) -> None:
        sequencer, state = self.sequencer, self.model.state
        waiting = sum(count for count, _ in self.runs)
        out = sum(group.received for group in self.out)
        assert sequencer.pending_messages == waiting - self.held_messages - out
        assert sequencer.held_messages == self.held_messages
        assert sequencer.unanswered_messages == waiting
        assert sequencer.is_holding == bool(self.held)
        assert sequencer.oldest_out is (self.out[0] if self.out else None)
        assert sequencer.pending_bytes == sum(size for _, size in self.runs)
        held = counted = 0
        for count, size in self.runs:
            held += size if counted < self.held_messages else 0
            counted += count
        assert sequencer.held_bytes == held
        assert sequencer.next_offset == state.next_offset
        assert sequencer.last_message_id.decode() == state.last_id
        if sequencer.subjects is not None:
            there = {name: at for at, name in state.stored if self.model.has(at)}
            for name in {name for _, name in state.stored}:
                assert sequencer.subjects.last_offset(name) == there.get(name, 0)
        self.dedupe.expire(self.now)
        remembered = {
            bytes.fromhex(mark): (offset, stamp)
            for stamp, mark, offset in self.dedupe.snapshot()["remembered"]
        }
        limit = self.now - WINDOW_NS
        assert remembered == {
            self.dedupe.mark(k.encode()): v for k, v in state.ids.items() if v[1] >= limit
        }

    def finish(self) -> None:
        while self.out or self.held or self.sequencer.pending_messages:
            self.commit()
        assert self.sequencer.pending_bytes == 0
        assert self.records == self.model.records
        assert self.told_early == []


def stored(group: Any) -> list[Record]:
    """Return the records of this group that a reader would find in its encoded bytes."""
    found = []
    encoded = group.encode(leader_epoch=1, commit_group=1, max_records=3, max_bytes=4096)
    at = group.base_offset
    for data, base_offset, next_offset, count, _, largest in encoded:
        batch = decode_batch(bytes(data))
        assert (base_offset, count) == (at, len(batch))
        assert (batch.base_offset, batch.next_offset) == (base_offset, next_offset)
        assert batch.header.max_timestamp_ns == largest
        at = next_offset
        for record, block in zip(batch.records(), batch.headers(), strict=True):
            lines = {name.decode(): value.decode() for name, value in header_lines(block)}
            subject = record.subject
            raw = b"in.\xff" if subject == "in.\\xff" else subject.encode()
            # On disk a stamp has microseconds relative to its batch.
            stamp = T0 + round((record.timestamp_ns - T0) / 1000) * 1000
            found.append(Record(record.offset, raw, record.key, record.value, lines, stamp))
    assert at == group.next_offset
    return found


def answers_in(commands: bytes) -> list[Any]:
    found = []
    while commands:
        line, _, rest = commands.partition(b"\r\n")
        _, subject, size = line.split(b" ")
        raw = rest[: int(size)]
        commands = rest[int(size) + 2 :]
        ack = decode_ack(raw)
        if ack is not None:
            assert (ack.stream, ack.partition_subject, ack.ack_inbox) == (
                STREAM,
                "in.>",
                subject.decode(),
            )
            told: Any = ("ackError", ack.ack_error) if ack.ack_error else ack.offset
            assert bool(ack.commit_timestamp) == bool(ack.offset) != bool(ack.ack_error)
            found.append((subject, told, ack.correlation_id or None))
            continue
        body = json.loads(raw)
        assert body["stream"] == STREAM
        outcome: Any = body["seq"]
        if "error" in body:
            assert body["seq"] == 0
            outcome = ("error", body["error"]["err_code"])
        elif body.get("duplicate"):
            outcome = ("duplicate", body["seq"])
        found.append((subject, outcome, body.get("correlation_id")))
    return sorted(found, key=repr)


@settings(max_examples=examples(4))
@given(
    STEPS,
    st.sampled_from(["on", "on", "off", "envelope"]),
    st.sampled_from(["fsync", "interval"]),
    st.sampled_from([1, 2000, 10**6]),
    st.sampled_from([True, True, False]),
    st.sampled_from([1, 1, 100]),
    st.sampled_from([(False, "all"), (True, "all"), (True, "leader")]),
    st.sampled_from([None, None, 2, 9]),
)
def test_runs_and_groups_look_like_single_messages(
    steps: list[Any],
    acks: str,
    durability: str,
    group_max_bytes: int,
    keeps_subjects: bool,
    columns_from_rows: int,
    replicated: tuple[bool, str],
    max_messages: int | None,
) -> None:
    harness = Harness(
        acks,
        durability,
        group_max_bytes,
        keeps_subjects=keeps_subjects,
        columns_from_rows=columns_from_rows,
        is_replicated=replicated[0],
        ack_policy=replicated[1],
        max_messages=max_messages,
    )
    for step in steps:
        if isinstance(step, int):
            harness.now += step * 1000
        elif isinstance(step, list):
            harness.judge(step)
        elif isinstance(step, tuple):
            getattr(harness, step[0])(step[1])
        else:
            getattr(harness, step)()
        harness.check_tail()
    harness.finish()


def runs_that_count_on_each_other() -> list[list[Message]]:
    """Return runs that depend on the previous ones: ids, expected sequences, the last id."""

    def asks(subject: str, value: str, **headers: str) -> Message:
        named = {f"Nats-{name.replace('_', '-')}": text for name, text in headers.items()}
        return Message(value.encode(), f"in.{subject}".encode(), b"_INBOX.1", named)

    runs = [
        [
            asks(f"a.{n}", "new", Msg_Id=f"id{n}", Expected_Last_Sequence=str(3 * n - 3)),
            asks(f"a.{n - 1}", "first id again", Msg_Id="id1"),
            asks("b", "plain", Expected_Last_Msg_Id=f"id{n}"),
            asks("b", "subject", Expected_Last_Subject_Sequence=str(3 * n - 1)),
            asks("b", "too late", Expected_Last_Sequence="1"),
        ]
        for n in range(1, 6)
    ]
    del runs[0][1]
    return runs


@pytest.mark.parametrize("columns_from_rows", [1, 100])
@pytest.mark.parametrize(
    ("fails", "held"), [(fails, held) for fails in range(5) for held in range(fails + 1)]
)
def test_a_failure_at_each_of_several_groups(fails: int, held: int, columns_from_rows: int) -> None:
    """Five groups are out; some become durable and are held, and one of the others fails. Then the
    same runs arrive again."""
    harness = Harness("on", "fsync", 1, keeps_subjects=True, columns_from_rows=columns_from_rows)
    for run in runs_that_count_on_each_other():
        harness.judge(run)
        harness.take()
    assert [len(group) for group in harness.out] == [3] * 5
    for _ in range(held):
        harness.hold()
        harness.check_tail()
    harness.fail(fails - held)
    harness.check_tail()
    for run in runs_that_count_on_each_other():
        harness.judge(run)
        harness.check_tail()
    harness.take()
    harness.release(1)
    harness.check_tail()
    harness.fail_judged()
    harness.check_tail()
    harness.finish()


def test_stepping_down_nacks_what_was_only_judged() -> None:
    """Another leader may commit the other messages."""
    harness = Harness("on", "fsync", 1, keeps_subjects=True, columns_from_rows=1)
    for n in range(3):
        harness.judge([Message(b"v", reply=b"_INBOX.%d" % n)])
    harness.hold()
    harness.take()
    sent = harness.sequencer.step_down(STORE_FAILED)
    assert answers_in(sent) == [(b"_INBOX.2", ("error", STORE_FAILED.err_code), None)]
    sequencer = harness.sequencer
    assert (sequencer.pending_bytes, sequencer.held_bytes, sequencer.pending_messages) == (0, 0, 0)
    assert sequencer.oldest_out is None
    assert sequencer.release(10) is None
