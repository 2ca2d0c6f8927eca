"""`liftlog export vacuum`: the snapshots that it removes, by age and number, and the files that it
never removes."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from support.disks.crashing_disk import Stopped, disk
from support.spark.exporting import Export, ExportedStreams, Put, table

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.root import cli
from liftlog.errors import InvalidArgument, StreamNotFound
from liftlog.spark.export import newest, vacuum
from liftlog.spark.export.manifests import ManifestTable
from liftlog.spark.export.opening import open_store
from liftlog.spark.export.store import LocalStore, RemoteStore

DAY = 86400.0


def _bytes(lake: str) -> int:
    return sum(path.stat().st_size for path in Path(lake).rglob("*") if path.is_file())


def _manifests(lake: str) -> list[int]:
    return sorted(int(path.stem) for path in Path(lake, "_manifest").glob("0*.json"))


def _later(days: float) -> int:
    return time.time_ns() + round(days * DAY * 1e9)


@pytest.fixture
def snapshots(streams: ExportedStreams, export: Export) -> None:
    """Make six snapshots, none of which was removed by a run."""
    for n in range(6):
        streams.put("in", [Put("a", b"%d" % n)])
        export(keep_seconds=30 * DAY)


@pytest.mark.usefixtures("snapshots")
def test_by_age_and_by_number(lake: str) -> None:
    assert vacuum(lake, keep_seconds=7 * DAY, now_ns=_later(6)).paths == ()
    for number in (9, 16, 40):
        assert not vacuum(lake, keep_seconds=0, keep_snapshots=number, now_ns=_later(8)).paths
    before = _bytes(lake)
    asked: dict[str, Any] = {"keep_seconds": 7 * DAY, "keep_snapshots": 4, "now_ns": _later(8)}
    listed = vacuum(lake, **asked, dry_run=True)
    assert (_bytes(lake), listed.dry_run) == (before, True)
    done = vacuum(lake, **asked)
    assert (done.paths, done.size_bytes) == (listed.paths, listed.size_bytes)
    assert before - _bytes(lake) == done.size_bytes > 0
    assert _manifests(lake) == [3, 4, 5, 6]
    assert len(os.listdir(f"{lake}/_runs")) == 4
    old = snapshot_of(lake, 3)
    assert all(Path(lake, file.path).exists() for file in old.all_files)
    vacuum(lake, keep_seconds=0, now_ns=_later(8))
    assert _manifests(lake) == [5, 6]
    vacuum(lake, keep_seconds=0, keep_snapshots=1, now_ns=_later(8))
    assert _manifests(lake) == [6]
    assert len(os.listdir(f"{lake}/_runs")) == 1
    assert table(lake) == [(6, b"a", b"5")]


def test_nothing_of_a_run_in_progress(streams: ExportedStreams, export: Export, lake: str) -> None:
    with pytest.raises(StreamNotFound):
        vacuum(lake, keep_seconds=0)
    for n in range(3):
        streams.put("in", [Put(f"k{n}", b"1")])
        export(keep_seconds=DAY)
    before: set[Path] = set()

    def meanwhile() -> None:
        before.update(path for path in Path(lake, "_runs").glob("*4-*/*") if path.is_file())
        assert len(vacuum(lake, keep_seconds=0, now_ns=_later(1)).paths) == 2

    export.before_commit = meanwhile
    streams.put("in", [Put("k3", b"1")])
    export(keep_seconds=DAY)
    assert len(before) >= 1
    assert all(path.exists() for path in before)
    assert len(table(lake)) == 4


def test_what_a_stopped_run_left(streams: ExportedStreams, export: Export, lake: str) -> None:
    streams.put("in", [Put("a", b"1")])
    export()
    streams.put("in", [Put("a", b"2")])
    step = 10
    while len(os.listdir(f"{lake}/_runs")) == 1:
        with disk(stop_before=step), pytest.raises(Stopped):
            export()
        step += 1
    assert len(os.listdir(f"{lake}/_runs")) == 2
    assert not vacuum(lake, keep_seconds=0).paths  # it may be in progress
    export()
    assert len(os.listdir(f"{lake}/_runs")) == 2


def snapshot_of(lake: str, number: int) -> Any:
    """Return a snapshot according to its manifest."""
    return ManifestTable(lake, open_store(lake))._read(number)  # type: ignore[arg-type]


@pytest.mark.usefixtures("snapshots")
def test_a_vacuum_that_stops_anywhere(lake: str) -> None:
    before = table(lake)
    for step in range(40):
        try:
            with disk(stop_before=step):
                vacuum(lake, keep_seconds=0, now_ns=_later(8))
        except Stopped:
            assert table(lake) == before
            for number in _manifests(lake):  # what is left can be read
                snapshot = snapshot_of(lake, number)
                assert all(Path(lake, file.path).exists() for file in snapshot.all_files)
            continue
        break
    assert step > 1
    assert _manifests(lake) == [5, 6]
    assert len(os.listdir(f"{lake}/_runs")) == 2


@pytest.fixture
def leftovers(tmp_path: Path) -> Path:
    """Return a directory with one file of five bytes, and another file in `staged`."""
    run = tmp_path / "run"
    (run / "staged").mkdir(parents=True)
    for path in (run / "part", run / "staged" / "rows"):
        path.write_bytes(b"12345")
    return run


@pytest.mark.parametrize(
    ("seen", "size_bytes"), [("run", 0), ("part", 5), ("rows", 10)], ids=["run", "part", "rows"]
)
def test_what_vanishes_while_it_is_looked_at(
    leftovers: Path, monkeypatch: pytest.MonkeyPatch, seen: str, size_bytes: int
) -> None:
    store, stat = LocalStore(leftovers.parent), Path.stat
    assert store.total_bytes("run") == 10

    def late(self: Path, **how: Any) -> os.stat_result:
        found = stat(self, **how)
        if self.name == seen:
            monkeypatch.undo()
            shutil.rmtree(leftovers if seen == "run" else leftovers / "staged")
            (leftovers / "part").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Path, "stat", late)
    assert store.total_bytes("run") == size_bytes
    assert store.total_bytes("run") == 0


def test_what_vanishes_from_a_url_while_it_is_looked_at(leftovers: Path) -> None:
    store = RemoteStore(leftovers.parent.as_uri())
    assert store.total_bytes("run") == 10
    files = store._files

    class Late:
        def get_file_info(self, what: Any) -> Any:
            found = files.get_file_info(what)
            shutil.rmtree(leftovers, ignore_errors=True)
            return found

        def delete_dir(self, path: str) -> None:
            files.delete_dir(path)

    store._files = Late()
    assert store.total_bytes("run") == 0
    leftovers.mkdir()
    store.remove("run")
    assert store.names("") == []


def test_a_delta_table(streams: ExportedStreams, tmp_path: Path) -> None:
    lake = str(tmp_path / "delta")
    export = Export(streams, "in", lake, format="delta")
    for n in range(12):
        streams.put("in", [Put("a", b"%d" % n)])
        export()
    rows, before = table(lake), _bytes(lake)
    assert len(os.listdir(f"{lake}/runs")) == 12
    assert not vacuum(lake, keep_seconds=DAY).paths
    listed = vacuum(lake, keep_seconds=0, dry_run=True)
    assert len(listed.paths) == 11
    done = vacuum(lake, keep_seconds=0)
    assert before - _bytes(lake) == done.size_bytes == listed.size_bytes > 0
    assert len(os.listdir(f"{lake}/runs")) == 1
    assert table(lake) == rows
    streams.put("in", [Put("a", b"more")])
    assert export().committed


def test_a_delta_table_does_not_count_snapshots(streams: ExportedStreams, tmp_path: Path) -> None:
    lake = str(tmp_path / "delta")
    export = Export(streams, "in", lake, format="delta")
    streams.put("in", [Put("a", b"1")])
    export()
    with pytest.raises(InvalidArgument, match="by age alone"):
        vacuum(lake, keep_seconds=0, keep_snapshots=2)
    told = CliRunner().invoke(cli, ["export", "vacuum", lake, "--keep-snapshots", "10"])
    assert told.exit_code == ExitCode.USAGE
    assert "leave out --keep-snapshots" in told.stderr
    assert CliRunner().invoke(cli, ["export", "vacuum", lake]).exit_code == ExitCode.OK


def test_directories_that_a_run_empties(streams: ExportedStreams, tmp_path: Path) -> None:
    """Also directories of older runs than those that a run reads in the table's log."""
    lake = tmp_path / "delta"
    export = Export(streams, "in", str(lake), format="delta")
    for n in range(12):
        streams.put("in", [Put("a", b"%d" % n)])
        export()
    assert len(os.listdir(lake / "runs")) == 12
    retention = {"delta.deletedFileRetentionDuration": "interval 0 hours"}
    DeltaTable(str(lake)).alter.set_table_properties(retention)
    streams.put("in", [Put("a", b"last")])
    export()
    assert len(os.listdir(lake / "runs")) == 1
    assert table(str(lake)) == [(13, b"a", b"last")]


def test_what_is_no_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for path in (file, file / "below"):
        told = CliRunner().invoke(cli, ["export", "vacuum", str(path)])
        assert told.exit_code == ExitCode.USAGE
        assert f"{path} is not the directory of an export, but a file, or below one" in told.stderr
        assert "next: give the directory that `liftlog export" in told.stderr
    told = CliRunner().invoke(cli, ["export", "vacuum", str(tmp_path)])
    assert (told.exit_code, "holds no export" in told.stderr) == (ExitCode.NOT_FOUND, True)


@pytest.mark.usefixtures("snapshots")
def test_the_command(lake: str) -> None:
    told = CliRunner().invoke(cli, ["export", "vacuum", lake, "--keep", "0s", "--dry-run"])
    assert told.exit_code == 0, told.output
    lines = told.output.splitlines()
    assert len(lines) == 9
    assert lines[-1].startswith("would remove 8 files and directories, ")
    told = CliRunner().invoke(cli, ["export", "vacuum", lake, "--keep", "0s", "-o", "json"])
    assert '"size_bytes"' in told.output
    assert len(newest(lake).files) == 1
    assert len(os.listdir(f"{lake}/_runs")) == 2
