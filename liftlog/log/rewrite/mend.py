"""Repairs a sealed segment: replaces its damaged parts by data of another replica.

The batches of the other replica are in a *patch*, a file next to the segment. For each damaged
range, in the order of offsets, the patch contains every batch that holds a record of the range. The
other replica may have joined or compacted its batches, so a batch may begin or end outside of the
range. Such batches are cut to the range, and empty batches cover offsets without a record. The good
parts of the segment are copied unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from liftlog.errors import CorruptBatch, LiftlogError
from liftlog.log.files.filesystem import File, FileSystem
from liftlog.log.files.manifest import epoch_before
from liftlog.log.rewrite.job import (
    MendJob,
    MendResult,
    OnProgress,
    Piece,
    Progress,
    Swap,
    Throttle,
    no_progress,
    no_throttle,
    path_of,
    remove_files,
)
from liftlog.log.rewrite.segments import (
    MAX_RELATIVE_OFFSET,
    WINDOW_BYTES,
    SegmentWriter,
    blaming,
)
from liftlog.log.segment.index import read_index
from liftlog.log.segment.walk import Found, walk
from liftlog.records.columns.batch_columns import cut_out
from liftlog.records.decode import RecordBatch, decode_batch
from liftlog.records.encode import encode_batch
from liftlog.records.format import HEADER_SIZE
from liftlog.records.header import parse_header


class PatchDamaged(LiftlogError):
    """The patch lacks expected batches; the caller must fetch it again."""

    name = "PATCH_DAMAGED"


def mend(
    job: MendJob,
    fs: FileSystem,
    progress: OnProgress = no_progress,
    throttle: Throttle = no_throttle,
) -> MendResult:
    """Write `job.source` again, with the pieces of the patch for its damaged parts; fsynced on
    return.

    Raises PatchDamaged, SourceDamaged if the pieces do not cover all damage, OSError. Removes its
    new files before it raises an error. Never removes the patch.
    """
    directory, source = Path(job.directory), job.source
    written: list[str] = []
    with ExitStack() as on_error:
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
        with ExitStack() as stack:
            patch = _Patch(job, fs.open(directory / job.patch, writable=False), writer)
            stack.callback(patch.close)
            with blaming(source):
                _write(job, fs, stack, writer, patch, progress, throttle)
        entries = writer.finish(source.delete_horizon_ns)
        fs.fsync_directory(directory)
        on_error.pop_all()
    return MendResult(
        (Swap((source.file_name,), entries),),
        mended=patch.used,
        bytes_in=source.size_bytes,
        bytes_out=sum(entry.size_bytes for entry in entries),
    )


def _write(
    job: MendJob,
    fs: FileSystem,
    stack: ExitStack,
    writer: SegmentWriter,
    patch: _Patch,
    progress: OnProgress,
    throttle: Throttle,
) -> None:
    source = job.source
    reported = 0
    if fs.exists(path_of(job.directory, source)):
        file = fs.open(path_of(job.directory, source), writable=False)
        stack.callback(file.close)
        for found in _good_batches(job, fs, file):
            header = found.batch.header
            throttle(header.length)
            patch.write_up_to(header.base_offset)
            if header.next_offset > writer.next_offset:
                # The batch is copied, because its views are valid only as long as the window of the
                # walk, and the writer keeps the bytes longer.
                raw = bytes(cut_out(found.batch, writer.next_offset, header.next_offset))
                writer.write(raw, parse_header(raw))
            end = found.position + header.length
            if end - reported >= WINDOW_BYTES:
                reported = end
                progress(Progress("rewrite", end, source.size_bytes))
    patch.write_up_to(source.next_offset)


def _good_batches(job: MendJob, fs: FileSystem, file: File) -> Iterator[Found]:
    """Yield the readable batches of the segment. Their offsets show which records are missing."""
    source = job.source
    size = min(file.size(), source.size_bytes)
    items = walk(
        file,
        source.base_offset,
        size,
        size,
        read_index(fs, file, source, job.incarnation),
        end_offset=source.next_offset if size == source.size_bytes else None,
        epochs=job.epochs,
    )
    for item in items:
        if isinstance(item, Found) and item.batch.header.next_offset <= source.next_offset:
            yield item


class _Patch:
    """The pieces of the patch. Each piece is written when the writer reaches its offsets."""

    def __init__(self, job: MendJob, file: File, writer: SegmentWriter) -> None:
        self._job = job
        self._file = file
        self._writer = writer
        self.used: tuple[tuple[int, int], ...] = ()

    def close(self) -> None:
        self._file.close()

    def write_up_to(self, offset: int) -> None:
        """Write pieces until the writer has reached `offset`. Raises PatchDamaged, and CorruptBatch
        if there is no piece for missing offsets."""
        writer, end = self._writer, self._job.source.next_offset
        while (first := writer.next_offset) < offset:
            piece = next(
                (one for one in self._job.pieces if one.first_offset <= first < one.next_offset),
                None,
            )
            if piece is None:
                raise CorruptBatch(f"the records [{first}, {offset}) cannot be read")
            self._write(piece, min(piece.next_offset, end))
            self.used += ((first, writer.next_offset),)

    def _write(self, piece: Piece, end: int) -> None:
        writer = self._writer
        for batch in self._batches(piece):
            header = batch.header
            if header.next_offset <= writer.next_offset or header.base_offset >= end:
                continue
            self._write_empty(header.base_offset)
            if header.leader_epoch != self._epoch_at(writer.next_offset):
                raise PatchDamaged(
                    f"offset {writer.next_offset} is of leader epoch {header.leader_epoch} on the "
                    "other replica"
                )
            try:
                raw = cut_out(batch, writer.next_offset, end)
            except CorruptBatch as error:
                raise PatchDamaged(f"the patch is damaged: {error.message}") from error
            writer.write(raw, parse_header(raw))
        self._write_empty(end)

    def _batches(self, piece: Piece) -> Iterator[RecordBatch]:
        position, end = piece.position, piece.end_position
        while position < end:
            try:
                length = parse_header(self._file.pread(HEADER_SIZE, position)).length
                yield decode_batch(self._file.pread(min(length, end - position), position))
            except CorruptBatch as error:
                raise PatchDamaged(f"the patch is damaged: {error.message}") from error
            position += length

    def _write_empty(self, end: int) -> None:
        """Write batches without records up to `end`, one for each leader epoch, so that the log
        keeps the offset at which each epoch begins."""
        writer = self._writer
        starts = [start for _, start in self._job.epochs]
        while (first := writer.next_offset) < end:
            borders = [start for start in starts if first < start < end]
            following = min([*borders, end, first + MAX_RELATIVE_OFFSET])
            raw = encode_batch(
                base_offset=first,
                last_offset=following - 1,
                leader_epoch=self._epoch_at(first),
                commit_group=0,
                stamps=[],
                subjects=[],
                values=[],
            )
            writer.write(raw, parse_header(raw))

    def _epoch_at(self, offset: int) -> int:
        return epoch_before(self._job.epochs, offset + 1)
