"""Log lines: fields arrive whole, stay on one line, and hold no secret."""

import ast
import io
import json
import logging
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import liftlog
from liftlog.errors import ConfigError
from liftlog.server.life.logs import (
    JsonFormatter,
    LogFile,
    PrettyFormatter,
    RepeatFilter,
    configure_logging,
    event_of,
    mask,
    reopen_logs,
)


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    root = logging.getLogger()
    kept = (root.level, list(root.handlers), logging.raiseExceptions)
    yield
    for handler in root.handlers:
        if isinstance(handler, LogFile):
            handler.close()
    root.setLevel(kept[0])
    root.handlers[:] = kept[1]
    logging.raiseExceptions = kept[2]
    logging.captureWarnings(False)
    for name in ("nats", "asyncio"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def record(message: str, *values: Any, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("liftlog.server", level, __file__, 1, message, values, None)


def as_json(message: str, *values: Any) -> dict[str, Any]:
    line = JsonFormatter().format(record(message, *values))
    assert "\n" not in line
    fields: dict[str, Any] = json.loads(line)
    return fields


def test_an_event_becomes_fields() -> None:
    fields = as_json("stream-opened stream=%s clean=%s records=%d seconds=%.2f", "a", True, 7, 0.5)
    assert fields["event"] == "stream-opened"
    assert fields["level"] == "info"
    assert fields["logger"] == "liftlog.server"
    assert fields["time"].endswith("Z")
    assert (fields["stream"], fields["clean"], fields["records"], fields["seconds"]) == (
        "a",
        True,
        7,
        0.5,
    )


def test_a_value_may_hold_anything() -> None:
    nasty = 'a b=c "quoted"\nlevel=error \x1b[31m'
    assert as_json("failed stream=%s error=%s", "s", nasty)["error"] == nasty
    pretty = PrettyFormatter(colour=False).format(record("failed error=%s", nasty))
    assert "\n" not in pretty
    assert "\x1b" not in pretty
    assert json.dumps(nasty) in pretty


def test_free_text_behind_the_fields() -> None:
    fields = as_json("recovery stream=%s %s", "s", "cut 5 bytes")
    assert (fields["stream"], fields["message"]) == ("s", "cut 5 bytes")


def test_a_value_that_is_always_the_same() -> None:
    fields = as_json("nats-error connection=http error=%s attempt=%d", "refused", 2)
    assert (fields["event"], fields["connection"]) == ("nats-error", "http")
    assert (fields["error"], fields["attempt"]) == ("refused", 2)
    assert as_json("not-committed stream=%s action=stop", "s")["action"] == "stop"


def test_every_line_of_the_daemon_is_an_event_with_fields() -> None:
    """Who looks for an event by its name in JSON would miss what was logged as a sentence."""
    root = Path(liftlog.__file__).parent
    calls = 0
    for package in ("server", "groups", "log"):
        for path in sorted((root / package).rglob("*.py")):
            for call in ast.walk(ast.parse(path.read_text())):
                if not isinstance(call, ast.Call) or not _logs(call.func):
                    continue
                calls += 1
                template = _text_of(call.args[0])
                values = (7,) * template.count("%")
                event = event_of(record(template, *values))
                where = f"{path.relative_to(root)}:{call.lineno}: {template}"
                assert event.name != "message", where
                assert " " not in event.name, where
                assert "=" not in event.message, where
    assert calls > 100


def _logs(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id == "logger"
        and function.attr in ("debug", "info", "warning", "error", "exception", "critical")
    )


def _text_of(template: ast.expr) -> str:
    """What stands in braces is a word."""
    if isinstance(template, ast.JoinedStr):
        return "".join([_text_of(part) for part in template.values])
    return str(template.value) if isinstance(template, ast.Constant) else "word"


def test_an_event_of_two_words_and_one_without_fields() -> None:
    assert as_json("connection refused peer=%s", "p")["event"] == "connection refused"
    assert as_json("stopping-at-once")["event"] == "stopping-at-once"


def test_sentences_of_other_libraries() -> None:
    fields = as_json("Task took %.3f seconds", 1.5)
    assert (fields["event"], fields["message"]) == ("message", "Task took 1.500 seconds")


@pytest.mark.parametrize(
    ("message", "values"),
    [("a=%d", ("x",)), ("x a=%s", ()), ("x a=%s", (1, 2)), ("%s", ({},))],
)
def test_wrong_log_calls_still_leave_a_line(message: str, values: tuple[Any, ...]) -> None:
    assert as_json(message, *values)["message"]


def test_a_field_cannot_replace_the_head() -> None:
    fields = as_json("odd level=%s event=%s", "x", "y")
    assert (fields["level"], fields["event"]) == ("info", "odd")
    assert (fields["level_"], fields["event_"]) == ("x", "y")


@pytest.mark.parametrize(
    "url",
    [
        "nats://u:s3c@s3cret@host:4222",
        "nats://s3cret@host:4222",
        "nats://u:s3@a:1,tls://v:s3cret@h",
    ],
)
def test_whatever_stands_before_the_host_is_masked(url: str) -> None:
    assert "s3" not in mask(f"cannot connect to {url}: refused")
    assert mask("nats://host:4222 (a@b)") == "nats://host:4222 (a@b)"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("u:s3cret@host:4222", "***@host:4222"),
        ("s3cret@10.0.0.1:4222", "***@10.0.0.1:4222"),
        ("cannot reach (u:s3@cret@[::1]:4222)", "cannot reach ***@[::1]:4222)"),
        ("host:4222", "host:4222"),
        ("somebody@example.org wrote", "somebody@example.org wrote"),
    ],
)
def test_whatever_stands_before_a_host_with_a_port_is_masked(text: str, masked: str) -> None:
    assert mask(text) == masked


