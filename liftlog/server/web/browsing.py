"""Finds the records of one page. They match the viewer's form, and the viewer may read them. The
newest or the oldest record comes first.

The log is read in the threads that all searches share, a limited amount at a time. A search without
a match stops at a time limit and reports the offset at which it can continue.
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
"""Time limit of one page. The page then shows the records found so far."""
_SHOWN_SECONDS = 0.3
"""Time limit of one page, in seconds, that has at least one record. It is shorter, because the
viewer wants to see the first match soon."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The records that a viewer requests. They match `selection`, have a time in [`since_ns`,
    `until_ns`), and an offset of at least `above`.

    The list begins at `offset`. If `offset` is None, it begins with the newest of these records if
    `is_newest_first` is set, and with the oldest otherwise.
    """

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
    """The rows of one page. The search can continue at `next_offset`. If `at_end` is true, no
    further record exists yet.

    `span` is the range of offsets that the list can reach. `looked_at` is the number of these
    offsets that were examined, in the order of the list.
    """

    first_offset: int
    rows: list[Row]
    next_offset: int
    at_end: bool
    note: str
    span: Span
    looked_at: int


async def browse(asked: Asked, stream: str, wanted: Wanted, row: Callable[[Item], Row]) -> Found:
    """Find the records. `row` converts each record to a row at once, so that the records themselves
    need not stay in memory.

    Raises LiftlogErrors, for example if the stream does not exist or the viewer may not read it.
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
    """Return up to `limit` further records of the walk. Blocking."""
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
    """Return the range of offsets that the list can reach, the offset of its first record, and a
    note for the viewer. Blocking."""
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
