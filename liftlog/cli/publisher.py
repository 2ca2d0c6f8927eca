"""Publishing with nats-py: in order, many in flight, results in the same order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import nats
import nats.errors
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from liftlog.cli.acks import Result, connection_lost, judge_answer, no_answer
from liftlog.cli.exit_codes import ExitCode
from liftlog.cli.problems import Problem
from liftlog.cli.pub_messages import Outgoing
from liftlog.server.logs import mask

Show = Callable[[list[Result]], None]

_IN_FLIGHT = 256
_NATS_SECONDS = 5


@dataclass(slots=True)
class _Asked:
    """A message under way; its answer is None when the connection was lost."""

    subject: str
    answer: asyncio.Future[Msg | None]
    deadline: float


class Publisher:
    """One NATS connection that publishes and matches acks to messages."""

    client: NatsClient

    def __init__(self) -> None:
        self._answers: dict[str, asyncio.Future[Msg | None]] = {}
        self._room = asyncio.Semaphore(_IN_FLIGHT)
        self._asked: asyncio.Queue[_Asked | None] = asyncio.Queue()
        self.last_error: Exception | None = None

    @property
    def _nats_error(self) -> str:
        return "" if self.last_error is None else str(self.last_error)

    # --- callbacks of nats-py ---

    async def on_error(self, error: Exception) -> None:
        self.last_error = error

    async def on_closed(self) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result(None)
        self._answers.clear()

    async def _on_answer(self, message: Msg) -> None:
        answer = self._answers.pop(message.subject, None)
        if answer is not None and not answer.done():
            answer.set_result(message)

    # --- publishing ---

    async def send(self, message: Outgoing, reply: str = "") -> None:
        """Hand one message to NATS. Raises Problem."""
        try:
            await self.client.publish(
                message.subject, message.payload, reply=reply, headers=message.headers
            )
        except nats.errors.MaxPayloadError:
            raise Problem(
                f"the message has {len(message.payload):,} bytes, "
                f"NATS allows {self.client.max_payload:,}",
                ExitCode.USAGE,
                hint="raise max_payload of nats-server",
            ) from None
        except (nats.errors.BadSubjectError, ValueError) as error:
            raise Problem(
                f"NATS cannot carry this message on {message.subject!r}: {error}",
                ExitCode.USAGE,
                hint="a subject is tokens joined by dots, without blanks and wildcards",
            ) from None
        except (nats.errors.Error, OSError) as error:
            reason = self.last_error or error
            raise Problem(
                f"the connection to NATS is lost: {reason}", ExitCode.CANNOT_CONNECT
            ) from None

    async def flush(self) -> None:
        """Returns when NATS has everything that was sent. Raises Problem."""
        try:
            await self.client.flush(_NATS_SECONDS)
        except (nats.errors.Error, TimeoutError, OSError) as error:
            reason = self.last_error or error
            raise Problem(
                f"the connection to NATS is lost: {reason}", ExitCode.CANNOT_CONNECT
            ) from None
        if self.last_error is not None:
            raise Problem(f"NATS refused it: {self.last_error}", ExitCode.DENIED)

    async def publish(self, messages: AsyncIterator[Outgoing], timeout: float, show: Show) -> None:
        """Publish all, each asking for an ack; `show` gets the results in the order of sending.

        Stops after a final result. Raises Problem.
        """
        inbox = self.client.new_inbox()
        await self.client.subscribe(f"{inbox}.*", cb=self._on_answer)
        sender = asyncio.create_task(self._ask(messages, inbox, timeout))
        try:
            await self._collect(timeout, show)
        finally:
            sender.cancel()
            with suppress(asyncio.CancelledError):
                await sender

    async def _ask(self, messages: AsyncIterator[Outgoing], inbox: str, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        number = 0
        try:
            async for message in messages:
                await self._room.acquire()
                number += 1
                reply = f"{inbox}.{number}"
                answer: asyncio.Future[Msg | None] = loop.create_future()
                self._answers[reply] = answer
                await self.send(message, reply)
                self._asked.put_nowait(_Asked(message.subject, answer, loop.time() + timeout))
        finally:
            self._asked.put_nowait(None)

    async def _collect(self, timeout: float, show: Show) -> None:
        """Wait for one answer after the other; those that are there together go out together."""
        ready: list[Result] = []
        while True:
            if ready and (self._asked.empty() or ready[-1].final):
                show(ready)
                if ready[-1].final:
                    return
                ready = []
            item = await self._asked.get()
            if item is None:
                show(ready)
                return
            if ready and not item.answer.done():
                show(ready)
                ready = []
            ready.append(await self._result(item, timeout))
            self._room.release()

    async def _result(self, item: _Asked, timeout: float) -> Result:
        try:
            async with asyncio.timeout_at(item.deadline):
                message = await item.answer
        except TimeoutError:
            return no_answer(item.subject, timeout, self._nats_error)
        if message is None:
            return connection_lost(item.subject, self._nats_error)
        return judge_answer(item.subject, message.data, (message.headers or {}).get("Status"))


def why_not_connected(error: Exception) -> str:
    """In words. asyncio's TimeoutError has none: the port accepts and sends no INFO of NATS."""
    if isinstance(error, TimeoutError) and not str(error):
        return "what listens there does not answer as a NATS server does"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


@asynccontextmanager
async def connected(servers: list[str], creds: Path | None) -> AsyncIterator[Publisher]:
    """A connection to NATS; closed at the end. Raises Problem."""
    publisher = Publisher()
    where = mask(", ".join(servers))
    try:
        publisher.client = await nats.connect(
            servers,
            name="liftlog pub",
            connect_timeout=_NATS_SECONDS,
            allow_reconnect=False,
            max_reconnect_attempts=1,  # of the first connect: two attempts at each server
            reconnect_time_wait=0.1,
            user_credentials=None if creds is None else str(creds),
            error_cb=publisher.on_error,
            closed_cb=publisher.on_closed,
        )
    except (OSError, nats.errors.Error, ValueError) as error:
        raise _not_connected(where, publisher.last_error or error) from None
    try:
        yield publisher
    finally:
        with suppress(nats.errors.Error, OSError):
            await publisher.client.close()


def _not_connected(where: str, error: Exception) -> Problem:
    if "authorization" in str(error).lower() or "authentication" in str(error).lower():
        return Problem(
            f"NATS at {where} refused the login: {error}",
            ExitCode.DENIED,
            hint="give user and password in --nats URL, or --creds FILE",
        )
    return Problem(
        f"cannot connect to NATS at {where}: {why_not_connected(error)}",
        ExitCode.CANNOT_CONNECT,
        hint="check --nats (or NATS_URL) and that nats-server runs there",
    )


async def publish_all(
    servers: list[str],
    messages: AsyncIterator[Outgoing],
    *,
    creds: Path | None,
    timeout: float | None,
    show: Show,
) -> int:
    """Publish `messages`; with `timeout` None without asking for acks. Returns how many were sent.

    Raises Problem.
    """
    sent = 0

    async def counted() -> AsyncIterator[Outgoing]:
        nonlocal sent
        async for message in messages:
            yield message
            sent += 1

    async with connected(servers, creds) as publisher:
        if timeout is not None:
            await publisher.publish(counted(), timeout, show)
        else:
            async for message in counted():
                await publisher.send(message)
            await publisher.flush()
    return sent
