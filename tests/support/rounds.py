"""Defines the length of the crash tests: a few rounds and a sample of all places in `make test`,
many rounds and every place in `make torture`."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Sequence
from typing import TypeVar

import pytest
from hypothesis import settings

T = TypeVar("T")


def rounds(few: int) -> int:
    """Return `few`, or the value of TORTURE_ROUNDS if it is higher."""
    return max(few, int(os.environ.get("TORTURE_ROUNDS", "0")))


def chance_of(what: str) -> random.Random:
    """Return the random generator of a campaign. It is the same in each run, unless TORTURE_SEED
    sets another seed."""
    return random.Random(" ".join([what, os.environ.get("TORTURE_SEED", "")]).rstrip())


def seeds(few: int, of: int) -> list[object]:
    """Return parameters for a search whose result depends only on the seed: the first few seeds run
    in `make test`, the others in `make test-long`."""
    return [
        number if number < few else pytest.param(number, marks=pytest.mark.long)
        for number in range(of)
    ]


def modes(first: str, *others: str) -> list[str]:
    """Return the first mode, and also the other modes if there is time."""
    return [first, *others] if is_torture() else [first]


def one_in(count: int, places: Sequence[T], what: str) -> Sequence[T]:
    """Return every `count`-th of the places, or all of them if there is time. `what` determines the
    first place, so that different tests use different places."""
    if is_torture():
        return places
    return places[zlib.crc32(what.encode()) % count :: count]


def is_torture() -> bool:
    """Return True if there is time for everything."""
    return bool(rounds(0)) or os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"


def examples(part: float = 1.0) -> int:
    """Return the number of Hypothesis's examples: this part of the number in the profile, which is
    50 in `make test` and 20,000 in `make fuzz`."""
    return int(part * settings.default.max_examples)
