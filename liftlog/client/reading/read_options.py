"""The options of a read: records and columns, start and end, and the handling of damage and of a
position that is gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from liftlog.errors import (
    CorruptRange,
    Diverged,
    InvalidArgument,
    LiftlogError,
    OffsetOutOfRange,
    StaleIncarnation,
    UnsupportedVersion,
)
from liftlog.protocol.messages import EARLIEST, LATEST, FetchHeader

Column: TypeAlias = Literal["offset", "timestamp", "subject", "key", "headers", "value"]

COLUMNS: tuple[str, ...] = get_args(Column)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which records to read; all given conditions must hold. The daemon applies them, so that other
    records are not transferred.

    `subject` is a pattern with NATS wildcards, `key` the exact key of a record; of several, any may
    match. `header` is `"Name"` (there is such a header) or `"Name=value"`; of several, all must be
    there. Names of headers are compared without regard to case, values exactly.
    """

    subject: str | Sequence[str] | None = None
    key: bytes | Sequence[bytes] | None = None
    header: str | Sequence[str] | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of a `Fetch`. Raises InvalidArgument; the daemon checks patterns and
        names."""
        given = {
            "filter_subjects": _entries("subject", self.subject, str),
            "filter_keys": _entries("key", self.key, bytes),
            "filter_headers": _entries("header", self.header, str),
        }
        return {name: entries for name, entries in given.items() if entries is not None}


def selection_fields(selected: Filter | None, columns: Sequence[Column] | None) -> dict[str, Any]:
    """Return the fields of a `Fetch` that select records and columns. Raises InvalidArgument."""
    fields = {} if selected is None else selected.fields()
    if columns is not None:
        unknown = [repr(name) for name in columns if name not in COLUMNS]
        if isinstance(columns, str) or unknown:
            raise InvalidArgument(
                f"columns={columns!r} names no columns", hint=f"choose of {', '.join(COLUMNS)}"
            )
        fields["columns"] = list(dict.fromkeys(["offset", *columns]))
    return fields


def not_selected(asked: bool, header: FetchHeader) -> LiftlogError | None:
    """Return the error if a daemon without support for filters has answered with everything."""
    if not asked or header.selected:
        return None
    return UnsupportedVersion(
        "the daemon is too old for filters and columns: it answered with whole batches",
        hint="upgrade it, or read without them",
    )


def _entries(name: str, value: Any, kind: type) -> list[Any] | None:
    if value is None:
        return None
    entries = [value] if isinstance(value, kind) else list(value)
    if not entries or not all(isinstance(one, kind) for one in entries):
        # An empty list must not turn into "no condition", which would select everything.
        raise InvalidArgument(f"{name}={value!r} is neither {kind.__name__} nor a list of some")
    return entries


Start: TypeAlias = int | Literal["earliest", "latest"] | datetime
"""An offset, one of the two ends, or the first record stamped at or after a time."""

Until: TypeAlias = int | Literal["end"] | None
"""Exclusive: an offset, the high watermark at the call, or never."""

END = "end"

OnCorrupt: TypeAlias = Literal["raise", "skip"] | Callable[[CorruptRange], None]
"""Handling of damaged records: end with CorruptRange, log a warning and continue after them, or
call the callable and continue (unless it raises)."""

Prefer: TypeAlias = Literal["leader", "nearest"]
"""The copy of a replicated stream that a read uses."""

OnReset: TypeAlias = Literal["error", "earliest", "latest"]
"""End with the error, or continue at the log start or at the high watermark."""

ResetCallback: TypeAlias = "Callable[[Reset], None]"

RESETTABLE = (OffsetOutOfRange, Diverged, StaleIncarnation)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Reset:
    """A read has left its position and continues at another one.

    `error` says why. `from_offset` is the offset that it wanted to read next, None when that was
    not an offset. It continues at `to_offset` of the stream's `incarnation`.
    """

    stream: str
    error: LiftlogError
    from_offset: int | None
    to_offset: int
    incarnation: str


class ReadOptions(TypedDict, total=False):
    """All are optional.

    `filter` and `columns` choose what the daemon sends: which records, and which columns of them.
    Columns that are left out are empty: timestamp 0, subject "", no key, no headers, and the value
    b"" (but None for a tombstone, so that no record looks deleted that is not).

    `fetch_bytes` is how much one request asks for, `read_ahead_bytes` how much may wait for the
    application.

    `on_corrupt`: damaged records end the read with CorruptRange, whose `first_offset` and
    `next_offset` say exactly which are gone ("raise"); or a warning is logged and the read
    continues after them ("skip"); or a callable is called with the CorruptRange, and the read
    continues.

    `on_reset`: when the read's position is gone (OffsetOutOfRange, Diverged, StaleIncarnation), the
    read ends with that error ("error"); or it logs a warning, calls `reset_callback` if there is
    one, and continues at the log start ("earliest") or at the high watermark ("latest").

    `incarnation` and `epoch` are those of the stream when the position was stored. If the stream
    was deleted and created again, or has lost records that were read, the read raises an error.

    `replica` names the node of a cluster that the client is connected to: the read then uses its
    copy of the stream, although another node leads. It may be a moment behind.

    `prefer="nearest"`: of a replicated stream, read the copy of the first of the client's
    addresses that answers and is in sync, else that of the leader: list the nearest one first.
    It has everything that was committed when the read began: the leader is asked for that once,
    and a copy that lacks some of it is waited for. What is committed later may come a moment
    later than from the leader. A daemon without a cluster answers as ever.
    """

    filter: Filter | None
    columns: Sequence[Column] | None
    fetch_bytes: int
    read_ahead_bytes: int
    on_corrupt: OnCorrupt
    on_reset: OnReset
    reset_callback: ResetCallback | None
    incarnation: str | None
    epoch: int | None
    replica: str | None
    prefer: Prefer


def check_options(
    until: Until,
    prefer: Prefer,
    replica: str | None,
    on_corrupt: OnCorrupt,
    on_reset: OnReset,
    reset_callback: ResetCallback | None,
) -> None:
    """Raises InvalidArgument. The fields of a `Fetch` are checked where they are made."""
    _check_until(until)
    _check_prefer(prefer, replica)
    if on_corrupt not in ("raise", "skip") and not callable(on_corrupt):
        raise InvalidArgument(f"on_corrupt={on_corrupt!r} is not 'raise', 'skip' or callable")
    _check_on_reset(on_reset, reset_callback)


def _check_prefer(prefer: Prefer, replica: str | None) -> None:
    if prefer not in get_args(Prefer):
        raise InvalidArgument(f"prefer={prefer!r} is not 'leader' or 'nearest'")
    if prefer == "nearest" and replica is not None:
        raise InvalidArgument("a read of one replica has no choice: leave out `prefer`")


def start_fields(start: Start) -> dict[str, Any]:
    """Return the fields of a `Fetch` for its start. Raises InvalidArgument."""
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


def _check_until(until: Until) -> None:
    if until is None or until == END or (type(until) is int and until >= 0):
        return
    raise InvalidArgument(
        f"until={until!r} is not a position", hint="use an offset (exclusive), 'end' or None"
    )


def _check_on_reset(on_reset: OnReset, callback: ResetCallback | None) -> None:
    if on_reset not in get_args(OnReset):
        raise InvalidArgument(f"on_reset={on_reset!r} is not 'error', 'earliest' or 'latest'")
    if callback is not None and not callable(callback):
        raise InvalidArgument(f"reset_callback={callback!r} is not callable")
