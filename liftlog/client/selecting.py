"""What a read wants of a stream, as callers write it: which records, and what of them.

The daemon applies it, so what is left out does not travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from liftlog.errors import InvalidArgument, LiftlogError, UnsupportedVersion
from liftlog.protocol.messages import FetchHeader

Column: TypeAlias = Literal["offset", "timestamp", "subject", "key", "headers", "value"]

COLUMNS: tuple[str, ...] = get_args(Column)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which records to read; all conditions given must hold.

    `subject` is a pattern with NATS wildcards, `key` the exact key of a record; of several, any may
    match. `header` is `"Name"` (there is such a header) or `"Name=value"`; of several, all must be
    there. Names of headers are compared without regard to case, values exactly.
    """

    subject: str | Sequence[str] | None = None
    key: bytes | Sequence[bytes] | None = None
    header: str | Sequence[str] | None = None

    def fields(self) -> dict[str, Any]:
        """The fields of a `Fetch`. Raises InvalidArgument; the daemon checks patterns and names."""
        given = {
            "filter_subjects": _entries("subject", self.subject, str),
            "filter_keys": _entries("key", self.key, bytes),
            "filter_headers": _entries("header", self.header, str),
        }
        return {name: entries for name, entries in given.items() if entries is not None}


def selection_fields(selected: Filter | None, columns: Sequence[Column] | None) -> dict[str, Any]:
    """The fields of a `Fetch` that select records and columns. Raises InvalidArgument."""
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
    """What to tell when a daemon that knows no filters has answered with everything."""
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
