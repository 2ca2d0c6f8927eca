"""Rules for the source as a whole that no linter knows."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("liftlog", "envelope", "compaction", "acl", "tools")
_POSSESSIVE_GROUP = re.compile(r"\)(?:[*+?]|\{[\w%,]*\})\+")


def test_no_expression_repeats_a_group_possessively() -> None:
    """Python 3.11.0 to 3.11.4 compile such a repeat wrongly (CPython gh-100061); `(?>(?:...)*)`
    says the same. A possessive repeat of one character or class is right everywhere."""
    assert _POSSESSIVE_GROUP.search(r"(?:(?!a)b){0,%d}+"), "the search finds what it is for"
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for package in PRODUCT
        for path in sorted((ROOT / package).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "(?" in line and _POSSESSIVE_GROUP.search(line)
    ]
    assert found == []
