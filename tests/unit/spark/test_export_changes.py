"""Merge on read: runs that write the changes, readers that leave out replaced rows, and folds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.clients.values import binary
from support.disks.crashing_disk import disk
from support.rounds import fewer, is_torture
from support.spark.exporting import Export, ExportedStreams, Put, table
from support.spark.local_engine import LocalEngine

from liftlog.errors import Conflict, InvalidArgument, StreamNotFound
from liftlog.spark.export import batches, changes, in_doubt, newest, paths, query
from liftlog.spark.export.changes import FOLD_PART, MOST_CHANGES, Rows
from liftlog.spark.export.files import STAGED
from liftlog.spark.export.merging import MergeWork, buckets_to_stage
from liftlog.spark.export.scanning import ScanTask, ScanWork
from liftlog.spark.export.store import LocalStore
from liftlog.spark.options import parse_options
from liftlog.spark.transport import ScanRange

from .test_export_merging import COLUMNS, Row
from .test_export_merging import batches as rows_in_batches

MERGED: dict[str, Any] = {"layout": "merge-on-read"}


def keys(count: int, value: bytes = b"v" * 100) -> list[Put]:
    return [Put(f"k{n}", value) for n in range(count)]


def kinds(lake: str) -> list[str]:
    return sorted({file.kind for file in newest(lake).all_files})


def test_step_by_step(streams: ExportedStreams, export: Export, lake: str) -> None:
    streams.put("in", [*keys(100), Put(None, b"x")])
    first = export(**MERGED)
    assert (first.layout, first.full, first.table_rows) == ("merge-on-read", True, 101)
    assert (kinds(lake), first.written_share) == (["keyed", "keyless"], 1.0)
    base = {file.path for file in newest(lake).files}
    streams.put("in", [Put("k1", b"new"), Put("k2", None), Put("new", b"1"), Put("gone", None)])
    second = export()  # as the table is
    assert (second.rows, second.table_rows, second.files) == (2, 101, 2)
    assert base < {file.path for file in newest(lake).all_files}
    assert kinds(lake) == ["changed", "keyed", "keyless", "removed"]
    rows = table(lake)
    assert rows[-3:] == [(101, None, b"x"), (102, b"k1", b"new"), (104, b"new", b"1")]
    assert [offset for offset, _, _ in rows[:3]] == [1, 4, 5]
    streams.put("in", [Put("k1", None), Put("new", b"2"), Put("k1", b"again")])
    export()
    assert table(lake)[-2:] == [(107, b"new", b"2"), (108, b"k1", b"again")]
    assert (newest(lake).rows, len(newest(lake).removed)) == (101, 2)
    assert base < {file.path for file in newest(lake).all_files}


def test_readers(streams: ExportedStreams, export: Export, lake: str) -> None:
    for reader in (lambda: list(batches(lake)), lambda: query(lake)):
        with pytest.raises(StreamNotFound):
            reader()
    streams.put("in", keys(100))
    export(**MERGED)
    assert len(paths(lake)) == 1
    streams.put("in", [Put("k1", b"new")])
    export()
    with pytest.raises(Conflict, match="merged on read"):
        paths(lake)
    rows = [row for batch in batches(lake, ["value", "key"]) for row in batch.to_pylist()]
    assert len(rows) == 100
    assert [list(row) for row in rows[:1]] == [["value", "key"]]
    assert [row["value"] for row in rows if row["key"] == b"k1"] == [b"new"]
    assert sum(batch.num_rows for batch in batches(lake)) == 100
    with pytest.raises(InvalidArgument, match="did you mean 'subject'"):
        list(batches(lake, ["subjekt"]))
    for file in newest(lake).all_files:
        assert query(lake).count(f"{lake}/{file.path}") == 1


def test_a_fold_when_a_quarter_has_changed(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    streams.put("in", [*keys(100), Put(None, b"x")])
    export(**MERGED)
    seen = []
    for n in range(14):
        streams.put("in", [Put(f"k{n * 5 + i}", b"%d" % i) for i in range(5)])
        export()
        seen.append("removed" in kinds(lake))
    assert seen == [True] * 5 + [False] + [True] * 5 + [False] + [True] * 2
    assert newest(lake).rows == len(table(lake)) == 101
    streams.put("in", [Put(f"k{n}", b"at once") for n in range(40)])
    export()
    assert (kinds(lake), newest(lake).layout) == (["keyed", "keyless"], "merge-on-read")


def test_copy_on_write_again(streams: ExportedStreams, export: Export, lake: str) -> None:
    streams.put("in", keys(100))
    export(**MERGED)
    streams.put("in", [Put("k1", b"1"), Put("k2", None)])
    export()
    before = table(lake)
    assert not export().committed
    assert export(layout="copy-on-write").committed
    assert (table(lake), kinds(lake)) == (before, ["keyed"])
    assert len(paths(lake)) == 1
    streams.put("in", [Put("k3", b"1")])
    export()
    assert (kinds(lake), newest(lake).layout) == (["keyed"], "copy-on-write")
    assert export(layout="merge-on-read").committed
    streams.put("in", [Put("k4", b"1")])
    export()
    assert kinds(lake) == ["changed", "keyed", "removed"]
    assert export(optimize=True).committed
    assert (kinds(lake), newest(lake).layout) == (["keyed"], "merge-on-read")


def test_an_archive_has_no_layout_to_choose(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    streams.put("in", keys(10))
    export(**MERGED)
    streams.put("in", [Put("k1", b"1")])
    export()
    made = export(mode="append", full=True, discard_rows=True)
    assert (made.layout, newest(lake).layout) == ("copy-on-write",) * 2
    assert not export().committed
    assert export(dry_run=True).layout == "copy-on-write"


def test_retention(streams: ExportedStreams, export: Export, lake: str) -> None:
    streams.put("in", [*keys(50), Put(None, b"x"), Put(None, b"y"), *keys(50), Put(None, b"z")])
    export(**MERGED)
    streams.put("in", [Put("k7", b"1")])
    export()
    for start in (52, 54, 60):
        streams.truncate("in", start)
        assert export().committed
        assert not export().committed
        assert min(offset for offset, _, _ in table(lake)) >= start
    assert kinds(lake) == ["changed", "keyed", "keyless", "removed"]
    assert len(table(lake)) == newest(lake).rows == 44
    streams.truncate("in", newest(lake).to_offset)
    export()
    assert (table(lake), newest(lake).files) == ([], ())


def test_only_offsets_are_left_of_a_fine_division(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    """Because of large values, half of the keys have more buckets. Then these keys are deleted. The
    files of their rows are removed, but the files of their offsets are not."""
    names = [f"k{n}" for n in range(2000)]
    even, odd = ([one for one in names if crc32c(one.encode()) % 2 == half] for half in (0, 1))
    odd = odd[:20]
    large = bytes(range(256)) * 40

    def run(puts: list[Put], **asked: Any) -> None:
        streams.put("in", puts)
        export(partition_bytes=8192, **asked)

    run([*[Put(key, b"v" * 10) for key in even], *[Put(key, b"v") for key in odd]], **MERGED)
    run([Put(key, large) for key in odd], layout="copy-on-write")
    run([Put(key, large) for key in odd], **MERGED)
    run([Put(key, None) for key in odd])
    rows = {file.bucket.total for file in newest(lake).files}
    assert max(rows) < min(file.bucket.total for file in newest(lake).removed)
    run([Put(key, b"again") for key in [*odd, *even[:5]]])
    found = [key for _, key, _ in table(lake)]
    assert sorted(found) == sorted(key.encode() for key in [*even, *odd])


def test_keys_in_doubt(streams: ExportedStreams, export: Export, lake: str) -> None:
    streams.put("in", keys(40))
    export(**MERGED)
    streams.put("in", [Put("k1", b"lost")])
    streams.damage("in", 41)
    streams.put("in", [Put("k2", b"1")])
    assert export(skip_lost=True).keys_in_doubt == 39
    found = {key for batch in in_doubt(lake) for key in batch.column("key").to_pylist()}
    assert (len(found), b"k2" in found) == (39, False)


def test_what_cannot_be_merged_on_read(streams: ExportedStreams, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="deletion vectors"):
        Export(streams, "in", str(tmp_path / "d"), format="delta", **MERGED)()
    archive = Export(streams, "in", str(tmp_path / "a"), mode="append")
    with pytest.raises(InvalidArgument, match="mode append"):
        archive(**MERGED)
    archive()
    with pytest.raises(InvalidArgument, match="mode append"):
        archive(**MERGED)


class Lake:
    """A table without a stream."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = LocalStore(directory)
        self.rows = Rows([], [])
        self.runs = 0
        self.folds = 0

    def run(self, ranges: list[list[Row]], bucket_bytes: int, start: int, fold: bool) -> int:
        """Run, and return the number of written bytes."""
        self.runs += 1
        directory = f"run{self.runs}"
        self.store.make_directory(f"{directory}/{STAGED}")
        options = parse_options({"stream": "in", "server": "h:1", "columns": ",".join(COLUMNS)})
        most = sum(len(row[1] or b"") + len(row[2] or b"") for rows in ranges for row in rows)
        old = [*self.rows.files, *self.rows.removed]
        buckets = buckets_to_stage(old, most, bucket_bytes)
        scan = ScanWork(str(self.directory), directory, "compacted", options, buckets)
        staged, keyless = [], []
        for rows in ranges:
            last = {row[1]: row for row in rows if row[1] is not None}
            kept = [row for row in rows if row[1] is None or last[row[1]] == row]
            done = ScanTask(scan, ScanRange("in", "", 1, 0, 1)).write(rows_in_batches(kept))
            staged += done.staged
            keyless += done.files
        work = MergeWork(str(self.directory), directory, COLUMNS, start)
        engine, tell = LocalEngine(), lambda phase, done, total: None
        if fold or changes.must_fold(self.rows, staged):
            self.folds += 1
            self.rows = changes.fold(engine, tell, work, self.rows, staged, buckets, bucket_bytes)
        else:
            self.rows = changes.add_changes(engine, tell, work, self.rows, staged, bucket_bytes)
        self.rows.files.extend(keyless)
        files = [*self.rows.files, *self.rows.removed]
        return sum(one.size_bytes for one in files if one.path.startswith(directory + "/"))

    def live(self) -> list[Row]:
        import pyarrow.parquet as pq

        def read(path: str) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = pq.ParquetFile(self.directory / path).read().to_pylist()
            return found

        listed = [row["offset"] for file in self.rows.removed for row in read(file.path)]
        gone = set(listed)
        assert len(gone) == len(listed)
        found: list[Row] = []
        for file in self.rows.files:
            rows = [row for row in read(file.path) if row["offset"] not in gone]
            assert len(rows) == file.live_rows
            found += [(row["offset"], row["key"], row["value"]) for row in rows]
        return sorted(found, key=lambda row: row[0])


