"""`liftlog top`: shows the present rates of the streams."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from liftlog.cli.lib.command_groups import Command
from liftlog.cli.lib.conditions import Shown, conditions_of
from liftlog.cli.lib.options import connect_to_server, debug_option, output_format, server_options
from liftlog.cli.lib.output import colour_of, is_terminal, make_console, print_table, write_objects
from liftlog.cli.lib.problems import warn
from liftlog.cli.lib.text import printable, shorten
from liftlog.cli.top_view import COLUMNS, END, ORDERS, Row, View, spark
from liftlog.errors import Forbidden, StreamUnavailable

if TYPE_CHECKING:
    from rich.table import Table

    from liftlog.client import Checkpoint, StreamInfo, SyncClient

_HEADINGS = ("STREAM", "STATE", "RECORDS/S", "BYTES/S", "RECORDS", "SIZE", "LAG", "SLOWEST")
_RIGHT = (2, 3, 4, 5, 6)
_LINES_AROUND = 4  # title, headings, keys, and a line that rich leaves free


@dataclass(frozen=True, slots=True)
class Sample:
    """The daemon's report at one moment. `time` is a time of the monotonic clock."""

    time: float
    streams: list[StreamInfo]
    checkpoints: list[Checkpoint]
    conditions: list[Shown]


@click.command(cls=Command)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=2.0,
    metavar="SECONDS",
    help="Time between two updates. Default: 2.",
)
@click.option(
    "--sort",
    type=click.Choice(tuple(ORDERS)),
    default="rate",
    help="The column to sort by. Default: rate.",
)
@click.option(
    "--filter",
    "wanted",
    default="",
    metavar="TEXT",
    help="Only streams with this text in their name, or in the name of their slowest consumer.",
)
@click.option("--once", is_flag=True, help="Measure over one interval, print once, and exit.")
@server_options
@debug_option
def top(interval: float, sort: str, wanted: str, once: bool) -> None:
    """Watch rates, sizes and lags of the streams.

    The keys r, n, s and l sort by rate, name, size and lag. The key / filters, arrows and page keys
    scroll, and q or Ctrl-C ends the command. TREND shows the rate in the last updates. In a pipe,
    with --once, or with an --output for programs, the command measures over one interval and prints
    once. It counts offsets as records. Sizes are sizes on disk.

    \b
    Examples:
      liftlog top
      liftlog top --sort lag --filter billing
    """
    style, view = output_format(), View(sort, wanted)
    with connect_to_server() as client:
        if style != "table" or once or not is_terminal():
            before = _look(client)
            time.sleep(interval)
            after = _look(client)
            view.take(rows_of(before, after, sort))
            rows = view.rows
            if style != "table":
                write_objects([asdict(row) for row in rows], style)
            else:
                print_table(_HEADINGS, [row.cells() for row in rows], right=_RIGHT)
            for one in after.conditions:
                warn(printable(f"{one.name}: {one.text}"))
        else:
            _watch(client, interval, view)


def _look(client: SyncClient) -> Sample:
    streams = client.list_streams()
    try:
        checkpoints = client.list_checkpoints()
    except (Forbidden, StreamUnavailable):  # rates can be shown without checkpoints
        checkpoints = []
    return Sample(time.monotonic(), streams, checkpoints, conditions_of(client.metadata()))


def rows_of(before: Sample, after: Sample, sort: str) -> list[Row]:
    """Compute the rows from two samples."""
    known = {(one.name, one.incarnation): one for one in before.streams}
    seconds = max(after.time - before.time, 1e-9)
    rows = []
    for info in after.streams:
        old = known.get((info.name, info.incarnation), info)
        behind = [
            one for one in after.checkpoints if one.stream == info.name and one.lag is not None
        ]
        slowest = max(behind, key=lambda one: one.lag or 0, default=None)
        rows.append(
            Row(
                info.name,
                info.state,
                (info.high_watermark - old.high_watermark) / seconds,
                max(info.size_bytes - old.size_bytes, 0) / seconds,  # retention may delete more
                info.records,
                info.size_bytes,
                slowest.lag if slowest else None,
                slowest.consumer if slowest else "",
                bool(info.warnings or info.quarantined),
            )
        )
    return sorted(rows, key=ORDERS[sort])


def headline(conditions: Sequence[Shown]) -> str:
    """Return the most severe condition in one line, with the number of other conditions; empty if
    there is none."""
    if not conditions:
        return ""
    more = f" (and {len(conditions) - 1} more: liftlog health)" if len(conditions) > 1 else ""
    return f"{conditions[0].name}: {conditions[0].text}{more}"


def _watch(client: SyncClient, interval: float, view: View) -> None:
    from rich.live import Live

    with _single_keys() as read_keys:
        before = after = _look(client)
        console = make_console()
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                view.take(rows_of(before, after, view.sort))
                wrong = headline(after.conditions)
                following = time.monotonic() + interval
                while (left := following - time.monotonic()) > 0:
                    live.update(_table(view, client.address, wrong, *console.size), refresh=True)
                    if view.press(read_keys(left)):
                        return
                before, after = after, _look(client)


def _table(view: View, address: str, wrong: str, width: int, height: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    page = view.page(max(height - _LINES_AROUND - bool(wrong), 1))
    total = sum(row.records_per_second for row in view.rows)
    moment = time.strftime("%H:%M:%S")
    title = printable(f"{address}  {moment}  {total:,.0f} records/s  {view.described()}")
    above = Text(shorten(title, width))
    if wrong:
        above.append(f"\n{shorten(printable(wrong), width)}", style="bold red")
    table = Table(box=None, title=above, title_justify="left", expand=True)
    table.caption, table.caption_justify = Text(shorten(view.prompt(), width)), "left"
    columns = [column for column in COLUMNS if width >= column.from_width]
    for column in columns:
        heading = f"{column.heading} v" if column.sort == view.sort else column.heading
        table.add_column(heading, justify="right" if column.right else "left", no_wrap=True)
    is_utf8 = "utf" in (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
    for row in page:
        cells = row.cells()
        shown = []
        for column in columns:
            if column.cell is None:
                shown.append(Text(spark(view.trend(row), is_utf8=is_utf8), style="cyan"))
            else:
                text = cells[column.cell]
                shown.append(Text(text, style=colour_of(column.heading, text) or ""))
        table.add_row(*shown)
    return table


@contextmanager
def _single_keys() -> Iterator[Callable[[float], bytes]]:
    """Yield a function that waits up to a number of seconds for keys and returns them; empty if
    there were none. Keys arrive without Enter. The terminal is restored at the end."""
    if not sys.stdin.isatty():
        yield _only_wait
        return

    fd = sys.stdin.fileno()
    saved = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield _read_keys
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, saved)


def _only_wait(seconds: float) -> bytes:
    time.sleep(seconds)
    return b""


def _read_keys(seconds: float) -> bytes:
    if not select.select([sys.stdin], [], [], seconds)[0]:
        return b""
    return os.read(sys.stdin.fileno(), 64) or END
