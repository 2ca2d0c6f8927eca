"""Errors in words."""

import pytest

from liftlog.cli.exit_codes import ExitCode
from liftlog.cli.problems import Problem, report
from liftlog.errors import (
    ConfigError,
    Conflict,
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
