"""Prints records on stdout, batch by batch: as lines for people, or as objects (see `output`)."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from liftlog.cli.lib.output import is_coloured, object_array, terminal_width, write_lines
from liftlog.cli.lib.text import printable, shorten, show_bytes, show_time
from liftlog.records.json_form import record_object

if TYPE_CHECKING:
    from liftlog.records.decode import Record

Write = Callable[[Sequence["Record"]], None]

TOMBSTONE = "<tombstone>"

COLUMNS = (
    *("offset", "timestamp", "timestamp_ns", "subject", "key", "key_encoding"),
    *("value", "value_encoding", "headers", "headers_base64"),
)
"""The fields that a record can have as an object."""

_NAMES = ("OFFSET", "TIME", "SUBJECT", "KEY", "HEADERS")
_TIME, _KEY, _HEADERS = 1, 3, 4
_OFFSET_WIDTH, _TIME_WIDTH = 8, 27
_SHORT_TIME_WIDTH = len("01-31 12:00:00")
_LIMITS = (None, None, 40, 24, 40)
_NARROW_LIMITS = (None, None, 20, 12, 20)
_NARROWEST_LIMITS = (None, None, 12, 8, 12)
_NARROW = 110
_VERY_NARROW = 80
_LEAST_VALUE_WIDTHS = {_HEADERS: 20, _TIME: 12, _KEY: 12}
"""Columns to leave out, in this order, each with a width. A column is left out if the value would
otherwise get less than this width."""
_IN_OTHER_COLUMNS = frozenset((b"liftlog-key", b"liftlog-tombstone"))


class RecordLines:
    """Formats records as lines for people. Columns widen for longer subjects and keys. The first
    record with headers adds a column for them, and a new heading.

    With `wide`, subjects, keys and headers are printed in full. Otherwise a narrow terminal gets
    shortened columns, and the columns that would leave too little space for the value are left out.
    In values, the text that matches `found` is emphasised.
    """

    def __init__(
        self, width: int | None, *, wide: bool = False, found: re.Pattern[str] | None = None
    ) -> None:
        self._width = width
        self._narrow = width is not None and width < _NARROW
        self._found = found
        limits = _NARROW_LIMITS if self._narrow else _LIMITS
        if width is not None and width < _VERY_NARROW:
            limits = _NARROWEST_LIMITS
        self._limits: tuple[int | None, ...] = (None,) * len(_NAMES) if wide else limits
        moment = _SHORT_TIME_WIDTH if self._narrow else _TIME_WIDTH
        self._widths = [_OFFSET_WIDTH, moment, len("SUBJECT"), len("KEY"), 0]
        self._left_out: set[int] = set()
        self._headed = False

    def lines(self, records: Sequence[Record]) -> list[str]:
        """Return lines for one batch; a heading precedes the first line."""
        columns = (
            [f"{one.offset:,}" for one in records],
            [self._moment(one) for one in records],
            [printable(one.subject) for one in records],
            [show_bytes(one.key) for one in records],
            [_headers_of(one) for one in records],
        )
        cut = [
            [shorten(text, limit) for text in column]
            for column, limit in zip(columns, self._limits, strict=True)
        ]
        self._widen(cut)
        found = []
        if records and not self._headed:
            self._headed = True
            heading = self._line(_NAMES, "VALUE")
            found.append(click.style(heading, bold=True) if is_coloured() else heading)
        for record, *cells in zip(records, *cut, strict=True):
            found.append(self._line(cells, show_bytes(record.value, null=TOMBSTONE)))
        return found

    def _widen(self, cut: Sequence[Sequence[str]]) -> None:
        """Widen the columns for these cells. If a column changes, a new heading is printed."""
        if self._widths[_HEADERS] == 0 and any(cut[_HEADERS]) and _HEADERS not in self._left_out:
            self._widths[_HEADERS] = len("HEADERS")
            self._headed = False
        self._widths = [
            max(width, *map(len, column)) if width and column else width
            for width, column in zip(self._widths, cut, strict=True)
        ]
        for at, least in _LEAST_VALUE_WIDTHS.items():
            if self._widths[at] and self._value_width < least:
                self._left_out.add(at)
                self._widths[at] = 0
                self._headed = False

    def _moment(self, record: Record) -> str:
        moment = show_time(record.timestamp_ns)
        return f"{moment[5:10]} {moment[11:19]}" if self._narrow else moment

    @property
    def _value_width(self) -> int:
        """Return the width that remains for the value."""
        shown = [width for width in self._widths if width]
        return (self._width or sys.maxsize) - sum(shown) - 2 * len(shown)

    def _line(self, cells: Sequence[str], value: str) -> str:
        offset, *others = [
            cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True) if width
        ]
        head = "  ".join([offset.strip().rjust(self._widths[0]), *others]) + "  "
        line = shorten(head + value, self._width)
        if self._found is None or not is_coloured():
            return line
        return line[: len(head)] + self._found.sub(_emphasised, line[len(head) :])


def _emphasised(found: re.Match[str]) -> str:
    return click.style(found[0], fg="red", bold=True) if found[0] else ""


def _headers_of(record: Record) -> str:
    """Return all headers except those that have a column of their own."""
    if not record.raw_headers:
        return ""
    shown = [
        f"{show_bytes(name)}: {show_bytes(value)}"
        for name, value in record.headers.lines
        if name.lower() not in _IN_OTHER_COLUMNS
    ]
    return ", ".join(shown)


@contextmanager
def record_writer(
    style: str, *, wide: bool = False, found: re.Pattern[str] | None = None
) -> Iterator[Write]:
    """Return a function that prints records in `style`; a JSON array is closed at the end."""
    objects = object_array(style, COLUMNS)
    if objects is not None:
        with objects as array:
            yield lambda records: array.add([record_object(record) for record in records])
    else:
        table = RecordLines(None if wide else terminal_width(), wide=wide, found=found)
        yield lambda records: write_lines(table.lines(records))
