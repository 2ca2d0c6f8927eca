"""Common part of both clients: converts arguments to requests, and answers to results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from liftlog.client.reading.batches import FetchAnswer
from liftlog.client.reading.read_options import (
    Column,
    Filter,
    Start,
    nanoseconds,
    not_selected,
    selection_fields,
    start_fields,
)
from liftlog.errors import InvalidArgument, ProtocolViolation, StreamUnavailable
from liftlog.protocol.administration import (
    MAX_REQUESTED_RANGES,
    EraseRecords,
    RenewLease,
    TruncateStream,
    UpdateStream,
)
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.described import StreamInfo
from liftlog.protocol.limits import MAX_REQUEST_VALUES
from liftlog.protocol.messages import CreateStream, Fetch, FetchHeader, Message

DEFAULT_TTL_SECONDS = 60.0
DEFAULT_STEP_BYTES = 4 * 1024 * 1024

_OTHER_VALUES = 64
"""Number of values of a frame that the other fields of a request can need."""
_FIRST_LOOK_SECONDS = 0.05
_LAST_LOOK_SECONDS = 1.0

Expected = TypeVar("Expected", bound=Message)


def create_request(name: str, subject: str | None, settings: Mapping[str, Any]) -> CreateStream:
    wanted = dict(settings)
    if subject is not None:
        wanted["subject"] = subject
    return CreateStream(name, wanted)


def update_request(
    name: str,
    settings: Mapping[str, Any] | None,
    more: Mapping[str, Any],
    *,
    dry_run: bool,
    allow_deletion: bool,
) -> UpdateStream:
    wanted = {**(settings or {}), **more}
    for key in wanted:
        if not isinstance(key, str):
            raise InvalidArgument(f"setting names are strings, not {key!r}")
    return UpdateStream(name, wanted, dry_run, allow_deletion)


def truncate_request(name: str, offset: int, incarnation: str | None) -> TruncateStream:
    if not isinstance(offset, int) or offset < 0:
        raise InvalidArgument(f"{offset!r} is not an offset")
    return TruncateStream(name, offset, incarnation)


def erase_request(
    name: str,
    ranges: Sequence[tuple[int, int]],
    *,
    filter: Filter | None,
    since: datetime | None,
    until: datetime | None,
    reason: str,
    dry_run: bool,
    now: bool,
    incarnation: str | None,
) -> EraseRecords:
    borders = [border for pair in ranges for border in pair]
    if not all(isinstance(one, int) and one >= 0 for one in borders):
        raise InvalidArgument(f"{list(ranges)!r} are not ranges of offsets")
    if len(ranges) > MAX_REQUESTED_RANGES:
        raise InvalidArgument(
            f"{len(ranges)} ranges are more than the {MAX_REQUESTED_RANGES} of one request",
            hint="divide them among several requests",
        )
    fields = {} if filter is None else filter.fields()
    values = len(borders) + sum([len(one) for one in fields.values() if isinstance(one, list)])
    if values > MAX_REQUEST_VALUES - _OTHER_VALUES:
        raise InvalidArgument(
            f"{values} borders of ranges and filter values are more than the "
            f"{MAX_REQUEST_VALUES - _OTHER_VALUES} of one request",
            hint="divide them among several requests",
        )
    for name_of, time in (("since", since), ("until", until)):
        if time is None:
            continue
        if not isinstance(time, datetime):
            raise InvalidArgument(f"{name_of}={time!r} is not a datetime")
        fields[f"{name_of}_ns"] = nanoseconds(time)
    if not borders and not fields:
        raise InvalidArgument(
            "no records are selected", hint="pass ranges of offsets, a filter or a time"
        )
    return EraseRecords(name, borders, reason, dry_run, incarnation, now=now, **fields)


def milliseconds(seconds: float) -> int:
    if not 0 < seconds < 2**40:
        raise InvalidArgument(f"a lease cannot last {seconds!r} seconds")
    return max(1, round(seconds * 1000))


def renewal_request(
    stream: str,
    lease_id: str,
    seconds: float,
    low: int | None,
    finished: tuple[int, int] | None,
    begun: int | None,
    stopped: bool,
) -> RenewLease:
    part, parts = finished or (None, None)
    return RenewLease(
        stream, lease_id, milliseconds(seconds), low, part, parts, begun, stopped or None
    )


def fetch_request(
    stream: str,
    start: Start,
    *,
    filter: Filter | None = None,
    columns: Sequence[Column] | None = None,
    **options: Any,
) -> Fetch:
    return Fetch(stream, **start_fields(start), **selection_fields(filter, columns), **options)


def fetch_answer(fetch: Fetch, exchange: Exchange) -> FetchAnswer:
    """Return the answer, or raise its error."""
    header = result_of(exchange, FetchHeader)
    too_old = not_selected(fetch.selects, header)
    if too_old is not None:
        raise too_old
    return FetchAnswer(fetch.stream, header, exchange.body)


def result_of(exchange: Exchange, expected: type[Expected]) -> Expected:
    """Return the answer, or raise its error."""
    if exchange.error is not None:
        raise exchange.error
    if not isinstance(exchange.answer, expected):
        raise ProtocolViolation(f"expected {expected.KIND!r} as the answer")
    return exchange.answer


class PassWatch:
    """Detects the end of a requested compaction pass from later descriptions of the stream. `asked`
    is the description in the answer to the request."""

    def __init__(self, asked: StreamInfo) -> None:
        self._incarnation = asked.incarnation
        self._wanted = int(asked.compaction.get("requested", 0))
        self.seconds = _FIRST_LOOK_SECONDS
        """Time to wait before the next check."""

    def is_over(self, info: StreamInfo) -> bool:
        """Return True if the pass has ended, according to `info`, a new description of the stream.
        Raises StreamUnavailable if the pass failed or will not take place."""
        self.seconds = min(self.seconds * 2, _LAST_LOOK_SECONDS)
        compaction = info.compaction
        if int(compaction.get("finished", 0)) >= self._wanted:
            return True
        lost = int(compaction.get("requested", 0)) < self._wanted
        if lost or info.incarnation != self._incarnation:
            raise StreamUnavailable(
                f"the daemon no longer knows of the pass over {info.name}", hint="ask again"
            )
        if compaction.get("state") == "backing off":
            raise StreamUnavailable(
                f"the pass over {info.name} failed: {compaction.get('error', '')}",
                hint="the daemon tries again by itself",
            )
        return False
