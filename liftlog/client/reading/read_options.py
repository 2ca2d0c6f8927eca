"""The options of a read: records and columns, start and end, and the handling of damage and of a
position that no longer exists."""

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
    """Selects the records to read. A record must match all given conditions. The daemon applies
    the conditions, so other records are not transferred.

    - `subject`: a pattern with NATS wildcards, or several patterns, one of which must match.
    - `key`: the exact key of a record, or several keys, one of which must match.
    - `header`: `"Name"` (the header exists) or `"Name=value"`, or several of these, which must all
      match. The comparison ignores the case of names, but not of values.
    """

    subject: str | Sequence[str] | None = None
    key: bytes | Sequence[bytes] | None = None
    header: str | Sequence[str] | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of a `Fetch` for this filter. Raises InvalidArgument. Patterns and
        names are checked by the daemon."""
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
    """Return an error if the read has filters but the daemon is too old for them, and has answered
    with all records; otherwise return None."""
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
        # An empty list is an error: as "no condition" it would select all records.
        raise InvalidArgument(f"{name}={value!r} is neither {kind.__name__} nor a list of some")
    return entries


Start: TypeAlias = int | Literal["earliest", "latest"] | datetime
"""An offset, one of the two ends, or the first record stamped at or after a time."""

Until: TypeAlias = int | Literal["end"] | None
"""The end of a read, exclusive: an offset, or the high watermark at the time of the call. Without
an end, the read never ends."""

END = "end"

OnCorrupt: TypeAlias = Literal["raise", "skip"] | Callable[[CorruptRange], None]
"""Handling of damaged records. "raise" ends the read with CorruptRange. "skip" logs a warning and
continues after the damage. A callable is called with the error, and the read continues unless the
callable raises an exception."""

Prefer: TypeAlias = Literal["leader", "nearest"]
"""The copy of a replicated stream that a read uses."""

OnReset: TypeAlias = Literal["error", "earliest", "latest"]
"""End the read with the error, or continue at the log start or at the high watermark."""

ResetCallback: TypeAlias = "Callable[[Reset], None]"

RESETTABLE = (OffsetOutOfRange, Diverged, StaleIncarnation)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Reset:
    """A change of the position of a read, because the read could not continue at its own position.

    `error` is the reason. `from_offset` is the offset at which the read could not continue; None if
    the read was going to start at a time, at the log start or at the high watermark. The read
    continues at `to_offset`. `incarnation` is the stream's present incarnation.
    """

    stream: str
    error: LiftlogError
    from_offset: int | None
    to_offset: int
    incarnation: str


class ReadOptions(TypedDict, total=False):
    """The options of a read. All of them are optional.

    `filter` selects the records that the daemon sends, and `columns` selects their columns. Columns
    that are not selected are empty: timestamp 0, subject "", no key, no headers, and the value b"".
    Even then a tombstone has the value None, so the application can distinguish tombstones from
    other records.

    `fetch_bytes` limits the size of the answer to one request. `read_ahead_bytes` limits the data
    that the client buffers for the application.

    `on_corrupt` defines the handling of damaged records:

    - "raise" (the default): the read ends with CorruptRange. Its `first_offset` and `next_offset`
      (exclusive) are the exact range of the lost records.
    - "skip": the client logs a warning, and the read continues after the range.
    - a callable: it is called with the CorruptRange, and the read continues after the range.

    `on_reset` defines the action if the read cannot continue at its position, because the daemon
    answers with OffsetOutOfRange, Diverged or StaleIncarnation:

    - "error" (the default): the read ends with the error.
    - "earliest", "latest": the read logs a warning, calls `reset_callback` if it is set, and
      continues at the log start ("earliest") or at the high watermark ("latest").

    `incarnation` and `epoch` are the stream's incarnation and leader epoch, which the application
    has stored together with the position. With these values the read detects that the stream was
    deleted and created again (StaleIncarnation), or has lost records that were already read
    (Diverged).

    `replica` is the name of the node to which the client is connected. With this option, the read
    uses this node's copy of the stream, even if another node leads. The copy may be slightly behind
    the copy of the leader.

    With `prefer="nearest"` the client reads a replicated stream from the first of its addresses
    whose node is reachable and in sync. If no such node exists, it reads from the leader. List the
    nearest node first. The read returns every record that was committed before the read began. To
    ensure this, the client asks the leader once for its high watermark, and waits until the copy
    has reached it. Later records may arrive slightly later than from the leader. A daemon without a
    cluster ignores the option.
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
    """Check the options that are not fields of a `Fetch`. Raises InvalidArgument."""
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
    """Return the fields of a `Fetch` that define its start. Raises InvalidArgument."""
    if isinstance(start, datetime):
        return {"timestamp_ns": nanoseconds(start)}
    if start in (EARLIEST, LATEST) or (type(start) is int and start >= 0):
        return {"start": start}
    raise InvalidArgument(
        f"start={start!r} is not a position",
        hint="use an offset, 'earliest', 'latest' or a datetime",
    )


def nanoseconds(time: datetime) -> int:
    """Return a time in nanoseconds since 1970. A time without a zone is local time, as everywhere
    in Python."""
    since = time.astimezone(UTC) - _EPOCH
    return max(since // timedelta(microseconds=1), 0) * 1000


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
