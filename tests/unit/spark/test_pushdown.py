"""Conditions of a query narrow the read, and never leave out a row that matches."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from support.daemons.served_logs import ServedLogs

from liftlog.errors import InvalidArgument
from liftlog.spark.batch import PushdownReader, narrowed
from liftlog.spark.options import Narrowing, ScanOptions, parse_options
from liftlog.spark.scan import plan, read

NS = 1_700_000_000_000_000_000
START = datetime.fromtimestamp(NS // 10**9, UTC)
OFFSET, STAMP, SUBJECT, KEY = ("offset",), ("timestamp",), ("subject",), ("key",)


def options_of(**given: str) -> ScanOptions:
    return parse_options({"stream": "orders", "pushdown": "true"} | given)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([GreaterThan(OFFSET, 7)], Narrowing(first_offset=8)),
        ([GreaterThanOrEqual(OFFSET, 7), GreaterThan(OFFSET, 3)], Narrowing(first_offset=7)),
        ([LessThan(OFFSET, 9)], Narrowing(end_offset=9)),
        ([LessThanOrEqual(OFFSET, 9), LessThan(OFFSET, 20)], Narrowing(end_offset=10)),
        ([EqualTo(OFFSET, 5)], Narrowing(first_offset=5, end_offset=6)),
        ([EqualNullSafe(OFFSET, 5)], Narrowing(first_offset=5, end_offset=6)),
        ([EqualTo(KEY, bytearray(b"k"))], Narrowing(key=b"k")),
        ([EqualNullSafe(KEY, None), IsNotNull(KEY)], Narrowing()),
        ([GreaterThan(KEY, b"k"), Not(EqualTo(KEY, b"k")), In(KEY, [b"k"])], Narrowing()),
        ([Not(EqualTo(OFFSET, 5)), In(OFFSET, [5, 9])], Narrowing()),
        ([EqualTo(("headers", "offset"), 5)], Narrowing()),
        ([GreaterThan(STAMP, START)], Narrowing(not_before=START)),
        ([GreaterThan(STAMP, START), EqualTo(STAMP, START - timedelta(1))],
         Narrowing(not_before=START)),
        ([LessThan(STAMP, START)], Narrowing()),
        ([GreaterThan(STAMP, datetime(2026, 1, 1))], Narrowing()),
    ],
)  # fmt: skip
def test_what_conditions_mean(filters: list[Filter], expected: Narrowing) -> None:
    assert narrowed(options_of(), filters).narrowing == expected


@pytest.mark.parametrize(
    ("option", "subject", "expected"),
    [
        (None, "orders.eu", "orders.eu"),
        ("orders.*", "orders.eu", "orders.eu"),
        ("orders.*", "wages.eu", "orders.*"),
        (None, "orders.*", None),
        (None, "orders.>", None),
        (None, "", None),
        (None, "a b", None),
    ],
)
def test_subjects(option: str | None, subject: str, expected: str | None) -> None:
    given = {} if option is None else {"subject": option}
    assert narrowed(options_of(**given), [EqualTo(SUBJECT, subject)]).subject == expected


def test_all_conditions_are_left_to_spark() -> None:
    filters: list[Filter] = [EqualTo(OFFSET, 5), EqualTo(SUBJECT, "a"), IsNotNull(KEY)]
    assert list(PushdownReader(options_of()).pushFilters(filters)) == filters


def test_not_beside_compact() -> None:
    with pytest.raises(InvalidArgument, match="exclude each other"):
        options_of(compact="true")


# --- with a transport ---


@pytest.fixture(params=["server", "path"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Yield options for either transport to a stream of 1000 records in batches of 25, one second
    apart."""
    with ServedLogs(tmp_path / "streams", segment_max_bytes=20_000) as logs:
        stream = logs.add("orders")
        for i in range(40):
            logs.append(
                "orders",
                [b"%d" % i * 20] * 25,
                keys=[b"k%d" % j for j in range(25)],
                subject=b"orders.%d" % (i % 2),
                timestamp_ns=NS + i * 1_000_000_000,
            )
        logs.call(stream.real_log.writer.roll)
        yield {"server": logs.server} if request.param == "server" else {"path": str(tmp_path)}


def rows(options: ScanOptions) -> list[dict[str, Any]]:
    return [row for one in plan(options) for made in read(options, one) for row in made.to_pylist()]


def offsets(where: dict[str, str], *filters: Filter, **given: str) -> list[int]:
    return [row["offset"] for row in rows(narrowed(options_of(**where, **given), filters))]


def test_ranges_that_are_read(where: dict[str, str]) -> None:
    between = (GreaterThanOrEqual(OFFSET, 30), LessThan(OFFSET, 41))
    assert offsets(where, *between) == list(range(30, 41))
    assert offsets(where, *between, startingOffset="35") == list(range(35, 41))
    assert offsets(where, *between, endingOffset="33") == list(range(30, 33))
    assert offsets(where, EqualTo(OFFSET, 7), GreaterThan(OFFSET, 8)) == []
    assert offsets(where, GreaterThan(OFFSET, 10**9)) == []
    assert offsets(where, EqualTo(OFFSET, -1)) == []
    late = START + timedelta(seconds=38)
    assert offsets(where, GreaterThan(STAMP, late)) == list(range(951, 1001))
    assert offsets(where, GreaterThan(STAMP, late + timedelta(days=1))) == []
    assert offsets(where, EqualTo(SUBJECT, "orders.1"), LessThan(OFFSET, 60)) == list(range(26, 51))


def test_keys(where: dict[str, str]) -> None:
    found = offsets(where, EqualTo(KEY, b"k3"))
    matching = list(range(4, 1001, 25))
    # Files are read whole: no daemon leaves out what does not match.
    assert found == (matching if "server" in where else list(range(1, 1001)))
    # No record has such a key, and no daemon takes it.
    assert offsets(where, EqualTo(KEY, b"k" * 70_000)) == list(range(1, 1001))
