"""Rebuilds a manifest from the segments, as far as the segments prove its content, and rebuilds
indexes.

Every batch contains its offsets, so the segments of a stream show their order, missing offsets, and
the files that a rewrite has replaced. The segments do not show the stream's settings. The segments
do not show the log start either, so records that retention had hidden become visible again. The
incarnation is known only if a checkpoint file contains it and the slot or a batch border confirms
it. The result lists the information that it lacks.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from liftlog.errors import CorruptMetadata
from liftlog.log.environment import build_index
from liftlog.log.files.acked_end import known_acked_end
from liftlog.log.files.erased_file import find_erased_files
from liftlog.log.files.filesystem import File, FileSystem
from liftlog.log.files.manifest import MOST_RESERVED, Manifest, QuarantinedRange, SegmentEntry
from liftlog.log.segment.index import (
    INTERVAL_BYTES,
    IndexEntry,
    SparseIndex,
    index_path,
    read_index,
    write_index,
)
from liftlog.log.segment.segment import Segment, walk_batches
from liftlog.log.segment.tail import ActiveState, find_data_end
from liftlog.log.segment.walk import Missing, walk
from liftlog.records.format import OFFSET_DELTAS

_SEGMENT_NAME = re.compile(r"(\d{20})(?:\.(\d+))?\.log")


@dataclass(slots=True)
class Chain:
    """The content of one segment file, according to its own batches."""

    base_offset: int
    generation: int
    next_offset: int = 0
    size_bytes: int = 0
    record_count: int = 0
    max_timestamp_ns: int = 0
    is_compacted: bool = False
    epochs: list[tuple[int, int]] = field(default_factory=list)
    gaps: list[Missing] = field(default_factory=list)
    borders: dict[int, int] = field(default_factory=dict)  # offset -> position, of whole batches

    @property
    def file_name(self) -> str:
        return self.entry().file_name

    @property
    def is_whole(self) -> bool:
        return not self.gaps and self.record_count > 0

    def entry(self) -> SegmentEntry:
        return SegmentEntry(
            base_offset=self.base_offset,
            generation=self.generation,
            size_bytes=self.size_bytes,
            next_offset=self.next_offset,
            record_count=self.record_count,
            max_timestamp_ns=self.max_timestamp_ns,
        )


@dataclass(frozen=True, slots=True)
class Rebuilt:
    manifest: Manifest
    notes: list[str]
    superseded: list[str]
    """Segment files that other files replace."""


def rebuild_manifest(
    fs: FileSystem,
    directory: Path,
    states: Sequence[ActiveState],
    metadata: Mapping[str, Any],
) -> Rebuilt | None:
    """Build a manifest from the files; None if no segment holds a batch.

    `states` are the entries of the recovery points and the clean marker for this stream name.
    Raises CorruptMetadata if the segments contradict each other, OSError, UnsupportedFormat.
    """
    chains = _chains(fs, directory)
    if not any(chain.borders for chain in chains):
        return None
    chosen = _tiling(chains)
    taken = {chain.file_name for chain in chosen}
    superseded = [chain.file_name for chain in chains if chain.file_name not in taken]
    notes = [f"{name} is left out: other segments hold its offsets" for name in superseded]
    entries, lost = _listed(chosen, states)
    start = entries[0].base_offset
    notes.append(
        f"the log starts at offset {start}, with the first segment: what retention had hidden "
        "in it comes back until retention runs again"
    )
    end = max([chosen[-1].next_offset, *(one.next_offset for one in states)])
    epochs = _epochs(chosen)
    compacted = [chain.next_offset for chain in chosen if chain.is_compacted]
    manifest = Manifest(
        incarnation=uuid.uuid4().hex,
        leader_epoch=max([epochs[-1][0], *(one.leader_epoch for one in states)]),
        log_start_offset=start,
        reserved_offset=end + MOST_RESERVED,
        segments=tuple(entries),
        epochs=tuple(epochs),
        high_watermark=start,
        quarantined=tuple(lost),
        tombstones_removed_below=max(compacted, default=0),
        replicated=metadata.get("settings", {}).get("replicas", 1) > 1,
        # With a durability below `fsync`, acks may have been sent for offsets that were not
        # fsynced. The reservation prevents that these offsets are assigned again.
        acks_before_sync=metadata.get("settings", {}).get("durability", "fsync") != "fsync",
        metadata=dict(metadata),
    )
    proven = _with_identity(fs, directory, states, chosen, manifest)
    if proven is None:
        notes.append("the incarnation is not known any more: consumers will see a new stream")
    manifest = proven or manifest
    # Without a proven incarnation, every erased file in the directory counts: a record too many is
    # hidden rather than shown.
    incarnation = None if proven is None else proven.incarnation
    erased, found = find_erased_files(fs, directory, incarnation)
    # The names of later erased files contain the sequence. A higher sequence keeps them different
    # from the names of the present files.
    sequence = max([manifest.sequence + 1, *(one.number for one in erased)])
    manifest = replace(manifest, erased=tuple(erased), sequence=sequence)
    notes += found
    return Rebuilt(manifest, notes, superseded)


# --- reading ---


def _chains(fs: FileSystem, directory: Path) -> list[Chain]:
    found = []
    for name in fs.list_directory(directory):
        match = _SEGMENT_NAME.fullmatch(name)
        if match is not None:
            found.append(_read(fs, directory / name, int(match[1]), int(match[2] or 0)))
    return sorted(found, key=lambda chain: (chain.base_offset, chain.generation))


def _read(fs: FileSystem, path: Path, base_offset: int, generation: int) -> Chain:
    chain = Chain(base_offset, generation, next_offset=base_offset)
    file = fs.open(path, writable=False)
    try:
        for item in walk(file, base_offset, file.size(), find_data_end(file, 0)):
            if isinstance(item, Missing):
                chain.gaps.append(item)
                continue
            header = item.batch.header
            chain.borders[header.base_offset] = item.position
            chain.next_offset = header.next_offset
            chain.size_bytes = item.position + header.length
            chain.record_count += header.record_count
            chain.max_timestamp_ns = max(chain.max_timestamp_ns, header.max_timestamp_ns)
            chain.is_compacted |= bool(header.attributes & OFFSET_DELTAS) or (
                header.record_count <= header.last_offset_delta
            )
            if not chain.epochs or header.leader_epoch > chain.epochs[-1][0]:
                chain.epochs.append((header.leader_epoch, header.base_offset))
    finally:
        file.close()
    return chain


# --- deciding ---


def _tiling(chains: Sequence[Chain]) -> list[Chain]:
    """Return the files that make up the log, oldest first.

    A complete rewritten segment replaces the files whose offsets it covers. After a crash, a
    rewritten segment may be incomplete. The sources of a complete rewrite are not needed, because a
    rewrite removes only records that newer records supersede. So the chosen files always hold the
    newest value of each key.
    """
    chosen: list[Chain] = []
    end = 0
    bases = sorted({chain.base_offset for chain in chains})
    borders = {*bases, max(chain.next_offset for chain in chains)}
    for base in bases:
        best = max(
            (chain for chain in chains if chain.base_offset == base),
            key=lambda one: (
                one.is_whole,
                one.next_offset in borders,  # otherwise it is half written
                one.next_offset,
                one.generation,
            ),
        )
        if chosen and base < end:
            # A segment of a later generation inside the range of another one was appended after a
            # truncation of the other one.
            newer = best.next_offset > end or best.generation > chosen[-1].generation
            if newer and best.borders:
                raise CorruptMetadata(
                    f"{chosen[-1].file_name} and {best.file_name} hold the same offsets, "
                    f"{base} to {end - 1}, and neither contains the records of both",
                    hint="move one of them out of the directory",
                )
            continue
        chosen.append(best)
        end = max(best.next_offset, base)
    return chosen


def _listed(
    chosen: Sequence[Chain], states: Iterable[ActiveState]
) -> tuple[list[SegmentEntry], list[QuarantinedRange]]:
    """Return the entries, and the lost ranges inside and between them."""
    entries, lost = [], []
    for number, chain in enumerate(chosen):
        entry, name = chain.entry(), chain.file_name
        entries.append(entry)
        for gap in chain.gaps:
            if gap.next_offset is not None:
                lost.append(  # noqa: PERF401
                    QuarantinedRange(
                        gap.first_offset,
                        gap.next_offset,
                        name,
                        gap.position,
                        gap.end_position,
                        gap.reason,
                    )
                )
        end, size = chain.next_offset, chain.size_bytes
        if number < len(chosen) - 1 and chosen[number + 1].base_offset > end:
            following = chosen[number + 1].base_offset
            reason = "no segment holds these offsets"
            lost.append(QuarantinedRange(end, following, name, size, size, reason))
    last = chosen[-1]
    was_active = any(
        (state.base_offset, state.generation) == (last.base_offset, last.generation)
        for state in states
    )
    if last.generation and not was_active:
        # A rewrite wrote and sealed the last segment, so appends need another file.
        entries.append(SegmentEntry(base_offset=last.next_offset, next_offset=last.next_offset))
    return entries, lost


def _with_identity(
    fs: FileSystem,
    directory: Path,
    states: Iterable[ActiveState],
    chosen: Sequence[Chain],
    manifest: Manifest,
) -> Manifest | None:
    """Return the manifest with the incarnation and generation of one of the states. The state must
    certainly belong to this stream, and not to an older stream of the same name. Returns None if
    there is no such state."""
    by_base = {(chain.base_offset, chain.generation): chain for chain in chosen}
    for state in states:
        for generation in range(max(chain.generation for chain in chosen) + 1):
            claim = manifest.with_changes(incarnation=state.incarnation, generation=generation)
            if known_acked_end(fs, directory, claim.lineage) is not None:
                return claim
        chain = by_base.get((state.base_offset, state.generation))
        if chain is None or state.position == 0:
            continue
        if chain.borders.get(state.next_offset) == state.position or (
            (chain.next_offset, chain.size_bytes) == (state.next_offset, state.position)
        ):
            return manifest.with_changes(incarnation=state.incarnation, generation=state.generation)
    return None


def _epochs(chosen: Sequence[Chain]) -> list[tuple[int, int]]:
    epochs: list[tuple[int, int]] = []
    for chain in chosen:
        for epoch, offset in chain.epochs:
            if not epochs or epoch > epochs[-1][0]:
                epochs.append((epoch, offset))
    return epochs


class StaleIndex(NamedTuple):
    """The index of a sealed segment that must be rebuilt, and the reason."""

    segment: Segment
    reason: str

    @property
    def path(self) -> Path:
        return index_path(self.segment.path)


def find_stale_indexes(fs: FileSystem, directory: Path, manifest: Manifest) -> list[StaleIndex]:
    """Compare the index of every sealed segment with the batch headers. Raises OSError.

    Ignores the index of the active segment, because it is as old as the last checkpoint, and the
    daemon updates it at its start.
    """
    found = []
    for entry in manifest.segments[:-1]:
        segment = Segment(directory, entry, sealed=True)
        if not fs.exists(segment.path):
            continue
        reason = _what_is_wrong(fs, segment, manifest)
        if reason:
            found.append(StaleIndex(segment, reason))
    return found


def rebuild_index(fs: FileSystem, segment: Segment, manifest: Manifest) -> int:
    """Rebuild the segment's index; durable on return. Returns the number of entries."""
    file = fs.open(segment.path, writable=False)
    try:
        known = manifest.quarantined_in(segment.path.name)
        index = build_index(file, segment, known)
    finally:
        file.close()
    write_index(fs, segment.path, index, segment, manifest.incarnation)
    fs.fsync_directory(segment.path.parent)
    return len(index)


