"""What is tried again and again fills no log."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from liftlog.server.vitals import rare_warnings
from liftlog.server.vitals.rare_warnings import RareWarnings


def test_each_line_is_told_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    monkeypatch.setattr(rare_warnings, "time", SimpleNamespace(monotonic=lambda: now))
    rare = RareWarnings(logging.getLogger("liftlog.test"))
    for tenth in range(1250):  # 125 s
        now = tenth / 10
        for stream in ("s", "t"):
            rare.warn("not-elected stream=%s error=%s", stream, "away")
    assert caplog.messages == [f"not-elected stream={one} error=away" for one in ("s", "t")] * 3
    rare.warn("not-elected stream=%s error=%s", "s", "another reason")
    assert len(caplog.messages) == 7
    now += 1000
    rare.warn("x")
    assert list(rare._told) == ["x"], "what was told long ago is forgotten"
