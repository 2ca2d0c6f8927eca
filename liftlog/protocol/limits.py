"""Bounds of the protocol: what a peer may make us hold or wait for."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB

PROTOCOL_VERSION = 1
SUPPORTED_VERSIONS = (PROTOCOL_VERSION,)

MAX_DEPTH = 8
"""Maps and arrays inside a frame's map, the map itself included."""

MAX_CONTAINER_ENTRIES = 65_536
"""Entries of one array or map inside a frame. Msgpack's decoder sets aside 8 bytes per
declared array entry before it has seen any, so this (times the decoder's own depth
bound) is what a lying header can cost."""

HELLO_FRAME_BYTES = 4 * KIB
"""Longest frame of a peer that is not authenticated yet."""

ANSWER_FRAME_BYTES = 16 * MIB
"""Longest map a client accepts (a list of many streams is the longest answer)."""

ANSWER_BODY_BYTES = 256 * MIB
"""Longest body a client accepts. One message may be as long as NATS allows (64 MiB), and
the first batch of an answer is always whole."""

MAX_ERROR_TEXT_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class WireLimits:
    """What the server's welcome states, so that a client never has to guess."""

    max_request_bytes: int = 1 * MIB
    max_in_flight: int = 64
    max_fetch_bytes: int = 8 * MIB
    max_wait_ms: int = 60_000
