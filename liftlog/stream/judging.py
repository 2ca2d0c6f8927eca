"""What of a message is judged by itself, without knowing of any other."""

from __future__ import annotations

from collections.abc import Sequence

from liftlog.stream.config import SequencerConfig
from liftlog.stream.control import NO_CONTROL, Control, may_control, parse_control
from liftlog.stream.refusals import (
    EXPECTED_SUBJECT_WITH_WILDCARDS,
    EXPECTED_SUBJECT_WITHOUT_SEQUENCE,
    HEADERS_TOO_LARGE,
    LAST_SEQUENCE_UNKNOWN,
    SUBJECT_SEQUENCES_ARE_OFF,
    TOMBSTONE_WITHOUT_KEY,
    TOO_LARGE,
    TOO_MANY_HEADERS,
    WRONG_STREAM,
    RefusalReason,
    wrong_last_sequence,
)
from liftlog.stream.run import MessageRun
from liftlog.stream.subject_sequences import SubjectSequences

MAX_HEADER_BYTES = 65_535
"""The longest header block of one message, as in JetStream."""
MAX_MERGED_LINES = 1000
"""The most lines of a header block that the headers of an envelope are merged with."""
FAST_BATCH_SUFFIX = b".$FI"
"""The end of the reply subjects of JetStream's fast batch publishing."""
_WILDCARDS = frozenset({b"*", b">"})


def is_plain(config: SequencerConfig, run: MessageRun) -> bool:
    """Nothing in the run needs a look of its own."""
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
    """Whether one of these replies belongs to a fast batch."""
    return any(reply.endswith(FAST_BATCH_SUFFIX) for reply in replies)


def why_headers_refused(block: bytes, *, enveloped: bool) -> RefusalReason | None:
    """Before anything is looked for in the block. `enveloped`: it is to be merged with others."""
    if len(block) > MAX_HEADER_BYTES:
        return HEADERS_TOO_LARGE
    if enveloped and block.count(b"\r\n") > MAX_MERGED_LINES:
        return TOO_MANY_HEADERS
    return None


def why_subject_refused(
    subjects: SubjectSequences | None, control: Control, subject: bytes
) -> RefusalReason | None:
    """What the message expects of a subject, its own or the one that it names."""
    if subjects is None:
        return SUBJECT_SEQUENCES_ARE_OFF
    expected, named = control.expected_subject_sequence, control.expected_subject
    if expected is None:  # an empty header asks for nothing, as in nats-server
        return EXPECTED_SUBJECT_WITHOUT_SEQUENCE if named else None
    if named and not _WILDCARDS.isdisjoint(named.split(b".")):
        return EXPECTED_SUBJECT_WITH_WILDCARDS
    last = subjects.last_offset(named or subject)
    if last is None:
        return LAST_SEQUENCE_UNKNOWN
    return None if last == expected else wrong_last_sequence(last)


def control_of(config: SequencerConfig, block: bytes) -> Control:
    """What the header block of one message asks for."""
    if block and may_control(block):
        return parse_control(block, own_only=config.acks != "on")
    return NO_CONTROL


def why_refused(
    config: SequencerConfig, control: Control, value: bytes | None, *, too_large: bool
) -> RefusalReason | None:
    """The expected stream comes first, as in nats-server: a message for another stream is not ours
    to judge."""
    if control.expected_stream and control.expected_stream != config.stream.encode():
        return WRONG_STREAM
    if too_large:
        return TOO_LARGE
    if control.refusal is not None:
        return control.refusal
    return TOMBSTONE_WITHOUT_KEY if value is None and control.key is None else None
