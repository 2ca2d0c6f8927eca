"""`--full` is refused when it would remove rows that the stream no longer has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.spark.exporting import Export, ExportedStreams, Put, table

from liftlog.errors import Conflict, CorruptMetadata, CorruptRange, StaleIncarnation
from liftlog.spark.export import newest


@pytest.fixture
def archive(streams: ExportedStreams, tmp_path: Path) -> Export:
    """Return an append table of ten records with two keys."""
    streams.put("in", [Put("ab"[n % 2], b"%d" % n) for n in range(10)])
    archive = Export(streams, "in", str(tmp_path / "archive"))
    archive(mode="append")
    return archive


def rows_of(export: Export) -> list[Any]:
    return table(export.to)


def test_full_keeps_the_mode_of_the_table(streams: ExportedStreams, archive: Export) -> None:
    streams.put("in", [Put("a", None)])
    assert archive(full=True).mode == "append"
    assert len(rows_of(archive)) == 11
    assert archive(dry_run=True, full=True).mode == "append"


def test_an_archive_does_not_become_a_compacted_table(archive: Export) -> None:
    before = rows_of(archive)
    for dry_run in (True, False):
        with pytest.raises(Conflict, match=r"10 rows.*--discard-rows") as caught:
            archive(full=True, mode="compacted", dry_run=dry_run)
        assert "superseded" in caught.value.message
    assert rows_of(archive) == before
    told = archive(full=True, mode="compacted", discard_rows=True, dry_run=True)
    assert "superseded" in told.discards
    assert archive(full=True, mode="compacted", discard_rows=True).discards == told.discards
    assert len(rows_of(archive)) == 2


def test_an_archive_with_records_that_retention_removed(
    streams: ExportedStreams, archive: Export
) -> None:
    before = rows_of(archive)
    streams.truncate("in", 8)
    for dry_run in (True, False):
        with pytest.raises(Conflict, match="retention has removed the records below 8"):
            archive(full=True, dry_run=dry_run)
    streams.put("in", [Put("c", b"new")])
    archive()
    assert rows_of(archive) == [*before, (11, b"c", b"new")]
    assert archive(full=True, discard_rows=True).committed
    assert [offset for offset, _, _ in rows_of(archive)] == [8, 9, 10, 11]


def test_an_archive_with_records_that_compaction_removed(
    streams: ExportedStreams, archive: Export
) -> None:
    before = rows_of(archive)
    streams.put("in", [Put("a", b"x" * 5000)])
    streams.compact("in")
    with pytest.raises(Conflict, match="compaction"):
        archive(full=True)
    assert rows_of(archive) == before


def test_an_archive_that_is_begun_again_without_loss(
    streams: ExportedStreams, archive: Export
) -> None:
    before = rows_of(archive)
    told = archive(full=True)
    assert (told.committed, told.full, told.discards) == (True, True, "")
    assert rows_of(archive) == before


@pytest.mark.parametrize("mode", ["append", "compacted"])
def test_a_table_of_a_stream_that_is_gone(
    streams: ExportedStreams, tmp_path: Path, mode: Any
) -> None:
    streams.put("in", [Put("a", b"old")])
    export = Export(streams, "in", str(tmp_path / "lake"))
    export(mode=mode)
    streams.delete("in")
    streams.create("in")
    streams.put("in", [Put("a", b"new")])
    with pytest.raises(StaleIncarnation, match="--discard-rows"):
        export()
    with pytest.raises(Conflict, match="deleted and created again"):
        export(full=True)
    assert rows_of(export) == [(1, b"a", b"old")]
    assert export(full=True, discard_rows=True).mode == mode
    assert rows_of(export) == [(1, b"a", b"new")]


def test_a_manifest_that_cannot_be_read(archive: Export) -> None:
    """The content and the mode of the table are unknown in this case."""
    before = rows_of(archive)
    manifest = Path(archive.to, "_manifest", f"{1:020d}.json")
    intact = manifest.read_bytes()
    manifest.write_bytes(intact.replace(b'"append"', b'"appexd"'))
    with pytest.raises(CorruptMetadata):
        archive()
    for asked in ({}, {"mode": "compacted"}, {"discard_rows": True}):
        with pytest.raises(Conflict, match="--discard-rows and --mode"):
            archive(full=True, **asked)
    manifest.write_bytes(intact)
    assert rows_of(archive) == before
    manifest.write_bytes(intact[:-9])
    assert archive(full=True, discard_rows=True, mode="append").sequence == 2
    assert rows_of(archive) == before


def test_full_does_not_drop_what_is_damaged_by_now(
    streams: ExportedStreams, archive: Export
) -> None:
    streams.damage("in", 3)
    before = rows_of(archive)
    with pytest.raises(CorruptRange):
        archive(full=True)
    with pytest.raises(Conflict, match="damaged"):
        archive(full=True, skip_lost=True)
    assert rows_of(archive) == before
    assert newest(archive.to).sequence == 1
    gone = archive(full=True, skip_lost=True, discard_rows=True)
    assert [(one.first_offset, one.next_offset) for one in gone.lost] == [(1, 11)]
    assert rows_of(archive) == []
