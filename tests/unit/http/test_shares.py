"""How many requests of one caller and of all are under way."""

from __future__ import annotations

import contextlib

import pytest

from liftlog.errors import LimitExceeded
from liftlog.server.http.shares import Shares


def test_one_caller_takes_no_place_from_others() -> None:
    shares = Shares(total=6, share=2)
    with contextlib.ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(shares.one("greedy"))
        with pytest.raises(LimitExceeded, match="you have 6 unanswered requests of this kind"):
            stack.enter_context(shares.one("greedy"))
        for _ in range(2):
            stack.enter_context(shares.one("modest"))
        with pytest.raises(LimitExceeded):
            stack.enter_context(shares.one("modest"))
    for _ in range(3):
        with shares.one("greedy"):
            assert len(shares) == 1
    assert len(shares) == 0


def test_an_error_gives_the_place_back() -> None:
    shares = Shares(total=0, share=1)
    for _ in range(3):
        with pytest.raises(LookupError), shares.one("a"):
            raise LookupError
