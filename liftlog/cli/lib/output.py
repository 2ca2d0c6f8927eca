"""Output on stdout: tables for people; JSON, YAML, CSV and templates for programs."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeAlias

import click

from liftlog.cli.lib import shapes
from liftlog.cli.lib.options import chosen_fields, chosen_template, quiet
from liftlog.cli.lib.text import escaped_in_quotes, needs_quotes, printable, shorten

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Row = Sequence[str]


_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))  # dumps() makes one a call


def to_json(value: Any) -> str:
    """Return a value as one line of JSON. Text stays readable, except for characters that a
    terminal would interpret."""
    return escaped_in_quotes(_encoder.encode(value))


def write_text(text: str) -> None:
    """Write once and flush, so that a reader behind a pipe receives the text at once.

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


def say(text: str) -> None:
    """Print a confirmation; --quiet omits it."""
    if not quiet():
        click.echo(text)


def to_yaml(value: Any) -> str:
    """Return a value as YAML in block style, with the same content as `to_json`."""
    import yaml

    plain = json.loads(to_json(value))  # YAML does not support enums and other subclasses of str
    text = yaml.dump(
        plain, Dumper=_yaml_dumper(), sort_keys=False, allow_unicode=True, width=1_000_000
    )
    return escaped_in_quotes(str(text))


@lru_cache(maxsize=1)
def _yaml_dumper() -> Any:
    """Return a YAML dumper that double-quotes every string with characters to escape, because no
    other style supports escapes."""
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
    """Write one object: indented for `json` and `yaml`, on one line for other formats."""
    fields = chosen_fields()
    if style in ("csv", "fields", "template"):
        write_objects([value], style)
        return
    if fields:
        (value,) = shapes.reduced([value], fields)
    if style == "json":
        write_text(escaped_in_quotes(json.dumps(value, ensure_ascii=False, indent=2)) + "\n")
    elif style == "yaml":
        write_text(to_yaml(value))
    else:
        write_lines([to_json(value)])


def write_objects(values: Iterable[Any], style: str) -> None:
    """Write several objects that are all available: as one array, or one line each."""
    found = list(values)
    fields = chosen_fields()
    if style == "json":
        shown = shapes.reduced(found, fields) if fields else found
        write_text(escaped_in_quotes(json.dumps(shown, ensure_ascii=False, indent=2)) + "\n")
        return
    array = object_array(style)
    assert array is not None, style
    with array:
        array.add(found)


class JsonArray:
    """A JSON array that is written piece by piece. It is completed even if its producer is
    interrupted."""

    def __init__(self) -> None:
        self._empty = True

    def __enter__(self) -> JsonArray:
        write_text("[")
        return self

    def add(self, values: Sequence[Any]) -> None:
        if values:
            lead = "\n" if self._empty else ",\n"
            self._empty = False
            write_text(lead + ",\n".join(map(to_json, _chosen(values))))

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None or not issubclass(kind, BrokenPipeError):
            write_text("]\n" if self._empty else "\n]\n")


class YamlArray:
    """A YAML sequence that is written piece by piece; each piece is itself a sequence."""

    def __init__(self) -> None:
        self._empty = True

    def __enter__(self) -> YamlArray:
        return self

    def add(self, values: Sequence[Any]) -> None:
        if values:
            self._empty = False
            write_text(to_yaml(_chosen(values)))

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._empty and (kind is None or not issubclass(kind, BrokenPipeError)):
            write_text("[]\n")


class Lines:
    """Writes objects one per line, as JSON or formatted by the template."""

    def __init__(self, line_of: Callable[[Any], str] | None = None) -> None:
        self._line_of = line_of

    def __enter__(self) -> Lines:
        return self

    def add(self, values: Sequence[Any]) -> None:
        if self._line_of is None:
            write_lines([to_json(value) for value in _chosen(values)])
        else:
            write_lines([_for_terminal(self._line_of(value)) for value in values])

    def __exit__(self, *rest: object) -> None:
        pass


