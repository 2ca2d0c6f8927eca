"""The bytes of a record batch: constants, the header struct, the column order, escaped subjects.

docs/reference/storage-format.md is the specification; this module implements it. All numbers are
little-endian, and every column starts at a multiple of 8 from the start of the batch.

     0   4  magic 4C 4C 42 01 ("LLB", format version 1)
     4   4  length              u32  whole batch, header and padding included
     8   8  base_offset         u64
    16   4  last_offset_delta   u32  the next batch starts after base_offset + this
    20   4  record_count        u32
    24   8  base_timestamp_ns   i64
    32   8  max_timestamp_ns    i64
    40   4  leader_epoch        u32
    44   2  attributes          u16
    46   2  commit_group        u16
    48   8  reserved, 0
    56   4  body_crc32c         u32  of bytes 64..length
    60   4  header_crc32c       u32  of bytes 0..59
"""

from __future__ import annotations

import re
import struct
import sys

if sys.byteorder != "little":  # Arrow and the kernel get columns in the byte order of memory
    raise ImportError("liftlog runs on little-endian machines only")

MAGIC = b"LLB\x01"
MAGIC_PREFIX = b"LLB"

HEADER = struct.Struct(
    "<"
    "4s"  # magic
    "I"  # length
    "Q"  # base_offset
    "I"  # last_offset_delta
    "I"  # record_count
    "q"  # base_timestamp_ns
    "q"  # max_timestamp_ns
    "I"  # leader_epoch
    "H"  # attributes
    "H"  # commit_group
    "Q"  # reserved
    "I"  # body_crc32c
    "I"  # header_crc32c
)
HEADER_WITHOUT_CRC = struct.Struct(HEADER.format[:-1])
HEADER_SIZE = HEADER.size
HEADER_CRC_POSITION = HEADER_SIZE - 4
LENGTH = struct.Struct("<I")
LENGTH_POSITION = 4
ATTRIBUTES = struct.Struct("<H")
ATTRIBUTES_POSITION = 44
CRC = struct.Struct("<I")
BODY_CRC_POSITION = HEADER_SIZE - 8
RECORD_COUNT = struct.Struct("<I")
RECORD_COUNT_POSITION = 20
LAST_OFFSET_DELTA = struct.Struct("<I")
LAST_OFFSET_DELTA_POSITION = 16
ALIGNMENT = 8

# attributes: the low three bits name the codec, then one bit per optional column or property
CODEC_MASK = 0x0007
CODEC_NAMES = {0: "none", 1: "lz4", 2: "zstd"}
OFFSET_DELTAS = 0x0010  # u32 per record; absent: 0, 1, 2, ...
TIMESTAMP_DELTAS = 0x0020  # u32 microseconds per record; absent: all base_timestamp_ns
SUBJECT_IDS = 0x0040  # u16 per record; absent: the dictionary has one subject, used by all
KEYS = 0x0080
HEADERS = 0x0100
TOMBSTONES = 0x0200  # the value column has a validity bitmap
ESCAPED_SUBJECTS = 0x0400  # the subject dictionary has a bitmap of escaped entries
KNOWN_ATTRIBUTES = (
    CODEC_MASK
    | OFFSET_DELTAS
    | TIMESTAMP_DELTAS
    | SUBJECT_IDS
    | KEYS
    | HEADERS
    | TOMBSTONES
    | ESCAPED_SUBJECTS
)

MAX_BATCH_RECORDS = 0xFFFF  # subject ids are u16
MAX_BATCH_LENGTH = 0x7FFF_FFF8  # value offsets are i32
MAX_RAW_BODY_BYTES = 2**27  # maximum size of a decompressed body
MAX_TIMESTAMP_DELTA_US = 0xFFFF_FFFF

_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")

PADDING = (b"", b"\0", b"\0\0", b"\0\0\0", b"\0" * 4, b"\0" * 5, b"\0" * 6, b"\0" * 7)


def padding_for(size: int) -> bytes:
    """Return the zero bytes that extend `size` to a multiple of 8."""
    return PADDING[-size & 7]


def padded(size: int) -> int:
    """Return `size` rounded up to a multiple of 8."""
    return (size + 7) & ~7


def escape_subject(raw: bytes) -> str:
    """Return the readable, reversible text that batches store for a subject that is not UTF-8.

    Every byte that is not part of valid UTF-8, and the backslash itself, is written as `\\xNN`.
    Subjects that are UTF-8 are stored unchanged, including backslashes; the dictionary marks
    escaped entries with a flag.
    """
    return raw.replace(b"\\", b"\\x5c").decode("utf-8", "backslashreplace")


def unescape_subject(text: str) -> bytes:
    """Return the bytes that were passed to `escape_subject`."""
    out = bytearray()
    end = 0
    for match in _ESCAPE.finditer(text):
        out += text[end : match.start()].encode()
        out.append(int(match[1], 16))
        end = match.end()
    return bytes(out + text[end:].encode())
