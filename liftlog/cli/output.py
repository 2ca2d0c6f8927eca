"""What goes to stdout: tables for people; JSON documents, JSON lines and YAML for programs;
records, batch by batch, in each of these.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import click

from liftlog.cli.text import (
    escaped_in_quotes,
    needs_quotes,
    printable,
    shorten,
    show_bytes,
    show_time,
)
from liftlog.records.json_form import record_object as record_object

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from liftlog.records.decode import Record

Row = Sequence[str]


_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))  # dumps() makes one a call

Write = Callable[[Sequence["Record"]], None]

TOMBSTONE = "<tombstone>"

_OFFSET_WIDTH = 8
_TIME_WIDTH = 27
_MAX_SUBJECT_WIDTH = 40
_MAX_KEY_WIDTH = 24


def to_json(value: Any) -> str:
    """One line; text stays readable, but for what a terminal would act on."""
    return escaped_in_quotes(_encoder.encode(value))


def write_text(text: str) -> None:
    """One write, flushed, so that a reader behind a pipe sees it at once.

    Text that stdout cannot encode is escaped.
    """
    stream = sys.stdout
    encoding = (getattr(stream, "encoding", None) or "utf-8").lower()
    if encoding not in ("utf-8", "utf8"):
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    stream.write(text)
    stream.flush()


def write_lines(lines: Sequence[str]) -> None:
    if lines:
        write_text("\n".join(lines) + "\n")


def to_yaml(value: Any) -> str:
    """What `to_json` says, as YAML in blocks."""
    import yaml

    plain = json.loads(to_json(value))  # YAML does not know enums and other subclasses of str
    text = yaml.dump(
        plain, Dumper=_yaml_dumper(), sort_keys=False, allow_unicode=True, width=1_000_000
    )
    return escaped_in_quotes(str(text))


@lru_cache(maxsize=1)
def _yaml_dumper() -> Any:
    """One that puts into double quotes whatever will be escaped: nothing else can hold escapes."""
    import yaml

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Dumper(base):  # type: ignore[misc]
        pass

    def text_of(dumper: Any, text: str) -> Any:
        style = '"' if needs_quotes(text) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, text_of)
    return Dumper


def write_object(value: Any, style: str) -> None:
    """One object: indented for `json` and `yaml`, one line for `jsonl`."""
    if style == "json":
        write_text(escaped_in_quotes(json.dumps(value, ensure_ascii=False, indent=2)) + "\n")
    elif style == "yaml":
        write_text(to_yaml(value))
    else:
        write_lines([to_json(value)])


def write_objects(values: Iterable[Any], style: str) -> None:
    """Some objects that are all at hand: one array, or one line each."""
    if style in ("json", "yaml"):
        write_object(list(values), style)
    else:
        write_lines([to_json(value) for value in values])


class JsonArray:
    """A JSON array written piece by piece; whole even when what fills it is interrupted."""

    def __init__(self) -> None:
        self._empty = True

    def __enter__(self) -> JsonArray:
        write_text("[")
        return self

    def add(self, values: Sequence[Any]) -> None:
        if values:
            lead = "\n" if self._empty else ",\n"
            self._empty = False
            write_text(lead + ",\n".join(map(to_json, values)))

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None or not issubclass(kind, BrokenPipeError):
            write_text("]\n" if self._empty else "\n]\n")


class YamlArray:
    """The same in YAML, where the pieces of a sequence are sequences."""

    def __init__(self) -> None:
        self._empty = True

    def __enter__(self) -> YamlArray:
        return self

    def add(self, values: Sequence[Any]) -> None:
        if values:
            self._empty = False
            write_text(to_yaml(values))

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._empty and (kind is None or not issubclass(kind, BrokenPipeError)):
            write_text("[]\n")


class JsonLines:
    """The same as one JSON object per line."""

    def __enter__(self) -> JsonLines:
        return self

    def add(self, values: Sequence[Any]) -> None:
        write_lines(list(map(to_json, values)))

    def __exit__(self, *rest: object) -> None:
        pass


ObjectArray: TypeAlias = JsonArray | YamlArray | JsonLines


def object_array(style: str) -> ObjectArray | None:
    """For objects that come one after the other; None where tables are wanted."""
    kinds: dict[str, type[ObjectArray]] = {
        "json": JsonArray,
        "yaml": YamlArray,
        "jsonl": JsonLines,
    }
    return kinds[style]() if style in kinds else None


def is_terminal() -> bool:
    return sys.stdout.isatty()


def terminal_width() -> int | None:
    """Columns of the terminal on stdout; None when it is something else, which has no width."""
    if not is_terminal():
        return None

    return shutil.get_terminal_size().columns


def print_table(headings: Sequence[str], rows: Sequence[Row], *, right: Iterable[int] = ()) -> None:
    """A table for people. Behind a pipe every row is one line, whole, however long."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    aligned = set(right)
    for number, heading in enumerate(headings):
        justify: Literal["right", "left"] = "right" if number in aligned else "left"
        table.add_column(heading, justify=justify, overflow="fold")
    for row in rows:
        # Text: brackets in data are not markup.
        table.add_row(*(Text(printable(cell, keep_newlines=True)) for cell in row))
    print_rich(table)


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Names and values below each other."""
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        label = click.style(f"{name:<{width}}", dim=True)
        first, *rest = printable(value, keep_newlines=True).split("\n")
        click.echo(f"{label}  {first}")
        for line in rest:
            click.echo(f"{'':<{width}}  {line}")


def print_rich(renderable: RenderableType) -> None:
    console = make_console()
    if not is_terminal():
        from rich.measure import Measurement

        wanted = Measurement.get(console, console.options.update(max_width=100_000), renderable)
        console.width = max(wanted.maximum, 1)
    # Rich pads every line to the width of the table.
    with console.capture() as captured:
        console.print(renderable)
    write_lines([line.rstrip() for line in captured.get().splitlines()])


def make_console() -> Console:
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, emoji=False, markup=False)


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
