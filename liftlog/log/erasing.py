"""Erases records of a log: finds the stored records among the chosen offsets, writes erased files,
and takes out the offsets whose bytes a rewrite has removed.

Order of an erasure: the erased files are durable, then the manifest lists them, then the view
hides the records. If the process stops before the manifest is renamed, nothing is erased, and the
next start removes the unlisted files. If it stops later, all is erased.

A file never changes. A chunk of 2^24 offsets gets one more small file with each erasure; when it
has too many, one file replaces them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from liftlog.errors import CorruptBatch, LimitExceeded
from liftlog.log.erased import ErasedSet
from liftlog.log.files.erased_file import ErasedEntry, write_erased_file
from liftlog.log.files.filesystem import File, storage_errors
from liftlog.log.files.unreadable import read_zeroed
from liftlog.log.segment.index import IndexEntry
from liftlog.log.segment.segment import Segment, SteppedOver, walk_batches
from liftlog.log.state import LogState, ReadView
from liftlog.records.decode import decode_batch

if TYPE_CHECKING:
    from pyroaring import BitMap

MOST_FILES_PER_CHUNK = 16
MOST_BYTES = 8 * 1024 * 1024
"""Approximate limit of the size of the bitmaps that one write of the manifest lists, in bytes."""
MOST_MEMORY_BYTES = 64 * 1024 * 1024
"""Maximum size of the bitmaps of all erased records of a log, in bytes."""
_TRIES = 3


class Selection(NamedTuple):
    """The stored records among some offsets, without those that are erased already.

    `unreadable` are the ranges [first, next) whose records cannot be read: nobody knows which of
    their records exist, and none of them is erased.
    """

    offsets: ErasedSet
    unreadable: tuple[tuple[int, int], ...]


class Chosen(NamedTuple):
    """A selection, and the view in which it was made."""

    view: ReadView
    selection: Selection


def choose(state: LogState, wanted: ErasedSet) -> Chosen:
    """Find the committed records among the offsets `wanted`. Reads the headers of their batches,
    and the offsets of batches with holes. Raises StorageError, UnsupportedFormat."""
    with storage_errors(f"selecting records of {state.name}"):
        while True:
            view = state.view
            try:
                return Chosen(view, _select(state, view, wanted))
            except FileNotFoundError:
                # The file may have been removed after this function took the view.
                if view.segments is state.view.segments:
                    raise


def _select(state: LogState, view: ReadView, wanted: ErasedSet) -> Selection:
    wanted = wanted.within(view.manifest.log_start_offset, view.committed.offset)
    if view.erased is not None:
        wanted -= view.erased
    found = ErasedSet({})
    lost = [
        bad
        for bad in view.manifest.quarantined
        if wanted.count_in(bad.first_offset, bad.next_offset)
    ]
    unreadable = [(bad.first_offset, bad.next_offset) for bad in lost if bad.is_loss]
    wanted -= ErasedSet.of_ranges([(bad.first_offset, bad.next_offset) for bad in lost])
    for segment in view.segments:
        some = wanted.within(segment.base_offset, view.readable_end(segment).offset)
        if some:
            stored, gaps = _stored_in(state, view, segment, some)
            found |= stored
            unreadable += gaps
    return Selection(found, tuple(joined(unreadable)))


def joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges [first, next) with the same offsets, ascending, without overlaps."""
    found: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((first, end))
    return found


def _stored_in(
    state: LogState, view: ReadView, segment: Segment, wanted: ErasedSet
) -> tuple[ErasedSet, list[tuple[int, int]]]:
    """Return the offsets of `wanted` that the segment stores, and its newly found damage."""
    environment, end = state.environment, view.readable_end(segment)
    first = wanted.next_at(segment.base_offset)
    assert first is not None
    known = view.damaged(segment)
    if any(bad.first_offset <= first and bad.next_offset >= end.offset for bad in known):
        return ErasedSet({}), []  # the file may be missing
    pooled = environment.pool.acquire(segment.path)
    try:
        file = pooled.file
        index = view.index_of(segment, file, environment.indexes)
        stepped: list[SteppedOver] = []
        ranges: list[tuple[int, int]] = []
        scattered: list[ErasedSet] = []
        gaps: list[tuple[int, int]] = []
        start = index.floor(first)
        for bad in known:
            if bad.position <= start.position < bad.end_position:
                start = IndexEntry(bad.next_offset, bad.end_position)
        for position, header in walk_batches(
            file,
            start,
            end,
            index=index,
            quarantined=known,
            stepped_over=stepped,
            epochs=view.manifest.epochs,
        ):
            if header.base_offset >= wanted.end_offset:
                break
            some = wanted.within(header.base_offset, header.next_offset)
            if not some or not header.record_count:
                continue
            if header.record_count == header.last_offset_delta + 1:
                ranges += some.ranges()
                continue
            try:
                scattered.append(some & _offsets_at(file, position, header.length))
            except CorruptBatch:
                gaps.append((header.base_offset, header.next_offset))
    finally:
        environment.pool.release(pooled)
    gaps += [
        (one.first_offset, one.next_offset)
        for one in stepped
        if not one.known and wanted.count_in(one.first_offset, one.next_offset)
    ]
    found = ErasedSet.of_ranges(ranges)
    for one in scattered:
        found |= one
    return found, gaps


