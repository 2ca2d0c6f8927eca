"""Reading sealed segments batch by batch, every checksum verified.

The end of a segment is where the manifest says that it is, and nowhere else: an error, a short
read or a batch that does not fit is damage, never the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from liftlog.errors import CorruptBatch, LiftlogError, UnsupportedFormat
from liftlog.log.filesystem import File, FileSystem
from liftlog.log.manifest import SegmentEntry
from liftlog.log.rewrite.job import Throttle, path_of
from liftlog.records.decode import RecordBatch, decode_batch
from liftlog.records.format import HEADER_SIZE
from liftlog.records.header import parse_header

WINDOW_BYTES = 1024 * 1024


class SourceDamaged(LiftlogError):
    """A source segment cannot be read to its end; `file_name` says which. Scrub it."""

    name = "SOURCE_DAMAGED"

    def __init__(self, message: str, *, file_name: str) -> None:
        super().__init__(message, file_name=file_name)
        self.file_name = file_name


def read_batches(
    fs: FileSystem, directory: str | Path, entry: SegmentEntry, throttle: Throttle
) -> Iterator[RecordBatch]:
    """All batches of a sealed segment, each verified, tiling its offsets to the last one.

    The views of a batch stay valid while anybody holds them. Raises SourceDamaged and OSError.
    """
    path = path_of(directory, entry)
    file = fs.open(path, writable=False)
    try:
        yield from _batches(file, entry, throttle)
    except (CorruptBatch, UnsupportedFormat) as error:
        raise SourceDamaged(f"{path.name}: {error.message}", file_name=path.name) from error
    finally:
        file.close()


def _batches(file: File, entry: SegmentEntry, throttle: Throttle) -> Iterator[RecordBatch]:
    position, offset, size = 0, entry.base_offset, entry.size_bytes
    while position < size:
        wanted = min(WINDOW_BYTES, size - position)
        throttle(wanted)
        window = _read(file, wanted, position)
        if (length := parse_header(window).length) > wanted:
            if position + length > size:
                raise CorruptBatch(f"the batch at {position} reaches past the segment's end")
            throttle(length - wanted)
            window = _read(file, length, position)
        at = 0
        while at + HEADER_SIZE <= len(window):
            header = parse_header(window, at)
            if at + header.length > len(window):
                break
            if header.base_offset != offset:
                raise CorruptBatch(
                    f"the batch at {position + at} begins with offset {header.base_offset} "
                    f"where {offset} was due"
                )
            yield decode_batch(window, at)
            offset = header.next_offset
            at += header.length
        position += at
    if offset != entry.next_offset:
        raise CorruptBatch(f"the segment ends at offset {offset} and not at {entry.next_offset}")


def _read(file: File, length: int, position: int) -> bytes:
    raw = file.pread(length, position)
    if len(raw) < length:
        raise CorruptBatch(f"only {len(raw)} of {length} bytes can be read at {position}")
    return raw
