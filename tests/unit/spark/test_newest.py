"""With `compact` a range yields the newest record of each key, for all kinds of batches."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clients.values import binary
from support.daemons.served_logs import ServedLogs

from acl.subjects import matches
from liftlog.errors import InvalidArgument
from liftlog.records import Record, RecordBatch, decode_batch, encode_batch
from liftlog.records.codecs import codec_named, compress_batch
from liftlog.spark import newest
from liftlog.spark.decoder import RowDecoder
from liftlog.spark.newest import newest_of_each
from liftlog.spark.options import ScanOptions, parse_options
from liftlog.spark.scan import plan, read

NS = 1_700_000_000_000_000_000
BLOCK = b"NATS/1.0\r\nA: 1\r\n\r\n"

# Few keys, so that they meet again; some are alike but for a zero at the end.
KEYS = st.none() | st.sampled_from([b"", b"\0", b"a", b"a\0", b"b", b"c" * 40])
ROW = st.tuples(
    st.sampled_from([b"a.x", b"a.y", b"b.z"]),
    st.none() | binary(5),
    KEYS,
    st.sampled_from([b"", b"", BLOCK]),
)


def batch_of(base: int, rows: list[tuple[Any, ...]], *, codec: str | None) -> RecordBatch:
    data = encode_batch(
        base_offset=base,
        leader_epoch=1,
        commit_group=0,
        stamps=[(NS + base * 1000, len(rows))],
        subjects=[row[0] for row in rows],
        values=[row[1] for row in rows],
        keys=[row[2] for row in rows] if any(row[2] is not None for row in rows) else None,
        headers=[row[3] for row in rows] if any(row[3] for row in rows) else None,
        has_tombstones=any(row[1] is None for row in rows),
    )
    chosen = codec_named(codec) if codec is not None else None
    return decode_batch(bytes(data) if chosen is None else compress_batch(data, chosen))


@st.composite
def ranges(draw: st.DrawFn) -> list[RecordBatch]:
    """Make batches in the form of a transport: the first and the last one may be trimmed."""
    base, found = 1, []
    for _ in range(draw(st.integers(0, 6))):
        rows = draw(st.lists(ROW, min_size=1, max_size=6)) * draw(st.sampled_from([1, 1, 60]))
        found.append(batch_of(base, rows, codec=draw(st.sampled_from([None, None, "zstd"]))))
        base += len(rows)
    first = draw(st.integers(1, base))
    end = draw(st.integers(first, base))
    trimmed = [batch.trim(first, end) for batch in found]
    return [batch for batch in trimmed if len(batch)]


def newest_records(batches: list[RecordBatch], pattern: str | None) -> list[Record]:
    """Return the records from the pure codec, record by record."""
    everything = [
        one
        for batch in batches
        for one in batch.records()
        if pattern is None or matches(pattern, one.subject)
    ]
    last = {one.key: one.offset for one in everything if one.key is not None}
    return [one for one in everything if one.key is None or last[one.key] == one.offset]


@given(
    ranges(),
    st.sampled_from([None, "a.*", "none"]),
    st.integers(1, 50),
    st.sampled_from(["offset,key,value,headers", "offset", "key,offset", "value,offset,stream"]),
    st.sampled_from([0, 1000]),
    st.sampled_from([0, 1 << 30]),
)
def test_only_the_newest_of_each_key(
    batches: list[RecordBatch],
    pattern: str | None,
    rows_per_batch: int,
    columns: str,
    small: int,
    most_key_bytes: int,
) -> None:
    expected = newest_records(batches, pattern)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(newest, "_SMALL_BATCH_BYTES", small)
        patch.setattr(newest, "_MOST_KEY_BYTES", most_key_bytes)
        decoder = RowDecoder(
            columns.split(","),
            stream="orders",
            rows_per_batch=rows_per_batch,
            subject=pattern,
            compact=True,
        )
        found = list(decoder.rows(iter(batches)))
    for made in found:
        made.validate(full=True)
        assert 0 < made.num_rows <= rows_per_batch
    rows = [row for made in found for row in made.to_pylist()]
    assert [row["offset"] for row in rows] == [one.offset for one in expected]
    for name in ("key", "value"):
        if name in columns:
            assert [row[name] for row in rows] == [getattr(one, name) for one in expected]
    if "headers" in columns:
        raw = [one.headers.raw for one in expected]
        assert [len(row["headers"]) for row in rows] == [bool(block) for block in raw]


@given(st.lists(st.lists(KEYS, max_size=8), max_size=5))
def test_places(parts: list[list[bytes | None]]) -> None:
    found = newest_of_each([pa.array(part, pa.binary()) for part in parts])
    keys = [key for part in parts for key in part]
    last = {key: place for place, key in enumerate(keys)}
    assert found.tolist() == [key is None or last[key] == i for i, key in enumerate(keys)]


def test_rows_are_handed_on_in_full_batches() -> None:
    rows = [(b"a", b"v", b"k%d" % (i % 100), b"") for i in range(1000)]
    batches = [batch_of(1 + 1000 * i, rows, codec=None) for i in range(20)]
    decoder = RowDecoder(["offset"], stream="orders", rows_per_batch=30, compact=True)
    found = list(decoder.rows(iter(batches)))
    assert [made.num_rows for made in found] == [25] * 4
    assert found[0].column(0).to_pylist()[0] == 19_901


def test_superseded_batches_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decompressed bytes of a batch are not kept until then either."""
    size = 1 << 20
    rows = [(b"a", bytes(size), b"k", b"")]
    batches = (batch_of(1 + i, rows, codec="zstd") for i in range(200))
    decoded: list[int] = []

    def counting(run: list[RecordBatch], columns: list[str]) -> pa.RecordBatch:
        decoded.append(len(run))
        return newest_rows_of(run, columns)

    newest_rows_of = newest.rows_of
    monkeypatch.setattr(newest, "rows_of", counting)
    monkeypatch.setattr(newest, "_SMALL_BATCH_BYTES", 0)
    decoder = RowDecoder(["value"], stream="orders", rows_per_batch=10_000, compact=True)
    tracemalloc.start()
    try:
        [made] = decoder.rows(batches)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert made.num_rows == 1
    assert decoded == [1]
    assert peak < 50 * size


