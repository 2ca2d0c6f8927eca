"""Requests that the daemon itself sends over NATS: to the other nodes of its cluster, and on
`$JS.API`."""

from __future__ import annotations

import asyncio
import itertools
import secrets

from liftlog.errors import NatsUnavailable, RequestTimeout
from liftlog.sequencing.destinations import own_subject
from liftlog.sequencing.run import MessageRun
from liftlog.server.ingest.nats_link import NatsLink
from liftlog.server.jetstream_api.answers import command


class OwnRequests:
    """Requests over one NATS link. Each request gets its answer on a separate subject. Belongs to
    the event loop."""

    def __init__(self, link: NatsLink) -> None:
        self._link = link
        self._inbox = f"_INBOX.{secrets.token_hex(11)}"
        self._numbers = itertools.count(1)
        self._answers: dict[bytes, asyncio.Future[bytes]] = {}
        self._wanted = link.want((f"{self._inbox}.*",), None, self._receive)

    async def ask(self, subject: str, payload: bytes, *, seconds: float) -> bytes:
        """Return the answer to a request. The answer is empty if the subject has no subscriber.

        Raises RequestTimeout if no answer arrives in time. Also raises NatsUnavailable,
        NatsRefused, and the error that the owner passes to `fail`.
        """
        await self._link.attach(self._wanted)
        reply = f"{self._inbox}.{next(self._numbers)}".encode()
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers[reply] = answer
        try:
            self._link.send(command(own_subject(subject.encode()), payload, reply=reply))
            await self._link.confirm()
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise RequestTimeout(f"no answer on {subject} within {seconds:g} s") from None
        finally:
            del self._answers[reply]

    def fail(self, error: Exception) -> None:
        """Raise `error` in all requests that wait for an answer."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)

    def _receive(self, run: MessageRun) -> None:
        for subject, payload in zip(run.subjects, run.payloads, strict=True):
            answer = self._answers.get(subject)
            if answer is not None and not answer.done():
                answer.set_result(payload)

    async def close(self) -> None:
        try:
            await self._link.unwant(self._wanted)
        except NatsUnavailable:
            pass
