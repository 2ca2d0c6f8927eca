"""Checks whether JetStream or another daemon answers on `$JS.API`. In this case, this daemon must
not answer.

A client uses the first answer that arrives. If two servers answered, a client could create a stream
in one server and request its description from the other.
"""

from __future__ import annotations

import json
import logging

from liftlog.errors import NatsRefused, RequestTimeout
from liftlog.server.ingest.jetstream import MARK
from liftlog.server.ingest.nats_link import NatsLink
from liftlog.server.jetstream_api.methods import PREFIX
from liftlog.server.jetstream_api.own_requests import OwnRequests

logger = logging.getLogger("liftlog.server.jetstream_api")

_QUESTION = f"{PREFIX}INFO"
_ANSWER_SECONDS = 2.0


class Presence:
    """Looks for other servers that answer on `$JS.API`. Belongs to the event loop."""

    def __init__(self, link: NatsLink, name: str) -> None:
        """`name` is the value of `MARK` in the answers of this daemon and of its cluster."""
        self._link = link
        self._name = name
        self._requests = OwnRequests(link)
        link.on_publish_refused.append(self._refused)

    async def rival(self) -> str:
        """Return a description of the other server that answers; empty if no other server answers.
        Raises NatsUnavailable, and NatsRefused if NATS does not allow the request."""
        if self._link.server_has_jetstream:
            return "JetStream is enabled on the NATS server"
        try:
            return self._judge(await self._requests.ask(_QUESTION, b"", seconds=_ANSWER_SECONDS))
        except RequestTimeout:
            # A subscriber to all subjects receives the request and does not answer; JetStream would
            # answer.
            return ""

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

    def _refused(self, subject: str) -> bool:
        if subject.upper() != _QUESTION.upper():
            return False
        self._requests.fail(NatsRefused(f"NATS does not let the daemon publish to {_QUESTION}"))
        return True

    async def close(self) -> None:
        self._link.on_publish_refused.remove(self._refused)
        await self._requests.close()
