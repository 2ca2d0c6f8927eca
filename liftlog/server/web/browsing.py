"""The records of one page: those that match the viewer's form and that the viewer may read, newest
or oldest first.

The log is read in the threads that all scans share, a bounded amount at a time. A search without a
match ends after a while, with the offset at which it can continue.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from liftlog.errors import Forbidden, InvalidArgument
from liftlog.log import Log
from liftlog.records.columns.selection import Selection
from liftlog.server.reading.walking import Backward, Forward, Item, Span, Walk
from liftlog.server.web.asking import Asked
from liftlog.server.web.pace import Pace, Paced

_SEARCH_SECONDS = 0.7
"""Time limit of one page; it shows the records found by then."""
_SHOWN_SECONDS = 0.3
"""A page with at least one record is shown after this time: a viewer who searches wants to see the
first match soon."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Records in [`since_ns`, `until_ns`), from offset `above` on, that match `selection`. The list
    begins at `offset`, or else at the end of that range that `is_newest_first` selects."""

    limit: int
    selection: Selection
    is_newest_first: bool = True
    offset: int | None = None
    above: int = 0
    since_ns: int | None = None
    until_ns: int | None = None

    @property
    def has_condition(self) -> bool:
        one = self.selection
        given = (one.subjects, one.keys, one.headers, one.values)
        return any(condition is not None for condition in given)


Row = dict[str, Any]


class Found(NamedTuple):
    """`next_offset` is where to continue; with `at_end`, no record exists from there on yet.

    `span` holds the offsets that the list can reach; `looked_at` of them were examined, counted
    from its beginning.
    """

    first_offset: int
    rows: list[Row]
    next_offset: int
    at_end: bool
    note: str
    span: Span
    looked_at: int


async def browse(asked: Asked, stream: str, wanted: Wanted, row: Callable[[Item], Row]) -> Found:
    """Find the records and make a row of each with `row`, at once: the records themselves are not
    kept.

    Raises LiftlogErrors: no such stream, no right to read it.
    """
    principal = asked.viewer.principal
    readable = asked.gate.readable_subjects(principal, stream, peer=asked.peer)
    pace = asked.parts.pace
    selection = replace(wanted.selection, readable=readable)
    if selection.values is not None:
        selection = replace(selection, values=Paced(selection.values, pace))
    log = asked.parts.broker.readable_stream(stream).log
    span, start, note = await asked.scan(_start, log, wanted)
    walk = _walk(log, wanted, span, start, selection)
    rows: list[Row] = []
    began = time.monotonic()
    until = began + _SEARCH_SECONDS
    while len(rows) < wanted.limit and not walk.at_end:
        async with asked.parts.searching.of(asked.party):
            items = await asked.scan(_step, walk, wanted.limit - len(rows), pace)
        for item in items:
            rows.append(await asked.parts.spread.run(row, item))
            if time.monotonic() > until:
                walk.resume_after(item)
                break
        if rows:
            until = min(until, began + _SHOWN_SECONDS)
        if time.monotonic() > until:
            break
    # Checked again after the last await: the ACL may have changed.
    if asked.gate.readable_subjects(principal, stream, peer=asked.peer) != readable:
        raise Forbidden("the ACL has changed meanwhile", hint="reload the page")
    at = walk.position
    if wanted.is_newest_first:
        return Found(start, rows, max(at - 1, 0), walk.at_end, note, span, span.high - at)
    return Found(start, rows, at, walk.at_end, note, span, at - span.low)


def _step(walk: Walk, limit: int, pace: Pace) -> list[Item]:
    """Blocking."""
    pace.begin()
    items = walk.step(limit)
    pace()
    return items


def _walk(log: Log, wanted: Wanted, span: Span, start: int, selection: Selection) -> Walk:
    if not wanted.is_newest_first:
        is_open = wanted.until_ns is None
        return Forward(log, Span(start, span.high), selection, is_open=is_open)
    back = Backward(log, Span(span.low, start + 1), selection)
    if not wanted.has_condition:
        back.narrow(wanted.limit)
    return back


def _start(log: Log, wanted: Wanted) -> tuple[Span, int, str]:
    """Return the span that the list can reach, where to begin, and a note about it. Blocking."""
    first, end = log.log_start_offset, log.high_watermark
    low, high, note = first, end, ""
    if wanted.since_ns is not None:
        low = max(first, log.offset_for_timestamp(wanted.since_ns))
        if low >= end:
            note = "There are no records from that time on."
    if wanted.until_ns is not None:
        high = max(low, min(end, log.offset_for_timestamp(wanted.until_ns)))
        if high == low and not note:
            note = "There are no records in that time."
    low = max(low, wanted.above)
    span = Span(low, max(low, high))
    if wanted.offset is None:
        return span, span.high - 1 if wanted.is_newest_first else low, note
    if wanted.offset < first:
        note = f"Offset {wanted.offset:,} is gone: the stream begins at {first:,}."
    elif wanted.offset > end:
        note = f"Offset {wanted.offset:,} does not exist yet: the stream ends at {end:,}."
    if wanted.is_newest_first:
        return span, max(low - 1, min(wanted.offset, span.high - 1)), note
    return span, max(low, min(wanted.offset, span.high)), note


def parse_key(text: str) -> bytes:
    """Parse a key: plain text, `hex:...` or `base64:...`. Raises InvalidArgument."""
    kind, colon, rest = text.partition(":")
    try:
        if colon and kind == "hex":
            return bytes.fromhex(rest)
        if colon and kind == "base64":
            return base64.b64decode(rest, validate=True)
    except (ValueError, binascii.Error):
        raise InvalidArgument(f"the text after {kind}: is not valid {kind}") from None
    return text.encode("utf-8", "surrogatepass")


def bounds(log: Log) -> dict[str, Any]:
    return {
        "incarnation": log.incarnation,
        "log_start_offset": log.log_start_offset,
        "high_watermark": log.high_watermark,
        "log_end_offset": log.log_end_offset,
    }
