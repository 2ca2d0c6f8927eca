"""The state of one fetch while it waits, the start of its read, and the header of its answer."""

from __future__ import annotations

from typing import NamedTuple

from liftlog.errors import BadRequest, CorruptRange
from liftlog.log import Log, LogSlice
from liftlog.log.state import ReadView
from liftlog.protocol.messages import EARLIEST, LATEST, Fetch, FetchHeader
from liftlog.records.columns.selection import Selection
from liftlog.server.reading.scan import Scanned

_REST_SECONDS = 0.0016
"""Pause, in seconds, between two scans for a member of a group. It is multiplied by a power of two
that is at most the number of members. So all members together scan about as often as a single
member would. All members scan at the same times, and each scan finds some records."""
_BUSY_REST = 2
"""Factor for the pause while the event loop is busy."""
_LONGEST_REST_SECONDS = 0.1024


class Cut(NamedTuple):
    """A slice without its erased records, and the view of the log from before the read. `found` is
    None if the read found no slice. It is also None if the read found a slice in a file; the event
    loop then reads that slice."""

    view: ReadView
    found: LogSlice | None

    def release(self) -> None:
        if self.found is not None:
            self.found.release()


def read_cut(log: Log, offset: int, max_bytes: int, max_records: int | None) -> Cut:
    """Call `Log.read`, in a thread. Raises the errors of `Log.read`."""
    view = log.view
    found = log.read(offset, max_bytes, max_records)
    if found is not None and found.body is None:
        found.release()  # the event loop reads the slice again, because it may drop this result
        found = None
    return Cut(view, found)


class WaitingFetch:
    __slots__ = (
        "catch_up_until",
        "cut",
        "damage",
        "deadline",
        "examined",
        "fetch",
        "incarnation",
        "is_whole",
        "lingered",
        "offset",
        "readable",
        "repair_until",
        "request_id",
        "scan_from",
        "scanned",
        "selection",
    )

    def __init__(self, request_id: int, fetch: Fetch) -> None:
        self.request_id = request_id
        self.fetch = fetch
        self.deadline: float | None = None  # set when the fetch becomes the first in the queue
        self.lingered = False
        self.examined: int | None = None  # offset of damage that a thread has examined
        self.damage: CorruptRange | None = None  # found by a thread, not handled yet
        self.repair_until: float | None = None  # set while a repair is awaited
        self.catch_up_until: float | None = None  # set while this copy lacks records
        self.begin(None, None)

    def begin(self, incarnation: str | None, readable: tuple[str, ...] | None) -> None:
        """Reset the results. These values are valid only for one incarnation of the stream and one
        set of readable subjects."""
        self.incarnation = incarnation
        self.readable = readable
        self.selection: Selection | None = None
        self.offset: int | None = None  # None until the start is known
        self.scan_from: int | None = None  # `offset` to here contains no match
        self.scanned: Scanned | None = None  # the result of a thread, not handled yet
        self.cut: Cut | None = None  # the result of `read_cut`, not handled yet
        self.is_whole = False  # True: `optional_subjects` is ignored


def rest_seconds(fetch: Fetch, *, is_busy: bool) -> float:
    """Return the pause, in seconds, between two scans for a member of a group."""
    members = (fetch.slot_count or 0) // max(len(fetch.filter_slots or ()), 1)
    rest = _REST_SECONDS * (1 << max(members.bit_length() - 1, 0))
    return min(rest * _BUSY_REST if is_busy else rest, _LONGEST_REST_SECONDS)


def known_offset(fetch: Fetch, log: Log) -> int | None:
    """Return the start of the fetch as an offset; None if the offset must be looked up by time.
    Raises BadRequest."""
    start = fetch.start
    if (start is None) == (fetch.timestamp_ns is None):
        raise BadRequest("a fetch states either a start `o` or a timestamp `t`")
    if start is None:
        return None
    if type(start) is int:
        return start
    if start == EARLIEST:
        return log.log_start_offset
    if start == LATEST:
        return log.high_watermark
    raise BadRequest(f"the start must be an offset, {EARLIEST!r} or {LATEST!r}")


def header_of(
    log: Log,
    offset: int,
    next_offset: int,
    first_offset: int | None = None,
    record_count: int = 0,
    body_length: int = 0,
    selected: bool | None = None,
    *,
    of_replica: bool = False,
) -> FetchHeader:
    return FetchHeader(
        offset,
        offset if first_offset is None else first_offset,
        next_offset,
        record_count,
        log.high_watermark,
        # Retention may delete the records while the answer is read. Readers drop records below the
        # log start. Without this limit, they would silently skip the records of the answer.
        min(log.log_start_offset, offset),
        log.log_end_offset,
        log.leader_epoch,
        log.incarnation,
        body_length,
        selected,
        log.view.manifest.tombstones_removed_below if of_replica else None,
    )
