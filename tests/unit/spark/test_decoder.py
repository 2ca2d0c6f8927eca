"""The rows that Spark gets are the records, for all kinds of batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from support.clients.values import binary

from acl.subjects import matches
from liftlog.records import RecordBatch, decode_batch, encode_batch
from liftlog.records.codecs import codec_named, compress_batch
from liftlog.records.message_headers import header_lines
from liftlog.spark.columns import TYPES, schema_of
from liftlog.spark.decoder import MOST_BYTES, RowDecoder, headers_of
from liftlog.spark.options import parse_options
from liftlog.spark.source import spark_schema

BASE_NS = 1_700_000_000_000_000_000
BLOCKS = [
    b"",
    b"NATS/1.0\r\nA: 1\r\n\r\n",
    b"NATS/1.0\r\nA: 1\r\na:  2 \r\nA: \xff\r\n\r\n",
    b"NATS/1.0 503\r\nno colon\r\n: no name\r\n\xffx: y\r\n",
    b"NATS/1.0\r\n\r\n",
]

record = st.tuples(
    st.sampled_from([b"a.x", b"a.y", "b.ü".encode(), b"\xff"]),
    st.none() | binary(5),
    st.none() | binary(5),
    st.sampled_from(BLOCKS),
)


def make(base: int, rows: list[tuple[Any, ...]], stamp_us: int = 0) -> RecordBatch:
    data = encode_batch(
        base_offset=base,
        leader_epoch=1,
        commit_group=0,
        stamps=[(BASE_NS + 1000 * stamp_us, len(rows))],
        subjects=[row[0] for row in rows],
        values=[row[1] for row in rows],
        keys=[row[2] for row in rows] if any(row[2] is not None for row in rows) else None,
        headers=[row[3] for row in rows] if any(row[3] for row in rows) else None,
        has_tombstones=any(row[1] is None for row in rows),
    )
    return decode_batch(bytes(data))


@st.composite
def streams(draw: st.DrawFn) -> list[RecordBatch]:
    base, found = 1, []
    for i in range(draw(st.integers(0, 6))):
        rows = draw(st.lists(record, min_size=1, max_size=4)) * draw(st.sampled_from([1, 1, 20]))
        found.append(make(base, rows, i))
        base += len(rows)
    return found


def expected_rows(batches: list[RecordBatch], pattern: str | None) -> list[dict[str, Any]]:
    """Return the rows from the pure codec, record by record."""
    return [
        {
            "offset": one.offset,
            "timestamp": one.timestamp_ns // 1000,
            "subject": one.subject,
            "key": one.key,
            "headers": [
                {"key": name.decode("utf-8", "replace"), "value": value}
                for name, value in header_lines(one.headers.raw)
            ],
            "value": one.value,
            "stream": "orders",
        }
        for batch in batches
        for one in batch.records()
        if pattern is None or matches(pattern, one.subject)
    ]


def as_rows(found: list[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in found:
        at = batch.schema.get_field_index("timestamp")
        if at >= 0:
            stamps = batch.column(at).cast(pa.int64())
            batch = batch.set_column(at, "timestamp", stamps)
        yield from batch.to_pylist()


@given(
    streams(),
    st.sampled_from([None, "a.*", "b.>", "none"]),
    st.integers(1, 50),
    st.lists(st.sampled_from(sorted(TYPES)), min_size=1, unique=True),
)
def test_rows_are_the_records(
    batches: list[RecordBatch], pattern: str | None, rows_per_batch: int, columns: list[str]
) -> None:
    decoder = RowDecoder(columns, stream="orders", rows_per_batch=rows_per_batch, subject=pattern)
    found = list(decoder.rows(iter(batches)))
    for made in found:
        made.validate(full=True)
        assert 0 < made.num_rows <= rows_per_batch
        assert made.schema.equals(schema_of(tuple(columns)))
    expected = [{name: row[name] for name in columns} for row in expected_rows(batches, pattern)]
    assert list(as_rows(found)) == expected


def test_a_filter_that_leaves_little_still_makes_full_batches() -> None:
    rows = [(b"a.x", b"v", None, b"")] + [(b"b.y", b"v", None, b"")] * 9
    batches = [make(1 + 10 * i, rows) for i in range(40)]
    decoder = RowDecoder(["offset"], stream="orders", rows_per_batch=10, subject="a.*")
    assert [made.num_rows for made in decoder.rows(batches)] == [10, 10, 10, 10]


def test_what_is_decoded_at_once_is_bounded_by_what_it_becomes() -> None:
    """Batches of one MiB that are very short when they are compressed."""
    codec = codec_named("zstd")
    assert codec is not None
    plain = make(1, [(b"a.x", bytes(1 << 20), None, b"")])
    small = decode_batch(compress_batch(bytearray(plain.stored), codec))
    assert small.size_bytes < 1000
    decoder = RowDecoder(["value"], stream="orders", rows_per_batch=10_000)
    sizes = [made.nbytes for made in decoder.rows([small] * 100)]
    assert max(sizes) < MOST_BYTES + (2 << 20)
    assert sum(sizes) >= 100 << 20


def test_a_large_batch_is_cut_evenly() -> None:
    [batch] = [make(1, [(b"a", b"v", None, b"")] * 2001)]
    decoder = RowDecoder(["offset"], stream="orders", rows_per_batch=1000)
    assert [made.num_rows for made in decoder.rows([batch])] == [667, 667, 667]


def test_equal_headers_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []

    def counting(block: bytes) -> list[tuple[bytes, bytes]]:
        read.append(block)
        return header_lines(block)

    monkeypatch.setattr("liftlog.spark.decoder.header_lines", counting)
    found = headers_of(pa.array([BLOCKS[1], b"", BLOCKS[1]] * 100, pa.binary()))
    assert len(found) == 300
    assert sorted(read) == [b"", BLOCKS[1]]


def test_spark_expects_exactly_these_types() -> None:
    options = parse_options({"stream": "orders", "columns": ",".join(TYPES)})
    wanted = to_arrow_schema(spark_schema(options), timezone="UTC")
    assert wanted.equals(schema_of(options.columns))
