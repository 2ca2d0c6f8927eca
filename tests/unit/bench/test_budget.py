"""The rounds of a benchmark that has so much time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCH = str(Path(__file__).parents[2] / "bench")


@pytest.fixture
def bench_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(BENCH)
    yield
    sys.modules.pop("liftbench.budget", None)


@pytest.mark.usefixtures("bench_path")
def test_each_figure_gets_one_round_when_the_time_is_over() -> None:
    from liftbench.budget import Rounds

    now = [0.0]
    rounds = Rounds(3, 10, clock=lambda: now[0])
    assert list(rounds) == [0, 1, 2]
    seen = []
    for number in rounds:
        seen.append(number)
        now[0] += 6
    assert seen == [0, 1]
    assert rounds.seconds_left == 0
    assert list(rounds) == [0]
