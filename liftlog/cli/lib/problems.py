"""Output on stderr: errors, remarks, questions, and events of the client library. An error is
reported without a traceback: its message gives the event and the cause, and its hint the next
step."""

from __future__ import annotations

import errno
import logging
import math
import os
import sys
import threading
import time
import traceback
from typing import Any

import click

from liftlog.cli.lib.exit_codes import ExitCode, exit_code_of
from liftlog.cli.lib.options import error_style, quiet
from liftlog.cli.lib.text import printable
from liftlog.errors import LiftlogError

_NEXT_STEPS = {
    ExitCode.CONFIG: "`liftlog docs reference/settings` lists every setting",
    ExitCode.CANNOT_CONNECT: "check --server (or LIFTLOG_SERVER) and that `liftlog serve` runs",
    ExitCode.CONFLICT: "`liftlog stream info NAME` shows the stream as it is",
    ExitCode.DAMAGED: "`liftlog log verify DIR` lists everything that is damaged",
    ExitCode.DENIED: "ask the administrator of the daemon's ACL file",
    ExitCode.TRY_AGAIN: "try again in a moment",
}


class Problem(LiftlogError):
    """An error that the command line itself detects, with its exit code."""

    name = "PROBLEM"

    def __init__(self, message: str, code: ExitCode, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.exit_code = code


def code_for(error: BaseException) -> ExitCode:
    return error.exit_code if isinstance(error, Problem) else exit_code_of(error)


def unwrapped(error: BaseException) -> BaseException:
    """Return the error inside the groups that a failing task wraps around it."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def report(error: BaseException, *, debug: bool = False, style: str = "") -> ExitCode:
    """Print `error` on stderr and return its exit code. The error is printed as JSON or YAML if
    --output asks for that; `style` overrides --output."""
    if debug:
        trace = "".join(traceback.format_exception(error)).rstrip()
        click.echo(printable(trace, keep_newlines=True), err=True)
    error = unwrapped(error)
    code = code_for(error)
    style = style or error_style()
    parts = describe(error, code)
    if style != "table":
        from liftlog.cli.lib.output import to_json, to_yaml

        found = _error_object(error, code, parts)
        click.echo(to_yaml(found).rstrip() if style == "yaml" else to_json(found), err=True)
        return code
    for label, text in parts:
        look: dict[str, Any] = {"fg": "red", "bold": True} if label == "error" else {"dim": True}
        first, *rest = printable(text, keep_newlines=True).splitlines() or [""]
        click.echo(f"{click.style(f'{label}:', **look)} {first}", err=True)
        for line in rest:
            click.echo(f"  {line}", err=True)
    return code


def _error_object(
    error: BaseException, code: ExitCode, parts: list[tuple[str, str]]
) -> dict[str, Any]:
    """Return the content of `describe` as an object for programs."""
    texts: dict[str, list[str]] = {}
    for label, text in parts:
        texts.setdefault(label.strip(), []).append(text)
    name = error.name if isinstance(error, LiftlogError) else type(error).__name__
    number = getattr(error, "code", 0)
    return {
        "error": {
            "name": name,
            "code": number if isinstance(number, int) and number else None,
            "exit_code": code.value,
            "message": "\n".join(texts["error"]),
            "why": texts.get("why", []),
            "next": "\n".join(texts.get("next", [])),
        }
    }


def describe(error: BaseException, code: ExitCode) -> list[tuple[str, str]]:
    """Return the paragraphs of the report, as pairs of a label and a text."""
    if isinstance(error, LiftlogError):
        parts = [("error", error.message)]
        parts += [("  why", reason) for reason in _reasons(error)]
        hint = error.hint or _NEXT_STEPS.get(code, "")
        return [*parts, ("  next", hint)] if hint else parts
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return [("error", f"{where}{error.strerror or error}")]
    return [
        ("error", f"unexpected {type(error).__name__}: {error}"),
        ("  next", "this is a bug in liftlog: run the command with --debug and report the output"),
    ]


def _reasons(error: LiftlogError) -> list[str]:
    """Return details that the message does not contain."""
    found: list[str] = []
    differences = error.details.get("differences")
    if isinstance(differences, (list, tuple)):
        found += [one for one in differences if isinstance(one, str) and one not in error.message]
    start, end = (error.details.get(name) for name in ("log_start_offset", "log_end_offset"))
    if isinstance(start, int) and isinstance(end, int) and str(start) not in error.message:
        found.append(
            f"the log holds offsets {start} to {end - 1}" if end > start else "it is empty"
        )
    cause = error.__cause__
    if isinstance(cause, OSError) and str(cause.strerror) not in error.message:
        found.append(str(cause))
    return found


def check_standard_input() -> None:
    """Raise Problem if standard input is closed; see `main`."""
    try:
        os.read(sys.stdin.fileno(), 0)
    except ValueError:  # stdin has no descriptor
        return
    except OSError as error:
        if error.errno == errno.EBADF:
            raise Problem(
                "standard input is closed", ExitCode.USAGE, hint="give it a pipe or a file"
            ) from None


def note(text: str) -> None:
    """Print a remark on the data: on stderr, unless --quiet was given."""
    if quiet():
        return
    click.echo(printable(text), err=True)


def warn(text: str) -> None:
    first, *rest = printable(text, keep_newlines=True).splitlines() or [""]
    click.echo(f"{click.style('warning:', fg='yellow', bold=True)} {first}", err=True)
    for line in rest:
        click.echo(f"  {line}", err=True)


def silence_closed_output() -> None:
    """Send buffered data to /dev/null after a write to stdout or stderr has failed. Otherwise the
    flush at the end of the interpreter would print an error of its own."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, stream.fileno())
            os.close(devnull)


def confirmed(question: str) -> bool:
    """Ask the user to confirm a loss of data. Raises UsageError if there is no terminal to ask
    on."""
    if not sys.stdin.isatty():
        raise click.UsageError(
            "There is no terminal to ask on: use --yes to proceed, or --dry-run to see what it "
            "would do.",
            click.get_current_context(),
        )
    return click.confirm(question, err=True)


_GROUP_EVENTS = {
    "group-join-failed": "cannot join group {0} of {1}: {2}; trying again",
    "group-commit-failed": "cannot commit what is done: {3}",
    "group-member-lost": "{2} has lost its {3} slots, and what it had not committed: {4.message}",
    "dead-letter": "offset {2} of {1} becomes a dead letter after {3} attempt(s): {4}",
}
_BLIP_SECONDS = 0.15
"""If the client reconnects within this time (in seconds), the lost connection is not reported. A
member of a group has several connections, and detects the loss of an idle connection only when it
needs this connection."""
_TELL_AGAIN_SECONDS = 30.0


class ClientEvents(logging.Handler):
    """Handler of the client's logger: prints a sentence on stderr for each event."""

    def __init__(self) -> None:
        super().__init__()
        self._losses: dict[str, tuple[threading.Timer, float]] = {}  # time of each loss, by address

    def emit(self, record: logging.LogRecord) -> None:
        event = str(record.msg).partition(" ")[0]
        arguments: Any = record.args
        if event == "position-reset":
            return  # `consume` reports it from its callback
        if event == "connection-lost":
            self._lost(*arguments)
        elif event == "connected-again":
            self._found_again(*arguments)
        elif event == "token-unencrypted":
            warn(
                f"the token is sent to {arguments[0]} unencrypted: use tls://, a Unix socket or "
                "--nkey"
            )
        elif event in _GROUP_EVENTS:
            warn(_GROUP_EVENTS[event].format(*arguments))
        elif record.levelno >= logging.WARNING:
            warn(record.getMessage())

    def _lost(self, address: str, reason: object) -> None:
        now = time.monotonic()
        _, told = self._losses.get(address, (None, -math.inf))
        if now >= told + _TELL_AGAIN_SECONDS:
            timer = threading.Timer(_BLIP_SECONDS, warn, (f"{reason}; trying again",))
            timer.daemon = True
            self._losses[address] = timer, now
            timer.start()

    def _found_again(self, address: str, seconds: float) -> None:
        timer, _ = self._losses.pop(address, (None, 0.0))
        if timer is not None:
            timer.cancel()
            if seconds >= _BLIP_SECONDS:
                note(f"connected again after {seconds:.1f} s")


def tell_client_events() -> None:
    logger = logging.getLogger("liftlog.client")
    logger.setLevel(logging.INFO)
    logger.addHandler(ClientEvents())
    logger.propagate = False
