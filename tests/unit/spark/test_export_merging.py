"""Merging by buckets compared with a dict, without a stream: the tasks and their plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.clients.values import binary
from support.rounds import fewer, is_torture
from support.spark.local_engine import LocalEngine, rows_of

from liftlog.errors import StorageError
from liftlog.spark.columns import schema_of
from liftlog.spark.export import files
from liftlog.spark.export.buckets import (
    ALL_KEYS,
    MOST_BUCKETS,
    Bucket,
    buckets_for,
    numbers_of,
)
from liftlog.spark.export.files import STAGED, StagedWriter, read_part, read_rows
from liftlog.spark.export.merging import MergeWork, buckets_to_stage, plan_merge
from liftlog.spark.export.scanning import ScanTask, ScanWork
from liftlog.spark.export.snapshot import DataFile, file_name, parse_file_name
from liftlog.spark.export.store import LocalStore
from liftlog.spark.options import parse_options
from liftlog.spark.transport import ScanRange

COLUMNS = ("offset", "key", "value")
SCHEMA = schema_of(COLUMNS)
LARGE = 2**30

Row = tuple[int, bytes | None, bytes | None]


class Lake:
    """A table of one stream, run by run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = LocalStore(directory)
        self.files: list[DataFile] = []
        self.runs = 0
        self.tasks: list[Any] = []

    def run(self, ranges: list[list[Row]], bucket_bytes: int = LARGE, start: int = 0) -> None:
        self.runs += 1
        directory = f"run{self.runs}"
        self.store.make_directory(f"{directory}/{STAGED}")
        options = parse_options({"stream": "in", "server": "h:1", "columns": ",".join(COLUMNS)})
        most = sum(len(row[1] or b"") + len(row[2] or b"") for rows in ranges for row in rows)
        buckets = buckets_to_stage(self.files, most, bucket_bytes)
        work = ScanWork(str(self.directory), directory, "compacted", options, buckets)
        done = []
        for rows in ranges:
            newest = {row[1]: row for row in rows if row[1] is not None}
            kept = [row for row in rows if row[1] is None or newest[row[1]] == row]
            done.append(ScanTask(work, ScanRange("in", "", 1, 0, 1)).write(batches(kept)))
        staged = [file for one in done for file in one.staged]
        merge = MergeWork(str(self.directory), directory, COLUMNS, start)
        stay, tasks = plan_merge(merge, self.files, staged, bucket_bytes)
        merged = LocalEngine().run("merge", tasks, lambda phase, did, total: None)
        self.tasks = tasks
        self.files = stay + [file for one in (*done, *merged) for file in one.files]

    def rows(self) -> list[Row]:
        found: list[Any] = rows_of([self.directory / file.path for file in self.files])
        rows = [(row["offset"], row["key"], row["value"]) for row in found]
        return sorted(rows, key=lambda row: row[0])

    def check(self) -> None:
        """Check that each file agrees with its description."""
        for file in self.files:
            rows = pq.read_table(self.directory / file.path).to_pylist()
            offsets = [row["offset"] for row in rows]
            assert (len(rows), min(offsets)) == (file.rows, file.min_offset)
            assert max(offsets) == file.max_offset
            if file.kind == "keyed":
                numbers = {crc32c(row["key"]) % file.bucket.total for row in rows}
                assert numbers == {file.bucket.number}
            assert parse_file_name(file.path.rpartition("/")[2]) == (file.kind, file.bucket)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def batches(rows: list[Row]) -> Iterator[pa.RecordBatch]:
    for row in rows:
        yield pa.RecordBatch.from_pylist([dict(zip(COLUMNS, row, strict=True))], schema=SCHEMA)


KEYS = st.none() | st.sampled_from([b"", b"\0", *(b"k%d" % n for n in range(12))])
RANGES = st.lists(st.lists(st.tuples(KEYS, st.none() | binary(30))), max_size=3)
RUNS = st.lists(st.tuples(RANGES, st.sampled_from([5, 40, LARGE]), st.floats(0, 1)), max_size=5)


