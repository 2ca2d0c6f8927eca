"""Walks the batches and gaps of one segment in order, and finds damage in the listed segments that
is not quarantined yet.

Recovery decides which bytes are kept; `walk` only reports what the file contains. So it continues
after damage at the next place where it recognises batches of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from liftlog.errors import CorruptBatch
from liftlog.log.files.filesystem import File, FileSystem
from liftlog.log.files.manifest import Manifest, QuarantinedRange, SegmentEntry
from liftlog.log.files.unreadable import WINDOW_BYTES, FileWindow
from liftlog.log.segment.index import SparseIndex, read_index
from liftlog.log.segment.resync import find_resync, leads_to
from liftlog.log.segment.tail import ActiveState, find_data_end
from liftlog.records.decode import RecordBatch, decode_batch
from liftlog.records.format import HEADER_SIZE
from liftlog.records.header import BatchHeader, parse_header
from liftlog.records.place import Epochs, Place


class Found(NamedTuple):
    """A whole batch that continues the log."""

    position: int
    batch: RecordBatch


class Missing(NamedTuple):
    """A gap: the bytes [position, end_position) contain no good batch.

    The gap should contain the offsets [first_offset, next_offset); `next_offset` is None if no
    batch follows the gap. `header` is set if the header of the batch is good and only its body is
    damaged.
    """

    position: int
    end_position: int
    first_offset: int
    next_offset: int | None
    reason: str
    header: BatchHeader | None = None

    @property
    def size_bytes(self) -> int:
        return self.end_position - self.position


def walk(
    file: File,
    base_offset: int,
    size: int,
    data_end: int,
    index: SparseIndex | None = None,
    *,
    position: int = 0,
    window_bytes: int = WINDOW_BYTES,
    end_offset: int | None = None,
    epochs: Epochs = (),
) -> Iterator[Found | Missing]:
    """Yield every batch and every gap from `position` to `data_end`, in order of position.

    The batch of `base_offset` begins at `position`. No batch extends beyond `size`. Between
    `data_end` and `size` the file has zeros that were allocated ahead. `index` is the index of a
    sealed segment. `end_offset` is the offset at which the log continues at `data_end`, if it is
    known. `epochs` are the epochs of the manifest. Raises OSError, and UnsupportedFormat for data
    of a newer liftlog.
    """
    window = FileWindow(file, size, window_bytes)
    place = Place(base_offset, end_offset, epochs=epochs)
    while position < data_end:
        expected = place.offset
        border = _border(index, position, expected, data_end, end_offset)
        header, batch, reason = _read_batch(window, position)
        if header is not None and not place.holds(header):
            reason = place.problem(header)
            if header.base_offset > expected and leads_to(file, position, header, *border):
                # The batches in between are missing together with their bytes.
                yield Missing(position, position, expected, header.base_offset, reason)
                place.go_on_at(header.base_offset)
            if not place.holds(header):
                header = batch = None
        if header is not None and batch is not None:
            yield Found(position, batch)
            position += header.length
            place.pass_by(header)
            continue
        expected = place.offset
        end, following = _behind(file, position, place, border, header)
        yield Missing(position, end, expected, following, reason, header)
        position = end
        place.go_on_at(expected if following is None else following)


def _read_batch(
    window: FileWindow, position: int
) -> tuple[BatchHeader | None, RecordBatch | None, str]:
    """Return a tuple of three values: the header, None if it is damaged; the batch, None if its
    header or body is damaged; and the problem, None for an intact batch."""
    header = None
    try:
        header = parse_header(window.view(position, HEADER_SIZE))
        return header, decode_batch(window.view(position, header.length)), ""
    except CorruptBatch as error:
        length = HEADER_SIZE if header is None else header.length
        return header, None, window.unreadable(position, length) or error.message


def _border(
    index: SparseIndex | None,
    position: int,
    expected: int,
    data_end: int,
    end_offset: int | None,
) -> tuple[int, int | None]:
    """Return the next position at which a batch certainly begins, or the data end; and the offset
    at that position if it is known."""
    border = index.after_position(position) if index is not None else None
    if border is None or border.position >= data_end or border.offset <= expected:
        return data_end, end_offset
    return border.position, border.offset


def _behind(
    file: File,
    position: int,
    place: Place,
    border: tuple[int, int | None],
    header: BatchHeader | None,
) -> tuple[int, int | None]:
    """Return the position at which to continue after a bad batch, and the offset at that position.
    The offset is None at the data end."""
    end, end_offset = border
    found = find_resync(
        file,
        position,
        end,
        offset=place.offset,
        epoch=place.sure_epoch,
        header=header,
        end_offset=end_offset,
    )
    return border if found is None else (found.position, found.offset)


def is_covered(first: int, following: int, ranges: Iterable[QuarantinedRange]) -> bool:
    """Return True if the ranges together cover [first, following)."""
    for bad in sorted(ranges, key=lambda one: one.first_offset):
        if bad.first_offset <= first < bad.next_offset:
            first = bad.next_offset
    return first >= following


class Judgement(NamedTuple):
    """The damage of a log, after all its bytes were read."""

    new: list[QuarantinedRange]
    """Damage that is not yet quarantined."""
    lifted: list[QuarantinedRange]
    """Recorded ranges that are readable now, at least in part."""
    still: list[QuarantinedRange]
    """The parts of the ranges in `lifted` that are still damaged."""


def judge_all(
    fs: FileSystem, directory: Path, manifest: Manifest, trusted: ActiveState | None
) -> Judgement:
    """Read every byte of the sealed segments, and the part of the active segment that recovery
    trusts.

    `trusted` is the end of that part; recovery judges the rest. Damage below the log's start, which
    readers cannot reach, is not reported. Raises OSError, UnsupportedFormat.
    """
    found: list[QuarantinedRange] = []
    judged: list[SegmentEntry] = []
    for number, entry in enumerate(manifest.segments):
        path = directory / entry.file_name
        if number == len(manifest.segments) - 1:
            if trusted is not None:
                found += _in_active(fs, path, trusted, manifest.epochs)
                judged.append(replace(entry, next_offset=trusted.next_offset))
            continue
        found += _in_sealed(fs, path, entry, manifest)
        judged.append(entry)
        following = manifest.segments[number + 1].base_offset
        if following > entry.next_offset:
            found.append(
                _no_bytes(entry, entry.next_offset, following, "no segment holds these offsets")
            )
    lifted, still = [], []
    for entry in judged:
        withdrawn = readable_again(manifest.quarantined_in(entry.file_name), found, entry)
        lifted += withdrawn[0]
        still += withdrawn[1]
    known = [bad for bad in manifest.quarantined if bad not in lifted] + still
    start = manifest.log_start_offset
    new = [
        bad
        for bad in found
        if bad.next_offset > start
        and not is_covered(max(bad.first_offset, start), bad.next_offset, known)
    ]
    return Judgement(new, lifted, still)


def find_new_damage(
    fs: FileSystem, directory: Path, manifest: Manifest, trusted: ActiveState | None
) -> list[QuarantinedRange]:
    """Return the new damage of `judge_all`."""
    return judge_all(fs, directory, manifest, trusted).new


def readable_again(
    known: Iterable[QuarantinedRange], found: Iterable[QuarantinedRange], entry: SegmentEntry
) -> tuple[list[QuarantinedRange], list[QuarantinedRange]]:
    """Return the recorded ranges of a segment that are readable now, at least in part, and the
    parts of these ranges that are still damaged. `found` is all damage in the segment, from a walk
    over the whole segment.

    A quarantined range may be readable later, because the disk can read a sector again, or because
    the range was derived from a wrong index entry. All offsets of the segment that are not in
    `found` are in whole batches that continue each other. Ranges that extend beyond the end of the
    segment do not change."""
    damage = list(found)
    lifted: list[QuarantinedRange] = []
    still: list[QuarantinedRange] = []
    for bad in known:
        if bad.first_offset < entry.base_offset or bad.next_offset > entry.next_offset:
            continue
        inside = [
            one
            for one in damage
            if one.first_offset < bad.next_offset and bad.first_offset < one.next_offset
        ]
        if not is_covered(bad.first_offset, bad.next_offset, inside):
            lifted.append(bad)
            still += [one for one in inside if one not in still]
    return lifted, still


def merged(
    known: Sequence[QuarantinedRange], found: Iterable[QuarantinedRange]
) -> tuple[QuarantinedRange, ...]:
    """Return all ranges. Ranges of one file are merged if their bytes or offsets overlap."""
    ranges = list(known)
    for bad in found:
        apart = []
        for other in ranges:
            if other.segment == bad.segment and _overlap(other, bad):
                bad = bad.widened(other)
            else:
                apart.append(other)
        ranges = [*apart, bad]
    return tuple(sorted(ranges, key=lambda one: one.first_offset))


def _overlap(one: QuarantinedRange, other: QuarantinedRange) -> bool:
    offsets = one.first_offset < other.next_offset and other.first_offset < one.next_offset
    return offsets or (one.position < other.end_position and other.position < one.end_position)


def _no_bytes(entry: SegmentEntry, first: int, following: int, reason: str) -> QuarantinedRange:
    end = entry.size_bytes
    return QuarantinedRange(first, following, entry.file_name, end, end, reason)


def _in_sealed(
    fs: FileSystem, path: Path, entry: SegmentEntry, manifest: Manifest
) -> list[QuarantinedRange]:
    if not fs.exists(path):
        lost = (entry.base_offset, entry.next_offset)
        return [QuarantinedRange(*lost, path.name, 0, 0, "the file is missing")]
    file = fs.open(path, writable=False)
    try:
        return _in_file(fs, file, entry, manifest)
    finally:
        file.close()


def _in_file(
    fs: FileSystem, file: File, entry: SegmentEntry, manifest: Manifest
) -> list[QuarantinedRange]:
    size = min(file.size(), entry.size_bytes)
    index = read_index(fs, file, entry, manifest.incarnation)
    items = walk(
        file,
        entry.base_offset,
        size,
        size,
        index,
        end_offset=entry.next_offset if size == entry.size_bytes else None,
        epochs=manifest.epochs,
    )
    return damage_in_walk(items, entry)


def damage_in_walk(items: Iterable[Found | Missing], entry: SegmentEntry) -> list[QuarantinedRange]:
    """Return the gaps that a walk over a whole sealed segment found, as ranges to quarantine."""
    found: list[QuarantinedRange] = []
    name = entry.file_name
    position, offset = 0, entry.base_offset
    for item in items:
        if not isinstance(item, Missing):
            position = item.position + item.batch.header.length
            offset = item.batch.next_offset
            continue
        following = item.next_offset
        position, offset = item.end_position, following or entry.next_offset
        if following is None or following > entry.next_offset:
            # No readable batch follows, so all offsets up to the next segment are lost.
            position, offset = entry.size_bytes, entry.next_offset
        if offset > item.first_offset:
            found.append(
                QuarantinedRange(
                    item.first_offset, offset, name, item.position, position, item.reason
                )
            )
    if offset < entry.next_offset:
        reason = "the end of the file is missing"
        found.append(
            QuarantinedRange(offset, entry.next_offset, name, position, entry.size_bytes, reason)
        )
    return found


def _in_active(
    fs: FileSystem, path: Path, trusted: ActiveState, epochs: Epochs
) -> list[QuarantinedRange]:
    if not fs.exists(path):
        return []
    file = fs.open(path, writable=False)
    try:
        if trusted.position > file.size():
            return []
        found = []
        size, border = file.size(), trusted.position
        data_end = max(find_data_end(file, 0), border)
        for item in walk(file, trusted.base_offset, size, data_end, epochs=epochs):
            if item.position >= border:
                break
            if not isinstance(item, Missing):
                continue
            end, following = item.end_position, item.next_offset
            if end > border or following is None:
                # Recovery begins at the border in any case.
                end, following = border, trusted.next_offset
            if following > item.first_offset:
                found.append(
                    QuarantinedRange(
                        item.first_offset, following, path.name, item.position, end, item.reason
                    )
                )
        return found
    finally:
        file.close()
