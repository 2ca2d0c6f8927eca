"""Records for one page, in order from an offset on, that somebody may read and wants to see.

The log is looked at in the thread in which all scans take turns, a bounded amount at a time, and
a search that finds nothing ends after a while with the offset at which it can go on.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from liftlog.errors import CorruptRange, Forbidden, InvalidArgument, OffsetOutOfRange
from liftlog.records.decode import Record, decode_batch
from liftlog.records.selection import Selection, parse_selection
from liftlog.server.pull.filtering import Scan, scan_log
from liftlog.server.pull.seams import ReadableLog
from liftlog.server.web.asking import Asked

_SEARCH_SECONDS = 0.7
"""For one page; what was found until then is shown."""
_SCAN_BYTES = 256 * 1024
"""Encoded for one look, at most; more than a page shows of records of usual size."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """`time_ns` says where to begin when `offset` does not. None of both: at the newest records,
    or at the oldest when there is a condition."""

    limit: int
    offset: int | None = None
    time_ns: int | None = None
    subject: str = ""
    key: str = ""
    header: str = ""

    @property
    def has_condition(self) -> bool:
        return bool(self.subject or self.key or self.header)

    def selection(self, readable: tuple[str, ...] | None) -> Selection:
        """Raises InvalidArgument."""
        return parse_selection(
            subjects=[self.subject] if self.subject else None,
            keys=[parse_key(self.key)] if self.key else None,
            headers=[self.header] if self.header else None,
            readable=readable,
        )


class Damage(NamedTuple):
    """Records that nobody can read any more."""

    first_offset: int
    next_offset: int
    message: str


Row = dict[str, Any]


class Found(NamedTuple):
    """`next_offset` is where to go on; with `at_end` there is nothing behind it yet."""

    first_offset: int
    rows: list[Row]
    next_offset: int
    at_end: bool
    note: str


class _Look(NamedTuple):
    records: list[Record]
    next_offset: int
    at_end: bool


async def browse(
    asked: Asked, stream: str, wanted: Wanted, row: Callable[[Record | Damage], Row]
) -> Found:
    """Rows of records, each made at once by `row`: only what is shown of a record is kept.

    Raises LiftlogErrors: no such stream, nothing that may be read of it, bad conditions.
    """
    principal = asked.viewer.principal
    readable = asked.gate.readable_subjects(principal, stream, peer=asked.peer)
    selection = wanted.selection(readable)
    log = asked.parts.broker.stream(stream).log
    start, note = await asked.scan(_start, log, wanted)
    rows: list[Row] = []
    offset, at_end = start, False
    until = time.monotonic() + _SEARCH_SECONDS
    while len(rows) < wanted.limit and not at_end:
        left = wanted.limit - len(rows)
        scan = Scan(offset, None, _SCAN_BYTES, selection)
        try:
            found = await asked.scan(_look, log, scan, left)
        except CorruptRange as error:
            following = int(error.details["next_offset"])
            damage = Damage(int(error.details["first_offset"]), following, error.message)
            rows.append(row(damage))
            found = _Look([], following, following >= log.high_watermark)
        except OffsetOutOfRange:  # retention came in between
            found = _Look([], max(offset, log.log_start_offset), at_end=False)
        offset, at_end = found.next_offset, found.at_end
        for record in found.records:
            rows.append(await asked.parts.turns.take(row, record))
            if time.monotonic() > until and record is not found.records[-1]:
                offset, at_end = record.offset + 1, False
                break
        if time.monotonic() > until:
            break
    # Asked behind the last wait: what held before it may not hold any more.
    if asked.gate.readable_subjects(principal, stream, peer=asked.peer) != readable:
        raise Forbidden("the ACL has changed meanwhile", hint="load the page again")
    return Found(start, rows, offset, at_end, note)


def _start(log: ReadableLog, wanted: Wanted) -> tuple[int, str]:
    """Where to begin, and what is to be said about it. May wait for the disk."""
    first, end = log.log_start_offset, log.high_watermark
    if wanted.offset is not None:
        if wanted.offset < first:
            return first, f"Offset {wanted.offset:,} is gone: the stream begins at {first:,}."
        if wanted.offset > end:
            return end, f"Offset {wanted.offset:,} is not there yet: the stream ends at {end:,}."
        return wanted.offset, ""
    if wanted.time_ns is not None:
        found = max(first, log.offset_for_timestamp(wanted.time_ns))
        return found, "" if found < end else "There is no record from that time on."
    return (first if wanted.has_condition else max(first, end - wanted.limit)), ""


def _look(log: ReadableLog, scan: Scan, limit: int) -> _Look:
    scanned = scan_log(log, scan)
    records: list[Record] = []
    position = 0
    while position < len(scanned.body):
        batch = decode_batch(scanned.body, position)
        position += batch.header.length
        left = limit - len(records)
        if len(batch) > left:
            offsets = batch.offsets()
            records += batch.trim(offsets[0], offsets[left]).records()
            return _Look(records, int(offsets[left]), at_end=False)
        records += batch.records()
    return _Look(records, scanned.next_offset, scanned.caught_up)


def parse_key(text: str) -> bytes:
    """Text as it stands, `hex:...` or `base64:...`. Raises InvalidArgument."""
    kind, colon, rest = text.partition(":")
    try:
        if colon and kind == "hex":
            return bytes.fromhex(rest)
        if colon and kind == "base64":
            return base64.b64decode(rest, validate=True)
    except (ValueError, binascii.Error):
        raise InvalidArgument(f"key: what stands behind {kind}: is none") from None
    return text.encode("utf-8", "surrogatepass")


def bounds(log: ReadableLog) -> dict[str, Any]:
    return {
        "incarnation": log.incarnation,
        "log_start_offset": log.log_start_offset,
        "high_watermark": log.high_watermark,
        "log_end_offset": log.log_end_offset,
    }
