"""How a demo tells its story (chapters, paragraphs, small tables), and how it runs and ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import textwrap
import time
from collections.abc import Awaitable, Callable, Sequence

import click

from liftlog.cli.exit_codes import ExitCode
from liftlog.cli.output import print_table, terminal_width, write_lines
from liftlog.cli.text import plural
from liftlog.demo.checking import summarise

_MOST_COLUMNS = 92
_INDENT = "   "


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
        """A paragraph."""
        text = " ".join(sentences)
        wrapper = textwrap.TextWrapper(self._width, break_long_words=False, break_on_hyphens=False)
        wrapper.initial_indent = wrapper.subsequent_indent = _INDENT
        self._print(wrapper.wrap(text) or [""])

    def show(self, text: str) -> None:
        """Verbatim text: a file, an answer."""
        lines = text.rstrip().splitlines()
        self._print(["", *(f"{_INDENT}  {line}".rstrip() for line in lines), ""])

    def command(self, text: str) -> None:
        """A command, as it is typed."""
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


async def until_signal(run: Callable[[contextlib.AsyncExitStack], Awaitable[ExitCode]]) -> ExitCode:
    """Run a demo. SIGTERM and a closed terminal end it like Ctrl-C: its stack is unwound."""
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
    """Say how it went. Anything missing makes the demo fail; `done` says what success means."""
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
