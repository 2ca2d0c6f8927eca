"""Exports with damage, with a lease that ends, and with a directory that hosts do not share."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.spark.exporting import Export, ExportedStreams, Put, table
from support.spark.local_engine import LocalEngine

from liftlog.client import connect_sync
from liftlog.errors import CorruptRange, InvalidArgument, LeaseGone, StorageError
from liftlog.spark.export import newest, paths
from liftlog.spark.export.store import Disk, LocalStore


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


def _tampered(monkeypatch: pytest.MonkeyPatch, after: str, change: Callable[[], object]) -> None:
    """Change files between a phase and the phase that needs them."""
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
    """As if hosts did not share the directory: the file is missing, short, or another file of this
    size."""
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


def test_the_answer_to_a_link_is_lost(
    streams: ExportedStreams, export: Export, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over NFS: the link was made, and a repetition finds it. It belongs to this run, and is
    durable."""

    class Repeating(Disk):
        def link(self, existing: Path, new: Path) -> None:
            super().link(existing, new)
            if new.suffix == ".json":
                done.append("link")
                raise FileExistsError(errno.EEXIST, "File exists")

        def fsync(self, path: Path) -> None:
            done.append(path.name)

    done: list[str] = []
    monkeypatch.setattr(LocalStore, "disk", Repeating())
    streams.put("in", [Put("a", b"1")])
    assert export().committed
    assert done[done.index("link") + 1 :][:1] == ["_manifest"]
    assert table(lake) == [(1, b"a", b"1")]


@pytest.mark.parametrize("url", ["s3://bucket/lake", "hdfs://host/lake"])
def test_object_stores_are_for_delta(streams: ExportedStreams, url: str) -> None:
    with pytest.raises(InvalidArgument, match="--format delta"):
        Export(streams, "in", url)()
