"""Where a read starts and ends, as callers write it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias

from liftlog.errors import InvalidArgument
from liftlog.protocol.messages import EARLIEST, LATEST

Start: TypeAlias = int | Literal["earliest", "latest"] | datetime
"""An offset, one of the two ends, or the first record stamped at or after a time."""

Until: TypeAlias = int | Literal["end"] | None
"""Exclusive: an offset, the high watermark at the call, or never."""

END = "end"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def start_fields(start: Start) -> dict[str, Any]:
    """The fields of a `Fetch` that say where to start. Raises InvalidArgument."""
    if isinstance(start, datetime):
        # A time without a zone is local time, as everywhere in Python.
        since = start.astimezone(UTC) - _EPOCH
        return {"timestamp_ns": max(since // timedelta(microseconds=1), 0) * 1000}
    if start in (EARLIEST, LATEST) or (type(start) is int and start >= 0):
        return {"start": start}
    raise InvalidArgument(
        f"start={start!r} is not a position",
        hint="use an offset, 'earliest', 'latest' or a datetime",
    )


def check_until(until: Until) -> None:
    """Raises InvalidArgument."""
    if until is None or until == END or (type(until) is int and until >= 0):
        return
    raise InvalidArgument(
        f"until={until!r} is not a position", hint="use an offset (exclusive), 'end' or None"
    )
