"""What an envelope means for the message that it came in: its fields win over the headers.

What later reads need is written into the stored header block under documented names, so that
the log alone tells the message id (for dedupe) and the correlation id. An envelope's own headers
become headers of the message and mean what they would mean there.
"""

from __future__ import annotations

from envelope import Envelope
from liftlog.records.message_headers import build_block, header_lines
from liftlog.stream.control import CORRELATION_ID, MESSAGE_ID, Control


def merge_headers(opened: Envelope, block: bytes) -> bytes:
    """The header block to store; verbatim when the envelope adds nothing to it."""
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
    taken = {name.lower() for name, _ in stronger}
    return [line for line in lines if line[0].lower() not in taken]


def with_envelope(control: Control, opened: Envelope) -> Control:
    """`control` as read from the merged headers, with the envelope's fields over it."""
    if opened.key is not None:
        control = control._replace(key=opened.key)
    if opened.message_id:
        control = control._replace(message_id=opened.message_id.encode(), judges_id=True)
    if opened.expected_last_offset is not None:
        control = control._replace(expected_last_sequence=opened.expected_last_offset)
    return control
