"""The compaction of a stream as `stream info` tells it."""

from __future__ import annotations

from typing import Any

from liftlog.cli.stream_words import describe_compaction, describe_last_pass

LAST = {
    "time_ns": 1_700_000_000_000_000_000,
    "seconds": 1.5,
    "records_in": 31,
    "records_out": 4,
    "bytes_in": 2048,
    "bytes_out": 1024,
}


def lines(**found: Any) -> list[str]:
    return describe_compaction({"state": "idle", "dirty_ratio": 0.0, "dirty_bytes": 0, **found})


def test_nothing_is_said_of_a_stream_without_compaction() -> None:
    assert describe_compaction({}) == []
    assert lines(state="off", cleaned_below=0) == []


def test_what_compaction_once_did_is_said_for_ever() -> None:
    found = lines(state="off", cleaned_below=9, tombstones_removed_below=5)
    assert found == ["cleaned below offset 9", "tombstones removed below offset 5"]


def test_a_pass_under_way() -> None:
    progress = {"phase": "rewrite", "done_bytes": 1024, "total_bytes": 4096}
    found = lines(state="running", dirty_ratio=0.51, dirty_bytes=2048, progress=progress)
    assert found[:2] == ["running, 51 % dirty (2.0 KiB)", "phase rewrite: 1.0 KiB of 4.0 KiB"]


def test_the_last_pass_and_a_failure() -> None:
    found = lines(state="backing off", last_pass=LAST, error="the disk is full")
    assert "27 records of 31 removed, 2.0 KiB became 1.0 KiB" in found[1]
    assert found[-1] == "error: the disk is full"
    assert describe_last_pass({"last_pass": None}) == "there was nothing to do"
