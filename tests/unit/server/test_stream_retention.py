"""Retention of a stream as the daemon asks for it: from settings and a real log to a decision."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.logs import BASE_NS, SMALL, FakeClock, encode, environment

from compaction.retention import RetentionDecision
from liftlog.log import Log, OsFileSystem
from liftlog.server.stream_retention import decide_retention
from liftlog.settings import StreamSettings, parse_stream_settings

HOUR_NS = 3600 * 1_000_000_000


def settings(**changes: Any) -> StreamSettings:
    return parse_stream_settings({"subject": "in", **changes})


def append(log: Log, count: int) -> None:
    log.append([encode(log, [b"x" * 100] * count)])
    log.sync()
    log.advance_high_watermark(log.log_end_offset)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log.create(tmp_path / "s", environment(OsFileSystem(), FakeClock()), SMALL)
    yield made
    made.close()
    made.environment.pool.close()


@pytest.mark.parametrize("window", ["2m", "0s"])
def test_files_older_than_the_dedupe_window_are_deleted(log: Log, window: str) -> None:
    for _ in range(5):
        append(log, 10)
    limits = settings(retention={"max_messages": 5}, dedupe_window=window)
    decision = decide_retention(log, limits, BASE_NS + HOUR_NS)
    assert decision is not None
    assert (decision.log_start_offset, decision.delete_segments) == (46, 4)
    before = log.size_bytes
    freed = log.remove_before(decision.log_start_offset, decision.delete_segments)
    assert log.size_bytes == before - freed
    assert len(list(log.directory.glob("*.log"))) == 1


def test_files_inside_the_dedupe_window_stay_for_its_ids(log: Log) -> None:
    for _ in range(5):
        append(log, 10)
    limits = settings(retention={"max_messages": 5}, dedupe_window="2h")
    decision = decide_retention(log, limits, BASE_NS + HOUR_NS)
    assert decision is not None
    assert (decision.log_start_offset, decision.delete_segments) == (46, 0)


def test_a_decision_in_the_middle_of_an_append_keeps_what_is_committed(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer's thread appends while the loop decides."""
    append(log, 3)
    limits = settings(retention={"max_messages": 3})
    seen: list[RetentionDecision | None] = []
    original = log._index.maybe_add

    class Watched:
        def maybe_add(self, *arguments: Any) -> None:
            seen.append(decide_retention(log, limits, BASE_NS))
            original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(log, "_index", Watched())
        end = log.log_end_offset
        log.append([encode(log, [b"y"], first=end + i) for i in range(4)])
    assert seen == [None] * 4