# --- with a transport ---


@pytest.fixture(params=["server", "path"])
def orders(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return options for either transport to a stream of 2000 records with 40 keys, all sealed."""
    with ServedLogs(tmp_path / "streams", segment_max_bytes=20_000) as logs:
        stream = logs.add("orders")
        for i in range(40):
            values: list[bytes | None] = [b"%d" % i * 20] * 49 + [None]
            keys: list[bytes | None] = [b"k%d" % ((i + j) % 40) for j in range(49)]
            logs.append("orders", values, keys=[*keys, b"gone"], subject=b"orders.%d" % (i % 2))
        logs.call(stream.real_log.writer.roll)
        where = {"server": logs.server}
        if request.param == "path":
            where = {"path": str(logs.directory)}

        def make(**given: str) -> ScanOptions:
            return parse_options({"stream": "orders"} | where | given)

        yield make


@pytest.mark.parametrize("subject", [None, "orders.0"])
def test_what_is_left_out_is_superseded(orders: Any, subject: str | None) -> None:
    given = {"targetPartitionBytes": "20000", "columns": "offset,key,value,subject"}
    given |= {} if subject is None else {"subject": subject}
    ranges_of_all = plan(orders(**given))
    assert len(ranges_of_all) > 3
    found = {}
    for compact in ("true", "false"):
        options = orders(compact=compact, **given)
        rows = [
            row for one in ranges_of_all for made in read(options, one) for row in made.to_pylist()
        ]
        found[compact] = rows
        for one in ranges_of_all if compact == "true" else ():
            keys = [row["key"] for made in read(options, one) for row in made.to_pylist()]
            assert len(set(keys)) == len(keys)
    assert len(found["true"]) < len(found["false"]) / 2
    newest_of = {compact: {row["key"]: row for row in rows} for compact, rows in found.items()}
    assert newest_of["true"] == newest_of["false"]
    assert newest_of["true"][b"gone"]["value"] is None


def test_parts_are_larger_by_default() -> None:
    given = {"stream": "orders"}
    plain = parse_options(given).target_partition_bytes
    assert parse_options(given | {"compact": "true"}).target_partition_bytes == 2 * plain
    chosen = parse_options(given | {"compact": "true", "targetPartitionBytes": "7"})
    assert chosen.target_partition_bytes == 7


def test_not_for_streaming() -> None:
    with pytest.raises(InvalidArgument, match="compact makes no sense for readStream"):
        parse_options({"stream": "orders", "compact": "true"}, streaming=True)
