"""`liftlog reload` and `liftlog drain`: signals to the daemon that runs on this machine.

The lock of the data directory contains the process id of the daemon. Before a signal is sent, the
open files of that process must show that it holds the lock. The process id alone does not prove
this: it may come from another container, or the process that wrote it may have ended.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from liftlog.cli.config import settings_options
from liftlog.cli.lib.command_groups import Command
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import debug_option, output_format, output_option
from liftlog.cli.lib.output import say, write_object
from liftlog.cli.lib.problems import Problem, note, warn
from liftlog.cli.lib.text import printable

Decorated = TypeVar("Decorated", bound=Callable[..., object])

_LOOK_SECONDS = 0.05


def _which_daemon(command: Decorated) -> Decorated:
    command = settings_options(command)
    return click.option(
        "--data-dir",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="The daemon's data directory, instead of data_dir of the configuration.",
    )(command)


def _timeout(what: str) -> Callable[[Decorated], Decorated]:
    return click.option(
        "--timeout",
        type=click.FloatRange(min=0),
        default=60.0,
        metavar="SECONDS",
        help=f"Longest wait for {what}. Default: 60.",
    )


@click.command(cls=Command)
@_which_daemon
@_timeout("the result")
@output_option
@debug_option
def reload(
    config: Path | None, overrides: tuple[str, ...], data_dir: Path | None, timeout: float
) -> ExitCode:
    """Make the daemon on this machine read its files again.

    The command sends SIGHUP to the daemon. The daemon then reads its ACL, certificates and NATS
    logins again. The command waits for the result. If a file is invalid, the daemon continues to
    use its previous content, and the exit code is 3. The command prints the settings that have
    changed but take effect only after a restart. The exit code is 11 if there is no result within
    --timeout. A daemon that is starting reloads when it is ready.

    \b
    Examples:
      liftlog reload -c /etc/liftlog/liftlog.yaml
      liftlog reload --data-dir /var/lib/liftlog
    """
    daemon = _Daemon(_data_dir(config, overrides, data_dir))
    asked_ns = time.monotonic_ns()
    daemon.send(signal.SIGHUP)
    deadline = time.monotonic() + timeout
    while (outcome := daemon.reloaded_since(asked_ns)) is None:
        if not daemon.holds_lock():
            raise Problem(f"process {daemon.pid} has ended meanwhile", ExitCode.NOT_FOUND)
        if time.monotonic() >= deadline:
            raise Problem(
                f"process {daemon.pid} has not read its files again within {timeout:g} s",
                ExitCode.TRY_AGAIN,
                hint="see its log: it may be starting, or its disk may be full",
            )
        time.sleep(_LOOK_SECONDS)
    _show_reloaded(daemon.pid, outcome)
    return ExitCode.CONFIG if outcome["problems"] else ExitCode.OK


def _show_reloaded(pid: int, outcome: dict[str, Any]) -> None:
    if output_format() != "table":
        told = {name: outcome[name] for name in ("reloaded", "problems", "restart_needed")}
        write_object({"pid": pid, "signal": "SIGHUP", **told}, output_format())
        return
    say(f"process {pid} has read again: {', '.join(outcome['reloaded']) or 'nothing'}")
    for part, problem in outcome["problems"].items():
        warn(f"{part} was not reloaded, and the previous one stays in use: {problem}")
    if changed := outcome["restart_needed"]:
        note(f"changed, and in use only after a restart: {', '.join(changed)}")


@click.command(cls=Command)
@_which_daemon
@_timeout("the end of the daemon")
@output_option
@debug_option
def drain(
    config: Path | None, overrides: tuple[str, ...], data_dir: Path | None, timeout: float
) -> ExitCode:
    """Stop the daemon on this machine, and wait for its end.

    The command sends SIGTERM to the daemon. The daemon then accepts no more messages, and hands
    over the streams that it leads in a cluster. It commits and acks the received messages, and
    exits. The exit code is 11 if the daemon still runs after --timeout. To move all replicas away
    from a node that continues to run, use `liftlog cluster drain`.

    \b
    Examples:
      liftlog drain -c /etc/liftlog/liftlog.yaml
      liftlog drain --data-dir /var/lib/liftlog --timeout 120
    """
    daemon = _Daemon(_data_dir(config, overrides, data_dir))
    deadline = time.monotonic() + timeout
    daemon.send(signal.SIGTERM)
    while not (ended := not daemon.holds_lock()) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    if output_format() == "table":
        say(f"process {daemon.pid} {'has ended' if ended else 'still runs'}")
    else:
        write_object({"pid": daemon.pid, "signal": "SIGTERM", "ended": ended}, output_format())
    return ExitCode.OK if ended else ExitCode.TRY_AGAIN


def _data_dir(config: Path | None, overrides: tuple[str, ...], given: Path | None) -> Path:
    if given is not None:
        return given
    from liftlog.settings import load_settings

    return Path(load_settings(config, dict(os.environ), overrides).data_dir)


class _Daemon:
    """The process that holds the lock of a data directory. Raises Problem if there is none."""

    def __init__(self, data_dir: Path) -> None:
        from liftlog.log.files.lock import LOCK_NAME

        self._lock = data_dir / LOCK_NAME
        try:
            text = self._lock.read_text().strip()
        except FileNotFoundError:
            text = ""
        self.pid = int(text) if text.isascii() and text.isdigit() else 0
        if not self.pid or not self.holds_lock():
            raise Problem(
                f"no daemon that runs here uses the data directory {printable(str(data_dir))}",
                ExitCode.NOT_FOUND,
                hint="name its directory with --data-dir, or its configuration with -c",
            )

    def holds_lock(self) -> bool:
        """Return True if the process has the lock file open. Raises Problem if this user may not
        check that."""
        try:
            wanted = self._lock.stat()
            for one in Path(f"/proc/{self.pid}/fd").iterdir():
                try:
                    found = one.stat()
                except FileNotFoundError:  # the file was closed meanwhile
                    continue
                if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                    return True
        except FileNotFoundError:
            return False  # the process has ended
        except PermissionError:
            raise self._not_allowed() from None
        return False

    def reloaded_since(self, asked_ns: int) -> dict[str, Any] | None:
        """Return the result of a reload that began after that moment of the monotonic clock."""
        from liftlog.server.life.reloading import OUTCOME_NAME

        try:
            found = json.loads(self._lock.with_name(OUTCOME_NAME).read_bytes())
            is_it = found["pid"] == self.pid and found["began_ns"] >= asked_ns
        except (OSError, ValueError, KeyError, TypeError):  # no file, or one of another version
            return None
        return found if is_it else None

    def send(self, number: signal.Signals) -> None:
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            raise Problem(f"process {self.pid} has ended meanwhile", ExitCode.NOT_FOUND) from None
        except PermissionError:
            raise self._not_allowed() from None

    def _not_allowed(self) -> Problem:
        return Problem(
            f"process {self.pid} belongs to another user",
            ExitCode.DENIED,
            hint="run the command as the daemon's user, or with sudo",
        )
