"""Decisions that the code can break without anyone noticing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PRODUCT = ("liftlog", "envelope", "compaction", "acl")


def protocols() -> Iterator[str]:
    for package in PRODUCT:
        for path in (ROOT / package).rglob("*.py"):
            source = path.read_text()
            for found in ast.walk(ast.parse(source)) if "Protocol" in source else ():
                if isinstance(found, ast.ClassDef):
                    bases = {getattr(base, "value", base) for base in found.bases}
                    if any(isinstance(one, ast.Name) and one.id == "Protocol" for one in bases):
                        yield found.name


def test_each_protocol_has_a_reason() -> None:
    page = (ROOT / "docs/adr/0042-where-a-protocol-stands.md").read_text()
    named = {name.rpartition(".")[2] for name in page.replace("\n", " ").split("`")[1::2]}
    found = set(protocols())
    assert found
    assert found <= named, "say in the decision why it stands"
