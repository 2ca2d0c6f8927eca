"""Compresses and decompresses the bodies of batches; finds a codec by name or number.

The columns of a compressed batch are replaced by

    64  4  raw_length         u32  bytes of the columns, a multiple of 8
    68  4  compressed_length  u32
    72  .. compressed_length bytes, then zero bytes to a multiple of 8

An lz4 body is one block without a frame; a zstd body is one frame that contains its content size.
Both packages belong to the extra `compression` and are imported when they are first needed.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from liftlog.errors import CorruptBatch, UnsupportedFormat
from liftlog.records.checksum import crc32c
from liftlog.records.format import (
    ATTRIBUTES,
    ATTRIBUTES_POSITION,
    BODY_CRC_POSITION,
    CODEC_MASK,
    CODEC_NAMES,
    CRC,
    HEADER_CRC_POSITION,
    HEADER_SIZE,
    LENGTH,
    LENGTH_POSITION,
    MAX_RAW_BODY_BYTES,
    padded,
    padding_for,
)
from liftlog.records.header import BatchHeader

Whole = TypeVar("Whole", bound="bytearray | memoryview")

_SIZES = struct.Struct("<II")
_DATA_POSITION = HEADER_SIZE + _SIZES.size
_MIN_BODY_BYTES = 128
"""Minimum size of a body that is compressed, in bytes. For a smaller body, compression would save
fewer bytes than the additional header has."""

_LZ4_MAX_RATIO = 255
_ZSTD_LEVEL = 1
"""Level of zstd. This level is twice as fast as the default level 3, and for similar messages the
output is hardly larger."""
_ZSTD_WINDOW_BYTES = MAX_RAW_BODY_BYTES


@dataclass(frozen=True, slots=True)
class Codec:
    """A compression codec. Its functions are thread-safe and release the GIL."""

    name: str
    number: int
    compress: Callable[[memoryview], bytes]
    decompress: Callable[[memoryview, int], bytes]
    """Takes the compressed bytes and the expected size of the result. Raises ValueError if the
    result has another size; never allocates more than the expected size."""


def codec_named(name: str) -> Codec | None:
    """Return the codec; None for "none". Raises UnsupportedFormat if the codec's package is
    missing."""
    return _codec(_NUMBERS[name]) if name != "none" else None


def codec_of(header: BatchHeader) -> Codec | None:
    """Return the codec of a batch; None if it is not compressed. Raises UnsupportedFormat."""
    number = header.attributes & CODEC_MASK
    return _codec(number) if number else None


_NUMBERS = {name: number for number, name in CODEC_NAMES.items()}


@lru_cache
def _codec(number: int) -> Codec:
    name = CODEC_NAMES[number]
    try:
        return _lz4(name, number) if name == "lz4" else _zstd(name, number)
    except ImportError as error:
        raise UnsupportedFormat(
            f"batches compressed with {name} need {error.name}, which is not installed",
            hint="pip install 'liftlog[compression]'",
        ) from error


def compress_batch(batch: Whole, codec: Codec) -> Whole | bytearray:
    """Return the batch with its body compressed, or `batch` itself if the result is not smaller."""
    with memoryview(batch) as view:
        body = view[HEADER_SIZE:]
        if not _MIN_BODY_BYTES <= len(body) <= MAX_RAW_BODY_BYTES:
            return batch
        packed = codec.compress(body)
        sizes = _SIZES.pack(len(body), len(packed))
        body.release()
        if _DATA_POSITION + padded(len(packed)) >= len(batch):
            return batch
        header = bytearray(view[:HEADER_SIZE])
    small = bytearray().join((header, sizes, packed, padding_for(len(packed))))
    (attributes,) = ATTRIBUTES.unpack_from(small, ATTRIBUTES_POSITION)
    LENGTH.pack_into(small, LENGTH_POSITION, len(small))
    ATTRIBUTES.pack_into(small, ATTRIBUTES_POSITION, attributes | codec.number)
    with memoryview(small) as view:
        CRC.pack_into(small, BODY_CRC_POSITION, crc32c(view[HEADER_SIZE:]))
        CRC.pack_into(small, HEADER_CRC_POSITION, crc32c(view[:HEADER_CRC_POSITION]))
    return small


def raw_length(batch: bytes, header: BatchHeader) -> int:
    """Return the batch's length without compression, from the unverified first 72 bytes of the
    batch."""
    if not header.attributes & CODEC_MASK or len(batch) < _DATA_POSITION:
        return header.length
    length: int = _SIZES.unpack_from(batch, HEADER_SIZE)[0]
    return HEADER_SIZE + length


def inflate(view: memoryview, header: BatchHeader) -> memoryview:
    """Return a verified batch with its columns decompressed.

    Keeps the header of the compressed batch. Raises CorruptBatch if the body cannot be decompressed
    to its stated size, UnsupportedFormat if the codec's package is not installed.
    """
    codec = _codec(header.attributes & CODEC_MASK)
    if len(view) < _DATA_POSITION:
        raise CorruptBatch(f"{len(view)} bytes are too few for a compressed batch")
    length, size = _SIZES.unpack_from(view, HEADER_SIZE)
    if length > MAX_RAW_BODY_BYTES or length & 7:
        raise CorruptBatch(f"impossible length {length} of the body before compression")
    if _DATA_POSITION + padded(size) != len(view):
        raise CorruptBatch(f"the compressed body is {size} bytes long, the batch {len(view)}")
    try:
        body = codec.decompress(view[_DATA_POSITION : _DATA_POSITION + size], length)
    except ValueError as error:
        raise CorruptBatch(f"the {codec.name} body cannot be decompressed: {error}") from error
    return memoryview(b"".join((view[:HEADER_SIZE], body)))


def _lz4(name: str, number: int) -> Codec:
    from lz4 import block

    def compress(body: memoryview) -> bytes:
        packed: bytes = block.compress(body, store_size=False)
        return packed

    def decompress(packed: memoryview, size: int) -> bytes:
        if size > _LZ4_MAX_RATIO * len(packed):
            raise ValueError(f"{len(packed)} bytes cannot decompress to {size}")
        try:
            body: bytes = block.decompress(packed, uncompressed_size=size)
        except block.LZ4BlockError as error:
            raise ValueError(str(error)) from error
        return _of_size(body, size)

    return Codec(name, number, compress, decompress)


def _zstd(name: str, number: int) -> Codec:
    import zstandard

    # Two threads must not use one of these objects at the same time.
    own = threading.local()

    def compress(body: memoryview) -> bytes:
        compressor: Any = getattr(own, "compressor", None)
        if compressor is None:
            own.compressor = compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
        packed: bytes = compressor.compress(body)
        return packed

    def decompress(packed: memoryview, size: int) -> bytes:
        decompressor: Any = getattr(own, "decompressor", None)
        if decompressor is None:
            own.decompressor = decompressor = zstandard.ZstdDecompressor(
                max_window_size=_ZSTD_WINDOW_BYTES
            )
        try:
            # zstandard allocates the size that the frame contains, not the size in this call.
            if zstandard.frame_content_size(packed) != size:
                raise ValueError("the frame is for another number of bytes")
            body: bytes = decompressor.decompress(packed, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error
        return _of_size(body, size)

    return Codec(name, number, compress, decompress)


def _of_size(body: bytes, size: int) -> bytes:
    if len(body) != size:
        raise ValueError(f"it decompresses to {len(body)} bytes, not {size}")
    return body
