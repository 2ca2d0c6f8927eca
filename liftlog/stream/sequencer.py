"""What one stream does with messages: judge, number, group; then acks or nacks.

Pure: runs of messages and the outcome of commits go in, groups to write and bytes to send come
out. Judging runs ahead of the disk on a speculative tail; every answer that depends on it stays
with its group until that group is durable, and when a group fails, everything judged since the
last commit is taken back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain, compress
from operator import not_, sub

from acl.subjects import matches
from liftlog.stream.ack_subjects import AckSubjects
from liftlog.stream.acks import AckFormat, Answer, Echo, publish_commands
from liftlog.stream.columns import Columns, columns_of
from liftlog.stream.config import SequencerConfig
from liftlog.stream.control import NO_CONTROL, Control
from liftlog.stream.dedupe import AddedRun, DedupeWindow
from liftlog.stream.enveloped import merge_headers, open_envelope, reply_of, with_envelope
from liftlog.stream.group import CommitGroup
from liftlog.stream.judging import (
    FAST_BATCH_SUFFIX,
    MAX_HEADER_BYTES,
    control_of,
    has_fast_batch,
    is_plain,
    why_headers_refused,
    why_refused,
    why_subject_refused,
)
from liftlog.stream.liftbridge import ack_commands, nack_body
from liftlog.stream.refusals import (
    FAST_BATCHES,
    HEADERS_TOO_LARGE,
    TOO_LARGE,
    WRONG_STREAM,
    Refusal,
    refusal_body,
    wrong_last_message_id,
    wrong_last_sequence,
)
from liftlog.stream.run import MESSAGE_OVERHEAD_BYTES, MessageRun
from liftlog.stream.tail import NO_REPLY, Tail, notes_of

_COLUMNS_FROM_ROWS = 4


class Sequencer(Tail):
    """Not thread-safe: lives on the event loop."""

    def __init__(
        self,
        config: SequencerConfig,
        dedupe: DedupeWindow,
        ack_subjects: AckSubjects,
        *,
        next_offset: int,
        last_timestamp_ns: int = 0,
        last_message_id: bytes = b"",
        commit_clock: Callable[[], int] | None = None,
    ) -> None:
        """`commit_clock` tells the time of a commit (ns since 1970), for the acks that name it;
        without one they name the time of the newest record."""
        super().__init__(
            config,
            dedupe,
            ack_subjects,
            next_offset=next_offset,
            last_timestamp_ns=last_timestamp_ns,
            last_message_id=last_message_id,
        )
        self.sibling_streams: Mapping[bytes, str] = {}
        """Subjects of streams that get messages of their own, by name; this one may be there."""
        self.pending_bytes = 0
        self.columns_from_rows = _COLUMNS_FROM_ROWS
        """Shorter runs are judged one message at a time, which comes to the same."""
        self._commit_clock = commit_clock
        self._groups: deque[CommitGroup] = deque()
        self._open = self._new_group()

    def configure(self, config: SequencerConfig, window_ns: int, max_ids: int) -> None:
        """Judge by these settings from the next message on; what was judged stays judged. Call it
        while no group is out whose answers are not worded."""
        self.config = config
        self.format = AckFormat(config.stream, config.durability)
        self.dedupe.resize(window_ns, max_ids)

    def _new_group(self) -> CommitGroup:
        return CommitGroup(self.next_offset, self.last_message_id)

    # --- judging ---

    def judge(self, run: MessageRun, now_ns: int, steady_ns: int | None = None) -> None:
        """Number what is to be stored, word what is to be answered. Order is kept.

        `now_ns` is for stamps. `steady_ns` is for the age of message ids: a clock that does not
        step with the wall clock; without it they age by the stamps.
        """
        group = self._group_with_room()
        before = group.size_bytes
        group.received += len(run)
        stamp = self._stamp(now_ns)
        if not (is_plain(self.config, run) and self._take_all(group, run, stamp)):
            self._ids_seen_ns = stamp if steady_ns is None else steady_ns
            self.dedupe.expire(self._ids_seen_ns)
            if len(run) < self.columns_from_rows:
                self._judge_rows(group, run, 0, len(run), stamp)
            else:
                self._judge_columns(group, run, stamp)
        self.pending_bytes += group.size_bytes - before + MESSAGE_OVERHEAD_BYTES * len(run)

    def store_own(
        self,
        subjects: Sequence[bytes],
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        now_ns: int,
    ) -> int:
        """Number records that the daemon itself writes: nothing is judged, nobody is acked.
        Returns the offset behind them."""
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
        self.pending_bytes += group.size_bytes - before + MESSAGE_OVERHEAD_BYTES * count
        self.next_offset += count
        self.last_message_id = b""
        return self.next_offset

    def _group_with_room(self) -> CommitGroup:
        if self._open.memory_bytes >= self.config.group_max_bytes:
            self._groups.append(self._open)
            self._open = self._new_group()
        return self._open

    def _take_all(self, group: CommitGroup, run: MessageRun, stamp: int) -> bool:
        """Store a run of plain messages; False, and nothing done, when a reply needs a look."""
        count = len(run)
        replies: Sequence[bytes] = [NO_REPLY] * count
        wants_acks = self.config.acks == "on" and any(run.replies)
        if wants_acks:
            replies = run.replies
            if not self.ack_subjects.all_allowed(replies):
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
        """As `_judge_rows` of the whole run, with the rows between odd ones as columns."""
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
        """Store rows that ask for nothing but to be stored, once for each id."""
        part = columns.part(start, stop)
        if not self.dedupe.window_ns or part.message_ids is None:
            self._store_columns(group, self._with_checked_replies(part), stamp)
            return
        ids = part.message_ids
        named: Sequence[bytes] = ids  # type: ignore[assignment]  # unless some are missing
        rows: Sequence[int] = range(len(ids))
        if None in ids:
            named = [message_id for message_id in ids if message_id]
            rows = [row for row, message_id in enumerate(ids) if message_id]
        marks = self.dedupe.marks(named)
        if self.dedupe.may_evict(marks):
            # What is a duplicate depends on what is let go between two rows.
            self._judge_rows(group, run, start, stop, stamp)
            return
        first = self.next_offset
        added = self.dedupe.add_run(marks, [first + row for row in rows], self._ids_seen_ns)
        group.id_marks += added.new
        part = self._with_checked_replies(part)
        if added.originals:
            self._take_some(group, part, rows, added, stamp)
        else:
            self._store_columns(group, part, stamp)

    def _take_some(
        self, group: CommitGroup, part: Columns, rows: Sequence[int], added: AddedRun, stamp: int
    ) -> None:
        """Store the rows of `part` that are no duplicates, and answer the others. `rows` are those
        with an id, in the order of `added`."""
        count, first = len(part.values), self.next_offset
        known = list(compress(rows, added.is_duplicate))
        self.duplicates += len(known)
        is_duplicate = added.is_duplicate
        if len(rows) < count:
            is_duplicate = [False] * count
            for row in known:
                is_duplicate[row] = True
        new = part.only(list(map(not_, is_duplicate)))
        if part.echoes is None and all(part.replies):
            # In the order of the messages: answers to one connection stay together.
            offsets = list(map(sub, range(first, first + count), accumulate(is_duplicate)))
            for row, original in zip(known, added.originals, strict=True):
                offsets[row] = original
            group.answers.append(self.format.mixed(part.replies, offsets, is_duplicate))
            group.waiting_replies += part.replies
            if len(known) < count:
                unanswered = [NO_REPLY] * len(new.values)
                self._store_columns(group, new._replace(replies=unanswered), stamp)
            return
        if len(known) < count:
            self._store_columns(group, new, stamp)
        # After the originals, so that no duplicate is answered before its original.
        for row, original in zip(known, added.originals, strict=True):
            if part.replies[row]:
                echo = None if part.echoes is None else part.echoes[row]
                self._acknowledge(group, part.replies[row], echo, original, duplicate=True)

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
                self._refuse(group, NO_REPLY, TOO_LARGE)
            else:
                self._store(group, subject, payload, block, NO_CONTROL, NO_REPLY, None, stamp)
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
            # It will answer; this one only counts.
            self._refuse(group, NO_REPLY, WRONG_STREAM)
            return
        reply = self._checked(reply)
        if control.tombstone:
            value = None
        refusal = why_refused(self.config, control, value, too_large=too_large) or (
            FAST_BATCHES if is_fast_batch else bad_headers or refusal
        )
        if refusal is not None:
            self._refuse(group, reply, refusal, echo)
            return
        if control is NO_CONTROL:
            self._store(group, subject, value, block, control, reply, echo, stamp)
            return
        mark = b""
        if control.message_id and self.dedupe.window_ns:
            mark = self.dedupe.mark(control.message_id)
        if not self._settled(group, subject, reply, control, mark, echo):
            self._store(group, subject, value, block, control, reply, echo, stamp)
            if mark and self.dedupe.add(mark, self.next_offset - 1, self._ids_seen_ns):
                group.id_marks.append(mark)

    def _is_for_another(self, control: Control, subject: bytes) -> bool:
        """Whether the message names another stream that records this subject too."""
        wanted = control.expected_stream
        pattern = self.sibling_streams.get(wanted)
        if pattern is None or wanted == self.config.stream.encode():
            return False
        return matches(pattern, subject.decode("utf-8", "replace"))

    def _settled(
        self,
        group: CommitGroup,
        subject: bytes,
        reply: bytes,
        control: Control,
        mark: bytes,
        echo: Echo,
    ) -> bool:
        """True when the message is answered without being stored. `mark` is that of its id.

        Dedupe comes before the preconditions, as in a cluster of nats-server: a message that is
        published again meets conditions that it has made untrue itself.
        """
        if mark and control.judges_id:
            original = self.dedupe.lookup(mark)
            if original is not None:
                self.duplicates += 1
                if reply:
                    self._acknowledge(group, reply, echo, original, duplicate=True)
                return True
        if control.names_subject_sequence:
            refusal = why_subject_refused(self.subjects, control, subject)
            if refusal is not None:
                self._refuse(group, reply, refusal, echo)
                return True
        last = self.next_offset - 1
        if control.expected_last_sequence not in (None, last):
            self._refuse(group, reply, wrong_last_sequence(last), echo)
            return True
        wanted = control.expected_last_message_id
        if wanted and wanted != self.last_message_id:
            refusal = wrong_last_message_id(self.last_message_id)
            self._refuse(group, reply, refusal, echo)
            return True
        return False

    # --- groups ---

    @property
    def pending_messages(self) -> int:
        """Messages judged since the last group was taken, answers to refusals included."""
        if not self._groups:
            return self._open.received
        return self._open.received + sum(group.received for group in self._groups)

    def take_group(self) -> CommitGroup | None:
        """The next group to commit, None when nothing waits. At most one is out at a time."""
        if self._groups:
            return self._groups.popleft()
        group = self._open
        if not group.received:
            return None
        self._open = self._new_group()
        return group

    def prepare_answers(self, group: CommitGroup) -> None:
        """Word what `committed` will return, while the disk is busy. Nothing leaves by this."""
        answers = b""
        if group.has_acks:
            answers = self.format.commands(group.ack_replies, group.base_offset)
        if group.answers:
            answers += b"".join(group.answers)
        group.prepared_answers = answers

    def committed(self, group: CommitGroup) -> bytes:
        """The group is committed: the NATS commands that answer everyone who waited for it."""
        self.pending_bytes -= group.memory_bytes
        if self.subjects is not None and group.subject_notes is not None:
            self.subjects.committed(group.subject_notes)
        if group.prepared_answers is None:
            self.prepare_answers(group)
        assert group.prepared_answers is not None
        if group.timed_acks is not None:
            clock = self._commit_clock
            now_ns = self.last_timestamp_ns if clock is None else clock()
            return group.prepared_answers + ack_commands(group.timed_acks, now_ns)
        return group.prepared_answers

    def failed(self, group: CommitGroup, refusal: Refusal, next_offset: int | None = None) -> bytes:
        """The group could not be committed: everything judged since the last commit is undone.

        Returns the nacks. `next_offset` overrides where numbering goes on.
        """
        undone = [group, *self._groups, self._open]
        self._groups.clear()
        nacks: list[Answer] = []
        for lost in reversed(undone):
            self.dedupe.forget_newest(lost.id_marks)
        for lost in undone:
            waiting: list[tuple[bytes, Echo]] = [
                (reply, None) for reply in chain(lost.ack_replies, lost.waiting_replies) if reply
            ]
            waiting += [(reply, ack) for reply, ack, _ in lost.timed_acks or ()]
            for reply, echo in waiting + lost.waiting:
                body = nack_body(self.config.stream, refusal, echo)
                if body is not None:
                    nacks.append((reply, body))
            self.refused[refusal.reason] += len(lost)
        self.pending_bytes = 0
        self.next_offset = group.base_offset if next_offset is None else next_offset
        if self.subjects is not None:
            self.subjects.undone(self.next_offset)
        self.last_message_id = group.last_message_id_before
        self._open = self._new_group()
        return publish_commands(nacks)

    def refuse_run(self, run: MessageRun, refusal: Refusal) -> bytes:
        """Nack a whole run without judging it: the stream cannot take anything now."""
        self.refused[refusal.reason] += len(run)
        if self.config.acks == "off":
            return b""
        if run.headers is None and not run.has_cookie:
            if self.config.acks != "on":
                return b""
            body = refusal_body(self.config.stream, refusal)
            replies = filter(None, map(self._checked, run.replies))
            return publish_commands([(reply, body) for reply in replies])
        headers = run.headers or [b""] * len(run)
        rows = zip(run.subjects, run.replies, headers, run.payloads, strict=True)
        return publish_commands([answer for row in rows for answer in self._nack(refusal, *row)])

    def _nack(
        self, refusal: Refusal, subject: bytes, reply: bytes, block: bytes, payload: bytes
    ) -> list[Answer]:
        """The answer to one message that is refused unjudged: none or one."""
        found = open_envelope(self.config, subject, payload, self.last_timestamp_ns)
        echo: Echo = None
        if found is not None:
            opened, echo, _ = found
            if why_headers_refused(block, enveloped=True) is None:
                block = merge_headers(opened, block)  # they may name the stream that is meant
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
