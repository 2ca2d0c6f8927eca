"""What an envelope means for the message that it came in: its fields win over the headers.

What later reads need is written into the stored header block under documented names, so that
the log alone tells the message id (for dedupe) and the correlation id.
"""

from __future__ import annotations

from envelope import Envelope
from liftlog.records.message_headers import build_block, header_lines
from liftlog.stream.control import CORRELATION_ID, MESSAGE_ID, Control


def unwrap(opened: Envelope, block: bytes, control: Control) -> tuple[bytes | None, bytes, Control]:
    """The value, the header block to store, and the control fields of an enveloped message."""
    lines = [(name.encode(), value.encode()) for name, value in opened.headers.items()]
    if opened.message_id:
        lines.append((MESSAGE_ID, opened.message_id.encode()))
    if opened.correlation_id:
        lines.append((CORRELATION_ID, opened.correlation_id.encode()))
    if lines:
        taken = {name.lower() for name, _ in lines}
        kept = [line for line in header_lines(block) if line[0].lower() not in taken]
        block = build_block(kept + lines)
    if opened.key is not None:
        control = control._replace(key=opened.key)
    if opened.message_id:
        control = control._replace(message_id=opened.message_id.encode())
    if opened.expected_last_offset is not None:
        control = control._replace(expected_last_sequence=opened.expected_last_offset)
    return opened.value, block, control
