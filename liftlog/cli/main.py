"""The entry point. It imports the command inside `main`, so that Ctrl-C during the import ends the
process without a traceback, as at any other time."""

from __future__ import annotations

import gc
import io
import os
import sys
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_INTERRUPTED = 130  # ExitCode.INTERRUPTED, which may not be loaded yet
_GC_THRESHOLD = 50_000


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit. The default of `arguments` is the arguments of this process."""
    # Imports create many objects that all stay alive. Garbage collection would take a twentieth of
    # the start time and find nothing.
    gc.set_threshold(_GC_THRESHOLD)
    _open_standard_streams()
    try:
        command = _command(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    try:
        command()
    except (
        OSError
    ) as error:  # raised by --version and --help; Root.invoke handles those of commands
        from liftlog.cli.lib.problems import report, silence_closed_output

        code = report(error)
        silence_closed_output()
        sys.exit(code)


def _command(arguments: list[str]) -> Callable[[], object]:
    """Import the command. Importing click takes longer than Python's own start, so `--version`
    prints its line without click."""
    if arguments == ["--version"]:
        return _print_version
    from liftlog.cli.lib.problems import tell_client_events
    from liftlog.cli.root import cli

    tell_client_events()
    # https://no-color.org: also where click would use colours; None lets click check the terminal.
    color = False if os.environ.get("NO_COLOR") else None
    return partial(cli.main, arguments, prog_name="liftlog", color=color)


def _print_version() -> None:
    from liftlog.commit import version_and_commit

    print(f"liftlog {version_and_commit()}", flush=True)
    sys.exit()


def _open_standard_streams() -> None:
    """Open standard streams that the caller has closed.

    Otherwise the next opened file would get the number of a standard stream. Output for the
    terminal would be written to data files, and the event loop aborts on a socket with number 0, 1
    or 2. Reading from a closed standard input still fails, because a command must not treat it as
    empty input.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # Takes the lowest free number, which is this stream's.
            os.open(os.devnull, os.O_WRONLY if name == "stdin" else os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115
    # Characters that the terminal's encoding lacks are escaped, as on stderr.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    # With PYTHONUNBUFFERED, Python drops the rest of a text if the kernel accepts only a part.
    # Commands flush their output anyway.
    if isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase):
        out = sys.stdout
        sys.stdout = open(1, "w", encoding=out.encoding, errors=out.errors, closefd=False)  # noqa: SIM115
