"""Headers as a caller gives them, and the lines that they become. Pure.

One representation, so that a record that is published again keeps every header: a list of name and
value as bytes, in their order, with repeated names (`HeaderLine`). `build_block` makes the bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from liftlog.errors import InvalidArgument
from liftlog.records.message_headers import HeaderLine, MessageHeaders, is_carried

HeaderText: TypeAlias = str | bytes
Headers: TypeAlias = (
    Mapping[str, HeaderText | Sequence[HeaderText]]
    | Mapping[str, str]
    | Sequence[tuple[HeaderText, HeaderText]]
)
"""What a publisher accepts: values by name, each one or a list of them; pairs of name and value, of
which names may repeat; or the headers of a record, all of which are published."""

ONE_LINE = "one line of text without blanks at its ends"

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # what every NATS client sends
_BREAKS_LINE = re.compile(r"[\r\n\0\ud800-\udfff]")  # or cannot be encoded at all


def lines_of(headers: Headers | None) -> list[HeaderLine]:
    """The lines, in the caller's order.

    Text is checked for what every NATS client would read unchanged. Bytes may be anything that a
    header block can carry: they are for what a record already has. Raises InvalidArgument.
    """
    if not headers:
        return []
    if isinstance(headers, MessageHeaders):
        return headers.lines
    return [_line_of(name, value) for name, value in _pairs(headers)]


def _pairs(headers: Headers) -> Iterator[tuple[object, object]]:
    if not isinstance(headers, Mapping):
        for pair in headers:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise InvalidArgument(
                    f"{pair!r} is not a header",
                    hint="headers are a mapping, or pairs of name and value",
                )
            yield pair
        return
    for name, value in headers.items():
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            yield name, value
        else:
            for one in value:
                yield name, one


def _line_of(name: object, value: object) -> HeaderLine:
    if not isinstance(name, str | bytes) or not isinstance(value, str | bytes):
        raise InvalidArgument(
            f"the header {name!r} has the value {value!r}",
            hint="a name or value is text or bytes; several values of a name are a list",
        )
    if not (isinstance(name, str) and _NAME.fullmatch(name) is None):
        line = _encoded(name), _encoded(value)
        if (isinstance(value, bytes) or fits_header(value)) and is_carried(*line):
            return line
    raise InvalidArgument(
        f"the header {name!r} does not fit a NATS header line",
        hint=f"a header value is {ONE_LINE}",
    )


def _encoded(item: HeaderText) -> bytes:
    return item.encode(errors="surrogatepass") if isinstance(item, str) else item


def fits_header(item: HeaderText) -> bool:
    """Whether every NATS client reads it unchanged, as UTF-8: they strip blanks around a value."""
    if isinstance(item, bytes):
        try:
            item = item.decode()
        except UnicodeDecodeError:
            return False
    return item == item.strip() and not _BREAKS_LINE.search(item)
