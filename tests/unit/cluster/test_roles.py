"""What a node does for a stream, by the record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from liftlog.cluster import transitions as t
from liftlog.cluster.record import Follow, Lead, Leave, Register, Role, Wait, role_of

RECORD = t.create("s", "i", {}, "abc", starts={"a": 1, "b": 1, "c": 1, "o": 1}, observers="o")


@pytest.mark.parametrize(
    ("node", "changes", "role"),
    [
        ("a", {}, Lead(1)),
        ("b", {}, Follow("a", 1)),
        ("o", {}, Follow("a", 1)),
        ("d", {}, Leave()),
        ("b", {"deleted": True}, Leave()),
        ("b", {"leader": None}, Wait()),
        ("b", {"starts": {"b": 2}}, Register()),
        ("a", {"starts": {}}, Register()),
    ],
)
def test_roles(node: str, changes: dict[str, Any], role: Role) -> None:
    assert role_of(replace(RECORD, **changes), node, 1) == role


def test_a_leader_that_resigned_waits_for_the_next_epoch() -> None:
    assert role_of(RECORD, "a", 1, resigned_epoch=1) == Wait()
    assert role_of(replace(RECORD, leader_epoch=2), "a", 1, resigned_epoch=1) == Lead(2)
