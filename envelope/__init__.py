"""The publisher's envelope: a key, headers and an ack subject without NATS headers.

The envelope is meant for publishers that cannot set NATS headers, or that want the ack on a subject
of their choice. docs/reference/envelope.md specifies the bytes.

    format      the header's layout, and all limits
    fields      the valid values of each field
    codec       `encode` and `decode`
    liftbridge  the envelope of Liftbridge, which streams can accept too
    same_shape  decodes many envelopes of either kind at once
    protobuf    the encoding of the body of Liftbridge's envelope

Pure; needs only msgpack and crc32c.
"""

from __future__ import annotations

from . import liftbridge, same_shape
from .codec import decode, encode
from .fields import ACK_POLICIES, AckPolicy, Envelope
from .format import COOKIE, VERSION

COOKIES = (COOKIE, liftbridge.COOKIE)
"""The first bytes of an envelope, for our own envelope and for Liftbridge's."""

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
    "same_shape",
]