def _offsets_at(file: File, position: int, length: int) -> ErasedSet:
    """Return the offsets of the records of a batch. Raises CorruptBatch, UnsupportedFormat."""
    batch = decode_batch(read_zeroed(file, length, position))
    return ErasedSet.of_offsets(np.array(batch.offsets(), np.int64))


def erase(state: LogState, wanted: ErasedSet, chosen: Chosen | None = None) -> Selection:
    """Hide the committed records at the offsets `wanted`. On return the erasure is durable, and no
    read that begins afterwards shows the records. `chosen` may be an earlier selection of these
    offsets.

    Returns the erased records. Records that cannot be read are not erased. Raises LimitExceeded if
    the offsets are too many and too scattered, StorageError, DiskFull, UnsupportedFormat. After an
    error the view is unchanged. If the daemon stops during the call, either all records are erased
    or none. A set of more than `MOST_BYTES` is erased in several steps; after an error or a stop,
    the first steps may be done.
    """
    if chosen is None:
        chosen = choose(state, wanted)
    for _ in range(_TRIES):
        with state.lock, storage_errors(f"erasing records of {state.name}"):
            if _same_records(chosen.view, state.view):
                return _hide(state, chosen.selection)
        # A rewrite may have removed some of the records.
        chosen = choose(state, wanted)
    with state.lock, storage_errors(f"erasing records of {state.name}"):
        return _hide(state, choose(state, wanted).selection)


def _hide(state: LogState, found: Selection) -> Selection:
    """Hide these records. The caller holds `lock`. Raises LimitExceeded, OSError."""
    if not found.offsets:
        return found
    before = state.view.erased
    size = found.offsets.size_bytes + (0 if before is None else before.size_bytes)
    if size > MOST_MEMORY_BYTES:
        raise LimitExceeded(
            f"{len(found.offsets)} records are too many and too scattered: with them, the offsets "
            f"of all erased records take {size >> 20} MiB",
            hint="erase fewer records, or truncate the stream",
        )
    for part in found.offsets.divided(MOST_BYTES):
        _add(state, part)
    return found


def _same_records(before: ReadView, now: ReadView) -> bool:
    """Return True if all records that `before` shows are where they were, and none of them was
    erased. Appends and rolls do not count."""
    files = [one.path for one in now.segments[: len(before.segments)]]
    return (
        [one.path for one in before.segments] == files
        and before.manifest.lineage == now.manifest.lineage
        and before.erased is now.erased
        and before.manifest.log_start_offset == now.manifest.log_start_offset
    )


def _add(state: LogState, offsets: ErasedSet) -> None:
    """Write and list the files of these offsets. The caller holds `lock`. Raises OSError."""
    view = state.view
    after = offsets if view.erased is None else view.erased | offsets
    with _Files(state) as files:
        for chunk, bits in offsets.chunks.items():
            if len(files.readable(chunk)) >= MOST_FILES_PER_CHUNK:
                files.replace(chunk, after.chunks[chunk])
            else:
                files.add(chunk, bits)
    before = view.manifest
    state.store(before.with_changes(erased=files.entries), erased=after)
    state.remove_erased_files(before.erased)


