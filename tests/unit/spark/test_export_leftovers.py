"""Files of an export that are no longer needed, and when they are deleted."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest
from support.disks.crashing_disk import Stopped, disk
from support.spark.exporting import Export, ExportedStreams, Put, table

from liftlog.spark.export import newest, paths
from liftlog.spark.export.store import Disk, LocalStore

HOUR = 3600.0


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
    """They were killed without a power cut, so everything that they wrote exists."""
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
