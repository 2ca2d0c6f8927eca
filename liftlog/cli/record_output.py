"""Records on stdout, batch by batch, in every output format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from liftlog.cli.output import is_terminal, object_array, terminal_width, write_lines
from liftlog.cli.text import printable, shorten, show_bytes, show_time
from liftlog.records.json_form import record_object as record_object

if TYPE_CHECKING:
    from liftlog.records.decode import Record

Write = Callable[[Sequence["Record"]], None]

TOMBSTONE = "<tombstone>"

_OFFSET_WIDTH = 8
_TIME_WIDTH = 27
_MAX_SUBJECT_WIDTH = 40
_MAX_KEY_WIDTH = 24


class RecordLines:
    """Records as lines for people. Columns widen as longer subjects and keys come by.

    `wide` leaves subjects and keys whole, however long.
    """

    def __init__(self, width: int | None, *, wide: bool = False) -> None:
        self._width = width
        self._subject_limit = None if wide else _MAX_SUBJECT_WIDTH
        self._key_limit = None if wide else _MAX_KEY_WIDTH
        self._subject_width = len("SUBJECT")
        self._key_width = len("KEY")
        self._headed = False

    def lines(self, records: Sequence[Record]) -> list[str]:
        """Lines for one batch; the heading leads the first one."""
        subjects = [shorten(printable(r.subject), self._subject_limit) for r in records]
        keys = [shorten(show_bytes(r.key), self._key_limit) for r in records]
        self._subject_width = max(self._subject_width, *map(len, subjects), 0)
        self._key_width = max(self._key_width, *map(len, keys), 0)
        found = []
        if records and not self._headed:
            self._headed = True
            heading = self._line("OFFSET", "TIME", "SUBJECT", "KEY", "VALUE")
            found.append(click.style(heading, bold=True) if is_terminal() else heading)
        for record, subject, key in zip(records, subjects, keys, strict=True):
            value = show_bytes(record.value, null=TOMBSTONE)
            if record.headers:
                shown = ", ".join(f"{name}: {text}" for name, text in record.headers.items())
                value += f"  {{{printable(shown)}}}"
            moment = show_time(record.timestamp_ns)
            found.append(self._line(str(record.offset), moment, subject, key, value))
        return found

    def _line(self, offset: str, moment: str, subject: str, key: str, value: str) -> str:
        line = (
            f"{offset:>{_OFFSET_WIDTH}}  {moment:<{_TIME_WIDTH}}  "
            f"{subject:<{self._subject_width}}  {key:<{self._key_width}}  {value}"
        )
        return shorten(line, self._width)


@contextmanager
def record_writer(style: str, *, wide: bool = False) -> Iterator[Write]:
    """A function that prints records in `style`; a JSON array is closed at the end."""
    objects = object_array(style)
    if objects is not None:
        with objects as array:
            yield lambda records: array.add([record_object(record) for record in records])
    else:
        table = RecordLines(None if wide else terminal_width(), wide=wide)
        yield lambda records: write_lines(table.lines(records))
