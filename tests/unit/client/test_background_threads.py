"""The background of the blocking client: a thread may be refused, and its errors are reported."""

from __future__ import annotations

import logging
import threading
from typing import NoReturn

import pytest

from liftlog.client.blocking.background import Background
from liftlog.errors import ConnectionLost


def test_a_thread_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    background: Background[int] = Background("test")

    def refuse(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="start"):
            background.start(lambda: 7)
        assert not background.started
    background.start(lambda: 7)
    assert background.result() == 7


@pytest.mark.parametrize(("error", "lines"), [(KeyError("k"), 1), (ConnectionLost("lost"), 0)])
def test_a_defect_that_nobody_asked_for_is_logged(
    error: Exception, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> NoReturn:
        raise error

    background: Background[int] = Background("test")
    background.start(fail)
    with caplog.at_level(logging.ERROR, "liftlog.client"):
        background.stop(None)
    assert len(caplog.records) == lines
