"""How long the tests of crashes go on: a few rounds in `make test`, many in `make torture`."""

from __future__ import annotations

import os


def rounds(few: int) -> int:
    """`few`, or what TORTURE_ROUNDS says where that is more."""
    return max(few, int(os.environ.get("TORTURE_ROUNDS", "0")))


def modes(first: str, *others: str) -> list[str]:
    """The first mode always, the others where there is time for it."""
    return [first, *others] if rounds(0) else [first]
