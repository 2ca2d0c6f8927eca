"""The files that hold the offsets of erased records.

An erased record is hidden from every reader; its bytes may still be in a segment. The manifest
lists the erased files. A file is written once, fsynced before the manifest lists it, and never
changes. Its name is `<first offset>.<number>.erased`; the number is the sequence of the manifest
that first lists it, so a listed name is never written again.

A file without which erased records would be shown again must survive a bad page. So it holds its
content twice, in two halves. The second half begins at the next multiple of 4096 bytes.

One half:

      0  magic "LERA"                     4
      4  version, 1                       2
      6  reserved, zeros                  2
      8  first offset                     8
     16  number of offsets                8
     24  length of the bitmap in bytes    8
     32  CRC-32C of the incarnation       4
     36  CRC-32C of the bitmap            4
     40  reserved, zeros                 20
     60  CRC-32C of the bytes before it   4
     64  a Roaring bitmap in the portable format: offsets relative to the first offset

The entry in the manifest contains the CRC-32C of a whole half. This checksum does not depend on the
header, because the header ends with its own. So a half fits if it also has the first offset of the
entry; then it holds the offsets that the manifest means, whichever stream it was written for.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from crc32c import crc32c

from liftlog.errors import CorruptMetadata
from liftlog.log.files.filesystem import FileSystem, write_all
from liftlog.log.files.unreadable import is_passing, read_zeroed

if TYPE_CHECKING:
    from pyroaring import BitMap

ERASED_SUFFIX = ".erased"
CHUNK_BITS = 24
CHUNK_OFFSETS = 1 << CHUNK_BITS
"""Maximum number of offsets that one file spans. All its offsets lie between two multiples of this
number."""

_MAGIC = b"LERA"
_VERSION = 1
_HEADER = struct.Struct("<4sHHQQQII20x")
_CHECK = struct.Struct("<I")
_HEADER_BYTES = _HEADER.size + _CHECK.size
_HALF_BYTES = 4096
"""The second half begins at a multiple of this size, so no page of the file holds both halves."""
_NAME = re.compile(r"(\d{20})\.(\d+)" + re.escape(ERASED_SUFFIX), re.ASCII)


@dataclass(frozen=True, slots=True)
class ErasedEntry:
    """One listed erased file.

    Offsets from `next_offset` on do not count: a truncation lowers it. `count` is the number of
    offsets in the file. `size_bytes` is the size of one half.
    """

    first_offset: int
    next_offset: int
    number: int
    count: int
    size_bytes: int
    crc32c: int

    @property
    def file_name(self) -> str:
        return f"{self.first_offset:020d}.{self.number}{ERASED_SUFFIX}"

    @property
    def chunk(self) -> int:
        """The number of the chunk of 2^24 offsets that holds the offsets of the file."""
        return self.first_offset >> CHUNK_BITS


def bitmap(numbers: Iterable[int] | memoryview = ()) -> BitMap:
    """Return a bitmap of these numbers. Imports pyroaring on demand, because a reader of a log
    without erased records does not need it."""
    from pyroaring import BitMap

    return BitMap(numbers)


def parse_bitmap(raw: bytes) -> BitMap:
    """Return the bitmap of some bytes in the portable format. Raises ValueError."""
    from pyroaring import BitMap

    return BitMap.deserialize(raw)


def is_erased_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def encode_half(bits: BitMap, first_offset: int, incarnation: str) -> bytes:
    """Return one half of a file. `bits` are relative to `first_offset`."""
    body = bits.serialize()
    identity = crc32c(incarnation.encode())
    header = _HEADER.pack(
        _MAGIC, _VERSION, 0, first_offset, len(bits), len(body), identity, crc32c(body)
    )
    return header + _CHECK.pack(crc32c(header)) + body


def write_erased_file(
    fs: FileSystem, directory: Path, chunk: int, bits: BitMap, number: int, incarnation: str
) -> ErasedEntry:
    """Write the offsets of a chunk; `bits` are relative to its start, and not empty. The content is
    durable on return, its name when the caller has fsynced the directory. Raises OSError."""
    low, high = bits.min(), bits.max()
    first_offset = (chunk << CHUNK_BITS) + low
    half = encode_half(bits.shift(-low), first_offset, incarnation)
    entry = ErasedEntry(
        first_offset, first_offset + high - low + 1, number, len(bits), len(half), crc32c(half)
    )
    file = fs.open(directory / entry.file_name, create=True)
    try:
        gap = bytes(_second_half(len(half)) - len(half))
        write_all(file, [half, gap, half], 0)
        file.fdatasync()
    finally:
        file.close()
    return entry


def _second_half(size_bytes: int) -> int:
    return -(-size_bytes // _HALF_BYTES) * _HALF_BYTES


@dataclass(frozen=True, slots=True)
class ReadErased:
    """The content of a listed file. `bits` are relative to the start of the chunk, and None if both
    halves are bad; `problem` describes what is wrong with the file."""

    bits: BitMap | None
    problem: str = ""


def read_erased_file(fs: FileSystem, directory: Path, entry: ErasedEntry) -> ReadErased:
    """Read a listed file. Raises OSError only for a failure that passes, such as a lack of file
    descriptors."""
    name = entry.file_name
    try:
        halves = _read_halves(fs, directory / name, entry.size_bytes)
    except OSError as error:
        if is_passing(error):
            raise
        return ReadErased(None, f"{name} cannot be read: {error.strerror or error}")
    good = [half for half in halves if crc32c(half) == entry.crc32c]
    if not good:
        return ReadErased(None, f"both halves of {name} are damaged")
    try:
        first, bits = _parse(good[0])
    except CorruptMetadata as error:
        return ReadErased(None, error.message)
    if first != entry.first_offset:
        return ReadErased(None, f"{name} is about other offsets")
    bits = bits.shift(first & (CHUNK_OFFSETS - 1))
    end = entry.next_offset - (entry.chunk << CHUNK_BITS)
    if bits and bits.max() >= end:
        bits.remove_range(end, CHUNK_OFFSETS)
    return ReadErased(bits, "" if len(good) == 2 else f"one half of {name} is damaged")


def _read_halves(fs: FileSystem, path: Path, size_bytes: int) -> list[bytes]:
    file = fs.open(path, writable=False)
    try:
        return [read_zeroed(file, size_bytes, at) for at in (0, _second_half(size_bytes))]
    finally:
        file.close()


def _parse(half: bytes) -> tuple[int, BitMap]:
    """Return the first offset and the bits of an intact half. Raises CorruptMetadata."""
    if len(half) < _HEADER_BYTES or _CHECK.unpack_from(half, _HEADER.size)[0] != crc32c(
        half[: _HEADER.size]
    ):
        raise CorruptMetadata("the header of an erased file is damaged")
    magic, version, _, first, count, length, _, check = _HEADER.unpack_from(half)
    body = half[_HEADER_BYTES : _HEADER_BYTES + length]
    if magic != _MAGIC or version != _VERSION or len(body) != length or crc32c(body) != check:
        raise CorruptMetadata("an erased file does not fit its header")
    try:
        bits = parse_bitmap(body)
    except ValueError as error:
        raise CorruptMetadata("an erased file holds no bitmap") from error
    if len(bits) != count or (bits and (first & (CHUNK_OFFSETS - 1)) + bits.max() >= CHUNK_OFFSETS):
        raise CorruptMetadata("the bitmap of an erased file does not fit its header")
    return first, bits


def find_erased_files(
    fs: FileSystem, directory: Path, incarnation: str | None
) -> tuple[list[ErasedEntry], list[str]]:
    """Find the erased files of a log whose manifest is lost, by their own checksums.

    Returns their entries, and notes for the operator. Leaves out files of another stream if
    `incarnation` is known. A damaged file gets an entry that it does not fit, so that reads of its
    offsets fail. Raises OSError for a failure that passes.
    """
    found: list[ErasedEntry] = []
    notes: list[str] = []
    for name in sorted(fs.list_directory(directory)):
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        first, number = int(match[1]), int(match[2])
        try:
            entry, identity = _entry_of(fs, directory / name, first, number)
        except (CorruptMetadata, OSError) as error:
            if isinstance(error, OSError) and is_passing(error):
                raise
            end = ((first >> CHUNK_BITS) + 1) << CHUNK_BITS
            found.append(ErasedEntry(first, end, number, 0, 0, 1))
            notes.append(
                f"{name} is damaged, so reads of the offsets {first} to {end - 1} will fail; "
                "without this file, all of their records would be shown"
            )
            continue
        if incarnation is not None and identity != crc32c(incarnation.encode()):
            notes.append(f"{name} is left out: it belongs to another stream")
        else:
            found.append(entry)
    return found, notes


def _entry_of(
    fs: FileSystem, path: Path, first_offset: int, number: int
) -> tuple[ErasedEntry, int]:
    """Return the entry of a file by its own header, and the CRC-32C of the incarnation in it.
    Raises CorruptMetadata, OSError."""
    file = fs.open(path, writable=False)
    try:
        raw = read_zeroed(file, file.size(), 0)
    finally:
        file.close()
    for half in _halves_in(raw):
        try:
            first, bits = _parse(half)
        except CorruptMetadata:
            continue
        if first == first_offset and bits:
            end = first + bits.max() + 1
            entry = ErasedEntry(first, end, number, len(bits), len(half), crc32c(half))
            return entry, _HEADER.unpack_from(half)[6]
    raise CorruptMetadata(f"both halves of {path.name} are damaged")


def _halves_in(raw: bytes) -> Sequence[bytes]:
    """Return the bytes that may be halves of a file whose size of a half is unknown."""
    found = []
    for at in (0, *range(_HALF_BYTES, len(raw), _HALF_BYTES)):
        if raw[at : at + 4] == _MAGIC and at + _HEADER_BYTES <= len(raw):
            length = _HEADER.unpack_from(raw, at)[5]
            found.append(raw[at : at + _HEADER_BYTES + length])
    return found
