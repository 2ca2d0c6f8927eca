"""The speculative tail of a stream: what is judged, but not committed yet.

Records are appended to a group, one at a time or as columns, together with the answers that wait
for the group. Both ways keep the same account: offsets, stamps, ids, last offsets of subjects.
"""

from __future__ import annotations

import logging
from collections import Counter

from envelope.liftbridge import Ack
from liftlog.stream.ack_subjects import AckSubjects
from liftlog.stream.acks import AckFormat, Echo, publish_commands
from liftlog.stream.columns import Columns
from liftlog.stream.config import SequencerConfig
from liftlog.stream.control import Control
from liftlog.stream.dedupe import DedupeWindow
from liftlog.stream.group import CommitGroup
from liftlog.stream.liftbridge import nack_body
from liftlog.stream.refusals import Refusal
from liftlog.stream.subject_sequences import Notes, SubjectSequences

logger = logging.getLogger("liftlog.stream")

NO_REPLY = b""
_CLOCK_TOLERANCE_NS = 60 * 1_000_000_000


class Tail:
    """The base of `Sequencer`, which judges; lives on the event loop."""

    def __init__(
        self,
        config: SequencerConfig,
        dedupe: DedupeWindow,
        ack_subjects: AckSubjects,
        *,
        next_offset: int,
        last_timestamp_ns: int,
        last_message_id: bytes,
    ) -> None:
        self.config = config
        self.dedupe = dedupe
        self.ack_subjects = ack_subjects
        self.subjects: SubjectSequences | None = None
        """The last offset of each subject, if it is kept; may come and go between two runs."""
        self.format = AckFormat(config.stream, config.durability)
        self.next_offset = next_offset
        self.last_timestamp_ns = last_timestamp_ns
        self.last_message_id = last_message_id
        self.refused: Counter[str] = Counter()
        self.duplicates = 0
        self.acks_suppressed = 0
        self._ids_seen_ns = 0

    def _stamp(self, now_ns: int) -> int:
        """max(previous, now), unless the previous one lies more than a minute ahead: then the
        clock was wrong before, and following it would pin the log to that time.

        In whole microseconds: that is what a batch holds relative to its oldest stamp, so batches
        can be put together later and no stamp changes."""
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
            replies = list(replies)
            for row, echo in enumerate(part.echoes):
                if echo is not None:
                    if replies[row]:
                        self._acknowledge(group, replies[row], echo, first + row)
                    replies[row] = NO_REPLY
        group.subjects += part.subjects
        group.values += part.values
        group.add_stamp(stamp, count)
        group.size_bytes += size_bytes
        if self.subjects is not None:
            self.subjects.note_run(notes_of(group, self.subjects), part.subjects, first)
        group.has_acks |= any(replies)
        group.ack_replies += replies
        self.next_offset = first + count
        self.last_message_id = (part.message_ids and part.message_ids[-1]) or b""

    def _checked(self, reply: bytes) -> bytes:
        """The reply subject, or b"" when no ack may be sent there."""
        if not reply or self.ack_subjects.allows(reply):
            return reply
        self.acks_suppressed += 1
        return NO_REPLY

    def _with_checked_replies(self, part: Columns) -> Columns:
        if self.ack_subjects.all_allowed_or_empty(part.replies):
            return part
        return part._replace(replies=[self._checked(reply) for reply in part.replies])

    def _acknowledge(
        self,
        group: CommitGroup,
        reply: bytes,
        echo: Echo,
        offset: int,
        *,
        duplicate: bool = False,
    ) -> None:
        """An ack that is not of the common form."""
        if isinstance(echo, Ack):
            if group.timed_acks is None:
                group.timed_acks = []
            group.timed_acks.append((reply, echo, offset))
        else:
            body = self.format.body(offset, duplicate=duplicate, correlation_id=echo)
            group.answers.append(publish_commands([(reply, body)]))
            group.waiting.append((reply, echo))

    def _refuse(
        self,
        group: CommitGroup,
        reply: bytes,
        refusal: Refusal,
        echo: Echo = None,
    ) -> None:
        self.refused[refusal.reason] += 1
        if reply:
            body = nack_body(self.config.stream, refusal, echo)
            if body is not None:
                group.answers.append(publish_commands([(reply, body)]))
            group.waiting.append((reply, echo))


def notes_of(group: CommitGroup, table: SubjectSequences) -> Notes:
    if group.subject_notes is None or group.subject_notes.table is not table:
        group.subject_notes = Notes(table)
    return group.subject_notes
