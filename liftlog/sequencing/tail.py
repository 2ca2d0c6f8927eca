"""The speculative tail of a stream: records that are judged, but not yet committed.

Records are appended to a group, one at a time or as columns, together with the answers that wait
for the group. Both ways update the same state: offsets, timestamps, ids, last offsets of subjects.

A group is judged, then *out* (being written), then committed. Several groups may be out; they are
committed in order. If a group fails, all messages that were judged after its first message are
undone, because their answers may depend on the failed group: such a message may be a duplicate of a
failed message, or may expect a sequence that includes a failed offset. Records that were judged
before the group stay.

A group that is durable on this node and waits for other replicas is *held*. A failure no longer
undoes such a group, and only its answers stay in memory.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import chain

from envelope.liftbridge import LEADER, Ack
from liftlog.sequencing.acks import AckFormat, Answer, Asked, Echo, publish_commands
from liftlog.sequencing.commit_group import CommitGroup, HeldGroup, Released
from liftlog.sequencing.config import SequencerConfig
from liftlog.sequencing.control import Control
from liftlog.sequencing.dedupe import DedupeWindow
from liftlog.sequencing.destinations import Destinations
from liftlog.sequencing.judging import Columns
from liftlog.sequencing.liftbridge import ack_commands, nack_body
from liftlog.sequencing.refusals import RefusalReason
from liftlog.sequencing.room import Room
from liftlog.sequencing.run import MessageRun
from liftlog.sequencing.subject_sequences import Notes, SubjectSequences, deletes_subject

logger = logging.getLogger("liftlog.stream")

NO_REPLY = b""
_CLOCK_TOLERANCE_NS = 60 * 1_000_000_000


class Tail:
    """The state and the answers of `Sequencer`, its subclass, which judges. Used only on the event
    loop."""

    def __init__(
        self,
        config: SequencerConfig,
        dedupe: DedupeWindow,
        destinations: Destinations,
        *,
        next_offset: int,
        last_timestamp_ns: int,
        last_message_id: bytes,
        commit_clock: Callable[[], int] | None,
    ) -> None:
        self.config = config
        self.dedupe = dedupe
        self.destinations = destinations
        self.subjects: SubjectSequences | None = None
        """The last offset of each subject, if the stream stores these. May be set or removed
        between two runs."""
        self.room: Room | None = None
        """The room below the limit at which messages are refused; None if the stream has no such
        limit."""
        self._word_acks()
        self.next_offset = next_offset
        self.last_timestamp_ns = last_timestamp_ns
        self.last_message_id = last_message_id
        self.refused: Counter[str] = Counter()
        self.duplicates = 0
        self.acks_suppressed = 0
        self.pending_bytes = 0
        """Total size, in bytes, of the messages without an answer: judged messages, messages in
        groups that are being written, and messages in held groups."""
        self.held_bytes = 0
        """Total size, in bytes, of the messages whose group is held; only a small part of them is
        in memory."""
        self._ids_seen_ns = 0
        self._commit_clock = commit_clock
        self._open = self._new_group()
        self._full: deque[CommitGroup] = deque()
        self._out: deque[CommitGroup] = deque()
        self._held: deque[HeldGroup] = deque()

    def _word_acks(self) -> None:
        """Build the ack formats from the configuration."""
        config = self.config
        self._acks_early = config.is_replicated and config.ack_policy == "leader"
        self.format = AckFormat(
            config.stream,
            config.durability,
            policy="leader" if self._acks_early else "all",
            epoch=config.leader_epoch,
        )

    def _stamp(self, now_ns: int) -> int:
        """Return the timestamp: max(previous, now), or `now` if the previous timestamp is more than
        a minute ahead. In that case the clock was wrong, and without this rule many records would
        get the wrong time.

        Timestamps are whole microseconds, the unit in which batches store them, so that batches can
        be merged later without a change of any timestamp.
        """
        now_ns -= now_ns % 1000
        previous = self.last_timestamp_ns
        if previous > now_ns + _CLOCK_TOLERANCE_NS:
            logger.warning(
                "clock-stepped-back stream=%s previous_ns=%d now_ns=%d",
                self.config.stream,
                previous,
                now_ns,
            )
            previous = 0
        self.last_timestamp_ns = max(previous, now_ns)
        return self.last_timestamp_ns

    # --- groups ---

    def _new_group(self) -> CommitGroup:
        return CommitGroup(self.next_offset, self.last_message_id)

    def _group_with_room(self) -> CommitGroup:
        if self._open.memory_bytes >= self.config.group_max_bytes:
            self._full.append(self._open)
            self._open = self._new_group()
        return self._open

    @property
    def pending_messages(self) -> int:
        """Number of messages judged since the last group was taken, including refused ones."""
        if not self._full:
            return self._open.received
        return self._open.received + sum(group.received for group in self._full)

    @property
    def held_messages(self) -> int:
        """Number of messages whose group is held."""
        return sum(held.received for held in self._held)

    @property
    def unanswered_messages(self) -> int:
        """Number of messages that are judged, being written, or held."""
        out = sum(group.received for group in self._out)
        return self.held_messages + out + self.pending_messages

    def _look_for_room(self, run: MessageRun) -> bool:
        """Return True if a whole run fits into the stream, even if no message of the run is refused
        or a duplicate."""
        if self.room is None:
            return True
        self.room.look(chain(self._out, self._full))
        last = self.next_offset + len(run) - 1
        return self.room.why_full(last, self._open.size_bytes + run.size_bytes) is None

    @property
    def untaken_offset(self) -> int:
        """First offset of the records that no group has taken yet."""
        return self._full[0].base_offset if self._full else self._open.base_offset

    @property
    def oldest_out(self) -> CommitGroup | None:
        """The oldest of the groups that are out."""
        return self._out[0] if self._out else None

    @property
    def is_holding(self) -> bool:
        """True if a group is held, so that later groups must also be held."""
        return bool(self._held)

    def take_group(self) -> CommitGroup | None:
        """Return the next group to write, None if no message waits. The group is out until it is
        committed, held, or has failed."""
        if self._full:
            group = self._full.popleft()
        else:
            group = self._open
            if not group.received:
                return None
            self._open = self._new_group()
        if self.config.is_bucket:
            group.key_by_subject()
        self._out.append(group)
        return group

    def prepare_answers(self, group: CommitGroup) -> None:
        """Build the answers that `committed` will return, while the disk is busy. Sends nothing."""
        answers = b""
        if group.has_acks:
            answers = self.format.commands(group.ack_replies, group.base_offset)
            if self._acks_early:
                group.early_answers.append(answers)
                answers = b""
        if group.answers:
            answers += b"".join(group.answers)
        group.prepared_answers = answers

    def committed(self, group: CommitGroup) -> bytes:
        """Commit the oldest group that is out. Call this method only while no group is held.
        Returns the NATS commands with all answers that waited for it."""
        answers = self._settle(group)
        if group.early_answers:
            answers = b"".join(group.early_answers) + answers
        self.pending_bytes -= group.memory_bytes
        if group.timed_acks:
            answers += ack_commands(group.timed_acks, self._commit_time_ns())
        return answers

    def _settle(self, group: CommitGroup) -> bytes:
        """Remove the oldest group from the groups that are out, so that no failure undoes it.
        Returns its answers, except early ones and timed acks."""
        oldest = self._out.popleft()
        assert oldest is group, "groups are committed in the order in which they were taken"
        if self.subjects is not None and group.subject_notes is not None:
            self.subjects.committed(group.subject_notes)
        if group.prepared_answers is None:
            self.prepare_answers(group)
        return group.prepared_answers  # type: ignore[return-value]  # it is there now

    def _commit_time_ns(self) -> int:
        return self.last_timestamp_ns if self._commit_clock is None else self._commit_clock()

    def hold(self, group: CommitGroup) -> bytes:
        """Hold the oldest group that is out. The group is durable on this node. Returns the acks
        under the policy `leader`, and keeps the other answers until `release`."""
        answers = self._settle(group)
        early, timed_acks = group.early_answers, group.timed_acks
        if timed_acks and self.config.is_replicated:
            now = [ack for ack in timed_acks if ack[1].ack_policy == LEADER]
            timed_acks = [ack for ack in timed_acks if ack[1].ack_policy != LEADER]
            if now:
                early.append(ack_commands(now, self._commit_time_ns()))
        self.held_bytes += group.memory_bytes
        self._held.append(
            HeldGroup(
                group.next_offset,
                answers,
                timed_acks,
                group.received,
                len(group),
                group.memory_bytes,
            )
        )
        return b"".join(early)

    def release(self, high_watermark: int) -> Released | None:
        """Release the held groups below `high_watermark`, which are committed. Returns their
        answers; None if no group is released."""
        held = self._held
        if not held or held[0].next_offset > high_watermark:
            return None
        answers: list[bytes] = []
        groups: list[HeldGroup] = []
        while held and held[0].next_offset <= high_watermark:
            group = held.popleft()
            groups.append(group)
            answers.append(group.answers)
            if group.timed_acks:
                answers.append(ack_commands(group.timed_acks, self._commit_time_ns()))
            self.held_bytes -= group.memory_bytes
            self.pending_bytes -= group.memory_bytes
        return Released(b"".join(answers), groups)

    def failed(
        self, group: CommitGroup | None, refusal: RefusalReason, next_offset: int | None = None
    ) -> bytes:
        """Undo all messages that were judged from the first message of `group` on. The group was
        taken for a commit, and the commit failed. If `group` is None, undo only the records that no
        group has taken yet.

        Returns the nacks. `next_offset` overrides the offset at which numbering continues.
        """
        undone = [*self._full, self._open]
        self._full.clear()
        while group is not None and undone[0] is not group:
            undone.insert(0, self._out.pop())
        nacks: list[Answer] = []
        for lost in reversed(undone):
            self.dedupe.forget_newest(lost.id_marks)
            self.pending_bytes -= lost.memory_bytes
        for lost in undone:
            waiting: list[tuple[bytes, Echo]] = [
                (reply, None) for reply in chain(lost.ack_replies, lost.waiting_replies) if reply
            ]
            waiting += [(reply, ack) for reply, ack, _ in lost.timed_acks]
            for reply, echo in waiting + lost.waiting:
                body = nack_body(self.config.stream, refusal, echo)
                if body is not None:
                    nacks.append((reply, body))
            self.refused[refusal.reason] += len(lost)
        self.next_offset = undone[0].base_offset if next_offset is None else next_offset
        self.last_message_id = undone[0].last_message_id_before
        if self.subjects is not None:
            self.subjects.undone(self.next_offset, [kept.subject_notes for kept in self._out])
        self._open = self._new_group()
        return publish_commands(nacks)

    def step_down(self, refusal: RefusalReason) -> bytes:
        """Stop committing on this node. Undoes records that were only judged, and returns their
        nacks.

        Messages that are out or held get no answer, because other nodes may have and commit them.
        """
        nacks = self.failed(None, refusal)
        self._out.clear()
        self._held.clear()
        self.pending_bytes = self.held_bytes = 0
        return nacks

    # --- storing ---

    def _store(
        self,
        group: CommitGroup,
        subject: bytes,
        value: bytes | None,
        block: bytes,
        control: Control,
        reply: bytes,
        echo: Echo,
        stamp: int,
    ) -> None:
        if block:
            group.pad_headers().append(block)
        if control.key is not None:
            group.pad_keys().append(control.key)
            group.size_bytes += len(control.key)
        if value is None:
            group.has_tombstones = True
        group.subjects.append(subject)
        group.values.append(value)
        group.add_stamp(stamp, 1)
        group.size_bytes += len(value or b"") + len(block)
        offset = self.next_offset
        if reply and echo is not None:
            self._acknowledge(group, reply, echo, offset)
            reply = NO_REPLY
        if reply:
            group.has_acks = True
        group.ack_replies.append(reply)
        if self.subjects is not None:
            if value is None:
                self._note_subjects(group, [subject], [control.key], [value])
            else:
                self.subjects.note(notes_of(group, self.subjects), subject, offset)
        self.last_message_id = control.message_id
        self.next_offset = offset + 1

    def _store_columns(self, group: CommitGroup, part: Columns, stamp: int) -> None:
        first, count = self.next_offset, len(part.values)
        size_bytes = sum(map(len, filter(None, part.values)))
        if part.blocks is not None and any(part.blocks):
            group.pad_headers().extend(part.blocks)
            size_bytes += sum(map(len, part.blocks))
        if part.keys is not None and part.keys.count(None) < count:
            group.pad_keys().extend(part.keys)
            size_bytes += sum(map(len, filter(None, part.keys)))
        replies = part.replies
        if part.echoes is not None:
            group.has_tombstones |= None in part.values
            replies = self._acknowledge_echoes(group, part.echoes, replies, first)
        group.subjects += part.subjects
        group.values += part.values
        group.add_stamp(stamp, count)
        group.size_bytes += size_bytes
        if self.subjects is not None:
            self._note_subjects(group, part.subjects, part.keys, part.values)
        group.has_acks |= any(replies)
        group.ack_replies += replies
        self.next_offset = first + count
        self.last_message_id = (part.message_ids and part.message_ids[-1]) or b""

    def _note_subjects(
        self,
        group: CommitGroup,
        subjects: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        values: Sequence[bytes | None],
    ) -> None:
        """Note the subjects of the records that are about to be stored."""
        table, first = self.subjects, self.next_offset
        assert table is not None
        notes = notes_of(group, table)
        if not (table.tombstones_delete and None in values):
            table.note_run(notes, subjects, first)
            return
        rows = zip(subjects, keys or [None] * len(values), values, strict=True)
        for offset, (subject, key, value) in enumerate(rows, first):
            if value is not None:
                table.note(notes, subject, offset)
            elif deletes_subject(key, value):
                table.note(notes, subject, -offset)

    def _checked(self, reply: bytes) -> bytes:
        """Return the reply subject, or b"" if no ack may be sent to it."""
        if not reply or self.destinations.allows(reply):
            return reply
        self.acks_suppressed += 1
        return NO_REPLY

    def _with_checked_replies(self, part: Columns) -> Columns:
        if self.destinations.all_allowed_or_empty(part.replies):
            return part
        return part._replace(replies=[self._checked(reply) for reply in part.replies])

    def _acknowledge_echoes(
        self,
        group: CommitGroup,
        echoes: Sequence[Echo],
        replies: Sequence[bytes],
        first_offset: int,
    ) -> Sequence[bytes]:
        """Ack the rows whose acks contain fields of the message. Return the reply subjects of the
        other rows."""
        kinds = {*map(type, echoes)}
        if kinds == {type(None)}:
            return replies
        if kinds == {Ack} and all(replies):
            end = first_offset + len(replies)
            timed = zip(replies, echoes, range(first_offset, end), strict=True)
            group.timed_acks += timed  # type: ignore[arg-type]  # echoes are all Acks
            return [NO_REPLY] * len(replies)
        left = list(replies)
        named: list[tuple[bytes, str, int]] = []
        asked: list[tuple[bytes, Asked, int]] = []
        for row, echo in enumerate(echoes):
            if echo is not None:
                reply, left[row] = left[row], NO_REPLY
                if reply and isinstance(echo, Ack):
                    group.timed_acks.append((reply, echo, first_offset + row))
                elif reply and isinstance(echo, Asked):
                    asked.append((reply, echo, first_offset + row))
                elif reply and isinstance(echo, str):
                    named.append((reply, echo, first_offset + row))
        if asked:
            early = [one for one in asked if one[1].policy == "leader"]
            group.early_answers.append(self.format.asked(early))
            late = asked if not early else [one for one in asked if one[1].policy != "leader"]
            group.answers.append(self.format.asked(late))
            group.waiting += [(reply, echo) for reply, echo, _ in asked]
        if named:
            group.answers.append(self.format.repeating(named))
            group.waiting += [(reply, text) for reply, text, _ in named]
        return left

    def _acknowledge(
        self,
        group: CommitGroup,
        reply: bytes,
        echo: Echo,
        offset: int,
        *,
        duplicate: bool = False,
    ) -> None:
        """Add an ack that does not have the common format."""
        if isinstance(echo, Ack):
            group.timed_acks.append((reply, echo, offset))
            return
        is_early = self._wants_early(echo)
        if isinstance(echo, Asked):
            command = self.format.asked([(reply, echo, offset)], duplicate=duplicate)
        else:
            body = self.format.body(offset, duplicate=duplicate, correlation_id=echo)
            command = publish_commands([(reply, body)])
        (group.early_answers if is_early else group.answers).append(command)
        group.waiting.append((reply, echo))

    def _wants_early(self, echo: Echo) -> bool:
        """Return True if the answer may be sent as soon as the group is durable on this node."""
        if isinstance(echo, Asked):
            return echo.policy == "leader"
        if isinstance(echo, Ack):
            return self.config.is_replicated and echo.ack_policy == LEADER
        return self._acks_early

    def _refuse(
        self,
        group: CommitGroup,
        reply: bytes,
        refusal: RefusalReason,
        echo: Echo = None,
        *,
        is_early: bool,
    ) -> None:
        """Refuse a message. `is_early` means that the reason does not depend on uncommitted
        records."""
        self.refused[refusal.reason] += 1
        if reply:
            body = nack_body(self.config.stream, refusal, echo)
            if body is not None:
                answers = group.early_answers if is_early else group.answers
                answers.append(publish_commands([(reply, body)]))
            group.waiting.append((reply, echo))


def notes_of(group: CommitGroup, table: SubjectSequences) -> Notes:
    if group.subject_notes is None or group.subject_notes.table is not table:
        group.subject_notes = Notes(table)
    return group.subject_notes
