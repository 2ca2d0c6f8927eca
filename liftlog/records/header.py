"""The 64-byte batch header as a value."""

from __future__ import annotations

from typing import Any, NamedTuple

from liftlog.errors import CorruptBatch, UnsupportedFormat
from liftlog.records.checksum import crc32c
from liftlog.records.format import (
    CODEC_MASK,
    CODEC_NAMES,
    HEADER,
    HEADER_CRC_POSITION,
    HEADER_SIZE,
    KNOWN_ATTRIBUTES,
    MAGIC,
    MAGIC_PREFIX,
)

_UNKNOWN_ATTRIBUTES = 0xFFFF & ~KNOWN_ATTRIBUTES
_LAST_CODEC = max(CODEC_NAMES)

Buffer = bytes | bytearray | memoryview

_new_tuple: Any = tuple.__new__  # __new__ of the NamedTuple takes three times as long


class BatchHeader(NamedTuple):
    """The fields of a batch header, as in the diagram in format.py; `length` is in bytes."""

    length: int
    base_offset: int
    last_offset_delta: int
    record_count: int
    base_timestamp_ns: int
    max_timestamp_ns: int
    leader_epoch: int
    attributes: int
    commit_group: int
    body_crc32c: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1


def parse_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """Check and parse the header at `pos`.

    Verifies only the checksum of the header; the body may be missing. Raises CorruptBatch for
    damage, and UnsupportedFormat for a batch of a newer liftlog.
    """
    if len(buf) - pos < HEADER_SIZE:
        raise CorruptBatch(f"{max(len(buf) - pos, 0)} bytes are too few for a batch header")
    (
        magic,
        length,
        base_offset,
        last_offset_delta,
        record_count,
        base_timestamp_ns,
        max_timestamp_ns,
        leader_epoch,
        attributes,
        commit_group,
        reserved,
        body_crc32c,
        header_crc32c,
    ) = HEADER.unpack_from(buf, pos)
    if magic != MAGIC and magic[:3] != MAGIC_PREFIX:
        raise CorruptBatch(f"no batch starts here: the magic is {magic.hex()}")
    view = buf if type(buf) is memoryview else memoryview(buf)
    if crc32c(view[pos : pos + HEADER_CRC_POSITION]) != header_crc32c:
        raise CorruptBatch("the header checksum does not match")
    if (
        magic != MAGIC
        or reserved
        or attributes & _UNKNOWN_ATTRIBUTES
        or attributes & CODEC_MASK > _LAST_CODEC
    ):
        raise _unsupported(magic, reserved, attributes)
    if length < HEADER_SIZE or length & 7:
        raise CorruptBatch(f"impossible batch length {length}")
    if record_count > last_offset_delta + 1:
        raise CorruptBatch("more records than offsets in the batch")
    header: BatchHeader = _new_tuple(
        BatchHeader,
        (
            length,
            base_offset,
            last_offset_delta,
            record_count,
            base_timestamp_ns,
            max_timestamp_ns,
            leader_epoch,
            attributes,
            commit_group,
            body_crc32c,
        ),
    )
    return header


def _unsupported(magic: bytes, reserved: int, attributes: int) -> UnsupportedFormat:
    """Return an error that names the unsupported part of the header."""
    if magic != MAGIC:
        return UnsupportedFormat(f"record batch format version {magic[3]} is not known")
    if reserved:
        return UnsupportedFormat("the reserved header field is not 0")
    if unknown := attributes & _UNKNOWN_ATTRIBUTES:
        return UnsupportedFormat(f"batch attribute bits {unknown:#06x} are not known")
    return UnsupportedFormat(f"batch codec {attributes & CODEC_MASK} is not known")


def verify_body(buf: Buffer, header: BatchHeader, pos: int = 0) -> None:
    """Check the body of the batch at `pos`. Raises CorruptBatch if it is incomplete or damaged."""
    end = pos + header.length
    if len(buf) < end:
        raise CorruptBatch(f"the batch is cut: {len(buf) - pos} of {header.length} bytes")
    if crc32c(memoryview(buf)[pos + HEADER_SIZE : end]) != header.body_crc32c:
        raise CorruptBatch("the body checksum does not match")
