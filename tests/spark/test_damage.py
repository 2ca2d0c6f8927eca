"""Damaged and unreadable bytes: both sources tell the same, over the socket and from files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.daemons.served_logs import ServedLogs
from support.disks.losefs import LoseFsHandle, losefs
from support.disks.stored_logs import batch_positions, flip
from support.spark.spark_jar import jar_rows, python_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("jar")]

PAGE = 4096
BATCHES = 12


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoseFsHandle]:
    with losefs(tmp_path_factory.mktemp("damage") / "disk") as disk:
        yield disk


def body(disk: LoseFsHandle, path: Path, start: int, end: int) -> None:
    flip(path, (start + end) // 2)


def header(disk: LoseFsHandle, path: Path, start: int, end: int) -> None:
    flip(path, start + 20)


def page_of_body(disk: LoseFsHandle, path: Path, start: int, end: int) -> None:
    page = start // PAGE + 2
    assert (page + 1) * PAGE < end
    disk.lose_pages(path, page)


def page_of_header(disk: LoseFsHandle, path: Path, start: int, end: int) -> None:
    disk.lose_pages(path, start // PAGE)


@pytest.mark.long
@pytest.mark.parametrize("damage", [body, header, page_of_body, page_of_header])
def test_all_ways_tell_the_same(
    spark: SparkSession, disk: LoseFsHandle, damage: Callable[..., None]
) -> None:
    with ServedLogs(disk.path / damage.__name__) as logs:
        stream = logs.add("orders")
        for number in range(BATCHES):
            logs.append("orders", [b"%d/%d" % (number, n) * 200 for n in range(25)])
        logs.call(stream.real_log.writer.roll)
        end, path = stream.real_log.log_end_offset, stream.real_log.segments[0].path
        places = batch_positions(path)
        borders = [*(position for position, _ in places), path.stat().st_size]
        start, stop = list(pairwise(borders))[5]
        damage(disk, path, start, stop)
        ways: list[dict[str, Any]] = [{"server": logs.server}, {"path": str(logs.directory)}]
        told, left = [], []
        for way in ways:
            where = way | {"stream": "orders", "columns": "offset,value"}
            for rows in (lambda **given: jar_rows(spark, **given), python_rows):
                with pytest.raises(Exception, match=r"\[\d+, \d+\)") as raised:
                    rows(**where)
                told += set(re.findall(r"\[(\d+), (\d+)\)", str(raised.value)))
                left.append([row["offset"] for row in rows(**where, failOnDataLoss="false")])
                assert "failOnDataLoss=false" in str(raised.value)
        assert left == [left[0]] * 4
        # The socket names the first batch that is lost, files all that is lost in one place.
        assert told[0] == told[1]
        assert told[2] == told[3]
        assert told[0][0] == told[2][0]
        lost = range(int(told[2][0]), int(told[2][1]))
        assert len(lost) == (50 if damage is page_of_header else 25)
        assert left[0] == [offset for offset in range(1, end) if offset not in lost]
        disk.find_pages()
