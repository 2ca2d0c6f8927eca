"""The work of `liftlog pub`: reads messages, prints results, returns an exit code.

The library's Publisher checks and sends messages, and evaluates the answers. This module creates
messages from the command line, and prints results in the order of the messages.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from concurrent.futures import CancelledError
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import quiet
from liftlog.cli.lib.output import ObjectArray, object_array, write_lines
from liftlog.cli.lib.problems import Problem, note, warn
from liftlog.cli.lib.text import plural
from liftlog.client.publisher import (
    Ack,
    NotPublished,
    Published,
    Publisher,
    PublishFailed,
    PublishRefused,
    PublishUnknown,
)
from liftlog.errors import LiftlogError, NatsUnavailable
from liftlog.records.message_headers import HeaderLine
from liftlog.server.life.logs import mask

_CHUNK_BYTES = 64 * 1024
_CHUNKS_AHEAD = 4


async def chunks(stream: BinaryIO) -> AsyncIterator[bytes]:
    """Yield the input as it arrives.

    A daemon thread reads the input, because epoll refuses files, and because a read that waits for
    a terminal must not delay the end of the program. The thread reads the descriptor itself,
    because the interpreter aborts at its end if a thread waits inside a buffered reader.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | OSError] = asyncio.Queue(_CHUNKS_AHEAD)

    def read() -> bytes:
        try:
            return os.read(stream.fileno(), _CHUNK_BYTES)
        except (OSError, ValueError):
            if getattr(stream, "raw", None) is not None:
                raise
            return stream.read(_CHUNK_BYTES)  # stdin has no descriptor

    def work() -> None:
        with suppress(RuntimeError, CancelledError):  # the loop has ended, or is ending
            while True:
                item: bytes | OSError
                try:
                    item = read()
                except OSError as error:
                    item = error
                asyncio.run_coroutine_threadsafe(queue.put(item), loop).result()
                if not item or isinstance(item, OSError):
                    return

    threading.Thread(target=work, name="standard-input", daemon=True).start()
    while True:
        item = await queue.get()
        if isinstance(item, OSError):
            raise item
        if not item:
            return
        yield item


PLACEHOLDER = "{n}"

_COLUMNS = ("subject", "stream", "seq", "duplicate", "durability", "problem")
_CONNECT_SECONDS = 10
_ASK_SECONDS = 2.0
_IN_FLIGHT = 512  # enough for one commit while the next messages are created


class Outgoing(NamedTuple):
    """One message to publish. A `value` of None is a tombstone."""

    value: bytes | None
    key: bytes | None = None
    message_id: str | None = None


class Template(NamedTuple):
    """The fields that all messages of one command share."""

    subject: str
    key: bytes | None = None
    message_id: str | None = None
    headers: Sequence[HeaderLine] = ()
    use_envelope: bool = False

    def outgoing(self, value: bytes | None, number: int) -> Outgoing:
        """Create a message; the number replaces {n} in key and message id."""
        key, message_id = self.key, self.message_id
        if key is not None:
            key = key.replace(PLACEHOLDER.encode(), b"%d" % number)
        if message_id is not None:
            message_id = message_id.replace(PLACEHOLDER, str(number))
        return Outgoing(value, key, message_id)

    async def repeated(self, value: bytes | None, count: int) -> AsyncIterator[Outgoing]:
        """Yield the message `count` times. {n} is replaced only if there are several."""
        if count == 1:
            yield Outgoing(value, self.key, self.message_id)
            return
        for number in range(1, count + 1):
            text = None if value is None else value.replace(PLACEHOLDER.encode(), b"%d" % number)
            yield self.outgoing(text, number)

    async def lines(self) -> AsyncIterator[Outgoing]:
        """Yield a message for each line of standard input."""
        splitter = LineSplitter()
        number = 0
        async for chunk in chunks(sys.stdin.buffer):
            for line in splitter.feed(chunk):
                number += 1
                yield self.outgoing(line, number)
        for line in splitter.rest():
            yield self.outgoing(line, number + 1)


