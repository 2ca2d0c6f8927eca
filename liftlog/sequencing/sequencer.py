"""The sequencer of one stream: judges, numbers and groups messages; then builds acks or nacks.

The sequencer is pure: callers pass runs of messages and the results of commits, and get groups to
write and bytes to send. It judges messages before earlier messages are on disk, by the speculative
state in `Tail`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, compress, repeat
from operator import add, not_

from acl.subjects import matches_any
from liftlog.sequencing.acks import Answer, Echo, publish_commands
from liftlog.sequencing.commit_group import CommitGroup
from liftlog.sequencing.config import SequencerConfig
from liftlog.sequencing.control import NO_CONTROL, ROLLUP_ALL, Control
from liftlog.sequencing.dedupe import AddedRun, DedupeWindow
from liftlog.sequencing.destinations import Destinations
from liftlog.sequencing.enveloped import merge_headers, open_envelope, reply_of, with_envelope
from liftlog.sequencing.judging import (
    FAST_BATCH_SUFFIX,
    MAX_HEADER_BYTES,
    Columns,
    are_new_subjects,
    columns_of,
    control_of,
    has_fast_batch,
    is_plain,
    why_headers_refused,
    why_refused,
    why_subject_full,
    why_subject_refused,
)
from liftlog.sequencing.liftbridge import nack_body
from liftlog.sequencing.refusals import (
    FAST_BATCHES,
    HEADERS_TOO_LARGE,
    TOO_LARGE,
    WRONG_STREAM,
    RefusalReason,
    refusal_body,
    wrong_last_message_id,
    wrong_last_sequence,
)
from liftlog.sequencing.run import MESSAGE_OVERHEAD_BYTES, MessageRun
from liftlog.sequencing.tail import NO_REPLY, Tail, notes_of

_COLUMNS_FROM_ROWS = 4


class Sequencer(Tail):
    """Judges and numbers the messages of one stream. Not thread-safe: used only on the event
    loop."""

    def __init__(
        self,
        config: SequencerConfig,
        dedupe: DedupeWindow,
        destinations: Destinations,
        *,
        next_offset: int,
        last_timestamp_ns: int = 0,
        last_message_id: bytes = b"",
        commit_clock: Callable[[], int] | None = None,
    ) -> None:
        """Continue a stream at `next_offset`. `commit_clock` returns the time of a commit (ns since
        1970), for the acks that contain this time; without the clock these acks contain the time of
        the newest record."""
        super().__init__(
            config,
            dedupe,
            destinations,
            next_offset=next_offset,
            last_timestamp_ns=last_timestamp_ns,
            last_message_id=last_message_id,
            commit_clock=commit_clock,
        )
        self.sibling_streams: Mapping[bytes, Sequence[str]] = {}
        """Maps the names of other streams, which store their own copies of messages, to their
        subjects. May include this stream."""
        self.columns_from_rows = _COLUMNS_FROM_ROWS
        """Runs with fewer messages are judged one message at a time, with the same result."""
        self.too_few_copies: RefusalReason | None = None
        """Reason to refuse messages that request an ack of all copies; None if such messages are
        accepted."""

    def configure(self, config: SequencerConfig, window_ns: int, max_ids: int) -> None:
        """Use these settings from the next message on; earlier verdicts stay. Call this method only
        after the answers of all groups that are out have been built."""
        self.config = config
        self._word_acks()
        self.dedupe.resize(window_ns, max_ids)

    # --- judging ---

    def judge(
        self, run: MessageRun, now_ns: int, steady_clock: Callable[[], int] | None = None
    ) -> None:
        """Number the messages to store, and build the answers to the other messages, in order.

        `now_ns` is the time for timestamps. `steady_clock` (ns) does not jump with the wall clock,
        and determines the age of message ids. Without it, timestamps determine the age.
        """
        group, count = self._group_with_room(), len(run.payloads)
        before = group.size_bytes
        group.received += count
        stamp = self._stamp(now_ns)
        by_row = self.too_few_copies is not None and (run.has_cookie or any(run.replies))
        by_row = not self._look_for_room(run) or by_row
        by_row = by_row or (
            self.config.one_per_subject and not are_new_subjects(self.subjects, run)
        )
        if by_row or not (is_plain(self.config, run) and self._take_all(group, run, stamp)):
            self._ids_seen_ns = stamp if steady_clock is None else steady_clock()
            self.dedupe.expire(self._ids_seen_ns)
            if by_row or count < self.columns_from_rows:
                self._judge_rows(group, run, 0, count, stamp)
            else:
                self._judge_columns(group, run, stamp)
        self.pending_bytes += group.size_bytes - before + MESSAGE_OVERHEAD_BYTES * count

    def store_own(
        self,
        subjects: Sequence[bytes],
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        now_ns: int,
    ) -> int:
        """Assign offsets to records that the daemon itself writes, without judging or acking them.
        Returns the offset after these records."""
        group = self._group_with_room()
        before, count = group.size_bytes, len(values)
        group.received += count
        group.pad_keys().extend(keys)
        group.subjects += subjects
        group.values += values
        group.has_tombstones |= None in values
        group.ack_replies += [NO_REPLY] * count
        group.add_stamp(self._stamp(now_ns), count)
        group.size_bytes += sum(map(len, filter(None, [*subjects, *keys, *values])))
        if self.subjects is not None:
            self._note_subjects(group, subjects, keys, values)
        self.pending_bytes += group.size_bytes - before + MESSAGE_OVERHEAD_BYTES * count
        self.next_offset += count
        self.last_message_id = b""
        return self.next_offset

    def _take_all(self, group: CommitGroup, run: MessageRun, stamp: int) -> bool:
        """Store a run of plain messages. Returns False, without a change, if a reply subject needs
        a separate check."""
        count = len(run.payloads)
        replies: Sequence[bytes] = [NO_REPLY] * count
        wants_acks = self.config.acks == "on" and any(run.replies)
        if wants_acks:
            replies = run.replies
            if not self.destinations.all_allowed(replies):
                if has_fast_batch(replies):
                    return False
                replies = [self._checked(reply) for reply in replies]
        group.subjects += run.subjects
        group.values += run.payloads
        group.add_stamp(stamp, count)
        group.size_bytes += run.size_bytes
        if self.subjects is not None:
            notes = notes_of(group, self.subjects)
            self.subjects.note_run(notes, run.subjects, self.next_offset)
        group.has_acks |= wants_acks
        group.ack_replies += replies
        self.next_offset += count
        self.last_message_id = b""
        return True

    def _judge_columns(self, group: CommitGroup, run: MessageRun, stamp: int) -> None:
        """Judge the whole run with the same result as `_judge_rows`. Rows between odd rows are
        judged as columns."""
        columns, odd = columns_of(self.config, run, stamp)
        at = 0
        for row in odd:
            if at < row:
                self._take_columns(group, run, columns, at, row, stamp)
            self._judge_rows(group, run, row, row + 1, stamp)
            at = row + 1
        if at < len(run):
            self._take_columns(group, run, columns, at, len(run), stamp)

    def _judge_rows(
        self, group: CommitGroup, run: MessageRun, start: int, stop: int, stamp: int
    ) -> None:
        for row in range(start, stop):
            block = b"" if run.headers is None else run.headers[row]
            self._judge_one(
                group, run.subjects[row], run.replies[row], block, run.payloads[row], stamp
            )

    def _take_columns(
        self,
        group: CommitGroup,
        run: MessageRun,
        columns: Columns,
        start: int,
        stop: int,
        stamp: int,
    ) -> None:
        """Store rows that need no check except for duplicates."""
        part = columns.part(start, stop)
        if not self.dedupe.window_ns or part.message_ids is None:
            self._store_columns(group, self._with_checked_replies(part), stamp)
            return
        ids = part.message_ids
        named: Sequence[bytes] = ids  # type: ignore[assignment]  # unless some are missing
        rows: Sequence[int] = range(len(ids))
        if not all(ids):
            named = list(filter(None, ids))
            rows = list(compress(rows, ids))
        marks = self.dedupe.marks(named)
        if self.dedupe.may_evict(marks):
            # An eviction between two rows affects which of them are duplicates.
            self._judge_rows(group, run, start, stop, stamp)
            return
        numbers = range(self.next_offset, self.next_offset + len(ids))
        offsets = list(numbers if len(rows) == len(ids) else compress(numbers, ids))
        added = self.dedupe.add_run(marks, offsets, self._ids_seen_ns)
        group.id_marks += added.new
        part = self._with_checked_replies(part)
        if added.is_new:
            self._take_some(group, part, rows, added, stamp)
        else:
            self._store_columns(group, part, stamp)

    def _take_some(
        self, group: CommitGroup, part: Columns, rows: Sequence[int], added: AddedRun, stamp: int
    ) -> None:
        """Store the rows of `part` that are not duplicates, and answer the others.

        `rows` are the rows with an id, in the order of `added`.
        """
        count, is_new, offsets = len(part.values), added.is_new, added.offsets
        if len(rows) < count:
            is_new, offsets = self._among_all(count, rows, added)
        new_count = is_new.count(True)
        self.duplicates += count - new_count
        if part.echoes is None and all(part.replies):
            # Answers are in the order of the messages, which keeps answers to one connection
            # together.
            answers = group.early_answers if self._acks_early else group.answers
            answers.append(self.format.mixed(part.replies, offsets, is_new))
            group.waiting_replies += part.replies
            if new_count:
                unanswered = part._replace(replies=[NO_REPLY] * count)
                self._store_columns(group, unanswered.only(is_new), stamp)
            return
        if new_count:
            self._store_columns(group, part.only(is_new), stamp)
        # These answers follow the answers to the originals, so that no duplicate is answered before
        # its original.
        for row in compress(range(count), map(not_, is_new)):
            if part.replies[row]:
                echo = None if part.echoes is None else part.echoes[row]
                self._acknowledge(group, part.replies[row], echo, offsets[row], duplicate=True)

    def _among_all(
        self, count: int, rows: Sequence[int], added: AddedRun
    ) -> tuple[list[bool], list[int]]:
        """Expand `added`, which describes only `rows`, to all `count` rows; the other rows are
        new."""
        is_new = [True] * count
        for row, new in zip(rows, added.is_new, strict=True):
            is_new[row] = new
        offsets = list(map(add, repeat(self.next_offset - 1), accumulate(is_new)))
        for row, offset in zip(rows, added.offsets, strict=True):
            offsets[row] = offset
        return is_new, offsets

    def _judge_one(
        self,
        group: CommitGroup,
        subject: bytes,
        reply: bytes,
        block: bytes,
        payload: bytes,
        stamp: int,
    ) -> None:
        too_large = len(payload) + len(block) > self.config.max_message_bytes
        if self.config.acks == "off":
            if too_large:
                self._refuse(group, NO_REPLY, TOO_LARGE, is_early=True)
            else:
                self._take(group, subject, payload, block, NO_CONTROL, NO_REPLY, None, stamp)
            return
        value: bytes | None = payload
        echo: Echo = None
        refusal = None
        if self.config.acks != "on":
            reply = NO_REPLY
        is_fast_batch = reply.endswith(FAST_BATCH_SUFFIX)
        found = open_envelope(self.config, subject, payload, stamp, too_large=too_large)
        bad_headers, control = None, NO_CONTROL
        if found is None:
            if len(block) > MAX_HEADER_BYTES:
                bad_headers = HEADERS_TOO_LARGE
            else:
                control = control_of(self.config, block)
        else:
            opened, echo, refusal = found
            bad_headers = why_headers_refused(block, enveloped=True)
            value = opened.value
            if bad_headers is None:
                block = merge_headers(opened, block)
                control = control_of(self.config, block)
            control = with_envelope(control, opened)
            reply = reply_of(opened, reply, self.config.acks)
        if control is not NO_CONTROL and self._is_for_another(control, subject):
            # The other stream answers; this stream only counts the message.
            self._refuse(group, NO_REPLY, WRONG_STREAM, is_early=True)
            return
        reply = self._checked(reply)
        if control.tombstone:
            value = None
        refusal = why_refused(self.config, control, value, too_large=too_large) or (
            FAST_BATCHES if is_fast_batch else bad_headers or refusal
        )
        if refusal is None and reply and self.too_few_copies is not None:
            policy = (None if found is None else found[0].ack_policy) or self.config.ack_policy
            refusal = self.too_few_copies if policy == "all" else None
        if refusal is not None:
            self._refuse(group, reply, refusal, echo, is_early=True)
            return
        if control is NO_CONTROL:
            self._take(group, subject, value, block, control, reply, echo, stamp)
            return
        mark = b""
        if control.message_id and self.dedupe.window_ns:
            mark = self.dedupe.mark(control.message_id)
        if not self._settled(group, subject, reply, control, mark, echo):
            if not self._take(group, subject, value, block, control, reply, echo, stamp):
                return
            if mark and self.dedupe.add(mark, self.next_offset - 1, self._ids_seen_ns):
                group.id_marks.append(mark)
            if control.rollup and self.config.rolls_up:
                wanted = b"" if control.rollup == ROLLUP_ALL else subject
                group.rollups = group.rollups or []
                group.rollups.append((len(group) - 1, wanted))

    def _take(
        self,
        group: CommitGroup,
        subject: bytes,
        value: bytes | None,
        block: bytes,
        control: Control,
        reply: bytes,
        echo: Echo,
        stamp: int,
    ) -> bool:
        """Store a message, unless the stream is full."""
        refusal = None
        if self.config.one_per_subject:
            refusal = why_subject_full(self.subjects, subject)
        if self.room is not None:
            size_bytes = group.size_bytes + len(value or b"") + len(block) + len(control.key or b"")
            refusal = refusal or self.room.why_full(self.next_offset, size_bytes)
        if refusal is not None:
            self._refuse(group, reply, refusal, echo, is_early=self._wants_early(echo))
            return False
        self._store(group, subject, value, block, control, reply, echo, stamp)
        return True

    def _is_for_another(self, control: Control, subject: bytes) -> bool:
        """Return True if the message names another stream that also records this subject."""
        wanted = control.expected_stream
        patterns = self.sibling_streams.get(wanted)
        if patterns is None or wanted == self.config.stream.encode():
            return False
        return matches_any(patterns, subject.decode("utf-8", "replace"))

    def _settled(
        self,
        group: CommitGroup,
        subject: bytes,
        reply: bytes,
        control: Control,
        mark: bytes,
        echo: Echo,
    ) -> bool:
        """Answer the message and return True if it must not be stored. `mark` is the mark of the
        message's id.

        Duplicates are detected before preconditions are checked, as in a cluster of nats-server: a
        message that is published again may fail preconditions because its first copy was stored.
        """
        if mark and control.judges_id:
            original = self.dedupe.lookup(mark)
            if original is not None:
                self.duplicates += 1
                if reply:
                    self._acknowledge(group, reply, echo, original, duplicate=True)
                return True
        is_early = self._wants_early(echo)
        if control.names_subject_sequence:
            refusal = why_subject_refused(self.subjects, control, subject)
            if refusal is not None:
                self._refuse(group, reply, refusal, echo, is_early=is_early)
                return True
        last = self.next_offset - 1
        if control.expected_last_sequence not in (None, last):
            self._refuse(group, reply, wrong_last_sequence(last), echo, is_early=is_early)
            return True
        wanted = control.expected_last_message_id
        if wanted and wanted != self.last_message_id:
            refusal = wrong_last_message_id(self.last_message_id)
            self._refuse(group, reply, refusal, echo, is_early=is_early)
            return True
        return False

    # --- refusing what is not judged ---

    def refuse_run(self, run: MessageRun, refusal: RefusalReason) -> bytes:
        """Nack a whole run without judging it, because the stream cannot store messages now."""
        self.refused[refusal.reason] += len(run)
        if self.config.acks == "off":
            return b""
        columns, odd = columns_of(self.config, run, self.last_timestamp_ns)
        body = refusal_body(self.config.stream, refusal)
        answers: list[Answer] = []
        at = 0
        for row in [*odd, len(run)]:
            part = self._with_checked_replies(columns.part(at, row))
            for reply, echo in zip(part.replies, part.echoes or repeat(None), strict=False):
                told = body if echo is None else nack_body(self.config.stream, refusal, echo)
                if reply and told is not None:
                    answers.append((reply, told))
            if row < len(run):
                block = b"" if run.headers is None else run.headers[row]
                message = run.subjects[row], run.replies[row], block, run.payloads[row]
                answers += self._nack(refusal, *message)
            at = row + 1
        return publish_commands(answers)

    def _nack(
        self, refusal: RefusalReason, subject: bytes, reply: bytes, block: bytes, payload: bytes
    ) -> list[Answer]:
        """Return the answer to one message that is refused without being judged; an empty list if
        it gets no answer."""
        found = open_envelope(self.config, subject, payload, self.last_timestamp_ns)
        echo: Echo = None
        if found is not None:
            opened, echo, _ = found
            if why_headers_refused(block, enveloped=True) is None:
                block = merge_headers(opened, block)  # headers may name the intended stream
            reply = reply_of(opened, reply, self.config.acks)
        elif self.config.acks != "on":
            return []
        if why_headers_refused(block, enveloped=False) is None and self._is_for_another(
            control_of(self.config, block), subject
        ):
            return []
        reply = self._checked(reply)
        body = nack_body(self.config.stream, refusal, echo) if reply else None
        return [] if body is None else [(reply, body)]