KEYS = st.none() | st.sampled_from([b"", b"\0", *(b"k%d" % n for n in range(40))])
RANGES = st.lists(st.lists(st.tuples(KEYS, st.none() | binary(30)), max_size=12), max_size=2)
RUNS = st.lists(
    st.tuples(RANGES, st.sampled_from([5, 40, 2**30]), st.sampled_from([0, 0, 0.2]), st.booleans()),
    max_size=8,
)


@settings(
    deadline=None,
    max_examples=100 if is_torture() else fewer(3),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(runs=RUNS, most=st.sampled_from([1, 2, MOST_CHANGES]), part=st.sampled_from([0.25, 5.0]))
def test_any_runs(tmp_path_factory: Any, runs: Any, most: int, part: float) -> None:
    lake = Lake(tmp_path_factory.mktemp("lake"))
    model: list[Row] = [(n, b"k%d" % n, b"first") for n in range(40)]
    start = 0
    with pytest.MonkeyPatch.context() as patch, disk():  # without fsync
        patch.setattr(changes, "MOST_CHANGES", most)
        patch.setattr(changes, "FOLD_PART", part)
        lake.run([list(model)], 40, start, True)
        for sent, bucket_bytes, removed, fold in runs:
            start += int((len(model) - start) * removed)
            ranges = []
            for messages in sent:
                first = len(model)
                model += [(first + n, *one) for n, one in enumerate(messages)]
                ranges.append(model[first:])
            lake.run(ranges, bucket_bytes, start, fold)
            last = {key: offset for offset, key, _ in model}
            assert lake.live() == [
                (offset, key, value)
                for offset, key, value in model
                if offset >= start and (key is None or (last[key] == offset and value is not None))
            ]
            for bucket in {file.bucket for file in lake.rows.removed}:
                assert sum(file.bucket == bucket for file in lake.rows.removed) <= most


@pytest.mark.parametrize(
    ("count", "folded", "ends"),
    [
        pytest.param(2_500, 1, 0.07, id="few"),
        pytest.param(10_000, 2, 0.05, id="many", marks=pytest.mark.long),
    ],
)
def test_the_bound_of_what_is_written(tmp_path: Path, count: int, folded: int, ends: float) -> None:
    """A long series with changes of 1 % of the keys each: the bytes that a run writes, the bytes of
    all runs, and the bytes that a reader reads in addition to the keyed files. `ends` is the share
    of the footers of small files."""
    import random

    lake, chance = Lake(tmp_path), random.Random(1)
    offset = 0

    def some(numbers: list[int]) -> list[Row]:
        nonlocal offset
        rows = [
            (offset + n, b"key%d" % key, chance.randbytes(200)) for n, key in enumerate(numbers)
        ]
        offset += len(rows)
        return rows

    lake.run([some(list(range(count)))], 2**16, 0, False)
    base = sum(file.size_bytes for file in lake.rows.files)
    first_files = len(lake.rows.files)
    assert first_files == count * 32 // 10_000
    shares, most_files, most_bytes = [], 0, 0
    for _ in range(40):
        with disk():  # without fsync
            shares.append(
                lake.run([some(chance.sample(range(count), count // 100))], 2**16, 0, False)
            )
        files = [*lake.rows.files, *lake.rows.removed]
        most_files = max(most_files, len(files))
        most_bytes = max(most_bytes, sum(file.size_bytes for file in files))
    folds = lake.folds - 1
    assert folds == folded
    assert len(lake.live()) == count
    shares = [size_bytes / base for size_bytes in shares]
    light = sorted(shares)[:-folds]
    assert sum(light[:30]) / 30 < 0.02
    amplification = 1 + (1 + FOLD_PART) / FOLD_PART
    # The changes themselves, folded; and the changes of MOST_CHANGES runs, made one file.
    assert sum(shares) / 40 < 0.013 * amplification + FOLD_PART / MOST_CHANGES
    assert most_bytes < base * (1 + FOLD_PART + ends)
    assert most_files <= 2 * first_files + first_files // 4 * 2 * MOST_CHANGES
