"""Acks on the pull socket name runs of offsets, of which only some are pending."""

from __future__ import annotations

from liftlog.protocol.workers import Run
from liftlog.server.jetstream_api.workers.socket_door import columns_of


def columns(first: int, end: int, *runs: tuple[int, int, int]) -> list[tuple[int, int]]:
    offsets, counts = columns_of([Run(*run) for run in runs], first, end)
    return list(zip(offsets.tolist(), counts.tolist(), strict=True))


def test_only_offsets_that_can_be_pending_are_looked_at() -> None:
    assert columns(10, 20, (5, 7, 1), (18, 9, 2)) == [(10, 1), (11, 1), (18, 2), (19, 2)]
    assert columns(10, 20, (12, 3, 1)) == [(12, 1), (13, 1), (14, 1)]


def test_runs_that_lie_elsewhere_cost_nothing() -> None:
    assert columns(10, 20, (1, 9, 1), (20, 100_000, 1), (2**62, 100_000, 3)) == []
    assert columns(10, 10, (1, 100, 1)) == []
    assert columns(10, 20) == []
