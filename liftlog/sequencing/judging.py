"""Judges messages independently of other messages: a whole run at once, as columns, or one message
at a time.

A row that the columns cannot represent is *odd*: its message is judged separately, between the rows
before and after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import add
from typing import NamedTuple

from liftlog.sequencing.acks import Echo
from liftlog.sequencing.config import SequencerConfig
from liftlog.sequencing.control import (
    NO_CONTROL,
    ROLLUP_ALL,
    ROLLUP_SUBJECT,
    Control,
    may_control,
    parse_control,
)
from liftlog.sequencing.header_columns import MAX_BLOCK_BYTES, header_columns
from liftlog.sequencing.opened import EnvelopeFields
from liftlog.sequencing.refusals import (
    EXPECTED_SUBJECT_WITH_WILDCARDS,
    EXPECTED_SUBJECT_WITHOUT_SEQUENCE,
    FULL_OF_SUBJECT,
    HEADERS_TOO_LARGE,
    LAST_SEQUENCE_UNKNOWN,
    ROLLUP,
    SUBJECT_SEQUENCES_ARE_OFF,
    TOMBSTONE_WITHOUT_KEY,
    TOO_LARGE,
    TOO_MANY_HEADERS,
    WRONG_STREAM,
    RefusalReason,
    invalid_rollup,
    wrong_last_sequence,
)
from liftlog.sequencing.run import MessageRun
from liftlog.sequencing.subject_sequences import SubjectSequences

MAX_HEADER_BYTES = 65_535
"""The longest header block of one message, as in JetStream."""
MAX_MERGED_LINES = 1000
"""Maximum number of lines of a header block to which the headers of an envelope are added."""
FAST_BATCH_SUFFIX = b".$FI"
"""The suffix of reply subjects in JetStream's fast batch publishing."""
_WILDCARDS = frozenset({b"*", b">"})


def is_plain(config: SequencerConfig, run: MessageRun) -> bool:
    """Return True if no message of the run needs a separate check."""
    if run.size_bytes > config.max_message_bytes and (
        max(map(len, run.payloads)) > config.max_message_bytes
    ):
        return False
    if config.acks == "off":
        return run.headers is None
    if run.headers is not None:
        return False
    return not (run.has_cookie and (config.recognise_envelopes or config.recognise_liftbridge))


def has_fast_batch(replies: Sequence[bytes]) -> bool:
    """Return True if one of these replies belongs to a fast batch."""
    return any(reply.endswith(FAST_BATCH_SUFFIX) for reply in replies)


def why_headers_refused(block: bytes, *, enveloped: bool) -> RefusalReason | None:
    """Return the reason to refuse a header block because of its size; None if it is accepted.
    Called before the block is searched. `enveloped` means that the headers of an envelope will be
    merged with the block."""
    if len(block) > MAX_HEADER_BYTES:
        return HEADERS_TOO_LARGE
    if enveloped and block.count(b"\r\n") > MAX_MERGED_LINES:
        return TOO_MANY_HEADERS
    return None


def why_subject_refused(
    subjects: SubjectSequences | None, control: Control, subject: bytes
) -> RefusalReason | None:
    """Return the reason to refuse a message that expects another last offset of a subject. This
    subject is the subject of the message, or another subject that the message names. Returns None
    if the expectation is met."""
    if subjects is None:
        return SUBJECT_SEQUENCES_ARE_OFF
    expected, named = control.expected_subject_sequence, control.expected_subject
    if expected is None:  # an empty header has no effect, as in nats-server
        return EXPECTED_SUBJECT_WITHOUT_SEQUENCE if named else None
    if named and not _WILDCARDS.isdisjoint(named.split(b".")):
        return EXPECTED_SUBJECT_WITH_WILDCARDS
    last = subjects.last_offset(named or subject)
    if last is None:
        return LAST_SEQUENCE_UNKNOWN
    return None if last == expected else wrong_last_sequence(last)


def why_subject_full(subjects: SubjectSequences | None, subject: bytes) -> RefusalReason | None:
    """Return the reason why a stream with at most one record per subject refuses this subject; None
    if the stream accepts the subject."""
    last = None if subjects is None else subjects.last_offset(subject)
    if last is None:
        return LAST_SEQUENCE_UNKNOWN
    return FULL_OF_SUBJECT if last else None


def are_new_subjects(subjects: SubjectSequences | None, run: MessageRun) -> bool:
    """Return True if each message of a run is the first of its subject."""
    if subjects is None or len(set(run.subjects)) < len(run.subjects):
        return False
    return set(map(subjects.last_offset, run.subjects)) <= {0}


