"""Batch reads through Spark, from a daemon's socket and from files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.served_logs import ServedLogs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NS = 1_700_000_000_000_000_000


def reader(spark: SparkSession, logs: ServedLogs, **options: Any) -> Any:
    chosen = {"server": logs.server, "stream": "orders"} | options
    found = spark.read.format("liftlog")
    for name, value in chosen.items():
        found = found.option(name, value)
    return found


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def test_all_columns(spark: SparkSession, logs: ServedLogs) -> None:
    logs.add("orders")
    block = b"NATS/1.0\r\nTrace: 1\r\nTrace: \xff2\r\n\r\n"
    logs.append(
        "orders",
        [b"one", None, b""],
        timestamp_ns=NS,
        subject=b"orders.eu",
        keys=[b"k", b"l", None],
        headers=[block, b"", b""],
    )
    frame = reader(spark, logs, columns="stream,value,key,headers,subject,timestamp,offset").load()
    assert frame.columns == "stream value key headers subject timestamp offset".split()
    rows = frame.selectExpr("*", "unix_micros(timestamp) as us").orderBy("offset").collect()
    assert [row.us for row in rows] == [NS // 1000] * 3
    assert [(row.stream, row.subject, row.offset) for row in rows] == [
        ("orders", "orders.eu", offset) for offset in (1, 2, 3)
    ]
    assert [(row.key, row.value) for row in rows] == [
        (bytearray(b"k"), bytearray(b"one")),
        (bytearray(b"l"), None),
        (None, bytearray(b"")),
    ]
    assert [[(h.key, bytes(h.value)) for h in row.headers] for row in rows] == [
        [("Trace", b"1"), ("Trace", b"\xff2")],
        [],
        [],
    ]