class LineSplitter:
    """Splits chunks of bytes into lines without their ends; `rest` returns the bytes after the last
    line end."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterable[bytes]:
        *lines, tail = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._pending, lines[0]])
            self._pending.clear()
        if tail:
            self._pending.append(tail)
        return [line.removesuffix(b"\r") for line in lines]

    def rest(self) -> Iterable[bytes]:
        if not self._pending:
            return []
        line = b"".join(self._pending)
        self._pending.clear()
        return [line.removesuffix(b"\r")]


class Job(NamedTuple):
    """One run of `liftlog pub`. A `timeout` of None sends without asking for acks."""

    servers: list[str]
    creds: Path | None
    timeout: float | None
    template: Template
    value: bytes | None
    how_often: int
    from_stdin: bool

    def run(self, style: str) -> ExitCode:
        """Publish and print. Raises LiftlogError."""
        code = self._run(style)
        if self.value is None and not self.from_stdin and code is ExitCode.OK:
            tell_what_stays(self.template.subject)
        return code

    def _run(self, style: str) -> ExitCode:
        if self.timeout is None:
            sent = asyncio.run(self._send())
            note(f"{plural(sent, 'message')} sent without asking for an ack")
            return ExitCode.OK
        array = object_array(style, _COLUMNS)
        results = _Results(self.template.subject, self.timeout, array)
        try:
            with array or nullcontext():
                asyncio.run(self._publish(self.timeout, results))
        except KeyboardInterrupt:
            note(results.so_far())
            raise
        if results.failed:
            note(f"{results.acked:,} of {plural(results.acked + results.failed, 'message')} acked")
        if results.stopped:
            note("No further messages were sent.")
        return results.code

    def _messages(self) -> AsyncIterator[Outgoing]:
        if self.from_stdin:
            return self.template.lines()
        return self.template.repeated(self.value, self.how_often)

    async def _open(self, timeout: float) -> Publisher:
        load_nats(self.servers)
        publisher = Publisher(
            self.servers,
            ack_timeout=timeout,
            max_in_flight=_IN_FLIGHT,
            retry_for=0,
            use_envelope=self.template.use_envelope,
            connect_timeout=_CONNECT_SECONDS,
            name="liftlog pub",
            allow_reconnect=False,
            max_reconnect_attempts=1,  # time for the first connection: two attempts at each server
            reconnect_time_wait=0.1,
            user_credentials=None if self.creds is None else str(self.creds),
        )
        try:
            return await publisher.open()
        except NatsUnavailable as error:
            raise not_connected(self.servers, error) from error

    async def _send(self) -> int:
        """Send without acks; return the number of messages sent."""
        subject, headers = self.template.subject, self.template.headers
        publisher = await self._open(1)
        sent = 0
        try:
            async for value, key, message_id in self._messages():
                await publisher.send(
                    subject, value, key=key, headers=headers, message_id=message_id
                )
                sent += 1
            await publisher.flush()
        except asyncio.CancelledError:
            note(f"{plural(sent, 'message')} sent without asking for an ack")
            raise
        except LiftlogError as error:
            raise _or_lost(publisher, error) from error
        finally:
            await publisher.close()
        return sent

    async def _publish(self, timeout: float, results: _Results) -> None:
        """Keep many messages in flight, print results in the order of sending, and stop after a
        result that ends the command."""
        publisher = await self._open(timeout)
        asked: asyncio.Queue[asyncio.Future[Published] | None] = asyncio.Queue()
        sender = asyncio.create_task(self._submit(publisher, asked, results))
        try:
            await results.collect(asked, publisher)
        finally:
            sender.cancel()
            while not asked.empty():
                future = asked.get_nowait()
                if future is not None and not future.cancel() and future.exception() is None:
                    results.acked += 1  # after an interrupt; a final failure leaves none
            try:
                await sender
            except asyncio.CancelledError:
                pass
            except LiftlogError as error:
                raise _or_lost(publisher, error) from error
            finally:
                await publisher.close()

    async def _submit(
        self,
        publisher: Publisher,
        asked: asyncio.Queue[asyncio.Future[Published] | None],
        results: _Results,
    ) -> None:
        subject, headers = self.template.subject, self.template.headers
        try:
            async for value, key, message_id in self._messages():
                future = await publisher.submit(
                    subject, value, key=key, headers=headers, message_id=message_id
                )
                results.sent += 1
                asked.put_nowait(future)
        finally:
            asked.put_nowait(None)


class _Results:
    """Prints results as they arrive and counts them."""

    def __init__(self, subject: str, timeout: float, array: ObjectArray | None) -> None:
        self.sent = 0
        self.acked = 0
        self.failed = 0
        self.stopped = False
        self.code = ExitCode.OK
        self._subject = subject
        self._timeout = timeout
        self._array = array

    async def collect(
        self, asked: asyncio.Queue[asyncio.Future[Published] | None], publisher: Publisher
    ) -> None:
        """Wait for one result after the other; results that are available together are printed
        together.

        Returns after the last result, or after a failure that all following messages would share.
        """
        acks: list[Ack] = []
        try:
            await self._collect(asked, publisher, acks)
        finally:
            self._show(acks)

    async def _collect(
        self,
        asked: asyncio.Queue[asyncio.Future[Published] | None],
        publisher: Publisher,
        acks: list[Ack],
    ) -> None:
        while not self.stopped:
            if asked.empty():
                self._show(acks)
            future = await asked.get()
            if future is None:
                break
            if not future.done():
                self._show(acks)
            try:
                acks.append((await future).acks[0])
            except PublishFailed as failure:
                self._show(acks)
                self._show_failure(failure, publisher)

    def so_far(self) -> str:
        """Return a summary after an interrupt."""
        left = self.sent - self.acked - self.failed
        acked = f"{self.acked:,} of {plural(self.sent, 'message')} acked"
        return f"{acked}; the others may have been stored, too" if left else acked

    def _show(self, acks: list[Ack]) -> None:
        """Print the acks, and clear the list."""
        self.acked += len(acks)
        if self._array is None and not quiet():
            write_lines([_to_line(ack) for ack in acks])
        elif acks and self._array is not None:
            self._array.add([self._to_object(ack) for ack in acks])
        acks.clear()

    def _show_failure(self, failure: PublishFailed, publisher: Publisher) -> None:
        self.failed += 1
        self.stopped = not isinstance(failure, PublishRefused)
        self.code = ExitCode.CANNOT_CONNECT if publisher.closed else ExitCode.NOT_ACKED
        if isinstance(failure, PublishUnknown) and not publisher.closed:
            failure.message = f"no ack came in {self._timeout:g} s"
        if self._array is not None:
            self._array.add([{"subject": self._subject, "problem": failure.message}])
        warn(str(failure))

    def _to_object(self, ack: Ack) -> dict[str, Any]:
        found = {"subject": self._subject, "stream": ack.stream, "seq": ack.offset}
        if ack.duplicate:
            found["duplicate"] = True
        if ack.durability != "fsync":
            found["durability"] = ack.durability
        return found


def _to_line(ack: Ack) -> str:
    line = f"{ack.stream} {ack.offset}"
    if ack.duplicate:
        line += " duplicate"
    if ack.durability != "fsync":
        line += f" durability={ack.durability}"
    return line


def tell_what_stays(subject: str) -> None:
    """Print the streams in which a tombstone on `subject` does not delete the key. Called after a
    tombstone was published."""
    import click

    from liftlog.cli.lib.options import connect_to_server

    unknown = (
        f"a tombstone deletes the earlier records of its key only in a compacted stream: see "
        f"`liftlog stream for {subject}`"
    )
    try:
        with connect_to_server(
            connect_timeout=_ASK_SECONDS, request_timeout=_ASK_SECONDS, reconnect_for=0
        ) as client:
            kept = [one.name for one in client.streams_for(subject) if not one.is_compacted]
    except (LiftlogError, OSError, click.ClickException):
        note(unknown)
        return
    if kept:
        is_one = len(kept) == 1
        warn(
            f"{', '.join(kept)} {'is' if is_one else 'are'} not compacted: the earlier records of "
            "the key stay there, and can be read. To delete them, turn on compaction, truncate "
            f"the {plural(len(kept), 'stream').partition(' ')[2]}, or let retention delete them"
        )


def load_nats(servers: Iterable[str]) -> None:
    """Import nats-py without aiohttp, which it needs only for WebSockets. The import of aiohttp
    takes a fifth of the time of publishing one message."""
    if "aiohttp" in sys.modules or any(server.startswith(("ws:", "wss:")) for server in servers):
        return
    sys.modules["aiohttp"] = None  # type: ignore[assignment]
    try:
        import nats.aio.client  # noqa: F401
    finally:
        del sys.modules["aiohttp"]


def not_connected(servers: Sequence[str], error: NatsUnavailable) -> Problem:
    """Return the error which reports that none of these servers can be reached."""
    where = mask(", ".join(servers))
    if "authorization" in error.message.lower() or "authentication" in error.message.lower():
        return Problem(
            f"NATS at {where} refused the login: {error.message}",
            ExitCode.DENIED,
            hint="set user and password in --nats URL, or use --creds FILE",
        )
    return Problem(
        error.message.replace("to NATS", f"to NATS at {where}", 1),
        ExitCode.CANNOT_CONNECT,
        hint="check --nats (or NATS_URL) and that nats-server runs there",
    )


def _or_lost(publisher: Publisher, error: LiftlogError) -> LiftlogError:
    """Return an error for the lost connection if it was the cause of `error`; otherwise return
    `error`."""
    if not publisher.closed and not isinstance(error, NatsUnavailable | NotPublished):
        return error
    return Problem(error.message, ExitCode.CANNOT_CONNECT)
