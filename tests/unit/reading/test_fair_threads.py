"""Jobs of many parties in one thread."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from concurrent.futures import CancelledError, Future

import pytest

from liftlog.server.reading.fairness import FairThreads, others_wait


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


def test_a_job_knows_whether_another_party_waits(bench: Bench) -> None:
    threads = bench.threads
    alone = threads.of("alone").submit(others_wait)
    own = [threads.of("crowd", member).submit(others_wait) for member in range(3)]
    bench.go()
    assert alone.result(60)  # the crowd waits
    assert [one.result(60) for one in own] == [False] * 3
    assert not others_wait()  # no job of these threads


def test_a_job_of_other_threads_has_no_others(bench: Bench) -> None:
    """The first pool's queue is long, but the second pool's job delays nobody."""
    for number in range(3):
        bench.ask("waits", f"party{number}")
    others = FairThreads(1, "others")
    assert not others.of("party").submit(others_wait).result(60)
    others.shutdown()


def steps(bench: Bench, label: str, count: int) -> Generator[None, None, str]:
    for number in range(count):
        bench.order.append(f"{label}{number}")
        yield
    return label


def test_others_have_their_turn_between_two_steps(bench: Bench) -> None:
    long = bench.threads.of("a").submit_steps(steps(bench, "long", 3))
    own = bench.ask("own", "a", 1)
    other = bench.ask("other", "b")
    bench.go(own, other)
    assert long.result(60) == "long"
    assert bench.order == ["long0", "other", "own", "long1", "long2"]


def test_a_step_that_fails_ends_the_job(bench: Bench) -> None:
    def failing() -> Generator[None, None, None]:
        yield
        raise ValueError("as it is")

    found = bench.threads.of("a").submit_steps(failing())
    bench.go()
    with pytest.raises(ValueError, match="as it is"):
        found.result(60)
    assert bench.threads.of("a").submit(len, "abc").result(60) == 3


def test_a_job_in_steps_that_is_cancelled_ends_after_its_step(bench: Bench) -> None:
    reached, goes_on = threading.Event(), threading.Event()

    def endless() -> Generator[None, None, None]:
        while True:
            bench.order.append("step")
            reached.set()
            goes_on.wait(60)
            yield

    found = bench.threads.of("a").submit_steps(endless())
    bench.go()
    assert reached.wait(60)
    assert found.cancel()
    goes_on.set()
    assert bench.threads.of("a").submit(len, "abc").result(60) == 3
    assert bench.order == ["step"]


@pytest.mark.parametrize("wait", [True, False])
def test_a_job_in_steps_ends_with_its_threads(bench: Bench, wait: bool) -> None:
    reached = threading.Event()

    def endless() -> Generator[None, None, None]:
        while True:
            reached.set()
            yield

    found = bench.threads.of("a").submit_steps(endless())
    bench.go()
    assert reached.wait(60)
    bench.threads.shutdown(wait, cancel_futures=True)
    with pytest.raises((CancelledError, RuntimeError)):
        found.result(60)


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
