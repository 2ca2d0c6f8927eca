"""Layout of the envelope's header, and limits.

    0  4  cookie B9 0E 4C 4C
    4  1  version 1
    5  1  flags (bit 0: CRC present; the others are 0)
    6  2  header length u16 little-endian (at least 12 with CRC, 8 without; may grow)
    8  4  CRC-32C of the body u32 little-endian (only with flag bit 0)
    .. the rest is the body, one msgpack map

The cookie begins like Liftbridge's cookie (B9 0E 43 B4) and differs in the last two bytes, so that
each system can distinguish the other system's envelopes from its own.
"""

from __future__ import annotations

import struct

COOKIE = b"\xb9\x0e\x4c\x4c"
VERSION = 1
FLAG_CRC = 0x01

HEADER = struct.Struct(
    "<"
    "4s"  # cookie
    "B"  # version
    "B"  # flags
    "H"  # header length
)
CRC = struct.Struct("<I")

HEADER_SIZE = HEADER.size
HEADER_SIZE_WITH_CRC = HEADER.size + CRC.size

MAX_HEADERS = 64
MAX_KEY_BYTES = 65_535
MAX_HEADER_NAME_BYTES = 255
MAX_HEADER_VALUE_BYTES = 4096
MAX_ID_BYTES = 255
"""Maximum size of message ids and correlation ids."""
MAX_ACK_SUBJECT_BYTES = 255
MAX_OFFSET = 2**63 - 1