def list_hidden(state: LogState) -> None:
    """Write the offsets to files that only the view has, because committed records hide them. On
    return a start finds them hidden. If the log does not roll up any more, the manifest loses the
    note up to which offset the files have all of them. Any thread may call this. Raises
    StorageError, DiskFull."""
    with state.lock, storage_errors(f"listing hidden records of {state.name}"):
        view, part = state.hidden_now()
        before, reached = view.manifest, view.committed.offset
        is_over = not state.config.rolls_up and reached == state.active.end.offset
        below = None if is_over else reached
        if not part and below == before.rolled_up_below:
            return
        if reached > state.active.durable.offset:
            return  # after a power cut, the records that hide the others may not exist
        with _Files(state) as files:
            for chunk, bits in part.chunks.items():
                if view.erased is not None and len(files.readable(chunk)) >= MOST_FILES_PER_CHUNK:
                    files.replace(chunk, view.erased.chunks[chunk])
                else:
                    files.add(chunk, bits)
        changes = before.with_changes(erased=files.entries, rolled_up_below=below)
        state.store(changes, settled=part)
        state.remove_erased_files(before.erased)


class Hidden(NamedTuple):
    """The erased files and the set after a swap, for the manifest and the view."""

    entries: tuple[ErasedEntry, ...]
    erased: ErasedSet | None
    gone: ErasedSet = ErasedSet({})
    """The offsets that have left the set."""


def after_swap(
    state: LogState,
    old: Sequence[Segment],
    new: Sequence[Segment],
    applied: ErasedSet | None,
) -> Hidden:
    """Return the set without the offsets whose records the segments `new` no longer hold.

    `applied` are the offsets that the job left out. A record that was erased since the job began
    stays in the set, unless the job dropped it for another reason. Writes files if the set changes;
    the caller holds `lock`, lists them in the manifest of the swap, and then calls
    `state.remove_erased_files`. Raises StorageError, OSError.
    """
    view = state.view
    erased = view.erased
    if erased is None or not old:
        return Hidden(view.manifest.erased, erased)
    mine = erased.within(old[0].base_offset, old[-1].next_offset)
    gone = ErasedSet({}) if applied is None else mine & applied
    later = mine - gone
    for segment in new if later else ():
        some = later.within(segment.base_offset, segment.next_offset)
        if some and segment.record_count < segment.next_offset - segment.base_offset:
            stored, damaged = _stored_in(state, view, segment, some)
            for first, end in damaged:  # these bytes may be readable again some day
                stored |= some.within(first, end)
            gone |= some - stored
    if not gone:
        return Hidden(view.manifest.erased, erased)
    after = erased - gone
    with _Files(state) as files:
        for chunk in gone.chunks:
            files.replace(chunk, after.chunks.get(chunk))
    return Hidden(files.entries, after or None, gone)


class _Files:
    """The erased files of a change, which the manifest lists afterwards. They are durable at the
    end of the `with` block; after an error in it, the new ones are removed."""

    def __init__(self, state: LogState) -> None:
        """Prepare a change. Raises OSError if the manifest on disk is in doubt and cannot be
        written: it may list files of a failed change, whose names are used again."""
        state.confirm_manifest()
        self._state = state
        self._before = state.view.manifest
        self.entries = self._before.erased
        erased = state.view.erased
        unreadable = () if erased is None else erased.unreadable
        self._unreadable = {one.file_name for one in unreadable}
        self._written: list[ErasedEntry] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._written:
            self._state.environment.fs.fsync_directory(self._state.directory)
        elif kind is not None:
            self._state.remove_erased_files(self._written)

    def readable(self, chunk: int) -> list[ErasedEntry]:
        """Return the files of a chunk, without those that cannot be read."""
        return [
            one
            for one in self.entries
            if one.chunk == chunk and one.file_name not in self._unreadable
        ]

    def add(self, chunk: int, bits: BitMap) -> None:
        """Write one more file of a chunk. Raises OSError."""
        state, before = self._state, self._before
        bits = bits.copy()
        bits.run_optimize()
        entry = write_erased_file(
            state.environment.fs,
            state.directory,
            chunk,
            bits,
            before.sequence + 1,
            before.incarnation,
        )
        self._written.append(entry)
        self.entries = (*self.entries, entry)

    def replace(self, chunk: int, bits: BitMap | None) -> None:
        """Let one file with `bits` replace the readable files of a chunk; None for no file. Raises
        OSError."""
        old = self.readable(chunk)
        self.entries = tuple([one for one in self.entries if one not in old])
        if bits is not None:
            self.add(chunk, bits)
