"""The display of `liftlog top`: sorts and filters rows, shows a page of them, and draws trends of
rates. Keys change the display. Uses no terminal and no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from liftlog.cli.lib.text import plural, printable, show_size

TREND = 12
"""Number of samples that a trend shows."""
KEYS_HELP = "q: quit  sort by r: rate, n: name, s: size, l: lag  /: filter  arrows: scroll"
END = b"\x04"
"""Input that stands for a closed terminal."""

_ESCAPE = 0x1B
_BACKSPACE = (0x08, 0x7F)
_ENTER = (0x0A, 0x0D)
_PAGE = 10
_SCROLLS = {
    b"\x1b[A": -1, b"\x1bOA": -1, b"k": -1,
    b"\x1b[B": 1, b"\x1bOB": 1, b"j": 1,
    b"\x1b[5~": -_PAGE, b"\x1b[6~": _PAGE,
    b"\x1b[H": -(10**9), b"\x1b[1~": -(10**9), b"\x1b[F": 10**9, b"\x1b[4~": 10**9,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One stream in the display. `lag` and `slowest` describe the consumer with the largest lag;
    None and "" if there is no consumer. `troubled` is True if `stream info` would show warnings or
    damage."""

    name: str
    state: str
    records_per_second: float
    bytes_per_second: float
    records: int
    size_bytes: int
    lag: int | None
    slowest: str
    troubled: bool = False

    def cells(self) -> tuple[str, ...]:
        return (
            printable(self.name),
            printable(self.state) + (" !" if self.troubled else ""),
            f"{self.records_per_second:,.0f}",
            show_size(int(self.bytes_per_second)),
            f"{self.records:,}",
            show_size(self.size_bytes),
            "" if self.lag is None else f"{self.lag:,}",
            printable(self.slowest),
        )


ORDERS: dict[str, Callable[[Row], Any]] = {
    "rate": lambda row: (-row.records_per_second, row.name),
    "name": lambda row: row.name,
    "size": lambda row: (-row.size_bytes, row.name),
    "lag": lambda row: (-(row.lag or 0), row.name),
}
_SORT_KEYS = {b"r": "rate", b"n": "name", b"s": "size", b"l": "lag"}


class Column(NamedTuple):
    """A column. `cell` is its index in `Row.cells`; None for the trend. Terminals narrower than
    `from_width` do not show it."""

    heading: str
    cell: int | None
    right: bool = False
    from_width: int = 0
    sort: str = ""


COLUMNS = (
    Column("STREAM", 0, sort="name"),
    Column("STATE", 1, from_width=60),
    Column("RECORDS/S", 2, right=True, from_width=30, sort="rate"),
    Column("TREND", None, from_width=50),
    Column("BYTES/S", 3, right=True, from_width=80),
    Column("RECORDS", 4, right=True, from_width=100),
    Column("SIZE", 5, right=True, from_width=70, sort="size"),
    Column("LAG", 6, right=True, from_width=40, sort="lag"),
    Column("SLOWEST", 7, from_width=90),
)


class View:
    """The state of the display. `rows` are the rows of the last sample that match the filter, in
    order."""

    def __init__(self, sort: str, wanted: str = "") -> None:
        self.sort = sort
        self.wanted = wanted
        self.rows: list[Row] = []
        self._all: list[Row] = []
        self._typing = False
        self._first = 0
        self._height = 1
        self._rates: dict[str, deque[float]] = {}

    def take(self, rows: list[Row]) -> None:
        """Replace the rows by the rows of a new sample."""
        self._all = rows
        names = {row.name for row in rows}
        self._rates = {name: seen for name, seen in self._rates.items() if name in names}
        for row in rows:
            self._rates.setdefault(row.name, deque(maxlen=TREND)).append(row.records_per_second)
        self._arrange()

    def _arrange(self) -> None:
        text = self.wanted.lower()
        found = [
            one for one in self._all if text in one.name.lower() or text in one.slowest.lower()
        ]
        self.rows = sorted(found, key=ORDERS[self.sort])
        self._scroll(0)

    def _scroll(self, lines: int) -> None:
        last = max(len(self.rows) - self._height, 0)
        self._first = min(max(self._first + lines, 0), last)

    def page(self, height: int) -> list[Row]:
        """Return the rows that fit into `height` lines."""
        self._height = height
        self._scroll(0)
        return self.rows[self._first : self._first + height]

    def trend(self, row: Row) -> Sequence[float]:
        """Return the rates of the last samples, the newest last."""
        return self._rates.get(row.name, ())

    def described(self) -> str:
        """Return a text that describes which streams are shown."""
        count = f"{len(self.rows)} of {plural(len(self._all), 'stream')}"
        if self._first or self._first + self._height < len(self.rows):
            last = min(self._first + self._height, len(self.rows))
            count = f"{self._first + 1} to {last} of {count}"
        return f"{count}  filter: {self.wanted}" if self.wanted else count

    def prompt(self) -> str:
        """Return the bottom line: the filter while it is typed, or the help for the keys."""
        return f"filter: {self.wanted}_" if self._typing else KEYS_HELP

    def press(self, keys: bytes) -> bool:
        """Handle keys; return True if the user wants to quit."""
        for key in _single(keys):
            if self._typing:
                self._type(key)
            elif key in (b"q", b"Q", END):
                return True
            elif key in _SORT_KEYS:
                self.sort = _SORT_KEYS[key]
            elif key == b"/":
                self._typing, self.wanted = True, ""
            elif key == bytes([_ESCAPE]):
                self.wanted = ""
            else:
                self._scroll(_SCROLLS.get(key, 0))
                continue
            self._arrange()
        return False

    def _type(self, key: bytes) -> None:
        first = key[0]
        if first in _ENTER or key == END:
            self._typing = False
        elif key == bytes([_ESCAPE]):
            self._typing, self.wanted = False, ""
        elif first in _BACKSPACE:
            self.wanted = self.wanted[:-1]
        elif len(key) == 1 and 0x20 <= first < 0x7F:
            self.wanted += key.decode()


def _single(keys: bytes) -> Iterator[bytes]:
    """Split keys that arrived together; an escape sequence is one key."""
    at = 0
    while at < len(keys):
        end = at + 1
        if keys[at] == _ESCAPE and keys[end : end + 1] in (b"[", b"O"):
            end += 1
            while end < len(keys) and not 0x40 <= keys[end] <= 0x7E:
                end += 1
            end += 1
        yield keys[at:end]
        at = end


_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-=+*%#"


def spark(values: Sequence[float], *, is_utf8: bool = True) -> str:
    """Return a bar for each value, as high as its share of the largest."""
    bars = _BARS if is_utf8 else _ASCII_BARS
    largest = max(values, default=0)
    if largest <= 0:
        return bars[0] * len(values)
    top = len(bars) - 1
    return "".join(bars[min(round(max(value, 0) / largest * top), top)] for value in values)