class Rows:
    """Writes objects as rows: as CSV, or as a table of the chosen fields, whose columns widen for
    longer cells. Without chosen fields the columns are `columns`, or the fields of the first
    objects."""

    def __init__(self, style: str, columns: Sequence[str] = ()) -> None:
        self._is_csv = style == "csv"
        self._fields = chosen_fields() or [shapes.Path(name, (name,)) for name in columns]
        self._widths: list[int] = []
        self._headed = False

    def __enter__(self) -> Rows:
        return self

    def add(self, values: Sequence[Any]) -> None:
        if not values and self._headed:
            return
        self._fields = self._fields or shapes.columns_of(values)
        found = shapes.rows(values, self._fields)
        headings = [path.name for path in self._fields]
        if self._is_csv:
            lead = [] if self._headed or not headings else [headings]
            write_text(_for_terminal(shapes.csv_text([*lead, *found])))
        else:
            lead = [] if self._headed else [[name.upper() for name in headings]]
            self._write_table([*lead, *found])
        self._headed = True

    def _write_table(self, found: list[list[str]]) -> None:
        cells = [[printable(cell) for cell in row] for row in found]
        known = self._widths or [0] * len(self._fields)
        columns = zip(known, zip(*cells, strict=True), strict=True)
        self._widths = [max(width, *map(len, column)) for width, column in columns]
        whole = terminal_width()
        write_lines(
            [shorten("  ".join(map(str.ljust, row, self._widths)).rstrip(), whole) for row in cells]
        )

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if not self._headed and kind is None:
            self.add([])


def _chosen(values: Sequence[Any]) -> Sequence[Any]:
    """Return the objects with only the fields of --fields."""
    fields = chosen_fields()
    return shapes.reduced(values, fields) if fields else values


def _for_terminal(text: str) -> str:
    """Escape the text if stdout is a terminal. CSV and templates have no escapes of their own."""
    return printable(text, keep_newlines=True) if is_terminal() else text


ObjectArray: TypeAlias = JsonArray | YamlArray | Lines | Rows


def object_array(style: str, columns: Sequence[str] = ()) -> ObjectArray | None:
    """Return the writer for objects that arrive one after the other; None if a table is wanted.
    `columns` are the fields that objects can have, for CSV."""
    if style == "json":
        return JsonArray()
    if style == "yaml":
        return YamlArray()
    if style in ("csv", "fields"):
        return Rows(style, columns)
    if style == "jsonl":
        return Lines()
    return Lines(chosen_template()) if style == "template" else None


def is_terminal() -> bool:
    return sys.stdout.isatty()


def is_coloured() -> bool:
    """True if stdout gets colours and bold text."""
    return is_terminal() and not os.environ.get("NO_COLOR")


def terminal_width() -> int | None:
    """Return the columns of the terminal on stdout; None if stdout is not a terminal."""
    if not is_terminal():
        return None

    return shutil.get_terminal_size().columns


def print_table(headings: Sequence[str], rows: Sequence[Row], *, right: Iterable[int] = ()) -> None:
    """Print a table for people. If stdout is not a terminal, every row is one complete line."""
    lines = [headings, *([printable(cell, keep_newlines=True) for cell in row] for row in rows)]
    if is_simple_table(lines):
        write_lines(_simple_table(lines, {*right}))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    aligned = set(right)
    for number, heading in enumerate(headings):
        justify: Literal["right", "left"] = "right" if number in aligned else "left"
        table.add_column(heading, justify=justify, overflow="fold")
    for row in rows:
        # A Text object, because brackets in data are not markup.
        table.add_row(
            *(
                Text(printable(cell, keep_newlines=True), style=colour_of(heading, cell) or "")
                for heading, cell in zip(headings, row, strict=True)
            )
        )
    print_rich(table)


_GAP = "  "