def control_of(config: SequencerConfig, block: bytes) -> Control:
    """Parse the requests in the header block of one message."""
    if block and may_control(block):
        return parse_control(block, own_only=config.acks != "on")
    return NO_CONTROL


def why_refused(
    config: SequencerConfig, control: Control, value: bytes | None, *, too_large: bool
) -> RefusalReason | None:
    """Return the reason to refuse a message, or None. The expected stream is checked first, as in
    nats-server: this stream must not judge a message that is meant for another stream."""
    if control.expected_stream and control.expected_stream != config.stream.encode():
        return WRONG_STREAM
    if too_large:
        return TOO_LARGE
    if control.refusal is ROLLUP and (config.rolls_up or config.is_bucket):
        if control.rollup not in (ROLLUP_SUBJECT, ROLLUP_ALL):
            return invalid_rollup(control.rollup)
        if config.rolls_up or control.rollup == ROLLUP_SUBJECT:
            return TOMBSTONE_WITHOUT_KEY if value is None and control.key is None else None
    if control.refusal is not None:
        return control.refusal
    return TOMBSTONE_WITHOUT_KEY if value is None and control.key is None else None


# --- a whole run ---


class Columns(NamedTuple):
    """The messages of a run by column: one entry per message, or None for an empty column.

    `replies` are the unchecked subjects of the answers, b"" for none; `echoes` are the fields that
    answers repeat.
    """

    subjects: Sequence[bytes]
    replies: Sequence[bytes]
    values: Sequence[bytes | None]
    blocks: Sequence[bytes] | None = None
    keys: Sequence[bytes | None] | None = None
    message_ids: Sequence[bytes | None] | None = None
    echoes: Sequence[Echo] | None = None

    def part(self, start: int, stop: int) -> Columns:
        """Return the rows from `start` to before `stop`."""
        if start == 0 and stop == len(self.values):
            return self
        return Columns._make([column and column[start:stop] for column in self])

    def only(self, chosen: Sequence[bool]) -> Columns:
        """Return the rows that `chosen` selects."""
        return Columns._make([column and list(compress(column, chosen)) for column in self])


def columns_of(config: SequencerConfig, run: MessageRun, stamp: int) -> tuple[Columns, list[int]]:
    """Return the columns of a run, and its odd rows in ascending order."""
    count = len(run)
    blocks = run.headers
    odd = _too_large(config, run)
    nowhere = [b""] * count
    if config.acks == "off":
        return Columns(run.subjects, nowhere, run.payloads, blocks), odd
    keys = message_ids = None
    if blocks is not None and not _are_foreign(blocks):
        keys, message_ids, bad_rows = header_columns(blocks)
        odd += bad_rows
        if message_ids is not None and config.acks != "on":
            # These ids are meant for JetStream. So the ids are stored, but no message counts as a
            # duplicate because of them.
            odd += [row for row, message_id in enumerate(message_ids) if message_id is not None]
    if config.acks == "on":
        odd += _in_fast_batches(run.replies)
    replies = run.replies if config.acks == "on" else nowhere
    columns = Columns(run.subjects, replies, run.payloads, blocks, keys, message_ids)
    if run.has_cookie and (config.recognise_envelopes or config.recognise_liftbridge):
        fields = EnvelopeFields(config, run, replies, keys, message_ids)
        fields.open(run.payloads, odd, stamp)
        odd += fields.odd
        columns = columns._replace(**fields.columns())
    return columns, sorted(set(odd))


def _are_foreign(blocks: Sequence[bytes]) -> bool:
    """Return True if no block contains a header name with a possible meaning for the stream, and no
    block is long."""
    if not blocks or may_control(blocks[0]) or may_control(b"".join(blocks)):
        return False
    return len(max(blocks, key=len)) <= MAX_BLOCK_BYTES


def _too_large(config: SequencerConfig, run: MessageRun) -> list[int]:
    limit, payloads, blocks = config.max_message_bytes, run.payloads, run.headers
    if run.size_bytes <= limit:
        return []
    if max(map(len, payloads)) + (max(map(len, blocks)) if blocks else 0) <= limit:
        return []
    sizes = map(len, payloads)
    if blocks is not None:
        sizes = map(add, sizes, map(len, blocks))
    return [row for row, size in enumerate(sizes) if size > limit]


def _in_fast_batches(replies: Sequence[bytes]) -> list[int]:
    if b"$" not in b"".join(replies):  # a search for one byte is the fastest
        return []
    return [row for row, reply in enumerate(replies) if reply.endswith(FAST_BATCH_SUFFIX)]
