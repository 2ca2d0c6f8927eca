"""The columns of a read: their Arrow types, and the option that chooses them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

import pyarrow as pa

from liftlog.errors import InvalidArgument

OFFSET, TIMESTAMP, SUBJECT, STREAM = "offset", "timestamp", "subject", "stream"
KEY, HEADERS, VALUE = "key", "headers", "value"

# Spark requires names, order, types and nullability to equal those of its own schema.
TYPES: Mapping[str, pa.DataType] = {
    OFFSET: pa.int64(),
    TIMESTAMP: pa.timestamp("us", "UTC"),
    SUBJECT: pa.utf8(),
    KEY: pa.binary(),
    HEADERS: pa.list_(
        pa.field(
            "element",
            pa.struct([pa.field("key", pa.utf8()), pa.field("value", pa.binary())]),
        )
    ),
    VALUE: pa.binary(),
    STREAM: pa.utf8(),
}

NULLABLE = frozenset((KEY, VALUE))
"""Columns that can be null. Spark checks every value of such a column for null, twice per row."""

DEFAULT = (OFFSET, TIMESTAMP, SUBJECT, KEY, VALUE)
DEFAULT_WITH_HEADERS = (OFFSET, TIMESTAMP, SUBJECT, KEY, HEADERS, VALUE)


def schema_of(columns: tuple[str, ...]) -> pa.Schema:
    return pa.schema([pa.field(name, TYPES[name], name in NULLABLE) for name in columns])


def parse_columns(text: str | None, *, include_headers: bool) -> tuple[str, ...]:
    """Return the columns that the options `columns` and `includeHeaders` select. Raises
    InvalidArgument."""
    if text is None:
        return DEFAULT_WITH_HEADERS if include_headers else DEFAULT
    names = tuple(name.strip().lower() for name in text.split(","))
    for name in names:
        if name not in TYPES:
            raise InvalidArgument(
                f"columns={text!r}: there is no column {name!r}{did_you_mean(name, TYPES)}",
                hint=f"choose from {', '.join(TYPES)}, separated by commas",
            )
    if len(set(names)) < len(names):
        raise InvalidArgument(f"columns={text!r} names a column twice")
    if include_headers and HEADERS not in names:
        names += (HEADERS,)
    return names


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error text, such as `; did you mean 'subject'?`; empty if no known name
    is similar."""
    by_folded = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), by_folded, n=1, cutoff=0.6)
    return f"; did you mean {by_folded[near[0]]!r}?" if near else ""