def is_simple_table(lines: Sequence[Row]) -> bool:
    """Return True if every character takes one column, and the table fits into the terminal. Such a
    table needs no rich, whose import takes a fifth of `liftlog stream ls`."""
    texts = [text for line in lines for text in line]
    if not all(text.isascii() and "\n" not in text and "\t" not in text for text in texts):
        return False
    if os.environ.get("FORCE_COLOR"):
        return False
    width = terminal_width()
    if width is None:
        return True
    fits = sum(_widths(lines)) + len(_GAP) * (len(lines[0]) - 1) < width
    return fits and os.environ.get("TERM") not in (None, "", "dumb", "unknown")


def _widths(lines: Sequence[Row]) -> list[int]:
    return [max(map(len, column)) for column in zip(*lines, strict=True)]


def _simple_table(lines: Sequence[Row], right: set[int]) -> list[str]:
    headings, widths, coloured = lines[0], _widths(lines), is_coloured()

    def show(line: Row, *, is_heading: bool) -> str:
        shown = []
        for number, (heading, text, width) in enumerate(zip(headings, line, widths, strict=True)):
            cell = text.rstrip().rjust(width) if number in right else text.ljust(width)
            if number == len(widths) - 1:
                cell = cell.rstrip()
            if coloured and is_heading:
                cell = click.style(cell, bold=True)
            elif coloured and (colour := colour_of(heading, text)):
                cell = click.style(cell, fg=colour)
            shown.append(cell)
        return _GAP.join(shown).rstrip()

    return [show(line, is_heading=number == 0) for number, line in enumerate(lines)]


_GOOD, _MIND, _BAD = "green", "yellow", "red"
_STATES = {
    **dict.fromkeys(("attached", "live", "yes", "ok", "connected", "in sync"), _GOOD),
    **dict.fromkeys(("paused", "read-only", "catching up", "stopping"), _MIND),
    **dict.fromkeys(("detached", "failed", "no", "not connected", "down"), _BAD),
}
_ALWAYS = {"problem": _BAD, "damaged": _BAD, "possible losses": _MIND, "warnings": _MIND}


def colour_of(name: str, value: str) -> str | None:
    """Return the colour for a value of the column or fact `name`; only states have colours."""
    name = name.lower()
    if name.startswith("warning"):
        return _MIND
    if name in _ALWAYS:
        return _ALWAYS[name]
    if name not in ("state", "status", "ready", "alive", "nats"):
        return None
    if value.endswith("!"):
        return _MIND
    return _STATES.get(value.partition(" (")[0].lower())


_LEAST_WRAPPED = 20


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values below each other. On a terminal, long values are wrapped next to the
    names."""
    width = max((len(name) for name, _ in pairs), default=0)
    whole = terminal_width()
    left = None if whole is None else max(whole - width - 2, _LEAST_WRAPPED)
    for name, value in pairs:
        label = click.style(f"{name:<{width}}", dim=True)
        colour = colour_of(name, value)
        first, *rest = (
            click.style(line, fg=colour) if colour else line
            for line in _wrapped(printable(value, keep_newlines=True), left)
        )
        click.echo(f"{label}  {first}")
        for line in rest:
            click.echo(f"{'':<{width}}  {line}")


def _wrapped(text: str, width: int | None) -> list[str]:
    lines = text.split("\n")
    if width is None:
        return lines
    return [part for line in lines for part in wrap(line, width, break_on_hyphens=False) or [""]]


def print_rich(renderable: RenderableType) -> None:
    console = make_console()
    if not is_terminal():
        from rich.measure import Measurement

        wanted = Measurement.get(console, console.options.update(max_width=100_000), renderable)
        console.width = max(wanted.maximum, 1)
    # Rich would pad every line to the width of the table.
    with console.capture() as captured:
        console.print(renderable)
    write_lines([line.rstrip() for line in captured.get().splitlines()])


def make_console(file: TextIO | None = None) -> Console:
    """Create a console for stdout, or for `file`."""
    from rich.console import Console

    return Console(
        file=file or sys.stdout,
        highlight=False,
        emoji=False,
        markup=False,
        # With NO_COLOR, rich would still write bold and dim.
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )
