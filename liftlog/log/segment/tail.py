"""Scans the active segment after an unclean stop, and decides about a bad tail.

A scan from the recovery point accepts batches as long as each batch is whole and continues the
previous one. The scan stops at the end of the data, or at a bad tail with records that may or may
not have been acked. `judge_tail` decides whether to keep a bad tail; its comments give the reason
for each case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from liftlog.errors import CorruptBatch
from liftlog.log.files.acked_end import AckedEnd
from liftlog.log.files.filesystem import File
from liftlog.log.files.manifest import SegmentEntry
from liftlog.log.files.unreadable import FileWindow, content_end
from liftlog.log.segment.resync import Resync, find_resync
from liftlog.records.format import ALIGNMENT, HEADER_SIZE
from liftlog.records.header import BatchHeader, parse_header, verify_body
from liftlog.records.place import Epochs, Place


@dataclass(frozen=True, slots=True)
class ActiveState:
    """The end of the valid part of the active segment, as the clean marker and recovery points
    store it. `position` is the size of the valid part in bytes. For a replica, which may hold
    uncommitted records, it also contains the `high_watermark`; 0 means unknown."""

    incarnation: str
    base_offset: int
    position: int
    next_offset: int
    record_count: int
    max_timestamp_ns: int
    created_ns: int
    leader_epoch: int
    commit_group: int
    generation: int = 0
    high_watermark: int = 0

    @classmethod
    def empty(cls, incarnation: str, base_offset: int, generation: int = 0) -> ActiveState:
        return cls(incarnation, base_offset, 0, base_offset, 0, 0, 0, 0, 0, generation)

    def is_of(self, incarnation: str, entry: SegmentEntry) -> bool:
        """Return True if the state refers to this segment file. A file of the same name from before
        a truncation has another generation."""
        return (self.incarnation, self.base_offset, self.generation) == (
            incarnation,
            entry.base_offset,
            entry.generation,
        )


@dataclass(frozen=True, slots=True)
class Damage:
    """The place at which a scan stopped: the batch of `offset` should begin at `position`.

    `unreadable` means that the disk could not read bytes of that batch. An interrupted write leaves
    no unreadable sector, so the batch may have been acked.
    """

    position: int
    offset: int
    reason: str
    header: BatchHeader | None  # of the bad batch, if it is readable and continues the log
    unreadable: bool = False
    is_last: bool = False  # only zeros, or the end of the file, follow the batch


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about a damaged tail.

    With `cut`, the tail was never acked: drop it and continue at `log_end_offset`. Otherwise the
    tail was, or may have been, acked: keep it and quarantine its offsets up to `quarantine_end`.
    """

    cut: bool
    quarantine_end: int
    log_end_offset: int


def find_data_end(file: File, start: int) -> int:
    """Return the position, at or after `start`, at which the zeros allocated ahead begin. The
    result is a multiple of 8.

    The function cannot distinguish zeros at the end of the last batch from allocated zeros. So the
    last batch may extend beyond the returned position, but no batch begins after it.
    """
    used = content_end(file, start) - start
    return start + (used + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def scan(
    file: File,
    state: ActiveState,
    data_end: int,
    on_batch: Callable[[int, BatchHeader], None],
    *,
    epochs: Epochs = (),
) -> tuple[ActiveState, Damage | None]:
    """Accept whole batches from `state` up to `data_end`, as long as each batch continues the
    previous one.

    Calls `on_batch(position, header)` for each batch. A batch is damage if the `epochs` of the
    manifest contain a newer epoch for its offset. Unreadable bytes are damage, never the end of the
    data. Raises OSError for other errors, and UnsupportedFormat.
    """
    window = FileWindow(file, file.size())
    position, offset = state.position, state.next_offset
    count, newest, created = state.record_count, state.max_timestamp_ns, state.created_ns
    epoch, group = state.leader_epoch, state.commit_group
    place = Place(offset, epochs=epochs)
    place.epoch = max(place.epoch, epoch)
    damage = None
    while position < data_end:
        header = None
        try:
            header = parse_header(window.view(position, HEADER_SIZE))
            if not place.holds(header):
                damage = Damage(position, offset, place.problem(header), None)
                break
            verify_body(window.view(position, header.length), header)
        except CorruptBatch as error:
            damage = _with_holes(window, Damage(position, offset, str(error), header))
            break
        on_batch(position, header)
        place.pass_by(header)
        position += header.length
        offset = header.next_offset
        count += header.record_count
        newest = max(newest, header.max_timestamp_ns)
        created = created or header.base_timestamp_ns
        epoch, group = header.leader_epoch, header.commit_group
    good = replace(
        state,
        position=position,
        next_offset=offset,
        record_count=count,
        max_timestamp_ns=newest,
        created_ns=created,
        leader_epoch=epoch,
        commit_group=group,
    )
    return good, damage


def _with_holes(window: FileWindow, damage: Damage) -> Damage:
    """Return the damage, marked as `unreadable` if the damaged batch has unreadable bytes."""
    length = HEADER_SIZE if damage.header is None else damage.header.length
    hole = window.unreadable(damage.position, length)
    if not hole:
        return damage
    behind = damage.position + length
    is_last = not window.unreadable(behind, HEADER_SIZE) and not any(
        window.view(behind, HEADER_SIZE)
    )
    return replace(damage, reason=hole, unreadable=True, is_last=is_last)


def resync_behind(file: File, damage: Damage, good: ActiveState, data_end: int) -> Resync | None:
    """Find the place where good batches continue after damage in the active segment (see
    resync.py)."""
    return find_resync(
        file,
        damage.position,
        data_end,
        offset=damage.offset,
        epoch=good.leader_epoch,
        header=damage.header,
    )


def judge_tail(
    damage: Damage,
    behind: Resync | None,
    *,
    recovery_point: int,
    slot: AckedEnd | None,
    reserved_offset: int,
) -> Verdict:
    """Decide if a damaged tail is cut or kept.

    A stream has at most one write in flight, so all commit groups except the last one were acked.
    """
    acked_end = max(recovery_point, slot.acked_end if slot else 0)
    exact = slot is not None and slot.exact
    if damage.offset < acked_end:
        # The tail was acked, so it is never cut. Its end is known from the batches that follow it,
        # or from a slot written since the last reboot. Otherwise the log continues after all
        # offsets that were ever assigned.
        if behind is not None:
            return Verdict(False, behind.offset, behind.offset)
        end = acked_end if exact else max(acked_end, reserved_offset)
        return Verdict(False, end, end)
    if exact:
        # The slot is exact, and shows that the tail was not acked.
        return Verdict(True, damage.offset, damage.offset)
    # After a power cut, the last update of the slot may be lost. So an interrupted write cannot be
    # distinguished from an acked write that was damaged later. No offset is used again.
    if behind is not None:
        # A flipped bit damages only one batch. And if another commit group follows the damaged
        # batch, the batch was acked.
        return Verdict(False, behind.offset, behind.offset)
    if damage.unreadable:
        # The batch may once have been intact on disk and acked, so it is kept and reported.
        known = damage.header if damage.is_last else None
        end = reserved_offset if known is None else known.next_offset
        return Verdict(False, max(damage.offset, end), max(damage.offset, end))
    if damage.header is not None:
        return Verdict(True, damage.offset, damage.header.next_offset)
    # The bytes of the batch do not even show how many offsets it contained.
    return Verdict(True, damage.offset, max(damage.offset, reserved_offset))
