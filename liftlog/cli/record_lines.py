"""Records on stdout, batch by batch: lines for people, or objects as in `output`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from liftlog.cli.output import is_coloured, object_array, terminal_width, write_lines
from liftlog.cli.text import printable, shorten, show_bytes, show_time
from liftlog.records.json_form import record_object

if TYPE_CHECKING:
    from liftlog.records.decode import Record

Write = Callable[[Sequence["Record"]], None]

TOMBSTONE = "<tombstone>"

COLUMNS = (
    *("offset", "timestamp", "timestamp_ns", "subject", "key", "key_encoding"),
    *("value", "value_encoding", "headers"),
)
"""The fields that a record can have as an object."""

_OFFSET_WIDTH = 8
_TIME_WIDTH = 27
_SHORT_TIME_WIDTH = len("01-31 12:00:00")
_LIMITS = (40, 24, 40)
_NARROW_LIMITS = (20, 12, 20)
_NARROWEST_LIMITS = (12, 8, 0)
"""Of subjects, keys and headers."""
_NARROW = 110
_VERY_NARROW = 80
_LEAST_VALUE_WIDTH = 20
"""Headers are left out where less than this would be left of the value."""
_IN_OTHER_COLUMNS = frozenset(("liftlog-key", "liftlog-tombstone"))


class RecordLines:
    """Records as lines for people. Columns widen as longer subjects and keys come by; headers get
    theirs, and a new heading, with the first record that has some.

    `wide` leaves subjects, keys and headers whole, however long; a narrow terminal gets less of
    them and of the time, and no headers, so that something of the value is left. What `found`
    matches in a value is emphasised.
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
        self._limits: tuple[int | None, ...] = (None,) * 3 if wide else limits
        self._widths = [len("SUBJECT"), len("KEY"), 0]
        self._headed = self._without_headers = False

    def lines(self, records: Sequence[Record]) -> list[str]:
        """Lines for one batch; the heading leads the first one."""
        columns = (
            [printable(one.subject) for one in records],
            [show_bytes(one.key) for one in records],
            [_headers_of(one) for one in records],
        )
        cut = [
            [shorten(text, limit) for text in column]
            for column, limit in zip(columns, self._limits, strict=True)
        ]
        if self._widths[2] == 0 and any(cut[2]) and not self._without_headers:
            self._widths[2] = len("HEADERS")
            self._headed = False
        self._widths = [
            max(width, *map(len, column)) if width and column else width
            for width, column in zip(self._widths, cut, strict=True)
        ]
        if self._widths[2] and self._value_width < _LEAST_VALUE_WIDTH:
            self._without_headers, self._headed = True, False
            self._widths[2] = 0
        found = []
        if records and not self._headed:
            self._headed = True
            heading = self._line("OFFSET", "TIME", ("SUBJECT", "KEY", "HEADERS"), "VALUE")
            found.append(click.style(heading, bold=True) if is_coloured() else heading)
        for record, *cells in zip(records, *cut, strict=True):
            moment = show_time(record.timestamp_ns)
            if self._narrow:
                moment = f"{moment[5:10]} {moment[11:19]}"
            value = show_bytes(record.value, null=TOMBSTONE)
            found.append(self._line(str(record.offset), moment, cells, value))
        return found

    @property
    def _time_width(self) -> int:
        return _SHORT_TIME_WIDTH if self._narrow else _TIME_WIDTH

    @property
    def _value_width(self) -> int:
        """What is left for the value."""
        others = [_OFFSET_WIDTH, self._time_width, *filter(None, self._widths)]
        return (self._width or sys.maxsize) - sum(others) - 2 * len(others)

    def _line(self, offset: str, moment: str, cells: Sequence[str], value: str) -> str:
        parts = [f"{offset:>{_OFFSET_WIDTH}}", f"{moment:<{self._time_width}}"]
        parts += [
            cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True) if width
        ]
        head = "  ".join(parts) + "  "
        line = shorten(head + value, self._width)
        if self._found is None or not is_coloured():
            return line
        return line[: len(head)] + self._found.sub(_emphasised, line[len(head) :])


def _emphasised(found: re.Match[str]) -> str:
    return click.style(found[0], fg="red", bold=True) if found[0] else ""


def _headers_of(record: Record) -> str:
    """All but those that another column shows."""
    if not record.raw_headers:
        return ""
    shown = [
        f"{name}: {text}"
        for name, text in record.headers.items()
        if name.lower() not in _IN_OTHER_COLUMNS
    ]
    return printable(", ".join(shown))


@contextmanager
def record_writer(
    style: str, *, wide: bool = False, found: re.Pattern[str] | None = None
) -> Iterator[Write]:
    """A function that prints records in `style`; a JSON array is closed at the end."""
    objects = object_array(style, COLUMNS)
    if objects is not None:
        with objects as array:
            yield lambda records: array.add([record_object(record) for record in records])
    else:
        table = RecordLines(None if wide else terminal_width(), wide=wide, found=found)
        yield lambda records: write_lines(table.lines(records))
