"""Answers requests that need no wait. All answers of one turn of the event loop are sent with one
write."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from acl.policy import Policy
from liftlog.errors import LiftlogError
from liftlog.sequencing.destinations import Destinations
from liftlog.server.ingest.nats_link import NatsLink
from liftlog.server.jetstream_api.answers import JetStreamError, refusal, too_many_requests
from liftlog.server.jetstream_api.fields import MAX_REQUEST_BYTES
from liftlog.server.jetstream_api.methods import (
    ANSWERED,
    TOO_MANY,
    Method,
    NoDestination,
    Parts,
    Request,
)
from liftlog.server.jetstream_api.waiting import Message

MAX_UNSENT_BYTES = 64 * 1024

_Rules = tuple[Destinations, int, Policy | None]
"""The version of the streams' subjects (`Destinations`), and the ACL policy."""


class ImmediateAnswers:
    """Answers requests at once. Belongs to the event loop."""

    def __init__(self, parts: Parts, link: NatsLink, put_back: Callable[[Message], bool]) -> None:
        """`put_back` receives a request whose answer was not sent, so that the request is answered
        again. `put_back` returns False if too many requests wait already."""
        self._parts = parts
        self._link = link
        self._put_back = put_back
        self._texts: list[bytes] = []
        self._asked: list[tuple[Message, Method]] = []
        self._size_bytes = 0
        self._rules: _Rules | None = None
        """The rules that were in force when the destinations of `_texts` were chosen."""

    def answer(self, message: Message, method: Method, arguments: Sequence[str]) -> bool:
        """Answer a request. Return False if the answer needs a wait, or if the answer is an
        error."""
        _, reply, payload, arrived = message
        if method.answer_now is None or len(payload) > MAX_REQUEST_BYTES or not self._may_send():
            return False
        broker = self._parts.broker
        request = Request(self._parts, arguments, reply, payload, arrived)
        try:
            if method.at_leader:
                if broker.catalog.answerer(arguments[0]) is not None:
                    return False
                request.check_exists()
            text = method.answer_now(request)
        except (LiftlogError, JetStreamError, NoDestination):
            return False
        if text is None:
            return False
        self._add(text, message, method)
        self._parts.counters.answered(method.name, ANSWERED, time.monotonic() - arrived)
        return True

    def _may_send(self) -> bool:
        link = self._link
        return link.connected and link.unsent_bytes + self._size_bytes < MAX_UNSENT_BYTES

    def _add(self, text: bytes, message: Message, method: Method) -> None:
        rules = self._present_rules()
        if self._texts and rules != self._rules:
            self._flush()
        if not self._texts:
            self._rules = rules
            asyncio.get_running_loop().call_soon(self._flush)
        self._texts.append(text)
        self._asked.append((message, method))
        self._size_bytes += len(text)

    def _present_rules(self) -> _Rules:
        destinations = self._parts.broker.destinations
        return destinations, destinations.version, self._parts.gate.policy

    def _flush(self) -> None:
        """Send the answers. Streams or permissions may have changed since an answer was composed.
        Its destination may then be forbidden, so the request is answered again."""
        texts, self._texts = self._texts, []
        asked, self._asked = self._asked, []
        self._size_bytes = 0
        if not texts:  # already sent
            return
        if self._rules == self._present_rules():
            self._link.send(b"".join(texts))
            return
        for message, method in asked:
            if not self._put_back(message):
                self._refuse(message, method)

    def _refuse(self, message: Message, method: Method) -> None:
        self._parts.counters.requests[method.name, TOO_MANY] += 1
        target = self._parts.broker.destinations.for_answer(message[1])
        if target is not None:
            self._link.send(refusal(target, method.kind, too_many_requests()))
