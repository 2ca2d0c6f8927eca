"""Bars are for terminals, and on stderr."""

import sys

import pytest

from liftlog.cli.lib.progress import byte_progress


def test_no_terminal_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with byte_progress(100) as advance:
        advance("orders", 60)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_one_on_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with byte_progress(1 << 20) as advance:
        advance("orders [1/2]", 1 << 20)
        advance("orders [1/2]", 1 << 20)  # it grew meanwhile
    out, err = capsys.readouterr()
    assert out == ""
    assert "orders [1/2]" in err
    assert "2.0/2.0 MiB" in err
