"""`--optimize`: few large files instead of many small ones, with the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from support.spark.exporting import Export, ExportedStreams, Put, table

from liftlog.errors import InvalidArgument
from liftlog.spark.export import newest
from liftlog.spark.export.buckets import ALL_KEYS, Bucket
from liftlog.spark.export.packing import PackWork, can_be_packed, plan_packing
from liftlog.spark.export.snapshot import DataFile

WORK = PackWork("/lake", "run", ("offset", "key"))


def file(kind: Any, size_bytes: int, first: int, bucket: Bucket = ALL_KEYS) -> DataFile:
    return DataFile(f"{kind}-{first}-{bucket.number}", kind, 1, size_bytes, first, first, bucket)


def test_an_archive_of_many_runs(streams: ExportedStreams, tmp_path: Path) -> None:
    archive = Export(streams, "in", str(tmp_path / "archive"), mode="append")
    for n in range(6):
        streams.put("in", [Put("a", b"%d" % n), Put(None, b"%d" % n)])
        archive()
    streams.truncate("in", 9)
    before = table(archive.to)
    assert len(newest(archive.to).files) == 6
    summary = archive(optimize=True)
    assert (summary.committed, summary.full, summary.table_files) == (True, False, 1)
    assert table(archive.to) == before
    assert not archive(optimize=True).committed
    streams.put("in", [Put("a", b"new")])
    assert archive(optimize=True).table_files == 1
    assert table(archive.to) == [*before, (13, b"a", b"new")]


def test_a_compacted_table_of_many_runs(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    for n in range(4):
        streams.put("in", [Put(f"k{i}", b"%d" % n * 20) for i in range(n, 40)] + [Put(None, b"x")])
        export(partition_bytes=500)
    before = table(lake)
    files = newest(lake).files
    assert len({one.bucket for one in files if one.kind == "keyed"}) > 4
    assert export(optimize=True).table_files == 2
    assert table(lake) == before
    # The next runs find each key in the bucket that the files say.
    streams.put("in", [Put("k0", None), Put("k39", b"newest")])
    export(partition_bytes=500)
    kept = [row for row in before if row[1] not in (b"k0", b"k39")]
    assert table(lake) == [*kept, (newest(lake).to_offset - 1, b"k39", b"newest")]


@pytest.mark.parametrize("stop_before", range(0, 30, 3))
def test_a_machine_that_stops_meanwhile(
    streams: ExportedStreams, tmp_path: Path, stop_before: int
) -> None:
    from support.disks.crashing_disk import Stopped, disk

    archive = Export(streams, "in", str(tmp_path / "archive"), mode="append")
    for n in range(3):
        streams.put("in", [Put("a", b"%d" % n)])
        archive()
    streams.truncate("in", 3)
    before = table(archive.to)
    with disk(stop_before) as crashing:
        try:
            archive(optimize=True)
        except Stopped:
            crashing.cut_power()
    assert table(archive.to) == before
    archive(optimize=True)
    assert (table(archive.to), len(newest(archive.to).files)) == (before, 1)


def test_delta_has_its_own(streams: ExportedStreams, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="OPTIMIZE"):
        Export(streams, "in", str(tmp_path / "lake"), format="delta")(optimize=True)


def test_files_become_about_so_large() -> None:
    files = [file("records", 40, n) for n in range(5)] + [file("records", 100, 5)]
    stay, tasks = plan_packing(WORK, files, 100)
    assert [[one.min_offset for one in task.files] for task in tasks] == [[0, 1], [2, 3]]
    assert [one.min_offset for one in stay] == [4, 5]
    assert not can_be_packed(stay, 100)


def test_buckets_are_merged_into_those_that_contain_them() -> None:
    files = [file("keyed", 10, n, Bucket(n, 8)) for n in range(8)]
    coarse = file("keyed", 1, 9, Bucket(0, 2))
    stay, tasks = plan_packing(WORK, [*files, coarse], 30)
    assert stay == [coarse]
    assert [(task.bucket, len(task.files)) for task in tasks] == [
        (Bucket(n, 4), 2) for n in range(4)
    ]
    for task in tasks:
        assert all(one.bucket.meets(task.bucket) for one in task.files)


def test_the_bucket_that_a_merged_file_names_is_right(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    import pyarrow.parquet as pq

    streams.put("in", [Put(f"k{n}", b"v" * 50) for n in range(100)])
    export(partition_bytes=300)
    many = len(newest(lake).files)
    export(optimize=True, partition_bytes=12_000)
    files = newest(lake).files
    assert 1 < len(files) < many
    for one in files:
        keys = pq.read_table(Path(lake, one.path)).column("key").to_pylist()
        assert {crc32c(key) % one.bucket.total for key in keys} == {one.bucket.number}
