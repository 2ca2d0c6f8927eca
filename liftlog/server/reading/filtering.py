"""Answers a fetch that has a filter or a choice of columns: finds the records in the log and
encodes them in new batches.

The scan runs in a thread, examines a bounded amount of the log, and verifies every byte that it
uses. If it finds damage, the answer ends before the damage, and the next fetch is answered with
CORRUPT_RANGE.

The scan reads only the wanted records if the sketch of a segment has checksums of parts, or if a
subject index gives the places of these records. In this case it finds no damage in other records.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from liftlog.errors import (
    CorruptBatch,
    CorruptRange,
    OffsetOutOfRange,
    StreamUnavailable,
    UnsupportedFormat,
)
from liftlog.log import Log, LogSlice
from liftlog.log.files.manifest import Manifest
from liftlog.log.read.by_subject import SubjectRuns
from liftlog.log.read.partial import PartialPiece
from liftlog.log.read.sparse import SPARSE_VALUE_BYTES
from liftlog.log.segment.subject_index import RUN_BYTES
from liftlog.protocol.limits import KIB, MIB
from liftlog.records.columns.batch_columns import decode_columns
from liftlog.records.columns.chunks import Chunk
from liftlog.records.columns.column_set import Columns, Offsets, concat, without
from liftlog.records.columns.cutting import cut_rows
from liftlog.records.columns.selection import ALL_COLUMNS, OFFSET, VALUE, Selection
from liftlog.records.decode import RecordBatch, decode_batch
from liftlog.records.header import BatchHeader, parse_header
from liftlog.records.place import Place
from liftlog.records.projection import project_batch
from liftlog.server.commits.damage import quarantine_damage, quarantine_found
from liftlog.server.reading.answer_builder import BATCH_BYTES, AnswerBuilder
from liftlog.server.reading.fairness import others_wait
from liftlog.server.reading.pieces import Piece, Stamps, chunks_from, chunks_in, gone_from
from liftlog.server.reading.scan import Scan, Scanned, wanted_subjects

SCAN_BYTES = 16 * MIB
"""Limit of the bytes read from the log for one answer; a single larger batch is read as a whole."""

SCAN_SECONDS = 0.03
"""Approximate limit of processor time, in seconds, for one answer. After it, other scans have their
turn. A limit of bytes alone is not sufficient: batches of one record, from synchronous publishers,
take ten times as long per byte."""

SHARED_SECONDS = 0.01
"""Like `SCAN_SECONDS`, while another principal waits for the thread. If the event loop is busy, it
takes most of the interpreter lock. A scan can then take three times as long as its processor
time."""

MAX_ANSWER_BYTES = 1 * MIB
"""Limit of encoded bytes for one answer; a single larger record is sent as a whole. Unlike slices
of files, these answers stay in memory until they are sent."""

_DIVIDED_BYTES = 16 * MIB
"""Limit of the bytes read for one answer to a member of a group. The limit is small, because the
pieces stay in memory until all members have read them, one after the other (`pieces`)."""

_SEGMENT_BYTES = 2**32
"""Limit, in bytes, for reads with a subject index. It is as large as a segment, because the index
finds records at any distance."""

_INDEX_BYTES = 64 * KIB  # minimum size counted for opening an index file
_LEAST_BY_SUBJECT = 4 * RUN_BYTES
"""Minimum size, in bytes, of an answer for which a subject index is used. For smaller answers the
index is inefficient, because a whole run of bytes is read for each found record."""

_READ_BYTES = 512 * KIB
# Not smaller, because each piece costs each member some steps of numpy.
_SHARED_READ_BYTES = 4 * MIB
_PARTIAL_READ_BYTES = 4 * MIB  # for partial reads, which use most of their time to find a piece
_SPARSE_READ_BYTES = 16 * MIB  # for sparse reads, which take no step for each batch

_BATCH_RECORDS = 4096
_MARKED_BATCH_RECORDS = 32_768  # if the reader wants records without content
_LARGE_BYTES = 16 * KIB  # a batch of this size is not joined with others


def scan_log(log: Log, scan: Scan) -> Scanned:
    """Scan the log and return the matching records. Blocking. Raises OffsetOutOfRange,
    CorruptRange, StorageError; raises StreamUnavailable if the records cannot be decompressed."""
    try:
        return _Scanner(log, scan).run()
    except UnsupportedFormat as error:
        raise StreamUnavailable(
            f"the records cannot be decoded: {error.message}",
            hint="fetch without filter and columns: then the client decompresses",
        ) from error


class _Damaged(Exception):
    """Raised if bytes failed a check. All records before `reached` were examined."""


class _Scanner:
    def __init__(self, log: Log, scan: Scan) -> None:
        self._log = log
        self._scan = scan
        selection = scan.selection
        self._is_marked = selection.is_projection and selection.columns == {OFFSET}
        most = _MARKED_BATCH_RECORDS if self._is_marked else _BATCH_RECORDS
        self._builder = AnswerBuilder(scan.max_bytes, most)
        self._reached = scan.offset  # everything below was examined
        self._gone: Offsets = np.empty(0, np.int64)  # the erased records of the piece
        self._left = SCAN_BYTES if scan.shared is None else _DIVIDED_BYTES
        self._passed_bytes = 0  # bytes of the log, read or skipped
        self._others = selection.without_slots
        self._began = time.thread_time()
        self._skips_values = selection.values is None and (
            VALUE not in selection.columns or not selection.is_projection
        )
        self._is_partial = False  # True if the last piece was read in part
        # None if there are other conditions, or if subject indexes do not help.
        self._subjects = wanted_subjects(selection)
        self._wanted = self._subjects if VALUE in selection.columns else None
        if scan.max_bytes < _LEAST_BY_SUBJECT:
            self._subjects = None
        self._is_sparse = self._wanted is not None and scan.is_optional
        self._may_try_marks = self._is_marked

    def run(self) -> Scanned:
        incarnation = self._log.incarnation
        caught_up = self._go()
        builder = self._builder
        end = builder.finish(self._reached)
        first_offset = self._scan.offset if builder.first_offset is None else builder.first_offset
        return Scanned(
            incarnation,
            first_offset,
            end,
            builder.record_count,
            builder.batches(),
            caught_up and end >= self._reached,
            self._scan.is_optional and not caught_up and self._reached == self._scan.offset,
        )

    def _go(self) -> bool:
        """Scan until the answer is full, a limit is reached or the log ends. Return True at the
        high watermark."""
        scan, log = self._scan, self._log
        while self._left > 0 and not self._is_late():
            if scan.stop_offset is not None and self._reached >= scan.stop_offset:
                return False
            # Read first, so that the scan examines all records below it.
            high_watermark = log.high_watermark
            try:
                done = self._take_by_subject()
                if done is not None:
                    if not done:
                        return False
                    continue
                self._try_marks()
                # Shared pieces have the same borders for all members.
                own = self._read_bytes()
                most = own if scan.shared is None else _SHARED_READ_BYTES
                known = self._known_piece()
                if known is not None:
                    if not self._take_known(known):
                        return False
                    if known.is_newest:
                        return True
                    continue
                # Read before the piece, so that later changes are detected.
                manifest = log.view.manifest
                piece = log.read(self._reached, most, masked=True)
                if piece is None:
                    self._reached = max(self._reached, high_watermark)
                    return True
                if not self._take(piece, manifest):
                    return False
                if scan.shared is not None and self._reached >= high_watermark:
                    return True
            except (_Damaged, CorruptRange, OffsetOutOfRange, UnsupportedFormat) as error:
                if self._reached > scan.offset:
                    return False  # the next fetch begins with the damage
                if isinstance(error, CorruptRange):
                    quarantine_found(log, error)
                if not isinstance(error, _Damaged):
                    raise
                self._take_one_batch()
        return False

    def _known_piece(self) -> Piece | None:
        """Return a piece that another member has read, if the log has not changed since that
        read."""
        shared, wanted = self._scan.shared, self._scan.selection.slots
        if shared is None or wanted is None:
            return None
        return shared.covering(self._log, wanted, self._reached)

    def _take_known(self, known: Piece) -> bool:
        """Scan a decoded piece; return False if the answer is full."""
        self._left -= known.length
        self._gone = known.gone
        wanted = self._scan.selection.slots
        assert wanted is not None
        for part in known.parts:
            if part.next_offset <= self._reached:
                continue
            _, found = self._within(part.of(wanted))
            if len(found):
                selected = self._others.of(found)
                if not self._add(selected, part.header, part.stamps):
                    return False
            if not self._reach(part.next_offset):
                return False
        return self._reach(known.next_offset)

    def _take_one_batch(self) -> None:
        """Read a single batch, after damage at the start of a piece. The log uses its index to find
        the extent of the damage. It raises CorruptRange for the damaged range, or returns the batch
        if the batch is intact."""
        manifest = self._log.view.manifest
        piece = self._log.read(self._reached, 1, masked=True)
        if piece is None:
            return
        following = piece.next_offset
        try:
            self._take(piece, manifest)
        except _Damaged as damage:
            quarantine_damage(self._log, self._reached, following)
            raise CorruptRange(
                f"the records [{self._reached}, {following}) are damaged on disk",
                hint=f"read on with start={following}",
                first_offset=self._reached,
                next_offset=following,
            ) from damage

    def _take(self, piece: LogSlice, manifest: Manifest) -> bool:
        """Scan these batches; return False if the answer is full or the time is up. `manifest` is
        the log's manifest from before the piece was read. Raises _Damaged."""
        shared, wanted = self._scan.shared, self._scan.selection.slots
        self._gone = gone_from(piece)
        try:
            if self._is_sparse or (self._wanted is not None and self._is_partial):
                done = self._take_sparsely(piece)
                if done is not None:
                    return done
                if self._is_marked:
                    return True  # the piece is read again, in smaller parts
            if self._scan.is_optional:
                return False
            self._left -= piece.length
            self._passed_bytes += piece.length
            partial = self._read_partially(piece)
            self._is_partial = partial is not None
            if partial is not None:
                chunks = chunks_from(partial.decode, piece.length, _place_of(piece))
                goes_on = self._take_chunks(chunks, piece.next_offset, partial)
                # If most records match, a partial read first only takes longer.
                self._skips_values = 2 * partial.values_read_whole < piece.length
                return goes_on
            raw = piece.pread()
        finally:
            piece.release()
        if shared is not None and wanted is not None:
            at_end = piece.next_offset >= self._log.high_watermark
            known = shared.add(self._log, manifest, wanted, piece, raw, at_end=at_end)
            if known is not None:
                self._left += known.length
                return self._take_known(known)
        return self._take_chunks(chunks_in(raw, _place_of(piece)), piece.next_offset, None)

    def _take_by_subject(self) -> bool | None:
        """Find the records on the wanted subjects by the segment's subject index, and take these
        records. Return None if the index cannot be used, and False if the answer is full or the
        time is up."""
        wanted, stop, taken = self._subjects, self._scan.stop_offset, self._builder.size_bytes
        index = None if wanted is None else self._log.subject_index(self._reached)
        if wanted is None or index is None:
            self._subjects = None
            return None
        room = max(self._scan.max_bytes - taken, 0)
        if taken and room < RUN_BYTES:
            return False
        piece, found = self._log.read(self._reached, _SEGMENT_BYTES, masked=True), None
        if piece is not None:
            self._gone = gone_from(piece)
            reads_values = VALUE in self._scan.selection.columns
            within = self._reached, piece.next_offset if stop is None else stop
            try:
                found = self._log.read_by_subject(
                    index, piece, wanted, within, room, values=reads_values
                )
            finally:
                piece.release()
        self._left -= max(index.size_bytes, _INDEX_BYTES)
        if found is None:
            self._subjects = None
            return None
        self._left -= found.read_bytes
        self._passed_bytes += found.read_bytes
        if found.overlap and found.batches:
            goes_on = self._take_several(found)
        else:
            goes_on = all(self._take_run(batch) for batch in found.batches)
        return goes_on and self._reach(found.next_offset) and not self._is_late()

    def _take_run(self, batch: RecordBatch) -> bool:
        """Take a batch in which all records match. Returns False if the answer is full."""
        header, columns = batch.header, self._scan.selection.columns
        gone = self._gone_in(header)
        if len(batch.raw) < _LARGE_BYTES or len(gone) or not self._is_within(header):
            _, records = self._within(decode_columns(batch))
            return not len(records) or self._add(self._scan.selection.project(records), header)
        if columns == ALL_COLUMNS:
            made = bytearray(batch.raw)
        else:
            made = project_batch(batch, columns)
        self._reached = header.base_offset
        return self._builder.add_batch(made, header)

    def _take_several(self, found: SubjectRuns) -> bool:
        """Take the records of several subjects from batches that overlap; return False if the
        answer is full."""
        records = concat([decode_columns(batch) for batch in found.batches])
        records = records.at(np.argsort(records.offsets))
        end = int(records.offsets.searchsorted(found.next_offset))
        _, records = self._within(records.part(0, end))
        records = self._scan.selection.project(records)
        return not len(records) or self._add(records, found.batches[0].header)

    def _try_marks(self) -> None:
        """Decide whether to read only the heads of batches, in one step for a large piece. This is
        faster if only offsets are wanted and the first, small piece did not contain all wanted
        offsets. The decision is made once."""
        if self._may_try_marks and self._reached > self._scan.offset:
            self._may_try_marks = False
            stop = self._scan.stop_offset
            has_room = 2 * self._builder.size_bytes < self._scan.max_bytes
            goes_on = stop is None or stop - self._reached > _MARKED_BATCH_RECORDS
            self._is_sparse = has_room and goes_on

    def _read_bytes(self) -> int:
        if self._is_marked and self._is_sparse:
            # The read is limited to what fits into the answer. The estimate uses the size of the
            # answer so far.
            made = max(self._builder.size_bytes, 1)
            room = max(self._scan.max_bytes - made, 0) * self._passed_bytes // made
            return min(max(room, _READ_BYTES), _SPARSE_READ_BYTES)
        if self._is_sparse:
            return _SPARSE_READ_BYTES  # reads as little of each batch as possible
        return min(_PARTIAL_READ_BYTES if self._is_partial else _READ_BYTES, self._left)

    def _take_sparsely(self, piece: LogSlice) -> bool | None:
        """Scan a piece in one step, instead of one step for each batch. Returns None if this is not
        possible."""
        found = self._log.read_sparsely(piece, values=self._wanted is not None)
        records = None
        if found is not None and self._wanted is not None:
            records = found.records_on(self._wanted, self._reached, self._scan.stop_offset)
        elif found is not None:
            records = found.marked()
        self._is_sparse = records is not None
        if found is None or records is None:
            self._wanted = None
            return None
        self._left -= found.head_bytes
        self._passed_bytes += piece.length
        if self._wanted is not None:
            self._left -= len(records) * SPARSE_VALUE_BYTES
        stamps = None
        if self._is_marked:
            stamps = 0, 0
            _, records = self._within(records)
        else:
            records = self._scan.selection.project(records)
        if len(records) and not self._add(records, found.header, stamps):
            return False
        return self._reach(piece.next_offset) and not self._is_late()

    def _read_partially(self, piece: LogSlice) -> PartialPiece | None:
        """Read the piece without the values of its records. Returns None if it must be read
        whole."""
        if self._scan.shared is not None or not self._skips_values:
            return None
        # A scan of a single place is faster without a sketch, because a sketch is large.
        return self._log.read_partially(piece, load=self._reached > self._scan.offset)

    def _take_chunks(
        self, chunks: Iterator[Chunk], next_offset: int, partial: PartialPiece | None
    ) -> bool:
        try:
            for chunk in chunks:
                if not self._take_chunk(chunk, partial) or self._is_late():
                    return False
        except CorruptBatch as error:
            raise _Damaged from error
        self._reached = max(self._reached, next_offset)
        return True

    def _is_late(self) -> bool:
        """True if the time limit has passed; always False before the first progress."""
        if self._reached <= self._scan.offset:
            return False
        spent = time.thread_time() - self._began
        return spent >= SCAN_SECONDS or (spent >= SHARED_SECONDS and others_wait())

    def _take_chunk(self, chunk: Chunk, partial: PartialPiece | None) -> bool:
        """Scan a chunk. Returns False if the answer is full or if the scan has reached its end."""
        header, selection = chunk.header, self._scan.selection
        if not header.record_count:
            return self._reach(header.next_offset)
        if selection.is_projection and self._is_within(header):
            made = _projected(chunk, selection)
            if made is not None and len(gone := self._gone_in(header)):
                made = cut_rows(decode_batch(made, verify=False), gone) or made
                header = parse_header(made)
                if not header.record_count:
                    return self._reach(header.next_offset)
            if made is not None:
                if not self._builder.add_batch(made, header):
                    self._reached = header.base_offset
                    return False
                return self._reach(header.next_offset)
        # Compressed batches can become a thousand times longer than the piece.
        if not self._add(self._selected(chunk, partial), header):
            return False
        return self._reach(header.next_offset)

    def _selected(self, chunk: Chunk, partial: PartialPiece | None) -> Columns:
        """Return the matching records that were not examined yet."""
        selection, low, records = self._scan.selection, *self._within(chunk.columns())
        wanted = selection.matching(records)
        projected = selection.project(records)
        if wanted is None:
            return projected
        chosen = np.flatnonzero(wanted)
        if partial is not None and VALUE in selection.columns and chunk.is_one_batch:
            partial.read_values(chunk.batches[0], low + chosen)
        return projected.at(chosen)

    def _is_within(self, header: BatchHeader) -> bool:
        stop = self._scan.stop_offset
        return header.base_offset >= self._reached and (stop is None or header.next_offset <= stop)

    def _within(self, records: Columns) -> tuple[int, Columns]:
        """Return the records before the end of the scan that were not examined yet, and the index
        of the first of these records."""
        stop, offsets = self._scan.stop_offset, records.offsets
        low = int(offsets.searchsorted(self._reached))
        high = len(offsets) if stop is None else int(offsets.searchsorted(stop))
        if high - low == len(records):
            return low, records
        return low, records.part(low, max(low, high))

    def _gone_in(self, header: BatchHeader) -> Offsets:
        """Return the offsets of the erased records of a batch."""
        if not len(self._gone):
            return self._gone
        low, high = self._gone.searchsorted((header.base_offset, header.next_offset)).tolist()
        return self._gone[low:high]

    def _add(self, selected: Columns, header: BatchHeader, stamps: Stamps | None = None) -> bool:
        """Add records to the answer, except erased records. Returns False if the answer is full."""
        if len(self._gone):
            selected = without(selected, self._gone)
        taken = self._builder.add(selected, header, stamps)
        if taken == len(selected):
            return True
        self._reached = int(selected.offsets[taken])
        return False

    def _reach(self, offset: int) -> bool:
        """Note that all records below `offset` were examined; return False at the end of the
        scan."""
        self._reached = max(self._reached, offset)
        stop = self._scan.stop_offset
        if stop is not None and self._reached >= stop:
            self._reached = stop
            return False
        return True


def _place_of(piece: LogSlice) -> Place:
    return Place(piece.first_offset, piece.next_offset)


def _projected(chunk: Chunk, selection: Selection) -> bytearray | None:
    """Return all records of a chunk as one batch. Returns None if the records must be added one by
    one."""
    if not chunk.is_one_batch:
        return None  # so that small batches are joined
    made = project_batch(chunk.batches[0], selection.columns)
    return made if len(made) <= BATCH_BYTES else None
