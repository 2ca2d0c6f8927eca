"""Converts headers in the caller's form into lines. Pure.

A line is a pair of name and value as bytes (`HeaderLine`); names may repeat, and lines keep their
order. So a record that is published again keeps every header. `build_block` makes the header block
from lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

from liftlog.errors import InvalidArgument
from liftlog.records.message_headers import HeaderLine, MessageHeaders, is_carried

HeaderText: TypeAlias = str | bytes
Headers: TypeAlias = (
    Mapping[str, HeaderText | Sequence[HeaderText]]
    | Mapping[str, str]
    | Sequence[tuple[HeaderText, HeaderText]]
)
"""Headers that a publisher accepts: a mapping of names to values or lists of values; pairs of name
and value, in which names may repeat; or the headers of a record, all of which are published."""

ONE_LINE = "one line of text without blanks at its ends"

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # names that every NATS client can send
_BREAKS_LINE = re.compile(r"[\r\n\0\ud800-\udfff]")  # or text that UTF-8 cannot encode


def lines_of(headers: Headers | None) -> list[HeaderLine]:
    """Return the headers as lines, in the caller's order.

    Text is accepted only if every NATS client reads it unchanged. Bytes, which are meant for the
    headers of an existing record, may be anything that a header block can carry. Raises
    InvalidArgument.
    """
    if not headers:
        return []
    if isinstance(headers, MessageHeaders):
        return headers.lines
    found: list[HeaderLine] = []
    for name, value in headers.items() if isinstance(headers, Mapping) else _pairs(headers):
        if type(value) is str or isinstance(value, bytes) or not isinstance(value, Sequence):
            found.append((_name_of(name), _value_of(name, value)))
        else:
            found += [(_name_of(name), _value_of(name, one)) for one in value]
    return found


def _pairs(headers: Sequence[object]) -> Iterator[tuple[object, object]]:
    for pair in headers:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str | bytes)):
            raise InvalidArgument(
                f"{pair!r} is not a header",
                hint="headers are a mapping, or pairs of name and value",
            )
        yield pair


@lru_cache(maxsize=512)
def _name_of(name: object) -> bytes:
    if isinstance(name, str) and _NAME.fullmatch(name) is not None:
        return name.encode()
    if isinstance(name, bytes) and is_carried(name, b""):
        return name
    raise _does_not_fit(name)


def _value_of(name: object, value: object) -> bytes:
    if type(value) is str:
        if value.isascii() and value.isprintable():  # the common case
            if value[:1] != " " and value[-1:] != " ":
                return value.encode()
        elif fits_header(value):
            return value.encode()
    elif not isinstance(value, bytes):
        raise InvalidArgument(
            f"the header {name!r} has the value {value!r}",
            hint="a value is text or bytes; several values of a name are a list",
        )
    elif is_carried(b"-", value):
        return value
    raise _does_not_fit(name)


def _does_not_fit(name: object) -> InvalidArgument:
    return InvalidArgument(
        f"the header {name!r} does not fit a NATS header line",
        hint=f"a header value is {ONE_LINE}",
    )


def fits_header(item: HeaderText) -> bool:
    """Return True if every NATS client reads the item unchanged. Clients decode UTF-8, and strip
    blanks around a value."""
    if isinstance(item, bytes):
        try:
            item = item.decode()
        except UnicodeDecodeError:
            return False
    return item == item.strip() and not _BREAKS_LINE.search(item)
