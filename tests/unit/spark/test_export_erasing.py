"""The next run of an export removes the rows of erased records from the table, in every mode."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.spark.exporting import Export, ExportedStreams, Put, table
from support.spark.local_engine import LocalEngine, rows_of

from liftlog.client import connect_sync
from liftlog.log.erased import ErasedSet
from liftlog.log.files.erasures import ERASURES_NAME, Erasure, append_erasure, note_done
from liftlog.spark.export import newest
from liftlog.spark.export.changes import Rows
from liftlog.spark.export.erasing import Erased, without_erased
from liftlog.spark.export.packing import PackWork
from liftlog.spark.export.snapshot import DataFile
from liftlog.spark.export.store import join, open_store
from liftlog.spark.export.tasks import Task, TaskResult, Tell

SECRET = b"a secret"
KINDS: dict[str, dict[str, Any]] = {
    "append": {"mode": "append"},
    "compacted": {},
    "merged on read": {"layout": "merge-on-read"},
    "delta": {"format": "delta"},
    "delta append": {"format": "delta", "mode": "append"},
}


def erase(streams: ExportedStreams, *offsets: int, name: str = "in") -> None:
    with connect_sync(f"tcp://{streams.server}") as client:
        client.erase(name, [(offset, offset + 1) for offset in offsets])


def remove_bytes(streams: ExportedStreams) -> None:
    async def remove() -> None:
        await streams.cleaning.running.broker.erasing.remove("in")
        for _ in range(5):
            await streams.cleaning.round()

    streams.do(remove)
    assert streams.log("in").view.erased is None


def values_in(lake: str, files: tuple[DataFile, ...]) -> set[Any]:
    root = open_store(lake).uri
    return {row["value"] for file in files for row in rows_of([join(root, file.path)])}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> dict[str, Any]:
    return KINDS[request.param]


@pytest.mark.parametrize("is_removed", [False, True])
def test_the_next_run_removes_the_rows(
    streams: ExportedStreams, export: Export, lake: str, kind: dict[str, Any], is_removed: bool
) -> None:
    streams.put("in", [Put(f"k{n}", b"%d" % n) for n in range(100)])
    streams.put("in", [Put("x", SECRET), Put(None, SECRET)])
    export(**kind, partition_bytes=3000)
    streams.put("in", [Put(f"m{n}", b"%d" % n) for n in range(100)])
    export(**kind, partition_bytes=3000)
    rows = table(lake)
    assert SECRET in values_in(lake, newest(lake).files)
    before = {file.path for file in newest(lake).files}
    erase(streams, 101, 102)
    if is_removed:  # the bytes have left the stream, and the set of the log
        remove_bytes(streams)
    done = export(**kind)
    assert (done.committed, done.erased_rows, done.table_rows) == (True, 2, len(rows) - 2)
    assert done.reason == newest(lake).reason == "records of the table were erased"
    assert table(lake) == [row for row in rows if row[0] not in (101, 102)]
    now = newest(lake)
    assert SECRET not in values_in(lake, now.files)
    if len(before) > 2:
        assert before & {file.path for file in now.files}, "other files stay as they are"
    again = export(**kind)
    assert (again.committed, again.erased_rows) == (False, 0)


def test_beside_new_records_and_replaced_rows(
    streams: ExportedStreams, export: Export, lake: str, kind: dict[str, Any]
) -> None:
    streams.put("in", [*[Put(f"k{n}", b"%d" % n) for n in range(20)], Put("x", SECRET)])
    export(**kind)
    streams.put("in", [Put("x", b"newer"), Put("k1", b"newer")])
    export(**kind)
    erase(streams, 21)  # the older value of x, which a table that is merged on read still has
    streams.put("in", [Put("y", SECRET), Put("z", b"1")])
    erase(streams, 24)
    export(**kind)
    rows = table(lake)
    assert SECRET not in values_in(lake, newest(lake).files)
    assert {row[0] for row in rows} & {21, 24} == set()
    assert [row[2] for row in rows if row[1] == b"x"] == [b"newer"]
    assert [row[2] for row in rows if row[1] == b"z"] == [b"1"]
    erase(streams, 22)
    export(**kind)
    assert [row[2] for row in table(lake) if row[1] == b"x"] == []
    streams.put("in", [Put("x", b"last")])
    export(**kind)
    assert [row[2] for row in table(lake) if row[1] == b"x"] == [b"last"]


def test_every_row_of_a_table(
    streams: ExportedStreams, export: Export, lake: str, kind: dict[str, Any]
) -> None:
    streams.put("in", [Put(f"k{n}", SECRET) for n in range(10)])
    export(**kind)
    with connect_sync(f"tcp://{streams.server}") as client:
        client.erase("in", [(1, 11)])
    assert export(**kind).table_rows == 0
    assert table(lake) == []
    streams.put("in", [Put("k1", b"again")])
    assert export(**kind).table_rows == 1


def test_records_that_are_erased_during_a_run(
    streams: ExportedStreams, export: Export, lake: str, kind: dict[str, Any]
) -> None:
    streams.put("in", [Put(f"k{n}", b"%d" % n) for n in range(10)])
    export.before_commit = lambda: erase(streams, 5)
    export(**kind)
    export.before_commit = None
    assert len(table(lake)) == 10
    assert export(**kind).erased_rows == 1
    assert [row[0] for row in table(lake)] == [1, 2, 3, 4, 6, 7, 8, 9, 10]


def test_rows_of_rolled_up_records_stay(streams: ExportedStreams, lake: str) -> None:
    """They were superseded, and not erased by a request."""
    own = {"allow_rollup_hdrs": True}
    streams.create("rolled", jetstream=own, compaction=None, subject="rolled")
    export = Export(streams, "rolled", lake, mode="append")
    streams.put("rolled", [Put(None, b"1"), Put(None, b"2"), Put(None, SECRET)])
    export()
    streams.put("rolled", [Put(None, b"3", b"Nats-Rollup: sub\r\n")])
    assert streams.log("rolled").view.hides(1)
    assert export().erased_rows == 0
    assert len(table(lake)) == 4
    erase(streams, 4, name="rolled")
    assert export().erased_rows == 1
    assert [row[2] for row in table(lake)] == [b"1", b"2", SECRET]


def test_a_full_run_needs_no_list(streams: ExportedStreams, export: Export, lake: str) -> None:
    streams.put("in", [Put(f"k{n}", b"%d" % n) for n in range(10)])
    export()
    erase(streams, 5)
    done = export(full=True)
    assert (done.erased_rows, done.table_rows) == (0, 9)
    assert not export().committed


def test_a_run_that_loses_the_race_leaves_the_row_to_the_next(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    streams.put("in", [Put(f"k{n}", b"%d" % n) for n in range(10)])
    export()
    erase(streams, 5)

    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    export.before_commit = stop
    with pytest.raises(Stop):
        export()
    export.before_commit = None
    assert len(table(lake)) == 10
    assert export().erased_rows == 1
    assert len(table(lake)) == 9


def test_an_erased_record_that_the_table_does_not_have(
    streams: ExportedStreams, export: Export, lake: str, kind: dict[str, Any]
) -> None:
    """It is within the bounds of a file, so the run has to look."""
    streams.put("in", [Put("a", b"1"), Put("b", b"2"), Put("a", b"3")])
    erase(streams, 2)
    export(**kind)
    rows = table(lake)
    erase(streams, 1)
    with_row = 1 in [row[0] for row in rows]
    assert export(**kind).erased_rows == int(with_row)
    assert table(lake) == [row for row in rows if row[0] != 1]
    assert not export(**kind).committed


@pytest.mark.parametrize("compacted", [False, True])
def test_an_erasure_that_is_completed_after_a_run(
    streams: ExportedStreams, export: Export, lake: str, compacted: bool
) -> None:
    """The run asks after the erasure is listed, and before its records are hidden."""
    kind: dict[str, Any] = {} if compacted else {"mode": "append"}
    streams.put("in", [Put(f"k{n}", b"%d" % n) for n in range(10)])
    log, offsets = streams.log("in"), ErasedSet.of_ranges([(5, 6)])
    one = Erasure("x", 1, "", "", 1, ((5, 6),), "", offsets.to_plain())
    fs, directory = log.environment.fs, log.directory
    streams.run(lambda: append_erasure(fs, directory, one))
    export(**kind)
    assert len(table(lake)) == 10
    assert not export(**kind).committed
    streams.run(lambda: log.structure.erase(offsets))
    streams.run(lambda: note_done(fs, directory, "x"))
    assert export(**kind).erased_rows == 1
    assert 5 not in [row[0] for row in table(lake)]


def test_a_daemon_that_lost_the_list_of_erasures(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    streams.put("in", [Put(f"k{n}", b"%d" % n) for n in range(10)])
    export()
    erase(streams, 5)
    assert not export().warnings
    (streams.log("in").directory / ERASURES_NAME).unlink()
    (warning,) = export().warnings
    assert "the list of erasures of in is older than the table" in warning


def test_the_tasks_share_the_erased_offsets(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    """Otherwise the tasks of a large table would not fit into one job of Spark."""
    streams.put("in", [Put(f"k{n}", b"%d" % n) for n in range(100)])
    export(partition_bytes=3000)
    erased = Erased("x", ErasedSet.of_offsets(np.arange(0, 10_000_000, 100)))
    sizes: list[int] = []

    class Sizes(LocalEngine):
        def run(self, phase: str, tasks: Sequence[Task], tell: Tell) -> list[TaskResult]:
            sizes.extend([len(pickle.dumps(task)) for task in tasks])
            return super().run(phase, tasks, tell)

    snapshot = newest(lake)
    rows = Rows(list(snapshot.files), [])
    work = PackWork(open_store(lake).uri, "_runs/one", snapshot.columns)
    open_store(lake).make_directory("_runs/one/staged")
    after, count = without_erased(Sizes(), lambda *_: None, work, rows, erased)
    assert sizes, "there are files with erased rows"
    assert max(sizes) < 4096
    assert count == 1
    assert sum(file.rows for file in after.files) == 99
