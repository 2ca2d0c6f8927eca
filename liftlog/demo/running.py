"""How a demo runs and ends, whichever it is: cleaned up after every signal, with a verdict."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable

from liftlog.cli.demo.checking import summarise
from liftlog.cli.demo.story import Story
from liftlog.cli.exit_codes import ExitCode
from liftlog.cli.text import plural


async def until_signal(run: Callable[[contextlib.AsyncExitStack], Awaitable[ExitCode]]) -> ExitCode:
    """SIGTERM and a closed terminal end it as Ctrl-C does: what is on its stack is cleaned up."""
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
    """Say how it went; anything missing makes the demo fail. `done` is what success means."""
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
