"""Rules for the source as a whole that no linter knows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("liftlog", "envelope", "compaction", "acl", "tools")
_MAX_LINES = 70
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


def test_no_function_is_long() -> None:
    """A function that needs more does several things. Its docstring counts, decorators do not."""
    probe = "def f():\n" + "    pass\n" * _MAX_LINES
    assert _long_functions("probe", probe) == ["probe:1 f has 71 lines"]
    found = [
        one
        for directory in (*PRODUCT, "tests")
        for path in sorted((ROOT / directory).rglob("*.py"))
        for one in _long_functions(str(path.relative_to(ROOT)), path.read_text())
    ]
    assert found == []


def test_no_patch_is_for_what_is_not_there() -> None:
    """A patch that need not find its name changes nothing once that was moved, and the test goes on
    to pass."""
    silent = "raising=" + "False"
    paths = sorted((ROOT / "tests").rglob("*.py"))
    assert [str(one.relative_to(ROOT)) for one in paths if silent in one.read_text()] == []


def _long_functions(path: str, source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > _MAX_LINES:
                found.append(f"{path}:{node.lineno} {node.name} has {lines} lines")
    return found