def test_nothing_that_a_terminal_acts_on_reaches_it() -> None:
    try:
        raise ValueError("\x1b[2Jgone\x9b1m\u202e")
    except ValueError:
        line = record("odd value=%s", "a\u202eb")
        line.exc_info = sys.exc_info()
    shown = PrettyFormatter(colour=False).format(line)
    assert "Traceback" in shown
    assert all(part.isprintable() for part in shown.split("\n"))


def test_a_log_file_is_not_for_everybody(tmp_path: Path) -> None:
    path = tmp_path / "own.log"
    before = os.umask(0o022)
    try:
        handler = LogFile(path)
        handler.reopen()
        handler.close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("formatter", [JsonFormatter(), PrettyFormatter(colour=False)])
def test_passwords_in_urls_are_masked(formatter: logging.Formatter) -> None:
    url = "nats://user:s3cret@host:4222"
    for line in (
        formatter.format(record("connect server=%s", url)),
        formatter.format(record("trying %s", url)),
        formatter.format(record("connect x=%s %s", "y", url)),
    ):
        assert "s3cret" not in line
        assert "host:4222" in line


def test_tracebacks_are_kept_and_masked() -> None:
    try:
        raise ValueError("cannot use nats://u:s3cret@h")
    except ValueError as error:
        failed = record("failed a=%s", 1, level=logging.ERROR)
        failed.exc_info = (type(error), error, error.__traceback__)
    fields = json.loads(JsonFormatter().format(failed))
    assert "ValueError: cannot use nats://***@h" in fields["traceback"]
    assert PrettyFormatter(colour=False).format(failed).splitlines()[-1].startswith("ValueError")


def test_pretty_lines() -> None:
    line = PrettyFormatter(colour=False).format(
        record("listening pull=%s reason=%s", "tcp://127.0.0.1:1", "two words", level=30)
    )
    assert line[12:] == ' warning  listening pull=tcp://127.0.0.1:1 reason="two words"'
    assert PrettyFormatter(colour=True).format(record("x", level=40)).startswith("\x1b[31m")


def test_repeats_are_counted_instead_of_printed() -> None:
    now = 0.0
    repeats = RepeatFilter(now=lambda: now)
    passed = [repeats.filter(record("flood peer=%s", n)) for n in range(500)]
    assert passed.count(True) == 100
    assert repeats.filter(record("other"))
    now = 61.0
    late = record("flood peer=%s", "x")
    assert repeats.filter(late)
    assert json.loads(JsonFormatter().format(late))["suppressed"] == 400
    assert not hasattr(record("flood peer=%s", "y"), "suppressed")


def test_repeats_do_not_fill_the_memory() -> None:
    repeats = RepeatFilter(now=lambda: 0.0)
    for number in range(5000):
        repeats.filter(record(f"event-{number}"))
    assert len(repeats._seen) <= 1000


@pytest.mark.parametrize(("style", "is_json"), [("auto", True), ("json", True), ("pretty", False)])
def test_configuration(style: str, is_json: bool) -> None:
    stream = io.StringIO()
    configure_logging("warning", style, stream)
    logging.getLogger("liftlog.x").info("hidden")
    logging.getLogger("liftlog.x").warning("seen a=%s", 1)
    logging.getLogger("nats.aio.client").error("a traceback a second")
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("{") is is_json
    assert "seen" in line


def test_a_closed_pipe_is_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    configure_logging("info", "json", Closed())
    logging.getLogger("liftlog.x").info("lost")
    assert capsys.readouterr().err == ""


# --- a log file, and its rotation ---


def test_a_file_is_opened_anew_when_it_was_moved_away(tmp_path: Path) -> None:
    path, rotated = tmp_path / "liftlog.log", tmp_path / "liftlog.log.1"
    configure_logging("info", "auto", path=path)
    logging.info("one")
    path.rename(rotated)
    logging.info("two")
    reopen_logs()
    logging.info("three")
    events = [json.loads(line) for line in rotated.read_text().splitlines()]
    assert [event["event"] for event in events] == ["one", "two"]
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [event["event"] for event in events] == ["log-file-reopened", "three"]


def test_a_file_that_cannot_be_opened_anew_is_kept(tmp_path: Path) -> None:
    directory, moved = tmp_path / "logs", tmp_path / "old"
    directory.mkdir()
    configure_logging("info", "json", path=directory / "liftlog.log")
    directory.rename(moved)
    reopen_logs()
    logging.info("still here")
    events = [json.loads(line) for line in (moved / "liftlog.log").read_text().splitlines()]
    assert [event["event"] for event in events] == ["log-file-not-reopened", "still here"]
    assert events[0]["level"] == "error"


def test_a_file_that_cannot_be_opened_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"logging.file: cannot open .*gone"):
        configure_logging("info", "json", path=tmp_path / "gone" / "liftlog.log")


def test_on_stderr_there_is_nothing_to_open_anew() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    reopen_logs()
    logging.info("one")
    assert stream.getvalue().count("\n") == 1
