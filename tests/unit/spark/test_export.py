"""Runs of the export against a real broker, with Parquet files and without Spark."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from crc32c import crc32c
from support.crashing_disk import Stopped, disk
from support.exporting import Export, ExportedStreams, Put, table
from support.local_engine import LocalEngine
from support.pull_broker import LoggedStream

from liftlog.client import connect_sync
from liftlog.errors import (
    Conflict,
    CorruptMetadata,
    CorruptRange,
    Diverged,
    InvalidArgument,
    LeaseGone,
    OffsetOutOfRange,
    StaleIncarnation,
    StorageError,
    StreamNotFound,
    UnsupportedFormat,
)
from liftlog.spark.export import job, newest, paths
from liftlog.spark.export.run_plan import plan_under_lease
from liftlog.spark.export.snapshot import decode_manifest, encode_manifest
from liftlog.spark.export.store import Disk, LocalStore

HOUR = 3600.0


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[ExportedStreams]:
    with ExportedStreams(tmp_path / "data") as streams:
        streams.create("in")
        yield streams


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


@pytest.fixture
def export(streams: ExportedStreams, lake: str) -> Export:
    return Export(streams, "in", lake)


def test_compacted_step_by_step(streams: ExportedStreams, export: Export, lake: str) -> None:
    streams.put("in", [Put("a", b"1"), Put("b", b"2"), Put(None, b"3"), Put("a", b"4")])
    first = export()
    assert table(lake) == [(2, b"b", b"2"), (3, None, b"3"), (4, b"a", b"4")]
    assert (first.committed, first.full, first.from_offset, first.to_offset) == (True, True, 1, 5)
    assert (first.rows, first.files, first.table_rows, first.sequence) == (3, 2, 3, 1)
    streams.put("in", [Put("b", None), Put("c", b"6"), Put(None, b"7")])
    second = export()
    assert table(lake) == [(3, None, b"3"), (4, b"a", b"4"), (6, b"c", b"6"), (7, None, b"7")]
    assert (second.full, second.from_offset, second.to_offset) == (False, 5, 8)
    assert (second.rows, second.table_rows, second.sequence) == (3, 4, 2)
    third = export()
    assert (third.committed, third.table_rows, third.sequence) == (False, 4, 2)
    streams.put("in", [Put("a", None), Put("c", None)])
    assert export().rows == 0
    assert table(lake) == [(3, None, b"3"), (7, None, b"7")]


def test_append(streams: ExportedStreams, export: Export, lake: str) -> None:
    streams.put("in", [Put("a", b"1"), Put("a", None), Put(None, b"3")])
    export(mode="append")
    streams.put("in", [Put("a", b"4")])
    streams.truncate("in", 3)
    export()  # as the table is
    rows = [(1, b"a", b"1"), (2, b"a", None), (3, None, b"3"), (4, b"a", b"4")]
    assert table(lake) == rows
    assert newest(lake).mode == "append"


def test_an_empty_stream_is_an_empty_table(export: Export, lake: str) -> None:
    first = export()
    assert (first.committed, first.rows, first.to_offset) == (True, 0, 1)
    assert newest(lake).files == ()
    assert table(lake) == []
    assert not export().committed


def test_files_without_a_key_are_not_written_again(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    streams.put("in", [Put("a", b"1"), Put(None, b"2")])
    export()
    before = {file.kind: file for file in newest(lake).files}
    streams.put("in", [Put(None, b"3")])
    export()
    assert before["keyed"] in newest(lake).files  # there was nothing to merge it with
    streams.put("in", [Put("a", b"4")])
    export()
    assert before["keyless"] in newest(lake).files
    assert before["keyed"] not in newest(lake).files
    assert table(lake) == [(2, None, b"2"), (3, None, b"3"), (4, b"a", b"4")]


# --- what happens to a stream between two runs ---


def test_what_retention_removes_goes_from_the_table_too(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    streams.put("in", [Put("old", b"1"), Put(None, b"2"), Put(None, b"3"), Put("a", b"4")])
    export()
    streams.truncate("in", 3)
    incremental = export()  # nothing new has come
    assert (incremental.committed, incremental.full) == (True, False)
    assert table(lake) == [(3, None, b"3"), (4, b"a", b"4")]
    export(full=True)
    assert table(lake) == [(3, None, b"3"), (4, b"a", b"4")]


def test_a_table_that_lags_behind_retention(
    streams: ExportedStreams, export: Export, lake: str, tmp_path: Path
) -> None:
    streams.put("in", [Put("a", b"1"), Put("b", b"2")])
    archive = Export(streams, "in", str(tmp_path / "archive"))
    archive(mode="append")
    export()
    streams.put("in", [Put("a", b"3"), Put("b", None), Put("c", b"5")])
    streams.truncate("in", 5)
    again = export()
    assert (again.full, again.from_offset) == (True, 5)
    assert "retention has removed the records from 3 to below 5" in again.reason
    assert table(lake) == [(5, b"c", b"5")]
    with pytest.raises(OffsetOutOfRange, match="--skip-lost"):
        archive()
    gap = archive(skip_lost=True)
    assert [(one.first_offset, one.next_offset) for one in gap.lost] == [(3, 5)]
    assert newest(archive.to).lost == gap.lost
    assert [offset for offset, _, _ in table(archive.to)] == [1, 2, 5]


def test_tombstones_that_were_removed_unseen(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    streams.put("in", [Put("gone", b"1"), Put("kept", b"2")])
    export()
    streams.put("in", [Put("gone", None)])
    streams.compact("in")
    streams.advance(2 * HOUR)
    streams.put("in", [Put("other", b"4")])
    streams.compact("in")
    assert streams.log("in").tombstones_removed_below > 3
    again = export()
    assert again.full
    assert "tombstones" in again.reason
    assert table(lake) == [(2, b"kept", b"2"), (4, b"other", b"4")]


def test_a_compacted_stream_exports_incrementally(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    for turn in range(3):
        streams.put("in", [Put(f"k{n % 20}", b"%d" % turn * 60) for n in range(100)])
        streams.compact("in")
        assert not export().full or turn == 0
    found = table(lake)
    assert [key for _, key, _ in found] == [b"k%d" % n for n in range(20)]
    assert [offset for offset, _, _ in found] == list(range(281, 301))


def test_a_stream_made_anew(streams: ExportedStreams, export: Export, lake: str) -> None:
    streams.put("in", [Put("a", b"old")])
    export()
    streams.delete("in")
    streams.create("in")
    streams.put("in", [Put("a", b"new"), Put("b", b"new")])
    with pytest.raises(StaleIncarnation, match="created anew"):
        export()
    assert table(lake) == [(1, b"a", b"old")]
    assert export(full=True).full
    assert table(lake) == [(1, b"a", b"new"), (2, b"b", b"new")]


def test_a_stream_that_lost_its_end(streams: ExportedStreams, export: Export, lake: str) -> None:
    streams.put("in", [Put("a", b"1"), Put("a", b"2"), Put("a", b"3")])
    export()
    log = streams.log("in")
    streams.run(lambda: log.truncate_suffix(2))
    assert log.log_end_offset == 1
    with pytest.raises(Diverged, match="before what was exported, 4"):
        export()
    streams.run(lambda: log._note_epochs((*log.epochs, (log.leader_epoch + 1, 1))))
    keys, values = [b"a", b"b", b"b", b"b"], [b"1", b"other", b"history", b"here"]
    streams.run(lambda: LoggedStream("in", log).append(values, keys=keys))
    with pytest.raises(Diverged):
        export()
    export(full=True)
    assert table(lake) == [(1, b"a", b"1"), (4, b"b", b"here")]


def test_a_directory_is_for_one_table(streams: ExportedStreams, export: Export, lake: str) -> None:
    streams.put("in", [Put("a", b"1"), Put("a", b"2")])
    export()
    with pytest.raises(Conflict, match="its mode is compacted, not append"):
        export(mode="append")
    with pytest.raises(Conflict, match="its columns are offset"):
        export(headers=False)
    streams.create("other")
    for full in (False, True):
        with pytest.raises(Conflict, match="holds stream 'in', not 'other'"):
            Export(streams, "other", lake)(full=full)
    export(mode="append", full=True)
    assert table(lake) == [(1, b"a", b"1"), (2, b"a", b"2")]


# --- what goes wrong ---


def test_damaged_records(streams: ExportedStreams, export: Export, lake: str) -> None:
    for n in range(3):
        streams.put("in", [Put("a", b"%d" % n), Put(None, b"%d" % n)])
    streams.damage("in", 3)
    with pytest.raises(CorruptRange):
        export()
    assert newest(lake) is None
    assert os.listdir(f"{lake}/_runs") == []
    summary = export(skip_lost=True)
    assert [(one.first_offset, one.next_offset) for one in summary.lost] == [(3, 5)]
    assert table(lake) == [(2, None, b"0"), (5, b"a", b"2"), (6, None, b"2")]


def test_a_lease_that_ends_early(streams: ExportedStreams, export: Export, lake: str) -> None:
    streams.put("in", [Put("a", b"1")])

    def release_all() -> None:
        with connect_sync(f"tcp://{streams.server}") as client:
            for lease in client.list_leases("in"):
                client.release_lease("in", lease.lease_id)

    export.under_lease = release_all
    with pytest.raises(LeaseGone, match="nothing was exported"):
        export()
    assert newest(lake) is None


def test_the_lease_is_given_back(streams: ExportedStreams, export: Export) -> None:
    streams.put("in", [Put("a", b"1")])
    held: list[Any] = []

    def look() -> None:
        with connect_sync(f"tcp://{streams.server}") as client:
            held.extend(client.list_leases("in"))

    export.under_lease = look
    export()
    assert [(one.low, one.high, one.holder) for one in held] == [(1, 2, held[0].holder)]
    assert "export-lake" in held[0].holder
    look()
    assert len(held) == 1


def test_what_comes_meanwhile_waits_for_the_next_run(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    streams.put("in", [Put("a", b"1"), Put("b", b"2")])

    def more() -> None:
        streams.put("in", [Put("a", b"3")])
        streams.compact("in")
        streams.truncate_before_leases("in", 4)

    export.under_lease = more
    assert export().to_offset == 3
    assert table(lake) == [(1, b"a", b"1"), (2, b"b", b"2")]


def test_a_manifest_that_is_damaged(streams: ExportedStreams, export: Export, lake: str) -> None:
    streams.put("in", [Put("a", b"1"), Put("a", b"2")])
    export()
    path = Path(lake, "_manifest", f"{1:020d}.json")
    good = path.read_bytes()
    for position in range(0, len(good), 7):
        bad = bytearray(good)
        bad[position] ^= 0x04
        path.write_bytes(bad)
        with pytest.raises(CorruptMetadata):
            newest(lake)
    for length in range(0, len(good), 97):
        path.write_bytes(good[:length])
        with pytest.raises(CorruptMetadata):
            newest(lake)
    with pytest.raises(CorruptMetadata, match="--full"):
        export()
    summary = export(full=True)
    (warning,) = summary.warnings
    assert "does not count" in warning
    assert summary.sequence == 2
    assert table(lake) == [(2, b"a", b"2")]
    for n in range(3):  # and it does not keep what nobody needs for ever
        streams.put("in", [Put("a", b"%d" % n)])
        assert export(keep_seconds=0.0).warnings == ()
    assert not path.exists()
    assert len(os.listdir(f"{lake}/_runs")) == 2


def test_the_manifest_as_its_page_says(streams: ExportedStreams, export: Export, lake: str) -> None:
    """Read by a program that knows nothing but docs/reference/export.md."""
    streams.put("in", [Put("a", b"1"), Put("a", b"2"), Put(None, b"3")])
    export()
    raw = max(Path(lake, "_manifest").glob("[0-9]*.json")).read_bytes()
    manifest = json.loads(raw)
    body, _, _ = raw.partition(b',\n"crc32c"')
    assert manifest["crc32c"] == f"{crc32c(body):08x}"
    page = Path(__file__).parents[3].joinpath("docs/reference/export.md").read_text()
    assert set(manifest) <= set(re.findall(r"`(\w+)`", page))
    assert [*manifest][-1] == "crc32c"
    rows = 0
    for file in manifest["files"]:
        assert set(file) <= set(re.findall(r"`(\w+)`", page))
        path = Path(lake, file["path"])
        offsets = pq.read_table(path).column("offset").to_pylist()
        assert (path.stat().st_size, len(offsets)) == (file["size_bytes"], file["rows"])
        assert (min(offsets), max(offsets)) == (file["min_offset"], file["max_offset"])
        rows += len(offsets)
    assert rows == manifest["rows"] == 2
    info = streams.log("in")
    assert manifest["incarnation"] == info.incarnation
    assert (manifest["from_offset"], manifest["to_offset"]) == (1, 4)
    # A reader ignores what it does not know.
    more = body + b',\n"more":1'
    assert decode_manifest(more + b',\n"crc32c":"%08x"}\n' % crc32c(more), "m").rows == 2
    newer = body.replace(b'"version":1', b'"version":2')
    with pytest.raises(UnsupportedFormat, match="version 2"):
        decode_manifest(newer + b',\n"crc32c":"%08x"}\n' % crc32c(newer), "m")


def test_a_manifest_from_before_there_were_buckets(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    streams.put("in", [Put(f"k{n}", b"1") for n in range(9)])
    export()
    path = Path(lake, "_manifest", f"{1:020d}.json")
    body, _, _ = path.read_bytes().replace(b',"bucket":[0,1]', b"").partition(b',\n"crc32c"')
    assert b"bucket" not in body
    path.write_bytes(body + b',\n"crc32c":"%08x"}\n' % crc32c(body))
    assert [file.bucket for file in newest(lake).files] == [(0, 1)]
    streams.put("in", [Put("k3", b"2"), Put("k4", None)])
    export(partition_bytes=1000)
    assert len(newest(lake).files) > 1
    assert [(offset, value) for offset, _, value in table(lake)] == [
        *((n, b"1") for n in (1, 2, 3, 6, 7, 8, 9)),
        (10, b"2"),
    ]


@pytest.mark.parametrize("bucket", [(0, 3), (2, 2), (-1, 2), (0, 0), (0, -4), ("0", 1), (0, True)])
def test_buckets_that_make_no_sense(
    streams: ExportedStreams, export: Export, lake: str, bucket: Any
) -> None:
    streams.put("in", [Put("a", b"1")])
    export()
    snapshot = newest(lake)
    bad = encode_manifest(replace(snapshot, files=(replace(snapshot.files[0], bucket=bucket),)))
    with pytest.raises(CorruptMetadata):
        decode_manifest(bad, "m")


@pytest.mark.parametrize("path", ["/etc/passwd", "../x.parquet", "a/../../x", "a b", ""])
def test_paths_that_lead_out_of_the_table(
    streams: ExportedStreams, export: Export, lake: str, path: str
) -> None:
    streams.put("in", [Put("a", b"1")])
    export()
    snapshot = newest(lake)
    (file,) = snapshot.files
    bad = encode_manifest(replace(snapshot, files=(replace(file, path=path),)))
    with pytest.raises(CorruptMetadata):
        decode_manifest(bad, "m")


def test_no_hard_links(
    streams: ExportedStreams, export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoLinks(Disk):
        def link(self, existing: Path, new: Path) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(LocalStore, "disk", NoLinks())
    with pytest.raises(InvalidArgument, match=r"knows no hard links.*--format delta"):
        export()


def test_links_that_replace(export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    class Replacing(Disk):
        def link(self, existing: Path, new: Path) -> None:
            shutil.copy(existing, new)

    monkeypatch.setattr(LocalStore, "disk", Replacing())
    with pytest.raises(InvalidArgument, match="--format delta"):
        export()


@pytest.mark.parametrize("url", ["s3://bucket/lake", "hdfs://host/lake"])
def test_object_stores_are_for_delta(streams: ExportedStreams, url: str) -> None:
    with pytest.raises(InvalidArgument, match="--format delta"):
        Export(streams, "in", url)()


def _tampered(monkeypatch: pytest.MonkeyPatch, after: str, change: Callable[[], object]) -> None:
    """Between a phase and whoever needs its files."""
    run = LocalEngine.run

    def tampered(self: LocalEngine, phase: str, *rest: Any) -> Any:
        found = run(self, phase, *rest)
        if phase == after:
            change()
        return found

    monkeypatch.setattr(LocalEngine, "run", tampered)


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_staged_file_that_a_merge_does_not_find_whole(
    streams: ExportedStreams,
    export: Export,
    lake: str,
    monkeypatch: pytest.MonkeyPatch,
    left: int,
) -> None:
    """As where not all hosts share the directory: gone, short, or another one of that size."""
    for n in range(3):
        streams.put("in", [Put("a", b"%d" % n * 100)])

    def change() -> None:
        for path in Path(lake).glob("_runs/*/staged/*"):
            data = path.read_bytes()
            path.unlink()
            if left:
                path.write_bytes(data[:-1] if left == 1 else bytes(len(data)))

    _tampered(monkeypatch, "scan", change)
    said = "that all hosts share" if left < 2 else "reading .*staged"
    with pytest.raises(StorageError, match=said):
        export(partition_bytes=64)
    assert newest(lake) is None
    assert os.listdir(f"{lake}/_runs") == []


def test_a_file_of_the_snapshot_that_is_gone(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    streams.put("in", [Put("a", b"1")])
    export()
    Path(paths(lake)[0]).unlink()
    streams.put("in", [Put("b", b"2")])
    with pytest.raises(StorageError, match=r"is not there on the host of a task.*all hosts share"):
        export()
    assert newest(lake).sequence == 1


def test_a_directory_that_the_driver_does_not_share(
    streams: ExportedStreams, export: Export, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        streams.put("in", [Put(f"k{n}", b"%d" % n * 100)])
    _tampered(
        monkeypatch, "merge", lambda: [shutil.rmtree(one) for one in Path(lake).glob("_runs/*")]
    )
    with pytest.raises(StorageError, match="that all hosts share"):
        export(partition_bytes=64)


# --- two at once ---


def test_two_at_once(streams: ExportedStreams, export: Export, lake: str) -> None:
    """Both have written their files when the first one commits."""
    streams.put("in", [Put("a", b"1"), Put(None, b"2")])
    for turn in range(2):
        other = Export(streams, "in", lake)
        export.under_lease = other
        with pytest.raises(Conflict, match="was quicker"):
            export()
        assert newest(lake).sequence == turn + 1
        streams.put("in", [Put("a", b"%d" % turn)])
    export()
    assert table(lake) == [(2, None, b"2"), (4, b"a", b"1")]
    assert len(os.listdir(f"{lake}/_runs")) == 3


def test_two_formats_at_once(streams: ExportedStreams, export: Export, lake: str) -> None:
    streams.put("in", [Put("a", b"1"), Put("a", b"2")])
    other = Export(streams, "in", lake, format="delta")
    export.under_lease = other
    with pytest.raises(Conflict, match="is a Delta table"):
        export()
    assert not list(Path(lake, "_manifest").glob("[0-9]*.json"))
    assert table(lake) == [(2, b"a", b"2")]
    assert not other().committed


def test_another_makes_the_table_first(
    streams: ExportedStreams, export: Export, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While this one has seen that there is none, and has not yet begun."""
    streams.put("in", [Put("a", b"1"), Put("a", b"2")])

    def slow(*arguments: Any) -> Any:
        monkeypatch.undo()
        Export(streams, "in", lake)()
        return plan_under_lease(*arguments)

    monkeypatch.setattr(job, "plan_under_lease", slow)
    with pytest.raises(Conflict, match="was quicker"):
        export(mode="append")
    assert (newest(lake).sequence, newest(lake).mode) == (1, "compacted")
    assert len(os.listdir(f"{lake}/_runs")) == 1


