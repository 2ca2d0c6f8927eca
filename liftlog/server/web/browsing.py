"""The records of one page: those from an offset on that the viewer asks for and may read.

The log is read in the thread that all scans share, a bounded amount at a time, and a search that
finds nothing ends after a while with the offset at which it can continue.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from liftlog.errors import CorruptRange, Forbidden, InvalidArgument, OffsetOutOfRange
from liftlog.log import Log
from liftlog.records.decode import Record, decode_batch
from liftlog.records.selection import Selection, parse_selection
from liftlog.server.pull.filtering import Scan, scan_log
from liftlog.server.web.asking import Asked

_SEARCH_SECONDS = 0.7
"""For one page; the records found until then are shown."""
_SCAN_BYTES = 256 * 1024
"""Encoded by one scan, at most; more than a page shows of records of usual size."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Begin at `offset`, else at `time_ns`, else at the newest records, or at the oldest with a
    condition."""

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
    """Records that can no longer be read."""

    first_offset: int
    next_offset: int
    message: str


Row = dict[str, Any]


class Found(NamedTuple):
    """`next_offset` is where to continue; with `at_end` there is no record from there on yet."""

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
    """Rows of records, each made by `row` as soon as its record is found: the record itself is not
    kept.

    Raises LiftlogErrors: no such stream, no right to read it, bad conditions.
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
        except OffsetOutOfRange:  # retention has removed these records
            found = _Look([], max(offset, log.log_start_offset), at_end=False)
        offset, at_end = found.next_offset, found.at_end
        for record in found.records:
            rows.append(await asked.parts.spread.run(row, record))
            if time.monotonic() > until and record is not found.records[-1]:
                offset, at_end = record.offset + 1, False
                break
        if time.monotonic() > until:
            break
    # Checked again after the last await: the ACL may have changed.
    if asked.gate.readable_subjects(principal, stream, peer=asked.peer) != readable:
        raise Forbidden("the ACL has changed meanwhile", hint="reload the page")
    return Found(start, rows, offset, at_end, note)


def _start(log: Log, wanted: Wanted) -> tuple[int, str]:
    """Where to begin, and a note about it. Blocking."""
    first, end = log.log_start_offset, log.high_watermark
    if wanted.offset is not None:
        if wanted.offset < first:
            return first, f"Offset {wanted.offset:,} is gone: the stream begins at {first:,}."
        if wanted.offset > end:
            return end, f"Offset {wanted.offset:,} does not exist yet: the stream ends at {end:,}."
        return wanted.offset, ""
    if wanted.time_ns is not None:
        found = max(first, log.offset_for_timestamp(wanted.time_ns))
        return found, "" if found < end else "There are no records from that time on."
    return (first if wanted.has_condition else max(first, end - wanted.limit)), ""


def _look(log: Log, scan: Scan, limit: int) -> _Look:
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
    """From plain text, `hex:...` or `base64:...`. Raises InvalidArgument."""
    kind, colon, rest = text.partition(":")
    try:
        if colon and kind == "hex":
            return bytes.fromhex(rest)
        if colon and kind == "base64":
            return base64.b64decode(rest, validate=True)
    except (ValueError, binascii.Error):
        raise InvalidArgument(f"key: the text after {kind}: is not valid {kind}") from None
    return text.encode("utf-8", "surrogatepass")


def bounds(log: Log) -> dict[str, Any]:
    return {
        "incarnation": log.incarnation,
        "log_start_offset": log.log_start_offset,
        "high_watermark": log.high_watermark,
        "log_end_offset": log.log_end_offset,
    }