@settings(
    deadline=None,
    max_examples=100 if is_torture() else fewer(15),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(runs=RUNS, portion=st.sampled_from([1, LARGE]))
def test_runs_with_any_number_of_buckets(tmp_path_factory: Any, runs: Any, portion: int) -> None:
    lake = Lake(tmp_path_factory.mktemp("lake"))
    model: list[Row] = []
    start = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_PORTION_BYTES", portion)
        patch.setattr(files, "_ROW_GROUP_BYTES", portion)
        patch.setattr(files, "_READ_BYTES", portion)
        for sent, bucket_bytes, removed in runs:
            start += int((len(model) - start) * removed)
            ranges = []
            for messages in sent:
                first = len(model)
                model += [(first + n, *one) for n, one in enumerate(messages)]
                ranges.append(model[first:])
            lake.run(ranges, bucket_bytes, start)
            newest = {key: offset for offset, key, _ in model}
            assert lake.rows() == [
                (offset, key, value)
                for offset, key, value in model
                if offset >= start
                and (key is None or (newest[key] == offset and value is not None))
            ]
            lake.check()


def some(count: int, first: int = 0) -> list[Row]:
    return [(first + n, b"k%d" % n, b"v" * 10) for n in range(count)]


def test_only_buckets_that_something_came_into_are_written_again(lake: Lake) -> None:
    lake.run([some(200)], 300)
    before = {file.bucket: file for file in lake.files}
    total = len(before)
    assert total > 4
    assert {bucket.total for bucket in before} == {total}
    lake.run([[(200, b"k7", b"new")]])
    after = {file.bucket: file for file in lake.files}
    touched = Bucket(crc32c(b"k7") % total, total)
    assert {bucket for bucket in before if before[bucket] != after[bucket]} == {touched}
    assert len(lake.tasks) == 1
    assert len(lake.rows()) == 200


def test_a_table_that_grows_has_more_buckets_and_keeps_them(lake: Lake) -> None:
    totals = []
    for rows, bucket_bytes in ((10, LARGE), (400, 4000), (5, LARGE)):
        lake.run([some(rows, sum(totals) * 1000)], bucket_bytes)
        totals.append(max(file.bucket.total for file in lake.files))
        lake.check()
    assert totals[0] == 1 < totals[1] == totals[2]
    assert len(lake.rows()) == 400


def test_all_keys_in_one_bucket(lake: Lake) -> None:
    same = [row for row in some(2000) if crc32c(row[1] or b"") % 8 == 3]
    lake.run([same], sum(len(row[1] or b"") + 10 for row in same) // 8 + 1)
    assert [task.bucket for task in lake.tasks][1:] == []
    assert lake.tasks[0].bucket.number == 3 % lake.tasks[0].bucket.total
    assert lake.rows() == same


def test_files_that_know_no_bucket(lake: Lake) -> None:
    """Files of old manifests and of other tools: each task takes its own rows from them."""
    lake.run([some(50)])
    assert {file.bucket for file in lake.files} == {ALL_KEYS}
    lake.run([some(50, 50)], 100)
    assert len(lake.tasks) > 4
    assert [row[0] for row in lake.rows()] == list(range(50, 100))


def test_a_file_of_another_tool(lake: Lake) -> None:
    """Rows with and without keys, one large row group, and other but compatible types."""
    rows: list[Row] = [*some(40), (40, None, b"x"), (41, b"", b"y")]
    schema = pa.schema([("value", pa.large_binary()), ("key", pa.large_binary()), ("offset", "i8")])
    table = pa.Table.from_pylist([dict(zip(COLUMNS, row, strict=True)) for row in rows])
    pq.write_table(table.select(schema.names).cast(schema), lake.directory / "part-0.parquet")
    size = (lake.directory / "part-0.parquet").stat().st_size
    lake.files = [DataFile("part-0.parquet", "records", 0, size, 0, 2**63 - 1)]
    lake.run([[(42, b"k1", None)]], 200)
    assert len(lake.tasks) > 1
    assert lake.rows() == [row for row in rows if row[1] != b"k1"]
    assert sorted({file.kind for file in lake.files}) == ["keyed", "keyless"]


def test_rows_are_read_in_portions(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_READ_BYTES", 4000)
    monkeypatch.setattr(files, "_PORTION_BYTES", 4000)
    rows = [(n, b"k%d" % n, b"v" * 400) for n in range(100)]
    lake.store.make_directory("s")
    with StagedWriter(lake.store, "s", SCHEMA, 4) as writer:
        for batch in batches(rows):
            writer.add(batch)
        (file,) = writer.finish()
    assert (len(file.rows), sum(file.rows)) == (4, 100)
    found = []
    for bucket in (Bucket(0, 2), Bucket(1, 2)):
        found += [read_part(lake.store, file.part(bucket), COLUMNS)]
    with pytest.raises(ValueError, match="has 4 buckets, not 8"):
        file.part(Bucket(1, 8))
    read = [batch for parts in found for batch in parts]
    assert max(batch.nbytes for batch in read) < 6000
    assert sorted(row["offset"] for one in read for row in one.to_pylist()) == list(range(100))
    lake.run([rows])
    (kept,) = lake.files
    read = list(read_rows(lake.store, kept, SCHEMA))
    assert sum(batch.num_rows for batch in read) == 100
    assert max(batch.nbytes for batch in read) < 6000
    assert [batch.schema for batch in read] == [SCHEMA] * len(read)


def test_a_file_with_other_rows_than_told(lake: Lake) -> None:
    lake.run([some(10)])
    (file,) = lake.files
    lake.files = [DataFile(file.path, "keyed", 11, file.size_bytes, 0, 9)]
    with pytest.raises(StorageError, match="contains 10 rows instead of 11"):
        lake.run([[(10, b"x", b"1")]])


@given(st.integers(0, 2**50), st.integers(1, 2**40))
def test_the_number_of_buckets(size_bytes: int, bucket_bytes: int) -> None:
    total = buckets_for(size_bytes, bucket_bytes)
    assert total.bit_count() == 1
    assert total == MOST_BUCKETS or size_bytes <= total * bucket_bytes
    assert total == 1 or size_bytes > total // 2 * bucket_bytes


BUCKETS = st.integers(0, 6).flatmap(
    lambda power: st.builds(Bucket, st.integers(0, 2**power - 1), st.just(2**power))
)


@given(BUCKETS, BUCKETS)
def test_buckets_that_meet(one: Bucket, other: Bucket) -> None:
    both = [n for n in range(64) if n % one.total == one.number and n % other.total == other.number]
    assert one.meets(other) == other.meets(one) == bool(both)


@given(st.lists(st.none() | st.binary(max_size=5)), st.sampled_from([1, 2, 64]))
def test_the_bucket_of_a_key(keys: list[bytes | None], total: int) -> None:
    found = numbers_of(pa.array(keys, pa.binary()), total)
    assert found.tolist() == [crc32c(key or b"") % total for key in keys]


@given(BUCKETS)
def test_names_of_files(bucket: Bucket) -> None:
    assert parse_file_name(file_name("keyed", bucket, "0" * 32)) == ("keyed", bucket)
    assert parse_file_name("keyed-x.parquet") is None
    assert parse_file_name("part-00000-" + "0" * 32 + ".parquet") is None
