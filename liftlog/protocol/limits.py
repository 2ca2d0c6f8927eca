"""Limits of the protocol on the memory and the waiting time that a peer can cause."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB

PROTOCOL_VERSION = 1
SUPPORTED_VERSIONS = (PROTOCOL_VERSION,)

MAX_DEPTH = 8
"""Nesting of maps and arrays in a frame's map, the map itself included."""

MAX_HELLO_VALUES = 256
"""Maximum number of values in all maps and arrays of a frame together, including keys, before the
login."""

MAX_REQUEST_VALUES = 2304
"""Maximum number of values in a frame after the login. A commit of all slots of a group has about
2,100 values, a fetch with the maximum of filters about 2,250."""

MAX_ANSWER_VALUES = 8_000_000
"""Maximum number of values in an answer to a client: a list of 65,536 streams is the longest
answer."""

HELLO_FRAME_BYTES = 4 * KIB
"""Longest frame of a client that is not authenticated yet."""

OPENING_FRAME_BYTES = 64 * KIB
"""Longest map that a client accepts before the welcome. The limit detects a connection to a wrong
port: the first bytes of another protocol, as a length, exceed it."""

ANSWER_FRAME_BYTES = 16 * MIB
"""Longest map that a client accepts: a list of many streams."""

ANSWER_BODY_BYTES = 256 * MIB
"""Longest body that a client accepts. A message may be as long as NATS allows (64 MiB), and the
first batch of an answer is always whole."""

MAX_ERROR_TEXT_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class WireLimits:
    """Limits that the server sends in its welcome, so that clients need not assume them."""

    max_request_bytes: int = 1 * MIB
    max_in_flight: int = 64
    max_fetch_bytes: int = 8 * MIB
    max_wait_ms: int = 60_000
