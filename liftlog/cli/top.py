"""`liftlog top`: the streams as they move."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from liftlog.cli.groups import Command
from liftlog.cli.options import connect_to_server, debug_option, output_format, server_options
from liftlog.cli.output import is_terminal, make_console, print_table, write_objects
from liftlog.cli.text import printable, show_size
from liftlog.errors import Forbidden, StreamUnavailable

if TYPE_CHECKING:
    from rich.table import Table

    from liftlog.client import Checkpoint, StreamInfo, SyncClient

_HEADINGS = ("STREAM", "STATE", "RECORDS/S", "BYTES/S", "RECORDS", "SIZE", "LAG", "SLOWEST")
_RIGHT = (2, 3, 4, 5, 6)
_SORTS = ("rate", "name", "size", "lag")


@dataclass(frozen=True, slots=True)
class Sample:
    """What the daemon said at one moment; `time` is of the monotonic clock."""

    time: float
    streams: list[StreamInfo]
    checkpoints: list[Checkpoint]


@dataclass(frozen=True, slots=True)
class Row:
    """`lag` and `slowest` are of the consumer that has most left to read; None, "" without one."""

    name: str
    state: str
    records_per_second: float
    bytes_per_second: float
    records: int
    size_bytes: int
    lag: int | None
    slowest: str

    def cells(self) -> tuple[str, ...]:
        return (
            printable(self.name),
            printable(self.state),
            f"{self.records_per_second:,.0f}",
            show_size(int(self.bytes_per_second)),
            f"{self.records:,}",
            show_size(self.size_bytes),
            "" if self.lag is None else f"{self.lag:,}",
            printable(self.slowest),
        )


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
    type=click.Choice(_SORTS),
    default="rate",
    help="The column to sort by. Default: rate.",
)
@click.option("--once", is_flag=True, help="Measure over one interval, print once, and exit.")
@server_options
@debug_option
def top(interval: float, sort: str, once: bool) -> None:
    """Watch rates, sizes and lags of the streams.

    q or Ctrl-C ends it. Behind a pipe, with --once, or with an --output for programs, it measures
    over one interval and prints once. Records are counted as offsets, bytes as the size of the
    stream on disk.

    \b
    Examples:
      liftlog top
      liftlog top --sort lag
    """
    style = output_format()
    with connect_to_server() as client:
        if style != "table" or once or not is_terminal():
            before = _look(client)
            time.sleep(interval)
            rows = rows_of(before, _look(client), sort)
            if style != "table":
                write_objects([asdict(row) for row in rows], style)
            else:
                print_table(_HEADINGS, [row.cells() for row in rows], right=_RIGHT)
        else:
            _watch(client, interval, sort)


def _look(client: SyncClient) -> Sample:
    streams = client.list_streams()
    try:
        checkpoints = client.list_checkpoints()
    except (Forbidden, StreamUnavailable):  # the rates can be seen without them
        checkpoints = []
    return Sample(time.monotonic(), streams, checkpoints)


def rows_of(before: Sample, after: Sample, sort: str) -> list[Row]:
    """What happened between two looks."""
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
                max(info.size_bytes - old.size_bytes, 0) / seconds,  # retention may take away more
                info.records,
                info.size_bytes,
                slowest.lag if slowest else None,
                slowest.consumer if slowest else "",
            )
        )
    orders = {
        "rate": lambda row: (-row.records_per_second, row.name),
        "name": lambda row: row.name,
        "size": lambda row: (-row.size_bytes, row.name),
        "lag": lambda row: (-(row.lag or 0), row.name),
    }
    return sorted(rows, key=orders[sort])


def _watch(client: SyncClient, interval: float, sort: str) -> None:
    from rich.live import Live

    with _single_keys() as quit_within:
        before = after = _look(client)
        with Live(console=make_console(), screen=True, auto_refresh=False) as live:
            while True:
                live.update(_table(rows_of(before, after, sort), client.address), refresh=True)
                if quit_within(interval):
                    return
                before, after = after, _look(client)


def _table(rows: list[Row], address: str) -> Table:
    from rich.table import Table
    from rich.text import Text

    total = sum(row.records_per_second for row in rows)
    title = f"{address}  {time.strftime('%H:%M:%S')}  {total:,.0f} records/s  q: quit"
    table = Table(box=None, title=Text(printable(title)), title_justify="left", expand=True)
    for number, heading in enumerate(_HEADINGS):
        table.add_column(heading, justify="right" if number in _RIGHT else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row.cells()))
    return table


@contextmanager
def _single_keys() -> Iterator[Any]:
    """A function that waits so many seconds and says whether q was pressed meanwhile. Keys come
    without Enter; the terminal is as before at the end."""
    if not sys.stdin.isatty():
        yield _only_wait
        return

    fd = sys.stdin.fileno()
    saved = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield _quit_pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, saved)


def _only_wait(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _quit_pressed(seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0]:
            keys = os.read(sys.stdin.fileno(), 64)
            if not keys or b"q" in keys.lower():
                return True
    return False
