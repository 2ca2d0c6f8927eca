"""Applies an envelope to the message that contained it: the fields of the envelope override the
headers.

Fields that later reads need are written to the stored header block under documented names, so that
the log contains the message id (for dedupe) and the correlation id. The headers of an envelope
become headers of the message, with the same effect as other headers.
"""

from __future__ import annotations

from collections.abc import Sequence

import envelope
from envelope import Envelope
from liftlog.records.message_headers import build_block, header_lines
from liftlog.sequencing.acks import Asked, Echo
from liftlog.sequencing.config import SequencerConfig
from liftlog.sequencing.control import CORRELATION_ID, MESSAGE_ID, Control
from liftlog.sequencing.liftbridge import open_liftbridge
from liftlog.sequencing.refusals import RefusalReason

Opened = tuple[Envelope, Echo, RefusalReason | None]
"""The fields of an opened envelope, the fields that the answer repeats, and the reason if the
message cannot be stored. It is a plain tuple, because one is created for each message."""


_ONLY_MESSAGE_ID = build_block([(MESSAGE_ID, b"%b")])
_ONLY_CORRELATION_ID = build_block([(CORRELATION_ID, b"%b")])
_BOTH_IDS = build_block([(MESSAGE_ID, b"%b"), (CORRELATION_ID, b"%b")])


def open_envelope(
    config: SequencerConfig, subject: bytes, payload: bytes, stamp: int, *, too_large: bool = False
) -> Opened | None:
    """Open the envelope of a message; None for a plain message."""
    if payload.startswith(envelope.COOKIE):
        if too_large or not config.recognise_envelopes:
            return None
        opened = envelope.decode(payload)
        return None if opened is None else (opened, echo_of(config, opened), None)
    if config.recognise_liftbridge and payload.startswith(envelope.liftbridge.COOKIE):
        # Open it even if it is too large, because its publisher gets answers only on its ack inbox.
        return open_liftbridge(config, subject, payload, stamp)
    return None


def echo_of(config: SequencerConfig, opened: Envelope) -> Echo:
    """Return the fields that the answer to a message in liftlog's envelope repeats."""
    if config.is_replicated:
        return Asked(opened.correlation_id, opened.ack_policy or config.ack_policy)
    return opened.correlation_id


def reply_of(opened: Envelope, reply: bytes, acks: str) -> bytes:
    """Return the unchecked subject for the answer to an enveloped message; b"" for no answer."""
    if opened.ack_policy == "none":
        return b""
    if opened.ack_subject is not None:
        return opened.ack_subject.encode()
    return reply if acks == "on" else b""


def own_block(message_id: str | None, correlation_id: str | None) -> bytes:
    """Return the header block to store for an envelope that has one or both of these fields, and no
    other fields."""
    if not message_id:
        return _ONLY_CORRELATION_ID % (correlation_id or "").encode()
    if not correlation_id:
        return _ONLY_MESSAGE_ID % message_id.encode()
    return _BOTH_IDS % (message_id.encode(), correlation_id.encode())


def own_blocks(
    message_ids: Sequence[bytes] | None, correlation_ids: Sequence[bytes] | None
) -> list[bytes]:
    """Return the blocks of many messages with the same fields, as `own_block` does; at least one
    column is given."""
    if message_ids is None:
        return list(map(_ONLY_CORRELATION_ID.__mod__, correlation_ids or ()))
    if correlation_ids is None:
        return list(map(_ONLY_MESSAGE_ID.__mod__, message_ids))
    return list(map(_BOTH_IDS.__mod__, zip(message_ids, correlation_ids, strict=True)))


def merge_headers(opened: Envelope, block: bytes) -> bytes:
    """Return the header block to store. It is `block` itself if the envelope adds no headers."""
    fields: list[tuple[bytes, bytes]] = []
    if opened.message_id:
        fields.append((MESSAGE_ID, opened.message_id.encode()))
    if opened.correlation_id:
        fields.append((CORRELATION_ID, opened.correlation_id.encode()))
    own = [(name.encode(), value.encode()) for name, value in opened.headers.items()]
    if not fields and not own:
        return block
    lines = _without(own, fields) + fields
    return build_block(_without(header_lines(block), lines) + lines)


def _without(
    lines: list[tuple[bytes, bytes]], stronger: list[tuple[bytes, bytes]]
) -> list[tuple[bytes, bytes]]:
    taken = {name for name, _ in stronger}  # names that differ in case are different names
    return [line for line in lines if line[0] not in taken]


def with_envelope(control: Control, opened: Envelope) -> Control:
    """Return `control`, parsed from the merged headers, with its fields overridden by the
    envelope's."""
    if opened.key is not None:
        control = control._replace(key=opened.key)
    if opened.message_id:
        control = control._replace(message_id=opened.message_id.encode(), judges_id=True)
    if opened.expected_last_offset is not None:
        control = control._replace(expected_last_sequence=opened.expected_last_offset)
    return control
