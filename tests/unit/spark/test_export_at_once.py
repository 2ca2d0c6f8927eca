"""Exports of one table at the same time."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from support.spark.exporting import Export, ExportedStreams, Put, table

from liftlog.errors import Conflict
from liftlog.spark.export import job, newest
from liftlog.spark.export.run_plan import plan_under_lease
from liftlog.spark.export.store import Disk, LocalStore


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
    """This run has found no table, and has not begun yet."""
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
    """Another run has used its number, and the manifest of this number was removed again."""
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


def test_a_file_that_another_run_removes_as_it_is_complete(
    streams: ExportedStreams, export: Export, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.put("in", [Put("a", b"1")])
    size = LocalStore.size

    def late(self: LocalStore, path: str) -> int | None:
        if f"{1:020d}" in path:
            monkeypatch.undo()
            Export(streams, "in", lake)()
            assert size(self, path) is None
        return size(self, path)

    monkeypatch.setattr(LocalStore, "size", late)
    with pytest.raises(Conflict, match="was quicker"):
        export()
    assert table(lake) == [(1, b"a", b"1")]


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
