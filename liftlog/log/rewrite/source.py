"""Reading sealed segments batch by batch, every checksum verified.

The end of a segment is where the manifest says that it is, and nowhere else: an error, a short
read or a batch that does not fit is damage, never the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from liftlog.errors import CorruptBatch, LiftlogError, UnsupportedFormat
from liftlog.log.filesystem import File, FileSystem
from liftlog.log.manifest import SegmentEntry
from liftlog.log.rewrite.job import Throttle, path_of
from liftlog.log.unreadable import is_unreadable
from liftlog.records.decode import RecordBatch, decode_batch
from liftlog.records.format import HEADER_SIZE, LENGTH, LENGTH_POSITION
from liftlog.records.header import parse_header
from liftlog.records.place import Epochs, Place

WINDOW_BYTES = 1024 * 1024
_MAX_INFLATED_BYTES = 16 * WINDOW_BYTES


class SourceDamaged(LiftlogError):
    """A source segment cannot be read to its end; `file_name` says which. Scrub it."""

    name = "SOURCE_DAMAGED"

    def __init__(self, message: str, *, file_name: str) -> None:
        super().__init__(message, file_name=file_name)
        self.file_name = file_name


@contextmanager
def blaming(entry: SegmentEntry) -> Iterator[None]:
    """Damage that is found in this block is reported as that of this segment."""
    try:
        yield
    except (CorruptBatch, UnsupportedFormat) as error:
        name = entry.file_name
        raise SourceDamaged(f"{name}: {error.message}", file_name=name) from error


def read_windows(
    fs: FileSystem,
    directory: str | Path,
    entry: SegmentEntry,
    throttle: Throttle,
    epochs: Epochs = (),
) -> Iterator[list[RecordBatch]]:
    """All batches of a sealed segment, each verified, tiling its offsets to the last one; about a
    MiB of them at a time.

    The views of a batch stay valid for as long as they are held. Raises SourceDamaged and OSError.
    """
    file = fs.open(path_of(directory, entry), writable=False)
    try:
        with blaming(entry):
            place = Place(entry.base_offset, entry.next_offset, epochs=epochs)
            yield from _windows(file, entry, throttle, place)
    finally:
        file.close()


def _windows(
    file: File, entry: SegmentEntry, throttle: Throttle, place: Place
) -> Iterator[list[RecordBatch]]:
    position, size = 0, entry.size_bytes
    while position < size:
        wanted = min(WINDOW_BYTES, size - position)
        throttle(wanted)
        raw = _read(file, wanted, position)
        if (length := parse_header(raw).length) > wanted:
            if position + length > size:
                raise CorruptBatch(f"the batch at {position} reaches past the segment's end")
            throttle(length - wanted)
            raw = _read(file, length, position)
        batches = []
        at, end = 0, len(raw) - HEADER_SIZE
        inflated = 0
        while at <= end and inflated < _MAX_INFLATED_BYTES:
            if at + LENGTH.unpack_from(raw, at + LENGTH_POSITION)[0] > len(raw):
                parse_header(raw, at)  # it may be the length that is damaged
                break
            batch = decode_batch(raw, at)
            place.take(batch.header)
            batches.append(batch)
            inflated += len(batch.raw)
            at += batch.header.length
        position += at
        yield batches
    place.check_end()


def _read(file: File, length: int, position: int) -> bytes:
    try:
        raw = file.pread(length, position)
    except OSError as error:
        if not is_unreadable(error):
            raise
        raise CorruptBatch(f"the disk cannot read {length} bytes at {position}") from error
    if len(raw) < length:
        raise CorruptBatch(f"only {len(raw)} of {length} bytes can be read at {position}")
    return raw
