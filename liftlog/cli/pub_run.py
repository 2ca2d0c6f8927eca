"""The work of `liftlog pub`: messages in, results printed, an exit code out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from liftlog.cli.acks import Result
from liftlog.cli.exit_codes import ExitCode
from liftlog.cli.output import ObjectArray, object_array, write_lines
from liftlog.cli.problems import note, warn
from liftlog.cli.pub_messages import LineSplitter, Outgoing, Template
from liftlog.cli.publisher import publish_all
from liftlog.cli.standard_input import chunks
from liftlog.cli.text import plural


def run_pub(
    servers: list[str],
    template: Template,
    payload: bytes | None,
    *,
    count: int,
    from_stdin: bool,
    creds: Path | None,
    timeout: float | None,
    style: str,
) -> ExitCode:
    """Publish and print. Raises Problem."""
    messages = _lines(template) if from_stdin else _repeated(template, payload, count)
    array = object_array(style) if timeout is not None else None
    tally = _Tally(array)
    surroundings: AbstractContextManager[object] = array if array is not None else nullcontext()
    with surroundings:
        sent = asyncio.run(
            publish_all(servers, messages, creds=creds, timeout=timeout, show=tally.show)
        )
    if timeout is None:
        note(f"{plural(sent, 'message')} sent without asking for an ack")
    elif tally.failed:
        total = tally.acked + tally.failed
        note(f"{tally.acked:,} of {plural(total, 'message')} acked")
        if tally.stopped:
            note("Nothing more was sent after that.")
    return tally.code


async def _repeated(
    template: Template, payload: bytes | None, count: int
) -> AsyncIterator[Outgoing]:
    for message in template.repeated(payload, count):
        yield message


async def _lines(template: Template) -> AsyncIterator[Outgoing]:
    splitter = LineSplitter()
    number = 0
    async for chunk in chunks(sys.stdin.buffer):
        for line in splitter.feed(chunk):
            number += 1
            yield template.outgoing(line, number)
    for line in splitter.rest():
        yield template.outgoing(line, number + 1)


class _Tally:
    """Prints results as they come and counts them."""

    def __init__(self, array: ObjectArray | None) -> None:
        self.acked = 0
        self.failed = 0
        self.stopped = False
        self.code = ExitCode.OK
        self._array = array

    def show(self, results: list[Result]) -> None:
        if self._array is not None:
            self._array.add([result.to_object() for result in results])
        else:
            write_lines([result.to_line() for result in results if result.ack is not None])
        for result in results:
            if result.ack is not None:
                self.acked += 1
                continue
            self.failed += 1
            self.code = result.code
            warn(f"{result.problem} ({result.hint})" if result.hint else result.problem)
        self.stopped = bool(results) and results[-1].final
