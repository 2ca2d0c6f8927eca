"""Writes the daemon's log: JSON, or aligned text for a terminal, to stderr or a file.

Code logs events as `logger.info("stream-opened stream=%s offset=%d", name, offset)`: a name, then
key=value pairs, then optional free text. The pairs come from the format string and its arguments,
and not from the finished text. So a value with blanks, quotes or an equals sign is also logged
correctly.

Every event takes one line, regardless of the characters in its values. Passwords in URLs are
masked. An event that is repeated many times is counted instead of printed.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

from liftlog.errors import ConfigError

logger = logging.getLogger("liftlog.server")

_FIELD = re.compile(
    r"([A-Za-z_][A-Za-z0-9_.]*)=(%[-+ #0]*\d*(?:\.\d+)?[sdrfgixX]|[\w.-]+)(?:\s+|$)"
)
_CONVERSION = re.compile(r"%[-+ #0]*\d*(?:\.\d+)?[sdrfgixX]")
# Up to the last @, because a password may contain one.
_USER_INFO = re.compile(r"(?<=://)[^/\s\"']+@")
# Without a scheme (`user:password@host:4222`), text counts as a login only if a port follows.
_BARE_USER_INFO = re.compile(r"[^\s\"'/]+@(?=(?:[\w.-]+|\[[0-9a-fA-F:.]+\]):\d)")
_BARE_VALUE = re.compile(r"[^\s\"'=\\\x00-\x1f\x7f-\x9f]+")

_LEVEL_COLOURS = {"warning": "33", "error": "31", "critical": "1;31"}
_LOUD = 100
_QUIET_SECONDS = 60.0
_MAX_KEPT_EVENTS = 1000
_AUDIT = "liftlog.audit"
_LOG_FILE_MODE = 0o640


class Event(NamedTuple):
    """One log record, split into name and fields."""

    name: str
    fields: dict[str, Any]
    message: str


class _Template(NamedTuple):
    name: str
    keys: tuple[tuple[str, str], ...]  # (key, conversion or the value itself)
    rest: str


@lru_cache(maxsize=1024)
def _take_apart(template: str) -> _Template | None:
    """Split a format string into its parts. Returns None if the string is a sentence with
    conversions, not an event."""
    first = _FIELD.search(template)
    if first is None:
        return None if _CONVERSION.search(template) else _Template(template, (), "")
    name = template[: first.start()].strip()
    if not name or _CONVERSION.search(name):
        return None
    keys = []
    position = first.start()
    while field := _FIELD.match(template, position):
        keys.append((field[1], field[2]))
        position = field.end()
    return _Template(name, tuple(keys), template[position:])


def event_of(record: logging.LogRecord) -> Event:
    """Convert a log record to an event. Never raises, for any log record."""
    arguments = record.args
    template = _take_apart(record.msg) if isinstance(record.msg, str) else None
    if template is None or not isinstance(arguments, (tuple, type(None))):
        return Event("message", {}, _sentence(record))
    values = arguments or ()
    wanted = sum([value[0] == "%" for _, value in template.keys])
    given = iter(values[:wanted])
    try:
        if len(values) < wanted:
            raise TypeError("not enough values")
        fields = {
            key: _field_value(value, next(given)) if value[0] == "%" else value
            for key, value in template.keys
        }
        rest = template.rest % values[wanted:] if values[wanted:] else template.rest
    except (TypeError, ValueError):
        return Event("message", {}, _sentence(record))
    return Event(template.name, fields, mask(rest))


def _sentence(record: logging.LogRecord) -> str:
    try:
        return mask(record.getMessage())
    except (TypeError, ValueError):
        return mask(f"{record.msg} {record.args}")


def _field_value(conversion: str, value: Any) -> Any:
    """Return the value to log. Numbers stay numbers. Values of other types become text."""
    if conversion[-1] in "di" and isinstance(value, int):
        return int(value)
    if isinstance(value, (bool, int, float)) and conversion == "%s":
        return value
    text = conversion % (value,)
    if conversion[-1] in "fg":
        return float(text)
    return mask(text)


def mask(text: str) -> str:
    """Replace user names and passwords in URLs, and in front of `HOST:PORT`."""
    if "@" not in text:
        return text
    return _BARE_USER_INFO.sub("***@", _USER_INFO.sub("***@", text))


def _exception_text(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[1] is None:
        return ""
    return mask("".join(traceback.format_exception(record.exc_info[1])).rstrip())


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class JsonFormatter(logging.Formatter):
    """Formats one JSON object per line: time, level, logger, event, and the event's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        event = event_of(record)
        line: dict[str, Any] = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": event.name,
        }
        line |= {key if key not in line else f"{key}_": v for key, v in event.fields.items()}
        if event.message:
            line["message"] = event.message
        suppressed = getattr(record, "suppressed", 0)
        if suppressed:
            line["suppressed"] = suppressed
        trace = _exception_text(record)
        if trace:
            line["traceback"] = trace
        return json.dumps(line, default=str)