def test_many_at_once(streams: ExportedStreams, lake: str) -> None:
    streams.put("in", [Put(f"k{n}", b"1") for n in range(50)])
    barrier = threading.Barrier(4)
    outcomes: list[str] = []

    def one() -> None:
        job = Export(streams, "in", lake)
        job.before_commit = lambda: barrier.wait(20)
        try:
            job()
            outcomes.append("won")
        except Conflict:
            outcomes.append("lost")

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["lost", "lost", "lost", "won"]
    assert len(table(lake)) == 50
    assert len(os.listdir(f"{lake}/_runs")) == 1


def test_a_run_that_took_for_ever(streams: ExportedStreams, export: Export, lake: str) -> None:
    """Its number was taken, and the manifest of that number is removed by now."""
    streams.put("in", [Put("a", b"1")])

    def others() -> None:
        for n in range(4):
            streams.put("in", [Put("b", b"%d" % n)])
            Export(streams, "in", lake)(keep_seconds=0.0)

    export.under_lease = others
    with pytest.raises(Conflict, match="was quicker"):
        export()
    assert newest(lake).sequence == 4
    assert table(lake) == [(1, b"a", b"1"), (5, b"b", b"3")]
    assert not Path(lake, "_manifest", f"{1:020d}.json").exists()


# --- files that nobody needs ---


