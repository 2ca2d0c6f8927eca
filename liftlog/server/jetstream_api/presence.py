"""Checks whether JetStream or another daemon answers on `$JS.API`, because this daemon must then
not answer.

A client uses the first answer that arrives. If two servers answered, a client could create a stream
in one server and request its description from the other.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets

from liftlog.errors import NatsRefused, NatsUnavailable
from liftlog.sequencing.destinations import own_subject
from liftlog.sequencing.run import MessageRun
from liftlog.server.ingest.jetstream import MARK
from liftlog.server.ingest.nats_link import NatsLink
from liftlog.server.jetstream_api.answers import command
from liftlog.server.jetstream_api.methods import PREFIX

logger = logging.getLogger("liftlog.server.jetstream_api")

_QUESTION = f"{PREFIX}INFO"
_ANSWER_SECONDS = 2.0


class Presence:
    """Looks for other servers that answer on `$JS.API`. Belongs to the event loop."""

    def __init__(self, link: NatsLink, name: str) -> None:
        """Create it. `name` is the value of `MARK` in the answers of this daemon and of its
        cluster."""
        self._link = link
        self._name = name
        self._inbox = f"_INBOX.{secrets.token_hex(11)}"
        self._answer: asyncio.Future[bytes] | None = None
        self._wanted = link.want((f"{self._inbox}.*",), None, self._receive)
        self._asked = 0
        link.on_publish_refused.append(self._refused)

    async def rival(self) -> str:
        """Return a description of the other server that answers; empty if there is none. Raises
        NatsUnavailable, and NatsRefused if NATS does not allow the request."""
        if self._link.server_has_jetstream:
            return "JetStream is on on the NATS server"
        await self._link.attach(self._wanted)
        self._answer = asyncio.get_running_loop().create_future()
        self._asked += 1
        reply = f"{self._inbox}.{self._asked}".encode()
        try:
            self._link.send(command(own_subject(_QUESTION.encode()), b"", reply=reply))
            await self._link.confirm()
            async with asyncio.timeout(_ANSWER_SECONDS):
                return self._judge(await self._answer)
        except TimeoutError:
            # A subscriber to all subjects receives the request and does not answer; JetStream would
            # answer.
            return ""
        finally:
            self._answer = None

    def _judge(self, payload: bytes) -> str:
        if not payload:
            return ""  # status for no responders
        try:
            answer = json.loads(payload)
        except (ValueError, RecursionError):
            answer = None
        mark = answer.get(MARK) if isinstance(answer, dict) else None
        if mark is None:
            return "JetStream answers on $JS.API"
        if mark != self._name:
            return f"another daemon, {str(mark)[:80]!r}, answers on $JS.API"
        return ""

    def _receive(self, run: MessageRun) -> None:
        number = str(self._asked).encode()
        for subject, payload in zip(run.subjects, run.payloads, strict=True):
            is_current = subject.rpartition(b".")[2] == number
            if is_current and self._answer is not None and not self._answer.done():
                self._answer.set_result(payload)

    def _refused(self, subject: str) -> bool:
        if subject.upper() != _QUESTION.upper():
            return False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(
                NatsRefused(f"NATS does not let the daemon publish to {_QUESTION}")
            )
        return True

    async def close(self) -> None:
        self._link.on_publish_refused.remove(self._refused)
        try:
            await self._link.unwant(self._wanted)
        except NatsUnavailable:
            pass
