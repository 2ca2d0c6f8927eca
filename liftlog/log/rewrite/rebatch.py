"""Joins the small batches of a sealed segment.

Publishers that wait for each ack produce batches of one record. Each such batch costs every reader
a fixed time, for a header, a checksum and a dozen small steps.
"""

from __future__ import annotations

from contextlib import ExitStack, closing, suppress
from pathlib import Path

from liftlog.errors import CorruptBatch, UnsupportedFormat
from liftlog.log.erased import ErasedSet
from liftlog.log.files.filesystem import FileSystem
from liftlog.log.files.manifest import SegmentEntry
from liftlog.log.files.unreadable import read_zeroed
from liftlog.log.rewrite.batches import BatchMerger
from liftlog.log.rewrite.job import (
    OnProgress,
    Progress,
    RebatchJob,
    RebatchResult,
    Swap,
    Throttle,
    no_progress,
    no_throttle,
    remove_files,
)
from liftlog.log.rewrite.segments import SegmentWriter, blaming, read_windows
from liftlog.log.segment.index import count_entries, index_path, read_index
from liftlog.records.codecs import raw_length
from liftlog.records.columns.chunks import chunks_of
from liftlog.records.format import HEADER_SIZE
from liftlog.records.header import parse_header

SMALL_BATCH_BYTES = 16 * 1024
_WORTHWHILE = 2  # a rewrite must reduce the number of batches by this factor
_SAMPLES = 16
_HEAD_BYTES = HEADER_SIZE + 8


def needs_rebatch(
    fs: FileSystem, directory: Path, entry: SegmentEntry, incarnation: str = ""
) -> bool:
    """Return True if the average batch of a sealed segment, uncompressed, is small.

    Estimates the average from the number of index entries. Each batch of more than 4 KiB has its
    own entry; smaller batches share entries that are less than 8 KiB apart. Reads a few headers to
    estimate the effect of compression. Returns False for a segment of at most one batch, or without
    a readable index. Raises OSError.
    """
    try:
        with closing(fs.open(index_path(directory / entry.file_name), writable=False)) as file:
            entries = count_entries(file, entry, incarnation)
    except OSError:
        return False
    if entries < 2 or entry.size_bytes >= SMALL_BATCH_BYTES * entries:
        return False
    inflation = _inflation(fs, directory, entry, incarnation)
    return entry.size_bytes * inflation < SMALL_BATCH_BYTES * entries


def _inflation(fs: FileSystem, directory: Path, entry: SegmentEntry, incarnation: str) -> float:
    """Return the factor by which the batches of a segment grow without compression."""
    stored = raw = 0
    with closing(fs.open(directory / entry.file_name, writable=False)) as file:
        index = read_index(fs, file, entry, incarnation)
        if index is None:
            return 1.0
        for i in range(_SAMPLES):
            at = index.floor_position(entry.size_bytes * i // _SAMPLES).position
            found = read_zeroed(file, _HEAD_BYTES, at)
            with suppress(CorruptBatch, UnsupportedFormat):  # a full read reports the damage
                header = parse_header(found)
                stored += header.length
                raw += raw_length(found, header)
    return raw / stored if stored else 1.0


def rebatch(
    job: RebatchJob,
    fs: FileSystem,
    progress: OnProgress = no_progress,
    throttle: Throttle = no_throttle,
) -> RebatchResult:
    """Rewrite `job.source` with batches of about `job.target_bytes`; fsynced on return.

    Raises SourceDamaged and OSError. Removes its new files after an error, and also if the rewrite
    would not reduce the number of batches enough (`_WORTHWHILE`) and removes no erased record.
    """
    directory = Path(job.directory)
    erased = ErasedSet.from_plain(job.erased) if job.erased else None
    source = job.source
    written: list[str] = []
    batches_in = done = 0
    with blaming(source), ExitStack() as on_error:
        on_error.callback(lambda: remove_files(fs, directory, written))
        writer = SegmentWriter(
            fs,
            directory,
            source.base_offset,
            job.generation,
            throttle=throttle,
            names=written,
            incarnation=job.incarnation,
        )
        on_error.callback(writer.close)
        merger = BatchMerger(writer, target_bytes=job.target_bytes, compression=job.compression)
        for window in read_windows(fs, directory, source, throttle, job.epochs, erased):
            for chunk in chunks_of(window):
                merger.add(chunk)
            batches_in += len(window)
            done += sum([batch.header.length for batch in window])
            progress(Progress("rewrite", done, source.size_bytes))
        merger.flush()
        entries = writer.finish(source.delete_horizon_ns)
        swaps: tuple[Swap, ...] = ()
        if erased is not None or merger.batches_out * _WORTHWHILE <= batches_in:
            fs.fsync_directory(directory)
            on_error.pop_all()
            swaps = (Swap((source.file_name,), entries),)
    return RebatchResult(
        swaps=swaps,
        records=sum(entry.record_count for entry in entries),
        batches_in=batches_in,
        batches_out=merger.batches_out,
        bytes_in=source.size_bytes,
        bytes_out=sum(entry.size_bytes for entry in entries),
    )
