"""The free descriptors are counted, but not once for each of thousands of new streams."""

from __future__ import annotations

import os
import resource

import pytest

from liftlog.errors import LimitExceeded
from liftlog.server.vitals.descriptors import Descriptors


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of open descriptors, and how often they were counted."""
    found = [100, 0]

    def listdir(path: str) -> list[str]:
        found[1] += 1
        return [str(number) for number in range(found[0] + 1)]

    monkeypatch.setattr(os, "listdir", listdir)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (5000, 5000))
    return found


def test_far_from_the_limit_one_count_serves_many_streams(listed: list[int]) -> None:
    one = Descriptors()
    for _ in range(500):
        one.check_spare()
    assert 1 <= listed[1] < 50  # once a second at most


def test_near_the_limit_they_are_counted_for_each_stream(listed: list[int]) -> None:
    one = Descriptors()
    for _ in range(2000):
        one.check_spare()
    assert listed[1] > 1
    listed[0] = 4990
    with pytest.raises(LimitExceeded, match="has 10 of its 5,000"):
        for _ in range(1000):
            one.check_spare()
    listed[0] = 4900
    one.check_spare()
