"""How long the tests of crashes go on: a few rounds in `make test`, many in `make torture`."""

from __future__ import annotations

import os


def rounds(few: int) -> int:
    """`few`, or what TORTURE_ROUNDS says where that is more."""
    return max(few, int(os.environ.get("TORTURE_ROUNDS", "0")))
