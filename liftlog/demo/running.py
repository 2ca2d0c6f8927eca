"""Runs a demo: prints its text (chapters, paragraphs, small tables), starts, kills and restarts its
daemon, which is a separate process, and ends the demo."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import click

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.output import print_table, terminal_width, write_lines
from liftlog.cli.lib.problems import Problem
from liftlog.cli.lib.text import plural
from liftlog.demo.publishing import summarise
from liftlog.server.vitals.child_processes import tied_to_parent

_MOST_COLUMNS = 92
_INDENT = "   "

_READY_SECONDS = 60.0
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.01


class Story:
    """Prints to stdout; plain text if stdout is not a terminal."""

    def __init__(self) -> None:
        self._chapter = 0
        self._after_blank = True
        self._width = min(terminal_width() or _MOST_COLUMNS, _MOST_COLUMNS)
        self.started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def title(self, text: str) -> None:
        self._print([click.style(text, bold=True)])

    def chapter(self, text: str) -> None:
        self._chapter += 1
        self._print(["", click.style(f"{self._chapter}  {text}", bold=True, fg="cyan")])

    def tell(self, *sentences: str) -> None:
        """Print a paragraph."""
        text = " ".join(sentences)
        wrapper = textwrap.TextWrapper(self._width, break_long_words=False, break_on_hyphens=False)
        wrapper.initial_indent = wrapper.subsequent_indent = _INDENT
        self._print(wrapper.wrap(text) or [""])

    def show(self, text: str) -> None:
        """Print verbatim text: a file, an answer."""
        lines = text.rstrip().splitlines()
        self._print(["", *(f"{_INDENT}  {line}".rstrip() for line in lines), ""])

    def command(self, text: str) -> None:
        """Print a command in the form in which it is typed."""
        self._print(["", f"{_INDENT}$ {click.style(text, bold=True)}"])

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._print([""])
        print_table(["", *headings], [["  ", *row] for row in rows])
        self._after_blank = False
        self._print([""])

    def good(self, text: str) -> None:
        self._mark("ok", "green", text)

    def bad(self, text: str) -> None:
        self._mark("MISSING", "red", text)

    def _mark(self, word: str, colour: str, text: str) -> None:
        lines = textwrap.wrap(text, self._width - len(word) - 5)
        first, *rest = lines or [""]
        indent = " " * (len(word) + 2)
        self._print(
            [f"{_INDENT}{click.style(word, fg=colour, bold=True)}  {first}"]
            + [f"{_INDENT}{indent}{line}" for line in rest]
        )

    def _print(self, lines: list[str]) -> None:
        """Print lines; adjacent blank lines become one."""
        coloured = terminal_width() is not None
        kept = []
        for line in lines:
            if line or not self._after_blank:
                kept.append(line if coloured else click.unstyle(line))
            self._after_blank = not line
        write_lines(kept)


def run_in_directory(
    run: Callable[[Path, contextlib.AsyncExitStack], Awaitable[ExitCode]], *, keep: bool
) -> ExitCode:
    """Run a demo in a temporary directory, which is deleted at its end unless `keep`."""
    directory = Path(tempfile.mkdtemp(prefix="liftlog-demo-"))
    try:
        return asyncio.run(until_signal(lambda stack: run(directory, stack)))
    finally:
        if keep:
            Story().tell(f"The files are kept in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


async def until_signal(run: Callable[[contextlib.AsyncExitStack], Awaitable[ExitCode]]) -> ExitCode:
    """Run a demo. SIGTERM and a closed terminal end the demo like Ctrl-C, so that all `finally`
    blocks run."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, task.cancel)
    try:
        async with contextlib.AsyncExitStack() as stack:
            return await run(stack)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def conclude(story: Story, problems: list[str], done: str) -> ExitCode:
    """Print the result. If a record is missing, the demo fails; `done` is the message of
    success."""
    story.tell("")
    for problem in summarise(problems):
        story.bad(problem)
    if problems:
        story.tell(
            f"The demo FAILED after {story.seconds:.1f} s: {plural(len(problems), 'problem')}."
        )
        return ExitCode.FAILED
    story.tell(f"Done in {story.seconds:.1f} s: {done}.")
    return ExitCode.OK


class DemoDaemon:
    """Runs `liftlog serve` in a process that is killed when this one ends."""

    def __init__(self, config: Path, data_dir: Path) -> None:
        self._config = config
        self._addresses_path = data_dir / "addresses.json"
        self._log_path = config.with_name("daemon.log")
        self._process: asyncio.subprocess.Process | None = None
        self.pull_address = ""

    @property
    def pid(self) -> int:
        assert self._process is not None, "the daemon is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the daemon, and wait until it is ready. Raises Problem."""
        self._addresses_path.unlink(missing_ok=True)  # a killed daemon leaves its file behind
        command = [sys.executable, "-P", "-m", "liftlog", "serve", "-c", str(self._config)]
        environ = {k: v for k, v in os.environ.items() if not k.startswith("LIFTLOG_")}
        with self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *tied_to_parent(command),
                cwd=self._config.parent,
                env=environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(_READY_SECONDS):
                while not await self._is_ready():
                    if self._process.returncode is not None:
                        raise self._failed(f"ended with {self._process.returncode}")
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise self._failed(f"is not ready after {_READY_SECONDS:g} s") from None

    def _failed(self, what: str) -> Problem:
        try:
            tail = "\n".join(self._log_path.read_text(errors="replace").splitlines()[-15:])
        except OSError:
            tail = ""
        return Problem(f"the daemon of the demo {what}\n{tail}".rstrip(), ExitCode.FAILED)

    async def _is_ready(self) -> bool:
        try:
            addresses = json.loads(self._addresses_path.read_text())
        except (OSError, ValueError):
            return False
        self.pull_address = str(addresses["pull"][0])
        return await _answers_ready(str(addresses["http"]))

    def kill(self) -> None:
        """Send SIGKILL: the daemon can neither write anything nor close its connections."""
        self._signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for the process to end; return its exit status."""
        assert self._process is not None, "the daemon is not running"
        return await self._process.wait()

    async def stop(self) -> int | None:
        """Send SIGTERM, then SIGKILL if the process takes too long. Returns None if the daemon is
        not running."""
        process = self._process
        if process is None or not self.is_running:
            return None
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                return await process.wait()
        except (TimeoutError, asyncio.CancelledError):
            self.kill()
            await process.wait()
            raise

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.is_running:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


async def _answers_ready(address: str) -> bool:
    """Return True if `/readyz` answers 200."""
    host, _, port = address.rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
    except (OSError, ValueError):
        return False
    try:
        writer.write(f"GET /readyz HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
        status = await reader.readline()
        return status.split()[1:2] == [b"200"]
    except OSError:
        return False
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
