"""`--skip-lost` records every loss in the summary and in the manifest, with the affected keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.spark.exporting import Export, ExportedStreams, Put, table

from liftlog.errors import CorruptRange
from liftlog.spark.export import in_doubt, newest


def doubted(lake: str) -> list[bytes]:
    return sorted(key for batch in in_doubt(lake) for key in batch.column("key").to_pylist())


def spans(lost: object) -> list[tuple[int, int]]:
    return [(one.first_offset, one.next_offset) for one in lost]  # type: ignore[attr-defined]


def put_groups(streams: ExportedStreams, groups: int = 4) -> None:
    """Put batches of two records, [1, 3), [3, 5) and so on, each with the keys a and b."""
    for n in range(groups):
        streams.put("in", [Put("a", b"%d" % n), Put("b", b"%d" % n)])


@pytest.mark.parametrize("partition_bytes", [None, 200])
def test_damage_that_is_found_while_reading(
    streams: ExportedStreams, export: Export, lake: str, partition_bytes: int | None
) -> None:
    put_groups(streams)
    streams.damage("in", 7, noticed=False)
    with pytest.raises(CorruptRange, match="--skip-lost") as raised:
        export()
    assert "failOnDataLoss" not in str(raised.value), "the command has no such option"
    summary = export(skip_lost=True, partition_bytes=partition_bytes)
    assert spans(summary.lost) == [(7, 9)]
    assert newest(lake).lost == summary.lost
    # The values before the damage count again: which keys that may concern is told.
    assert table(lake) == [(5, b"a", b"2"), (6, b"b", b"2")]
    assert (summary.keys_in_doubt, doubted(lake)) == (2, [b"a", b"b"])


def test_damage_in_an_archive(streams: ExportedStreams, export: Export, lake: str) -> None:
    put_groups(streams)
    streams.damage("in", 3, noticed=False)
    summary = export(skip_lost=True, mode="append")
    assert spans(summary.lost) == [(3, 5)]
    assert (summary.keys_in_doubt, doubted(lake)) == (0, [])
    assert [offset for offset, _, _ in table(lake)] == [1, 2, 5, 6, 7, 8]


def test_a_loss_is_not_forgotten_by_the_next_run(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    put_groups(streams)
    streams.damage("in", 7, noticed=False)
    first = export(skip_lost=True)
    streams.put("in", [Put("a", b"new"), Put("c", b"new")])
    second = export()
    assert second.lost == ()
    assert newest(lake).lost == first.lost
    assert (second.keys_in_doubt, doubted(lake)) == (1, [b"b"])
    # Once retention has passed the damage it says nothing of what is left.
    streams.truncate("in", 9)
    assert export().keys_in_doubt == 0
    assert newest(lake).lost == ()


def test_damage_on_both_sides_of_a_border_between_tasks(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    """The manifest has one loss, even if several tasks have found it."""
    streams.put("in", [Put(f"k{n}", b"v" * 100) for n in range(60)])
    streams.put("in", [Put("last", b"1")])
    streams.damage("in", 30, noticed=False)
    summary = export(skip_lost=True, partition_bytes=1000)
    assert spans(summary.lost) == [(1, 61)]
    assert table(lake) == [(61, b"last", b"1")]


def test_delta_remembers_losses_too(streams: ExportedStreams, tmp_path: Path) -> None:
    put_groups(streams)
    streams.damage("in", 7, noticed=False)
    lake = str(tmp_path / "delta")
    export = Export(streams, "in", lake, format="delta", name="delta")
    lost = export(skip_lost=True).lost
    streams.put("in", [Put("b", b"new")])
    assert export().keys_in_doubt == 1
    assert (newest(lake).lost, spans(lost)) == (lost, [(7, 9)])
    assert doubted(lake) == [b"a"]
