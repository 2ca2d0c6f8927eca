"""How long the tests of crashes and the searches go on: a few rounds and a sample of all places in
`make test`, three times as many places in CI, many rounds and every place in `make torture`.

The profile of Hypothesis decides (tests/conftest.py). That of `make test` is `short`.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Sequence
from typing import TypeVar

import pytest
from hypothesis import settings

T = TypeVar("T")

_SHORTER = 3


def rounds(few: int) -> int:
    """Return `few`, in `make test` a third of it, or TORTURE_ROUNDS if that is more."""
    return max(fewer(few), int(os.environ.get("TORTURE_ROUNDS", "0")))


def chance_of(what: str) -> random.Random:
    """Return the random generator of a campaign. It is the same in each run, unless TORTURE_SEED
    sets another seed."""
    return random.Random(" ".join([what, os.environ.get("TORTURE_SEED", "")]).rstrip())


def is_short() -> bool:
    """Whether this is `make test`, with a third of the places, seeds and runs of CI."""
    return settings.get_current_profile_name() == "short"


def fewer(count: int) -> int:
    """Return `count`; in `make test`, a third of it, rounded up."""
    return -(-count // _SHORTER) if is_short() else count


def stride(step: int = 1) -> int:
    """Return the step between places that a test counts itself: `step`, or three times as many in
    `make test`."""
    return step * _SHORTER if is_short() else step


def seeds(few: int, of: int = 0) -> list[object]:
    """Return parameters for a search whose result depends only on the seed: the first few seeds run
    in CI, a third of these in `make test`. If there are more, up to `of`, these run in
    `make test-long`."""
    first = fewer(few)
    return [
        number if number < first else pytest.param(number, marks=pytest.mark.long)
        for number in range(max(few, of))
    ]


def modes(first: str, *others: str) -> list[str]:
    """Return the first mode, and also the other modes if there is time."""
    return [first, *others] if is_torture() else [first]


def one_in(count: int, places: Sequence[T], what: str) -> Sequence[T]:
    """Return every `count`-th of the places; in `make test`, a third of these; all of them where
    there is time for it. Which one is the first depends on `what`, so that tests that differ in
    that look at different places. Returns at least one place, if there are any."""
    if is_torture():
        return places
    count = stride(count)
    return places[zlib.crc32(what.encode()) % (min(count, len(places)) or 1) :: count]


def is_torture() -> bool:
    """Return True if there is time for everything."""
    return bool(rounds(0)) or os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"


def examples(part: float = 1.0) -> int:
    """Return how many of Hypothesis's examples: this part of what the profile asks for, which is 15
    in `make test`, 50 in CI and 20,000 in `make fuzz`."""
    return max(1, int(part * settings.default.max_examples))
