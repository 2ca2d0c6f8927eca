"""The publisher's envelope: a key, headers and an ack subject without NATS headers.

For publishers that cannot set NATS headers, or want the ack on a subject of their own.
The bytes are specified in docs/reference/envelope.md.

    format   the header's layout, and all limits
    fields   what each field may hold
    codec    `encode` and `decode`

Pure; needs msgpack and crc32c only.
"""

from __future__ import annotations

from .codec import decode, encode
from .fields import ACK_POLICIES, AckPolicy, Envelope
from .format import COOKIE, VERSION

PART_OF = "liftlog"

__all__ = [
    "ACK_POLICIES",
    "COOKIE",
    "PART_OF",
    "VERSION",
    "AckPolicy",
    "Envelope",
    "decode",
    "encode",
]
