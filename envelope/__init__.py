"""The publisher's envelope: a key, headers and an ack subject without NATS headers.

For publishers that cannot set NATS headers, or want the ack on a subject of their own.
The bytes are specified in docs/reference/envelope.md.

    format      the header's layout, and all limits
    fields      what each field may hold
    codec       `encode` and `decode`
    liftbridge  the envelope of Liftbridge, which streams can accept as well
    protobuf    the encoding of its body

Pure; needs msgpack and crc32c only.
"""

from __future__ import annotations

from . import liftbridge
from .codec import decode, encode
from .fields import ACK_POLICIES, AckPolicy, Envelope
from .format import COOKIE, VERSION

COOKIES = (COOKIE, liftbridge.COOKIE)
"""What the first bytes of an envelope can be, ours or Liftbridge's."""

PART_OF = "liftlog"

__all__ = [
    "ACK_POLICIES",
    "COOKIE",
    "COOKIES",
    "PART_OF",
    "VERSION",
    "AckPolicy",
    "Envelope",
    "decode",
    "encode",
    "liftbridge",
]