def test_readers_of_superseded_snapshots_have_time(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    seen: list[list[str]] = []
    for n in range(4):
        streams.put("in", [Put("a", b"%d" % n)])
        export()
        seen.append(paths(lake))
    assert all(Path(path).exists() for files in seen for path in files)
    streams.put("in", [Put("a", b"more")])
    export(now_ahead=2 * HOUR)
    # Those which were superseded more than an hour ago are gone, but for the last one.
    assert [all(Path(path).exists() for path in files) for files in seen] == [
        False,
        False,
        False,
        True,
    ]
    assert len(os.listdir(f"{lake}/_runs")) == 2


def test_another_run_tidies_up_at_the_same_time(
    streams: ExportedStreams, export: Export, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        streams.put("in", [Put("a", b"%d" % n)])
        export()
    read = LocalStore.read

    def too_late(self: LocalStore, path: str) -> bytes:
        if path.endswith(f"{1:020d}.json"):
            raise FileNotFoundError(path)
        return read(self, path)

    monkeypatch.setattr(LocalStore, "read", too_late)
    streams.put("in", [Put("a", b"4")])
    summary = export(keep_seconds=0.0)
    assert (summary.committed, summary.warnings) == (True, ())
    assert table(lake) == [(4, b"a", b"4")]


def test_a_disk_that_fails_when_old_files_go(
    streams: ExportedStreams, export: Export, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stuck(Disk):
        def remove_tree(self, path: Path) -> None:
            raise OSError(errno.EIO, "Input/output error")

    for n in range(3):
        streams.put("in", [Put("a", b"%d" % n)])
        export()
    monkeypatch.setattr(LocalStore, "disk", Stuck())
    streams.put("in", [Put("a", b"4")])
    summary = export(keep_seconds=0.0)
    assert summary.committed
    assert any("old files were not removed" in one for one in summary.warnings)
    assert table(lake) == [(4, b"a", b"4")]


def test_a_stream_that_is_not_there_leaves_nothing(streams: ExportedStreams, lake: str) -> None:
    with pytest.raises(StreamNotFound):
        Export(streams, "nothing", lake)()
    assert not Path(lake).exists()


def test_a_later_run_under_way_is_left_alone(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    streams.put("in", [Put("a", b"1")])
    export()
    dead, live = (Path(lake, "_runs", f"{n:020d}-{'0' * 32}") for n in (1, 3))
    for directory in (dead, live):
        directory.mkdir()
        (directory / "keyed-x.parquet").write_bytes(b"")
    streams.put("in", [Put("a", b"2")])
    export()
    assert (dead.exists(), live.exists()) == (False, True)


def test_what_killed_runs_leave_goes(streams: ExportedStreams, export: Export, lake: str) -> None:
    """Killed while the power stays: all that was written lies there."""
    streams.put("in", [Put("a", b"1")])
    left: set[str] = set()
    step = 0
    while newest(lake) is None:
        with disk(stop_before=step), pytest.raises(Stopped):
            export()
        step += 1
        hidden = [path.name for path in Path(lake, "_manifest").glob(".*")]
        left |= {re.sub("[0-9a-f]{20,}", "", name) for name in hidden}
    assert left == {"..probe-", "...probe-..tmp", "..json..tmp"}
    streams.put("in", [Put("a", b"2")])
    export()
    assert [path.name[20:] for path in Path(lake, "_manifest").iterdir()] == [".json"] * 2
    assert len(os.listdir(f"{lake}/_runs")) == 2


@pytest.mark.parametrize("at", [1, 2])
def test_a_probe_that_another_run_has_removed(
    streams: ExportedStreams, export: Export, lake: str, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    streams.put("in", [Put("a", b"1")])
    link, probes = Disk.link, 0

    def late(self: Disk, existing: Path, new: Path) -> None:
        nonlocal probes
        probes += "probe" in new.name
        if probes == at:
            monkeypatch.undo()
            Export(streams, "in", lake)()
            assert not existing.exists()
        link(self, existing, new)

    monkeypatch.setattr(Disk, "link", late)
    assert not export().committed
    assert table(lake) == [(1, b"a", b"1")]


def test_a_temporary_manifest_that_another_run_has_removed(
    streams: ExportedStreams, export: Export, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.put("in", [Put("a", b"1")])
    link = Disk.link

    def late(self: Disk, existing: Path, new: Path) -> None:
        if new.suffix == ".json":
            monkeypatch.undo()
            Export(streams, "in", lake)()
            assert not existing.exists()
        link(self, existing, new)

    monkeypatch.setattr(Disk, "link", late)
    with pytest.raises(Conflict, match="was quicker"):
        export()
    assert table(lake) == [(1, b"a", b"1")]


# --- a crash between every two steps ---


def _snapshot(lake: str) -> tuple[int, list[Any]]:
    found = newest(lake)
    return (0, []) if found is None else (found.sequence, table(lake))


def _runs(lake: str) -> list[str]:
    return sorted(name[:20] for name in os.listdir(f"{lake}/_runs"))


def _first(streams: ExportedStreams, export: Export) -> None:
    streams.put("in", [Put("a", b"1"), Put("b", b"2"), Put(None, b"3")])


def _second(streams: ExportedStreams, export: Export) -> None:
    _first(streams, export)
    export()
    streams.put("in", [Put("a", b"4"), Put("b", None), Put(None, b"6")])


def _third(streams: ExportedStreams, export: Export) -> None:
    """With something to remove afterwards."""
    _second(streams, export)
    for n in range(2):
        export()
        streams.put("in", [Put("c", b"%d" % n)])


def test_directories_of_a_run_that_was_killed(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    """They are there, and nobody has made them durable; then the power goes, after a whole run."""
    _first(streams, export)
    for step in range(8):
        with disk(stop_before=step) as killed, pytest.raises(Stopped):
            export()
        with disk() as crashing:
            crashing._unsynced_names |= killed._unsynced_names
            export()
        crashing.cut_power()
        assert len(table(lake)) == 3, f"step {step}"
        shutil.rmtree(lake)


@pytest.mark.parametrize("prepare", [_first, _third])
def test_a_crash_before_every_step(
    streams: ExportedStreams,
    export: Export,
    lake: str,
    prepare: Callable[[ExportedStreams, Export], None],
) -> None:
    prepare(streams, export)
    saved = Path(lake).with_name("saved")
    if Path(lake).exists():
        shutil.copytree(lake, saved)
    before = _snapshot(lake)
    with disk() as whole:
        export(keep_seconds=0.0)
    after, runs = _snapshot(lake), _runs(lake)
    assert whole.steps > 20
    for step in range(whole.steps):
        shutil.rmtree(lake)
        if saved.exists():
            shutil.copytree(saved, lake)
        with disk(stop_before=step) as crashing, pytest.raises(Stopped):
            export(keep_seconds=0.0)
        crashing.cut_power()
        assert _snapshot(lake) in (before, after), f"step {step}"
        export(keep_seconds=0.0)
        found = _snapshot(lake)
        assert found == after, f"step {step}"
        assert _runs(lake) == runs, f"step {step}"
        assert not list(Path(lake).rglob("staged"))