class PrettyFormatter(logging.Formatter):
    """Formats lines for people: time, level, event, key=value."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        event = event_of(record)
        level = record.levelname.lower()
        words = [f"{key}={_quoted(value)}" for key, value in event.fields.items()]
        if event.message:
            words.append(_one_line(event.message))
        suppressed = getattr(record, "suppressed", 0)
        if suppressed:
            words.append(f"suppressed={suppressed}")
        name = "" if event.name == "message" else _one_line(event.name) + " "
        text = f"{_moment(record)[11:23]} {level:<8} {name}{' '.join(words)}".rstrip()
        colour = _LEVEL_COLOURS.get(level)
        if self._colour and colour:
            text = f"\x1b[{colour}m{text}\x1b[0m"
        trace = "\n".join(map(_one_line, _exception_text(record).split("\n")))
        return f"{text}\n{trace}" if trace else text


def _quoted(value: Any) -> str:
    text = str(value)
    return text if _BARE_VALUE.fullmatch(text) and text.isprintable() else json.dumps(text)


def _one_line(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)[1:-1]


class RepeatFilter(logging.Filter):
    """Passes the same event at most 100 times a minute. The first event after that minute reports
    how many events were suppressed.

    The audit log is exempt. It has its own limit per principal, so that no principal can hide the
    actions of another.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._seen: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == _AUDIT:
            return True
        now = self._now()
        event = (record.name, record.levelno, str(record.msg))
        since, count = self._seen.get(event, (now, 0))
        if now - since >= _QUIET_SECONDS:
            if count > _LOUD:
                record.suppressed = count - _LOUD
            since, count = now, 0
        if event not in self._seen and len(self._seen) >= _MAX_KEPT_EVENTS:
            self._seen.clear()
        self._seen[event] = (since, count + 1)
        return count < _LOUD


class LogFile(logging.FileHandler):
    """A log file that can be reopened after rotation. Only its owner and group can read it, because
    it contains subjects, principals and their addresses."""

    def _open(self) -> TextIOWrapper:
        return cast(
            TextIOWrapper,
            open(  # the handler closes this descriptor
                self.baseFilename,
                self.mode,
                encoding=self.encoding,
                errors=self.errors,
                opener=lambda path, flags: os.open(path, flags, _LOG_FILE_MODE),
            ),
        )

    def reopen(self) -> None:
        """Continue in a new file of the same name, or in the old file if the new file cannot be
        opened."""
        try:
            stream = self._open()
        except OSError as error:
            logger.error(  # noqa: TRY400
                "log-file-not-reopened path=%s error=%s", self.baseFilename, error.strerror
            )
            return
        old = self.setStream(stream)
        if old is not None:
            old.close()
        logger.info("log-file-reopened path=%s", self.baseFilename)


def reopen_logs() -> None:
    """Reopen the log file after rotation. Does nothing if the log goes to stderr."""
    for handler in logging.root.handlers:
        if isinstance(handler, LogFile):
            handler.reopen()


def configure_logging(
    level: str, style: str, stream: TextIO | None = None, *, path: Path | None = None
) -> None:
    """Send all log records to the file `path`; without it, to `stream` (by default stderr). `style`
    is auto, pretty or json. Raises ConfigError if the file cannot be opened."""
    stream = sys.stderr if stream is None else stream
    terminal = path is None and stream.isatty()
    handler = logging.StreamHandler(stream) if path is None else _log_file(path)
    handler.addFilter(RepeatFilter())
    if style == "pretty" or (style == "auto" and terminal):
        handler.setFormatter(PrettyFormatter(colour=terminal))
    else:
        handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    # A log line that cannot be written (for example to a closed pipe) must not print a traceback to
    # stderr.
    logging.raiseExceptions = False
    # nats-py logs each failed attempt to connect with a traceback. liftlog's own events report such
    # a failure once.
    logging.getLogger("nats").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(max(logging.WARNING, logging.root.level))


def _log_file(path: Path) -> LogFile:
    try:
        return LogFile(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ConfigError(f"logging.file: cannot open {path}: {error.strerror}") from error