def _what_is_wrong(fs: FileSystem, segment: Segment, manifest: Manifest) -> str:
    if not fs.exists(index_path(segment.path)):
        return "it is missing"
    file = fs.open(segment.path, writable=False)
    try:
        index = read_index(fs, file, segment, manifest.incarnation)
        if index is None:
            return "it is damaged, names another segment, or was made by an older version"
        return _disagreement(file, segment, index, manifest)
    finally:
        file.close()


def _disagreement(file: File, segment: Segment, index: SparseIndex, manifest: Manifest) -> str:
    """Describe where the index contradicts the batch headers, or lacks an entry; empty if the index
    is right.

    Entries that point into damage are valid, because readers skip the damage.
    """
    known = manifest.quarantined_in(segment.path.name)
    start = IndexEntry(segment.base_offset, 0)
    end = IndexEntry(segment.next_offset, min(segment.size_bytes, file.size()))
    before, border = 0, 0  # start and end of the last batch
    for position, header in walk_batches(file, start, end, index=index, quarantined=known):
        entry = index.floor_position(position)
        if entry.position == position and entry.offset != header.base_offset:
            return f"it has offset {entry.offset} at {position}, where {header.base_offset} lies"
        if position == border and before < entry.position < position:
            return f"it has an entry at {entry.position}, where no batch begins"
        if position - entry.position >= INTERVAL_BYTES:
            return f"it has no entry for the batch at {position}"
        before, border = position, position + header.length
    return ""
