"""The order of all tests for several workers: each begins with tests that wait, and ends with tests
that compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def in_parts(
    waiting: Sequence[T], computing: Sequence[T], workers: int, module_of: Callable[[T], str]
) -> list[T]:
    """Return all tests in one part for each worker, of the same size as far as possible: first a
    share of the modules that wait for processes, then tests that compute.

    `--dist worksteal` gives each worker such a part, in this order. A worker that has nothing left
    takes tests from the end of the part of another. If the tests that wait came last, no test would
    use the processors meanwhile. The tests of a module stay together: they share daemons.
    """
    parts: list[list[T]] = [[] for _ in range(workers)]
    modules: dict[str, list[T]] = {}
    for test in waiting:
        modules.setdefault(module_of(test), []).append(test)
    for tests in modules.values():
        min(parts, key=len).extend(tests)
    parts.sort(key=len, reverse=True)
    left, done = len(waiting) + len(computing), 0
    for number, part in enumerate(parts):
        missing = max(left // (workers - number) - len(part), 0)
        part.extend(computing[done : done + missing])
        done += missing
        left -= len(part)
    return [test for part in parts for test in part]
