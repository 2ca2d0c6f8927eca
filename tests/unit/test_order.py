"""The order of the tests for several workers."""

from __future__ import annotations

import pytest
from support.order import in_parts


def module_of(test: str) -> str:
    return test.partition(":")[0]


def halves(tests: list[str], workers: int) -> list[list[str]]:
    """The parts that `--dist worksteal` makes of them."""
    parts, done = [], 0
    for number in range(workers):
        size = (len(tests) - done) // (workers - number)
        parts.append(tests[done : done + size])
        done += size
    return parts


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_each_worker_begins_with_whole_modules_that_wait(workers: int) -> None:
    waiting = [f"w{module}:{test}" for module in range(9) for test in range(module + 1)]
    waiting = [*waiting[7::3], *(test for test in waiting if test not in waiting[7::3])]
    computing = [f"c{module}:{test}" for module in range(40) for test in range(10)]
    order = in_parts(waiting, computing, workers, module_of)
    assert sorted(order) == sorted(waiting + computing)
    parts = halves(order, workers)
    owners: dict[str, int] = {}
    for number, part in enumerate(parts):
        kinds = [test[0] for test in part]
        assert kinds == sorted(kinds, reverse=True), "tests that wait come first"
        count = kinds.count("w")
        assert abs(count - len(waiting) / workers) <= 9
        for test in part[:count]:
            assert owners.setdefault(module_of(test), number) == number, "a module is divided"


@pytest.mark.parametrize(("waiting", "computing"), [(0, 7), (7, 0), (9, 1), (0, 0), (1, 1)])
def test_few_tests(waiting: int, computing: int) -> None:
    some = [f"w{number}:" for number in range(waiting)], [f"c:{n}" for n in range(computing)]
    assert sorted(in_parts(*some, 4, module_of)) == sorted([*some[0], *some[1]])
