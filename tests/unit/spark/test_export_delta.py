"""Exports to Delta tables, as other tools read them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import DeltaError
from support.spark.exporting import Export, ExportedStreams, Put, table

from liftlog.errors import Conflict, CorruptMetadata, InvalidArgument, StorageError
from liftlog.spark.export import merging, newest, opening, scanning
from liftlog.spark.export.store import Disk, LocalStore, RemoteStore


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "a lake [of {ours}]")


@pytest.fixture
def export(streams: ExportedStreams, lake: str) -> Export:
    return Export(streams, "in", lake, format="delta", name="delta")


def rows(lake: str) -> list[Any]:
    """Return the rows that delta-rs reads."""
    found = QueryBuilder().register("lake", DeltaTable(lake))
    asked = found.execute("select offset, key, value from lake order by offset")
    return [tuple(row.values()) for row in pa.table(asked.read_all()).to_pylist()]


def test_what_the_first_export_is_built_on_is_durable(
    streams: ExportedStreams, export: Export, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Noting(Disk):
        def fsync(self, path: Path) -> None:
            synced.add(os.path.relpath(path, lake))

    synced: set[str] = set()
    monkeypatch.setattr(LocalStore, "disk", Noting())
    export()
    assert {".", "_delta_log", *(f"_delta_log/{n:020d}.json" for n in (0, 1))} <= synced


def test_an_empty_table_of_another_stream(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    export()
    streams.create("other")
    with pytest.raises(Conflict, match="other data"):
        Export(streams, "other", lake, format="delta")()
    assert not export().committed


def test_compacted_step_by_step(streams: ExportedStreams, export: Export, lake: str) -> None:
    streams.put("in", [Put("a", b"1"), Put("b", b"2"), Put(None, b"3"), Put("a", b"4")])
    first = export()
    assert rows(lake) == [(2, b"b", b"2"), (3, None, b"3"), (4, b"a", b"4")]
    assert rows(lake) == table(lake)
    assert (first.committed, first.full, first.from_offset, first.to_offset) == (True, True, 1, 5)
    streams.put("in", [Put("b", None), Put("c", b"6"), Put(None, b"7")])
    second = export()
    assert rows(lake) == [(3, None, b"3"), (4, b"a", b"4"), (6, b"c", b"6"), (7, None, b"7")]
    assert (second.full, second.from_offset, second.rows) == (False, 5, 3)
    assert not export().committed
    # Who reads an older version still can.
    assert len(pa.table(DeltaTable(lake, version=1).get_add_actions())) == 2
    assert not list(Path(lake).rglob("staged"))
    streams.truncate("in", 4)
    export()
    assert rows(lake) == [(4, b"a", b"4"), (6, b"c", b"6"), (7, None, b"7")]
    export(full=True)
    assert rows(lake) == [(4, b"a", b"4"), (6, b"c", b"6"), (7, None, b"7")]


def test_append(streams: ExportedStreams, export: Export, lake: str) -> None:
    for n in range(3):
        streams.put("in", [Put("a", b"%d" % n), Put("a", None)])
        export(mode="append")
    assert [offset for offset, _, _ in rows(lake)] == list(range(1, 7))
    assert DeltaTable(lake).transaction_version("liftlog:in") == 3


def test_two_at_once(streams: ExportedStreams, export: Export, lake: str) -> None:
    streams.put("in", [Put("a", b"1"), Put(None, b"2")])
    for turn in range(2):
        export.before_commit = Export(streams, "in", lake, format="delta", name="delta")
        with pytest.raises(Conflict, match="was quicker"):
            export()
        assert newest(lake).sequence == turn + 1
        streams.put("in", [Put("a", b"%d" % turn)])
    export.before_commit = None
    export()
    assert rows(lake) == [(2, None, b"2"), (4, b"a", b"1")]
    assert len(os.listdir(f"{lake}/runs")) == 3


def test_a_commit_between_look_and_commit(
    streams: ExportedStreams, export: Export, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta's own check: both runs have read the same earlier version of the table."""
    streams.put("in", [Put("a", b"1")])
    export()
    streams.put("in", [Put("a", b"2")])
    write = DeltaTable.create_write_transaction
    other = Export(streams, "in", lake, format="delta", name="delta")

    def late(self: DeltaTable, *args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(DeltaTable, "create_write_transaction", write)
        other()
        write(self, *args, **kwargs)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", late)
    with pytest.raises(Conflict, match="was quicker"):
        export()
    assert rows(lake) == [(2, b"a", b"2")]
    assert newest(lake).sequence == 2


def test_a_run_that_died_before_its_commit(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    streams.put("in", [Put("a", b"1")])

    def die() -> None:
        raise KeyboardInterrupt

    export.before_commit = die
    with pytest.raises(KeyboardInterrupt):
        export()
    assert rows(lake) == []
    assert len(os.listdir(f"{lake}/runs")) == 1
    export.before_commit = None
    export()
    assert rows(lake) == [(1, b"a", b"1")]
    assert len(os.listdir(f"{lake}/runs")) == 1


def test_a_table_that_others_optimize(streams: ExportedStreams, export: Export, lake: str) -> None:
    streams.put("in", [Put("a", b"1"), Put(None, b"2")])
    export()
    streams.put("in", [Put("b", b"3"), Put(None, b"4")])
    export()
    before = len(DeltaTable(lake).file_uris())
    DeltaTable(lake).optimize.compact()
    assert len(DeltaTable(lake).file_uris()) < before
    streams.put("in", [Put("a", b"5"), Put("b", None)])
    assert not export().full
    assert rows(lake) == [(2, None, b"2"), (4, None, b"4"), (5, b"a", b"5")]
    DeltaTable(lake).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert rows(lake) == [(2, None, b"2"), (4, None, b"4"), (5, b"a", b"5")]
    streams.put("in", [Put(None, b"7")])
    export()
    assert len(rows(lake)) == 4


def test_tables_that_are_something_else(
    streams: ExportedStreams, export: Export, lake: str, tmp_path: Path
) -> None:
    streams.put("in", [Put("a", b"1")])
    foreign = str(tmp_path / "foreign")
    write_deltalake(foreign, pa.table({"offset": [1]}))
    for full in (False, True):
        with pytest.raises(Conflict, match="other data"):
            Export(streams, "in", foreign, format="delta")(full=full)
    export()
    with pytest.raises(Conflict, match="is a Delta table"):
        Export(streams, "in", lake, name="delta")()
    streams.create("other")
    with pytest.raises(Conflict, match="other data"):
        Export(streams, "other", lake, format="delta", name="delta")(full=True)
    parquet = Export(streams, "in", str(tmp_path / "parquet"))
    parquet()
    with pytest.raises(Conflict, match="is a Parquet table"):
        Export(streams, "in", parquet.to, format="delta")()


def test_a_table_that_forgot_its_last_run(
    streams: ExportedStreams, export: Export, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.put("in", [Put("a", b"1")])
    export()
    history = DeltaTable.history
    monkeypatch.setattr(DeltaTable, "history", lambda self, limit=None: history(self, limit)[:0])
    with pytest.raises(CorruptMetadata, match="--full"):
        export()
    streams.put("in", [Put("a", b"2")])
    with pytest.raises(Conflict, match="--discard-rows and --mode"):
        export(full=True)
    export(full=True, discard_rows=True, mode="compacted")
    assert rows(lake) == [(2, b"a", b"2")]


def test_a_log_that_cannot_be_read(
    streams: ExportedStreams, export: Export, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit stays valid, and the caller gets an error of ours with the problem."""

    def broken(self: DeltaTable, limit: int | None = None) -> Any:
        raise DeltaError("its checkpoint is gone")

    streams.put("in", [Put("a", b"1")])
    export.before_commit = lambda: monkeypatch.setattr(DeltaTable, "history", broken)
    summary = export()
    assert summary.committed
    assert [one for one in summary.warnings if "old files were not removed" in one]
    for ask in (lambda: newest(lake), Export(streams, "in", lake, format="delta", name="delta")):
        with pytest.raises(StorageError, match="its checkpoint is gone"):
            ask()
    monkeypatch.undo()
    assert rows(lake) == [(1, b"a", b"1")]


def test_a_url(streams: ExportedStreams, tmp_path: Path) -> None:
    """The store for URLs, used for a local place."""
    store = RemoteStore((tmp_path / "remote").as_uri())
    store.make_directory("a/b")
    for path, data in (("a/b/one", b"1"), ("a/two", b"22")):
        with store.writing(path) as file:
            file.write(data)
    with store.opened("a/b/one") as file:
        assert file.read() == b"1"
    assert (store.size("a/two"), store.size("a/b"), store.size("a/c")) == (2, None, None)
    assert (store.names("a"), store.names("c")) == (["b", "two"], [])
    with pytest.raises(StorageError), store.opened("a/c"):
        pass
    for path in ("a/two", "a/b", "a/c"):
        store.remove(path)
    assert store.names("a") == []
    with pytest.raises(InvalidArgument, match="use a directory, or a URL"):
        RemoteStore("nothing://there")


def test_tasks_over_a_url(
    streams: ExportedStreams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are staged and merged through the store for URLs, without a connector of Spark."""
    for module in (merging, scanning, opening):
        monkeypatch.setattr(module, "open_store", lambda where: RemoteStore(_uri(where)))
    lake = str(tmp_path / "lake")
    export = Export(streams, "in", lake, format="delta", name="remote")
    for turn in range(2):
        streams.put("in", [Put(f"k{n}", b"%d" % turn * 100) for n in range(turn, 60)])
        export(partition_bytes=4096)
    assert [value[:1] for _, _, value in rows(lake)] == [b"0"] + [b"1"] * 59
    assert len({file.bucket for file in newest(lake).files}) > 1


def _uri(where: str) -> str:
    return where if "://" in where else Path(where).as_uri()


NAMES = ["100%", "a b", "ä&;", "a+b", "a%zz"]
NAMES_OF_URLS = ["a#b", "a?b=c", "a%20b", "a%23", "%E4"]


@pytest.mark.parametrize("name", NAMES + NAMES_OF_URLS)
@pytest.mark.parametrize("is_uri", [False, True])
def test_names_that_mean_something_in_a_url(
    streams: ExportedStreams, tmp_path: Path, name: str, is_uri: bool
) -> None:
    path = tmp_path / "lakes" / name
    lake = path.as_uri() if is_uri else str(path)
    parquet = Export(streams, "in", lake + "-p", name="p")
    delta = Export(streams, "in", lake, format="delta", name="delta")
    for turn in range(2):
        streams.put("in", [Put("a", b"%d" % turn), Put(None, b"%d" % turn)])
        parquet()
        if name in NAMES:
            assert delta().committed
        else:
            with pytest.raises(InvalidArgument, match="Delta"):
                delta()
    assert table(parquet.to) == [(2, None, b"0"), (3, b"a", b"1"), (4, None, b"1")]
    if name in NAMES:
        assert table(lake) == table(parquet.to)
    assert sorted(os.listdir(tmp_path / "lakes")) == [name, name + "-p"][name not in NAMES :]


def test_a_url_of_a_file_is_not_cut_short(streams: ExportedStreams, tmp_path: Path) -> None:
    for name in ("a#b", "a?b"):
        with pytest.raises(InvalidArgument, match="%"):
            Export(streams, "in", f"file://{tmp_path}/{name}", name="x")()
    assert not (tmp_path / "a").exists()


def test_s3a_is_s3() -> None:
    """Spark's name of the scheme. Nothing is connected yet."""
    assert RemoteStore("s3a://lake/orders?region=us-east-1").uri.startswith("s3://lake/orders")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the reads of the whole log of a Delta table."""
    asked: list[str] = []
    init, history = DeltaTable.__init__, DeltaTable.history

    def noting_init(self: DeltaTable, *args: Any, **kwargs: Any) -> None:
        asked.append("open")
        init(self, *args, **kwargs)

    def noting_history(self: DeltaTable, limit: int | None = None) -> Any:
        if limit is None:
            asked.append("history")
        return history(self, limit)

    monkeypatch.setattr(DeltaTable, "__init__", noting_init)
    monkeypatch.setattr(DeltaTable, "history", noting_history)
    return asked


def test_a_run_does_not_read_the_whole_log_again_and_again(
    streams: ExportedStreams, export: Export, opened: list[str]
) -> None:
    for n in range(10):
        streams.put("in", [Put("a", b"%d" % n)])
        opened.clear()
        export()
    assert opened == ["open"]
    opened.clear()
    assert not export().committed
    assert opened == ["open"]


def test_superseded_files_go_when_delta_says_so(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    def files() -> int:
        return len(list(Path(lake).rglob("keyed*.parquet")))

    for n in range(5):
        streams.put("in", [Put("a", b"%d" % n)])
        export()
    assert files() == 5  # for a week, as Delta does it
    other = Path(lake, "part-of-another-tool.parquet")
    other.touch()
    os.utime(other, (0, 0))
    retention = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    DeltaTable(lake).alter.set_table_properties(retention)
    streams.put("in", [Put("b", b"1"), Put(None, b"2")])
    export()
    assert files() == 1
    assert other.exists()
    assert rows(lake) == table(lake) == [(5, b"a", b"4"), (6, b"b", b"1"), (7, None, b"2")]


@pytest.mark.parametrize("sweep", [False, True])
def test_leftovers_of_runs_that_were_killed_long_ago(
    streams: ExportedStreams,
    export: Export,
    lake: str,
    sweep: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from liftlog.spark.export import delta

    for n in range(12):
        streams.put("in", [Put("a", b"%d" % n), Put(None, b"%d" % n)])
        export()
    stray = [Path(lake, "runs", f"{number:020d}-{'0' * 32}") for number in (1, 12, 13, 14)]
    for one in stray:
        one.mkdir()
        (one / f"keyed-{'1' * 32}.parquet").write_bytes(b"half")
    if sweep:
        monkeypatch.setattr(delta, "_RUNS_BETWEEN_SWEEPS", 13)
    streams.put("in", [Put("a", b"last")])
    export()
    # That of the next run may be under way; an old one waits until all are looked at.
    assert [one.exists() for one in stray] == [not sweep, False, False, True]
    assert len(rows(lake)) == 13
