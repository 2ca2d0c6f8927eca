"""liftlog top: what two looks make of it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from liftlog.cli.top import Sample, _table, rows_of
from liftlog.cli.top_view import END, KEYS_HELP, TREND, Row, View, spark
from liftlog.client import StreamInfo


def stream(name: str, end: int, size: int, incarnation: str = "i", start: int = 1) -> StreamInfo:
    return StreamInfo(
        name=name,
        incarnation=incarnation,
        state="attached",
        high_watermark=end,
        log_start_offset=start,
        size_bytes=size,
    )


def checkpoint(stream: str, consumer: str, lag: int | None) -> Any:
    return SimpleNamespace(stream=stream, consumer=consumer, lag=lag)


BEFORE = Sample(10.0, [stream("a", 101, 1000), stream("b", 1, 5000), stream("c", 900, 10)], [], [])
AFTER = Sample(
    12.0,
    [
        stream("a", 301, 3000),
        stream("b", 51, 4000),  # retention took more than came
        stream("c", 40, 20, incarnation="another"),
        stream("new", 7, 70),
    ],
    [
        checkpoint("a", "fast", 0),
        checkpoint("a", "slow", 70),
        checkpoint("b", "lost", None),
        checkpoint("gone", "x", 9),
    ],
    [],
)


def test_rates_and_the_slowest_consumer() -> None:
    rows = {row.name: row for row in rows_of(BEFORE, AFTER, "name")}
    assert rows["a"].records_per_second == 100
    assert rows["a"].bytes_per_second == 1000
    assert (rows["a"].lag, rows["a"].slowest) == (70, "slow")
    assert (rows["b"].records_per_second, rows["b"].bytes_per_second) == (25, 0)
    assert (rows["b"].lag, rows["b"].slowest) == (None, "")
    assert rows["a"].records == 300


def test_a_stream_that_was_not_there_before_has_no_rate_yet() -> None:
    rows = {row.name: row for row in rows_of(BEFORE, AFTER, "name")}
    assert rows["c"].records_per_second == rows["new"].records_per_second == 0


@pytest.mark.parametrize(
    ("sort", "first"), [("rate", "a"), ("name", "a"), ("size", "b"), ("lag", "a")]
)
def test_what_stands_first(sort: str, first: str) -> None:
    assert rows_of(BEFORE, AFTER, sort)[0].name == first


def test_two_looks_at_one_moment() -> None:
    assert all(row.records_per_second == 0 for row in rows_of(AFTER, AFTER, "rate"))


def row(name: str, rate: float = 0, size: int = 0, lag: int | None = None, who: str = "") -> Row:
    return Row(name, "attached", rate, 0.0, 0, size, lag, who)


def view_of(*rows: Row) -> View:
    view = View("rate")
    view.take(list(rows))
    return view


def names(view: View, height: int = 100) -> list[str]:
    return [one.name for one in view.page(height)]


def test_keys_sort() -> None:
    view = view_of(row("a", 1, 3), row("b", 3, 1, lag=9), row("c", 2, 2))
    assert names(view) == ["b", "c", "a"]
    for key, order in ((b"n", "abc"), (b"s", "acb"), (b"l", "bac"), (b"r", "bca")):
        assert not view.press(key)
        assert names(view) == list(order)


def test_a_filter_is_typed() -> None:
    view = view_of(row("orders"), row("quotes"), row("x", who="billing-orders"))
    assert not view.press(b"/ORDq")
    assert names(view) == []
    assert view.prompt() == "filter: ORDq_"  # in a line of its own: the title may be cut
    assert not view.press(b"\x7f\r")
    assert view.prompt() == KEYS_HELP
    assert len(KEYS_HELP) <= 80
    assert names(view) == ["orders", "x"]
    assert view.described() == "2 of 3 streams  filter: ORD"
    assert not view.press(b"\x1b[B")  # an arrow is no escape
    assert len(names(view)) == 2
    assert not view.press(b"\x1b")
    assert len(names(view)) == 3
    assert not view.press(b"/x\x1b")
    assert (len(names(view)), view.wanted) == (3, "")


def test_a_stream_with_damage_is_marked() -> None:
    damaged = {"first_offset": 1, "next_offset": 3, "reason": "checksum"}
    found = [replace(stream("a", 9, 9), quarantined=(damaged,)), stream("b", 9, 9)]
    rows = rows_of(Sample(0, [], [], []), Sample(1, found, [], []), "name")
    cells = [row.cells()[1] for row in rows]
    assert cells == ["attached !", "attached"]


@pytest.mark.parametrize("key", [b"q", b"Q", END, b"\x1b[Aq"])
def test_keys_that_end_it(key: bytes) -> None:
    assert view_of().press(key)


def test_scrolling_stays_within_the_rows() -> None:
    view = view_of(*(row(f"s{n:02}") for n in range(30)))
    assert names(view, 5) == ["s00", "s01", "s02", "s03", "s04"]
    for keys, first in (
        (b"\x1b[B", 1), (b"jj", 3), (b"\x1b[A\x1bOA", 1), (b"kkkk", 0), (b"\x1b[6~", 10),
        (b"\x1b[F", 25), (b"\x1b[B", 25), (b"\x1b[5~", 15), (b"\x1b[H", 0), (b"\x1b[99~?", 0),
    ):  # fmt: skip
        view.press(keys)
        assert names(view, 5)[0] == f"s{first:02}"
    view.press(b"\x1b[F")
    assert view.described() == "26 to 30 of 30 of 30 streams"
    assert names(view, 100)[0] == "s00"  # a taller terminal
    view.press(b"\x1b[F/s29\r")
    assert names(view, 5) == ["s29"]


@pytest.mark.parametrize("keys", [b"\x1b", b"\x1b[", b"\x1b[1;", b"\xff\xfe", b"\x00"])
def test_any_bytes_are_keys(keys: bytes) -> None:
    view = view_of(row("a"))
    assert not view.press(keys)
    view.press(b"/")
    assert not view.press(keys)


def test_trends_have_the_last_looks_and_forget_streams() -> None:
    view = view_of()
    for rate in range(TREND + 5):
        view.take([row("a", rate), row("b")])
    assert list(view.trend(row("a"))) == list(range(5, TREND + 5))
    view.take([row("b")])
    assert list(view.trend(row("a"))) == []
    assert spark([0, 5, 10]) == "▁▅█"
    assert spark([0, 5, 10], is_utf8=False) == "_+#"
    assert spark([0, 0]) == "▁▁"
    assert spark([]) == ""


@pytest.mark.parametrize("wrong", ["", "disk: the data directory cannot be written, says the disk"])
@pytest.mark.parametrize("width", [20, 50, 80, 120])
def test_a_table_fits_its_terminal(width: int, wrong: str) -> None:
    from rich.console import Console

    view = view_of(*(row(f"stream-{n}", n, n, n, "billing") for n in range(50)))
    console = Console(width=width, height=20, color_system=None)
    with console.capture() as captured:
        console.print(_table(view, "tcp://127.0.0.1:9292", wrong, width, 20))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    assert ("SLOWEST" in captured.get()) is (width >= 90)
    assert "stream-49" in captured.get()
    assert ("disk: the data" in captured.get()) is bool(wrong)
    assert sum("stream-" in line for line in lines) == 16 - bool(wrong)


def test_what_is_wrong_stands_above_the_table() -> None:
    from liftlog.cli.lib.conditions import Shown
    from liftlog.cli.top import headline

    disk = Shown("disk", "unready", "the data directory cannot be written", "make room")
    assert headline([]) == ""
    assert headline([disk]) == "disk: the data directory cannot be written"
    assert headline([disk, disk, disk]).endswith("(and 2 more: liftlog health)")
