"""Exports on a machine that stops between any two steps."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.disks.crashing_disk import Stopped, disk
from support.rounds import one_in
from support.spark.exporting import Export, ExportedStreams, Put, table

from liftlog.spark.export import newest


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
    """A third run, with files to remove afterwards."""
    _second(streams, export)
    for n in range(2):
        export()
        streams.put("in", [Put("c", b"%d" % n)])


def test_directories_of_a_run_that_was_killed(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    """They exist and are not durable yet. Then the power fails after a complete run."""
    _first(streams, export)
    for step in range(8):
        with disk(stop_before=step) as killed, pytest.raises(Stopped):
            export()
        with disk() as crashing:
            crashing.unsynced_names |= killed.unsynced_names
            export()
        crashing.cut_power()
        assert len(table(lake)) == 3, f"step {step}"
        shutil.rmtree(lake)


def _merged(streams: ExportedStreams, export: Export) -> None:
    """A run with merge on read, with changes of two runs, and with files to remove afterwards."""
    streams.put("in", [Put(f"k{n}", b"0") for n in range(40)])
    export(layout="merge-on-read")
    for n in range(3):
        streams.put("in", [Put(f"k{n}", b"1"), Put(f"k{n + 1}", None), Put(None, b"2")])
        if n < 2:
            export()


def _folds(streams: ExportedStreams, export: Export) -> None:
    _merged(streams, export)
    streams.put("in", [Put(f"k{n}", b"3") for n in range(20)])


@pytest.mark.parametrize("prepare", [_first, _third, _merged, _folds])
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
    assert newest(lake).has_changes == (prepare is _merged)
    assert whole.steps > 20
    for step in one_in(3, range(whole.steps), prepare.__name__):
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
