"""What the command for each record finds in its environment."""

from __future__ import annotations

import pytest

from liftlog.cli.consuming.consume_exec import environment
from liftlog.client import Record


def of(key: bytes | None) -> dict[str, str]:
    return environment("orders", Record(7, 1, "orders.x", key, b"v", b""))


def test_a_record_without_a_key_does_not_get_that_of_an_outer_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RECORD_KEY", "of the outer command")
    monkeypatch.setenv("RECORD_OFFSET", "6")
    monkeypatch.setenv("HOME", "/home/of/all")
    assert "RECORD_KEY" not in of(None)
    assert "RECORD_KEY" not in of(b"no\0variable")
    assert of(b"k1")["RECORD_KEY"] == "k1"
    assert (of(None)["RECORD_OFFSET"], of(None)["HOME"]) == ("7", "/home/of/all")
