"""Runs of the export against a real broker, with Parquet files and without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.daemons.pull_broker import LoggedStream
from support.spark.exporting import Export, ExportedStreams, Put, table

from liftlog.errors import (
    Conflict,
    Diverged,
    OffsetOutOfRange,
    StaleIncarnation,
    StreamNotFound,
)
from liftlog.spark.export import newest

HOUR = 3600.0


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
    assert "retention has removed the records [3, 5)" in again.reason
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
    assert streams.log("in").view.manifest.tombstones_removed_below > 3
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
    with pytest.raises(StaleIncarnation, match="created again"):
        export()
    assert table(lake) == [(1, b"a", b"old")]
    assert export(full=True, discard_rows=True).full
    assert table(lake) == [(1, b"a", b"new"), (2, b"b", b"new")]


def test_a_stream_that_lost_its_end(streams: ExportedStreams, export: Export, lake: str) -> None:
    streams.put("in", [Put("a", b"1"), Put("a", b"2"), Put("a", b"3")])
    export()
    log = streams.log("in")
    streams.run(lambda: log.truncate_suffix(2))
    assert log.log_end_offset == 1
    with pytest.raises(Diverged, match="before what was exported, 4"):
        export()
    streams.run(lambda: log.writer.begin_epoch(log.leader_epoch + 1))
    keys, values = [b"a", b"b", b"b", b"b"], [b"1", b"other", b"history", b"here"]
    streams.run(lambda: LoggedStream("in", log).append(values, keys=keys))
    with pytest.raises(Diverged):
        export()
    with pytest.raises(Conflict, match="no longer in the stream"):
        export(full=True)
    export(full=True, discard_rows=True)
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


def test_a_stream_that_is_not_there_leaves_nothing(streams: ExportedStreams, lake: str) -> None:
    with pytest.raises(StreamNotFound):
        Export(streams, "nothing", lake)()
    assert not Path(lake).exists()
