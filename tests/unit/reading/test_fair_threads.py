"""Jobs of many parties in one thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future

import pytest

from liftlog.server.reading.fairness import FairThreads


class Bench:
    """Nothing runs until `go`, so that all jobs are there before the first is chosen."""

    def __init__(self) -> None:
        self.threads = FairThreads(1, "test")
        self.order: list[str] = []
        self._gate = threading.Event()
        self.first = self.threads.of("gate").submit(self._gate.wait, 60)

    def ask(self, label: str, party: str, member: int = 0) -> Future[None]:
        return self.threads.of(party, member).submit(self.order.append, label)

    def go(self, *futures: Future[None]) -> None:
        self._gate.set()
        for future in futures:
            future.result(60)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.go()
    bench.threads.shutdown()


def test_parties_take_turns(bench: Bench) -> None:
    greedy = [bench.ask(f"greedy{n}", "greedy") for n in range(100)]
    modest = [bench.ask(f"modest{n}", "modest") for n in range(2)]
    bench.go(*greedy, *modest)
    assert bench.order[:5] == ["greedy0", "modest0", "greedy1", "modest1", "greedy2"]
    assert bench.order[5:] == [f"greedy{n}" for n in range(3, 100)]


def test_threads_are_busy_while_a_job_runs(bench: Bench) -> None:
    def fails() -> None:
        assert bench.threads.is_busy
        raise ValueError("as it is")

    failing = bench.threads.of("party").submit(fails)
    bench.go(bench.first)
    with pytest.raises(ValueError, match="as it is"):
        failing.result(60)
    assert not bench.threads.is_busy


def test_many_connections_are_one_party(bench: Bench) -> None:
    """And among themselves they take turns too."""
    greedy = [bench.ask(f"g{n % 10}", "greedy", n % 10) for n in range(100)]
    modest = bench.ask("modest", "modest")
    bench.go(*greedy, modest)
    assert bench.order[:2] == ["g0", "modest"]
    assert bench.order[2:21] == [f"g{n % 10}" for n in range(1, 20)]


def test_what_was_cancelled_costs_nobody_a_turn(bench: Bench) -> None:
    given_up = [bench.ask("given up", "greedy") for _ in range(10)]
    for one in given_up:
        assert one.cancel()
    wanted = bench.ask("wanted", "greedy")
    bench.go(wanted)
    assert bench.order == ["wanted"]


def test_results_and_errors(bench: Bench) -> None:
    bench.go()
    assert bench.threads.of("a").submit(lambda x, y: x + y, 1, y=2).result(60) == 3
    with pytest.raises(ZeroDivisionError):
        bench.threads.of("a").submit(lambda: 1 // 0).result(60)
    assert bench.threads.of("a").submit(len, "abc").result(60) == 3


def test_the_end(bench: Bench) -> None:
    waiting = bench.ask("never", "a")
    closing = threading.Thread(
        target=bench.threads.shutdown, kwargs={"wait": True, "cancel_futures": True}
    )
    closing.start()
    with pytest.raises(CancelledError):
        waiting.result(60)
    bench.go()
    closing.join(60)
    assert bench.order == []
    with pytest.raises(RuntimeError):
        bench.ask("late", "a")
