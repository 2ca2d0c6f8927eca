"""A stream in which each subject has one record at most: a second message is refused."""

from __future__ import annotations

import json

import pytest

from liftlog.sequencing import (
    DedupeWindow,
    Destinations,
    MessageRun,
    Sequencer,
    SequencerConfig,
)
from liftlog.sequencing.subject_sequences import SubjectSequences


class World:
    def __init__(self, columns_from_rows: int = 1, max_subjects: int = 100) -> None:
        config = SequencerConfig("s", is_bucket=True, one_per_subject=True)
        self.sequencer = Sequencer(config, DedupeWindow(10**9, 10), Destinations(), next_offset=1)
        self.sequencer.columns_from_rows = columns_from_rows
        self.log_start = 1
        self.sequencer.subjects = SubjectSequences(
            max_subjects, known_from=1, log_start_offset=lambda: self.log_start
        )

    def judge(self, *subjects: bytes, headers: list[bytes] | None = None) -> int:
        """How many are taken."""
        before, count = self.sequencer.next_offset, len(subjects)
        run = MessageRun(list(subjects), [b"_INBOX.a"] * count, [b"x"] * count, headers)
        self.sequencer.judge(run, 0)
        return self.sequencer.next_offset - before

    def write(self) -> list[dict[str, object]]:
        """The answers, as they leave when the records are written."""
        group = self.sequencer.take_group()
        assert group is not None
        sent = self.sequencer.committed(group)
        return [json.loads(line) for line in sent.split(b"\r\n") if line.startswith(b"{")]


@pytest.mark.parametrize("columns_from_rows", [1, 100])
def test_the_first_message_of_a_subject_is_taken(columns_from_rows: int) -> None:
    world = World(columns_from_rows)
    assert world.judge(b"a", b"b", b"c") == 3
    assert world.judge(b"a", b"d", b"d") == 1, "what is not written yet counts"
    world.write()
    assert world.judge(b"b", b"d", b"e") == 1
    assert world.sequencer.refused == {"full": 4}


def test_the_refusal_is_that_of_jetstream() -> None:
    world = World()
    world.judge(b"a", b"a")
    acked, refused = world.write()
    assert acked["seq"] == 1
    assert refused["error"] == {
        "code": 503,
        "err_code": 10077,
        "description": "maximum messages per subject exceeded",
    }


def test_a_subject_whose_record_was_deleted_is_free_again() -> None:
    world = World()
    world.judge(b"a", b"b")
    world.write()
    world.log_start = 2
    assert world.judge(b"a", b"b") == 1


def test_a_message_that_is_sent_again_is_a_duplicate_and_no_second_one() -> None:
    world = World()
    block = b"NATS/1.0\r\nNats-Msg-Id: one\r\n\r\n"
    assert world.judge(b"a", headers=[block]) == 1
    assert world.judge(b"a", headers=[block]) == 0
    assert [answer.get("duplicate", False) for answer in world.write()] == [False, True]


def test_of_a_subject_that_is_not_known_nothing_is_taken() -> None:
    world = World(max_subjects=1)
    assert world.judge(b"a", b"b") == 2
    world.write()
    assert world.judge(b"a") == 0
    assert world.sequencer.refused == {"last_sequence_unknown": 1}
