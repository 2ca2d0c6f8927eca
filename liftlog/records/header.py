"""The 64-byte batch header as a value."""

from __future__ import annotations

from typing import NamedTuple

from crc32c import crc32c

from liftlog.errors import CorruptBatch, UnsupportedFormat
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

Buffer = bytes | bytearray | memoryview


class BatchHeader(NamedTuple):
    """Field by field what format.py draws; offsets are logical, length is in bytes."""

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

    The body may not be there yet; only the header's own checksum is verified.
    Raises CorruptBatch for damage and UnsupportedFormat for what a newer liftlog wrote.
    """
    if len(buf) - pos < HEADER_SIZE:
        raise CorruptBatch(f"{max(len(buf) - pos, 0)} bytes are too few for a batch header")
    fields = HEADER.unpack_from(buf, pos)
    magic = fields[0]
    if magic != MAGIC and magic[:3] != MAGIC_PREFIX:
        raise CorruptBatch(f"no batch starts here: the magic is {magic.hex()}")
    if crc32c(memoryview(buf)[pos : pos + HEADER_CRC_POSITION]) != fields[12]:
        raise CorruptBatch("the header checksum does not match")
    if magic != MAGIC:
        raise UnsupportedFormat(f"record batch format version {magic[3]} is not known")
    header = BatchHeader._make((*fields[1:10], fields[11]))
    if fields[10]:
        raise UnsupportedFormat("the reserved header field is not 0")
    unknown = header.attributes & ~KNOWN_ATTRIBUTES
    if unknown or header.attributes & CODEC_MASK not in CODEC_NAMES:
        raise UnsupportedFormat(f"batch attributes {header.attributes:#06x} are not known")
    if header.length < HEADER_SIZE or header.length & 7:
        raise CorruptBatch(f"impossible batch length {header.length}")
    if header.record_count > header.last_offset_delta + 1:
        raise CorruptBatch("more records than offsets in the batch")
    return header


def verify_body(buf: Buffer, header: BatchHeader, pos: int = 0) -> None:
    """Check the body of the batch at `pos`; raises CorruptBatch when it is short or damaged."""
    end = pos + header.length
    if len(buf) < end:
        raise CorruptBatch(f"the batch is cut: {len(buf) - pos} of {header.length} bytes")
    if crc32c(memoryview(buf)[pos + HEADER_SIZE : end]) != header.body_crc32c:
        raise CorruptBatch("the body checksum does not match")
