"""What a member of a group does beside its iteration."""

from __future__ import annotations

import threading
from typing import Any, NoReturn

import pytest

from liftlog.client.groups.beside import SyncOpening, SyncSpeaking
from liftlog.protocol.messages import ListStreams


class Session:
    """Cannot open another connection."""

    def another(self) -> NoReturn:
        raise MemoryError("no room for a connection")


def take_soon(opening: SyncOpening) -> None:
    """What there is when the thread has ended."""
    opening.take()
    for thread in threading.enumerate():
        if thread.name == "liftlog-opens":
            thread.join(60)
    opening.take()


def test_a_connection_that_cannot_be_opened_is_told_whatever_the_error() -> None:
    session: Any = Session()
    opening = SyncOpening(session)
    for _ in range(2):  # after an error it is tried again
        with pytest.raises(MemoryError, match="no room"):
            take_soon(opening)


def test_a_thread_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = Session()
    opening = SyncOpening(session)

    def refuse(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="start"):
            opening.take()
    with pytest.raises(MemoryError, match="no room"):
        take_soon(opening)


def test_what_is_no_answer_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> NoReturn:
        raise MemoryError("no room for a connection")

    monkeypatch.setattr("liftlog.client.groups.beside.SyncRouter", refuse)
    session: Any = None
    speaking = SyncSpeaking(session, [])
    speaking.begin([ListStreams()])
    with pytest.raises(MemoryError, match="no room"):
        speaking.heard()
