"""What somebody may have meant who mistyped a name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'subject'?`, or nothing when no known name is like it."""
    by_folded = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), by_folded, n=1, cutoff=0.6)
    return f"; did you mean {by_folded[near[0]]!r}?" if near else ""
