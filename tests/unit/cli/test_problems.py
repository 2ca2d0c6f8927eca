"""Errors in words."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.problems import ClientEvents, Problem, report, warn
from liftlog.errors import (
    ConfigError,
    Conflict,
    GroupFenced,
    OffsetOutOfRange,
    StorageError,
    StreamNotFound,
)


def test_what_happened_and_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(StreamNotFound("there is no stream 'x'")) is ExitCode.NOT_FOUND
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "error: there is no stream 'x'\n  next: `liftlog stream ls` lists the streams\n"
    )


def test_an_error_without_a_hint_gets_the_one_of_its_kind(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report(ConfigError("2 problems:\n  a: wrong\n  b: wrong"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: 2 problems:"
    assert [line.strip() for line in lines[1:3]] == ["a: wrong", "b: wrong"]
    assert lines[3].startswith("  next: ")


def test_details_that_the_message_lacks_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    report(OffsetOutOfRange("no such offset", log_start_offset=5, log_end_offset=9))
    assert "why: the log holds offsets 5 to 8" in capsys.readouterr().err
    report(OffsetOutOfRange("no such offset", log_start_offset=5, log_end_offset=5))
    assert "why: it is empty" in capsys.readouterr().err
    report(OffsetOutOfRange("offset 3 is outside [5, 9]", log_start_offset=5, log_end_offset=9))
    assert "why" not in capsys.readouterr().err
    report(Conflict("exists", differences=["subject: a here, b asked"]))
    assert "why: subject: a here, b asked" in capsys.readouterr().err


def test_the_cause_on_the_disk_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    error = StorageError("opening orders")
    error.__cause__ = OSError(5, "Input/output error")
    assert report(error) is ExitCode.FAILED
    assert "Input/output error" in capsys.readouterr().err


def test_problems_carry_their_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(Problem("no", ExitCode.NOT_ACKED, hint="again")) is ExitCode.NOT_ACKED
    assert "next: again" in capsys.readouterr().err


def test_a_defect_asks_to_be_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(KeyError("boom")) is ExitCode.FAILED
    shown = capsys.readouterr().err
    assert "unexpected KeyError: 'boom'" in shown
    assert "--debug" in shown
    assert "Traceback" not in shown


def test_an_error_of_a_task_is_taken_out_of_its_groups(
    capsys: pytest.CaptureFixture[str],
) -> None:
    inner = ExceptionGroup("inner", [StreamNotFound("no stream")])
    assert report(ExceptionGroup("outer", [inner])) is ExitCode.NOT_FOUND
    assert capsys.readouterr().err.startswith("error: no stream\n")
    several = ExceptionGroup("several", [KeyError("a"), KeyError("b")])
    assert report(several) is ExitCode.FAILED


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise KeyError("boom")
    except KeyError as error:
        report(error, debug=True)
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_text_of_others_does_not_reach_the_terminal_raw(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report(StreamNotFound("no \x1b[2Jstream"))
    assert "\\x1b[2J" in capsys.readouterr().err


def test_a_loss_is_told_once_unless_it_is_made_good_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Timer:
        def __init__(self, seconds: float, call: Callable[..., None], arguments: Any) -> None:
            self.tell = partial(call, *arguments)
            self.start = partial(waiting.append, self)

        def cancel(self) -> None:
            if self in waiting:
                waiting.remove(self)

    def a_moment_later() -> str:
        while waiting:
            waiting.pop(0).tell()
        return capsys.readouterr().err

    waiting: list[Timer] = []
    now = [100.0]
    monkeypatch.setattr("liftlog.cli.lib.problems.threading.Timer", Timer)
    monkeypatch.setattr("liftlog.cli.lib.problems.time.monotonic", lambda: now[0])
    logger = logging.Logger("client")
    logger.addHandler(ClientEvents())
    lost = partial(logger.warning, "connection-lost address=%s reason=%s")
    found = partial(logger.info, "connected-again address=%s after_seconds=%.3f")

    lost("a", "it is gone")
    lost("a", "it is gone")  # another connection of it
    lost("b", "b, too")
    assert a_moment_later().splitlines() == [
        "warning: it is gone; trying again",
        "warning: b, too; trying again",
    ]
    found("a", 7.04)
    found("a", 7.1)
    assert a_moment_later() == "connected again after 7.0 s\n"
    # An idle one is found lost later, and made good.
    lost("a", "it is gone")
    found("a", 0.01)
    assert a_moment_later() == ""
    lost("a", "again")
    assert a_moment_later() == "warning: again; trying again\n"
    now[0] += 31
    lost("a", "still")
    assert a_moment_later() == "warning: still; trying again\n"


def test_events_of_a_group_are_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.Logger("client")
    logger.addHandler(ClientEvents())
    lost = GroupFenced("its session has ended", hint="for programs")
    logger.warning("group-member-lost %s %s %s %d %s", "g", "orders", "w1", 7, lost)
    logger.warning("group-join-failed %s %s %s", "g", "orders", "no answer")
    logger.warning("group-commit-failed %s %s %s %s", "g", "orders", "w1", "the disk is full")
    logger.warning("dead-letter %s %s %d %d %s", "g", "orders", 17, 4, "exit status 3")
    assert capsys.readouterr().err.splitlines() == [
        "warning: w1 has lost its 7 slots, and what it had not committed: its session has ended",
        "warning: cannot join group g of orders: no answer; trying again",
        "warning: cannot commit what is done: the disk is full",
        "warning: offset 17 of orders becomes a dead letter after 4 attempt(s): exit status 3",
    ]


def test_a_warning_of_several_lines_keeps_them(capsys: pytest.CaptureFixture[str]) -> None:
    warn("acl was not reloaded:\nrule 1\x1b: wrong\nrule 2: wrong")
    shown = capsys.readouterr().err
    assert shown == "warning: acl was not reloaded:\n  rule 1\\x1b: wrong\n  rule 2: wrong\n"
