"""Passes each request of a logged-in client to the code that answers it. Answers may be sent in
another order than the requests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable
from functools import partial
from typing import Any

# Imported because these modules register requests.
import liftlog.server.requests.consumer_handlers
import liftlog.server.requests.erasure_handlers
import liftlog.server.requests.group_handlers
import liftlog.server.requests.handlers  # noqa: F401
from acl.rules import Operation
from liftlog.errors import Cancelled, LiftlogError
from liftlog.protocol.administration import ListExtents
from liftlog.protocol.consumer_states import FetchConsumers
from liftlog.protocol.messages import Cancel, Fetch, Message, Ping, Pong
from liftlog.protocol.replication import Copies, Ends, Forward, Peer, Replicate, Resign, Suspect
from liftlog.server.pull.answers import Answers
from liftlog.server.pull.fetches import FetchQueue
from liftlog.server.pull.peers import PeerRequests
from liftlog.server.pull.services import PullServices
from liftlog.server.pull.working import OfWorker, WorkRequests
from liftlog.server.reading.turns import Asker
from liftlog.server.requests.rights import (
    STARTERS,
    Caller,
    Starter,
    asks_only,
    perform,
    start,
)

_OfPeer = Replicate | FetchConsumers | Peer | Suspect | Ends | Resign | Forward | Copies


class ClientRequests:
    """The requests of one client. Belongs to the loop's thread."""

    def __init__(self, services: PullServices, caller: Caller, answers: Answers) -> None:
        self._services = services
        self._caller = caller
        self._answers = answers
        self._fetches: dict[str, FetchQueue] = {}
        self._work = WorkRequests(services, caller, answers)
        self._peer: PeerRequests | None = None

    def begin(self, request_id: int, message: Message) -> None:
        """Begin to carry out a request. The answer follows now or later."""
        if isinstance(message, Fetch):
            self._fetch(request_id, message)
        elif isinstance(message, _OfPeer):
            self._begin_for_peer(request_id, message)
        elif isinstance(message, OfWorker):
            self._work.begin(request_id, message)
        elif isinstance(message, Cancel):
            if self._work.cancel(request_id):
                return
            for queue in list(self._fetches.values()):
                if queue.cancel(request_id):
                    break
        elif isinstance(message, Ping):
            self._answers.answer(request_id, Pong() if self._peer is None else self._peer.pong())
        else:
            self._begin(request_id, message, self._caller)

    def _begin(self, request_id: int, message: Message, caller: Caller) -> None:
        starter = STARTERS.get(type(message))
        if starter is not None:
            self._start(request_id, message, starter, caller)
        else:
            self._services.spawn(self._serve(request_id, message, caller))

    def _begin_for_peer(
        self,
        request_id: int,
        message: Replicate | FetchConsumers | Peer | Suspect | Ends | Resign | Forward | Copies,
    ) -> None:
        if self._peer is None:
            self._peer = PeerRequests(self._caller, self._answers)
        try:
            if isinstance(message, Replicate):
                self._peer.replicate(request_id, message)
            elif isinstance(message, FetchConsumers):
                self._peer.consumers(request_id, message)
            elif isinstance(message, Peer):
                self._peer.introduce(request_id, message)
            elif isinstance(message, Copies):
                self._peer.copies(request_id, message)
            elif isinstance(message, Suspect):
                self._peer.suspect(request_id, message)
            elif isinstance(message, Ends):
                self._peer.ends(request_id, message)
            elif isinstance(message, Resign):
                work = self._peer.resign(request_id, message)
                self._services.spawn(self._answered(request_id, work))
            else:
                caller, asked = self._peer.forwarded(message)
                self._begin(request_id, asked, caller)
        except Exception as error:  # noqa: BLE001 - `refuse` tells a defect from a refusal
            self._answers.refuse(request_id, error)

    async def _answered(self, request_id: int, work: Coroutine[Any, Any, None]) -> None:
        """Wait until `work` has answered a peer's request. If `work` raises an error, answer with
        it."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 - `refuse` tells a defect from a refusal
            self._answers.refuse(request_id, error)
        self._answers.settle()

    def pump(self) -> None:
        """Answer fetches that have waited for free space in the send queue."""
        for queue in list(self._fetches.values()):
            queue.pump()

    def close(self, error: LiftlogError | None = None) -> None:
        """Drop every waiting fetch. If `error` is given, answer each fetch with this error."""
        if self._peer is not None:
            self._peer.close()
        self._work.close(error)
        fetches, self._fetches = self._fetches, {}
        for queue in fetches.values():
            queue.close(error)

    def _fetch(self, request_id: int, fetch: Fetch) -> None:
        caller = self._caller
        # Another node fetches in order to repair its copy.
        for_node = fetch.replica is not None and self._peer is not None and self._peer.is_known
        try:
            operation: Operation = "replicate" if for_node else "read"
            caller.gate.authorize(caller.principal, operation, fetch.stream, peer=caller.peer)
        except Exception as error:  # noqa: BLE001 - `refuse` tells a defect from a refusal
            self._answers.refuse(request_id, error)
            return
        queue = self._fetches.get(fetch.stream)
        if queue is None:
            # Idle queues are removed here. So the number of queues never exceeds the number of
            # requests in flight, plus the number of threads that still work for cancelled requests.
            for name in [name for name, one in self._fetches.items() if one.is_idle]:
                del self._fetches[name]
            queue = FetchQueue(
                self._services, caller, self._answers, fetch.stream, for_node=for_node
            )
            self._fetches[fetch.stream] = queue
        queue.add(request_id, fetch)

    # --- requests that are answered later, without a task of their own ---

    def _start(self, request_id: int, message: Message, starter: Starter, caller: Caller) -> None:
        try:
            start(caller, message, starter, partial(self._told, request_id))
        except Exception as error:  # noqa: BLE001 - `refuse` tells a defect from a refusal
            self._answers.refuse(request_id, error)

    def _told(self, request_id: int, error: LiftlogError | None) -> None:
        if error is None:
            self._answers.done(request_id)
        elif self._answers.is_open:
            self._answers.refuse(request_id, error)
            asyncio.get_running_loop().call_soon(self._answers.settle)

    # --- requests that take turns ---

    def _party(self, caller: Caller) -> Hashable:
        return caller.principal or self._answers

    async def _perform(self, message: Message, caller: Caller) -> Message:
        """Carry out the request. Called when the request has its turn."""
        if not isinstance(message, ListExtents):
            self._check_wanted(message)
            return await perform(caller, message)
        # Requests for extents run one at a time. Each of them keeps a thread busy, and a busy
        # thread slows down the event loop.
        async with self._services.measuring.of(self._party(caller), self._answers):
            self._check_wanted(message)
            return await perform(caller, message)

    def _check_wanted(self, message: Message) -> None:
        """Raise Cancelled if the client has disconnected and the request changes nothing."""
        if not self._answers.is_open and asks_only(message):
            raise Cancelled("the client has gone")

    async def _serve(self, request_id: int, message: Message, caller: Caller) -> None:
        """Carry out the request in its turn and send the answer. A change is carried out even if
        the client disconnects."""
        try:
            # Requests that another node forwards take turns in the same way.
            asker = Asker(self._party(caller), self._answers)
            answer = await self._services.turns.run(asker, self._perform(message, caller))
            self._answers.answer(request_id, answer)
        except Exception as error:  # noqa: BLE001 - `refuse` tells a defect from a refusal
            self._answers.refuse(request_id, error)
        self._answers.settle()
