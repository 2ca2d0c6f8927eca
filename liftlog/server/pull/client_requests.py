"""The requests of one connected client: handed to whoever answers them, answered in any order."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Protocol

# Imported for the requests that they register.
import liftlog.server.pull.administration_requests
import liftlog.server.pull.checkpoint_requests  # noqa: F401
from liftlog.errors import InternalError, LiftlogError, LimitExceeded
from liftlog.protocol.limits import ANSWER_FRAME_BYTES
from liftlog.protocol.messages import Cancel, Done, Fetch, FetchHeader, Message, Ping, Pong
from liftlog.protocol.server_connection import ServerConnection
from liftlog.server.pull.fetches import FetchQueue
from liftlog.server.pull.limits import ENCODED_UNSENT_BYTES
from liftlog.server.pull.requests import QUESTIONS, STARTERS, Caller, Starter, perform, start
from liftlog.server.pull.seams import LogSlice, ReadableStream
from liftlog.server.pull.send_queue import Outbox
from liftlog.server.pull.tailing import MAX_TAIL_BYTES, TailGroup

if TYPE_CHECKING:
    from liftlog.server.pull.server import PullServer

logger = logging.getLogger("liftlog.server.pull")

_DONE = Done()


class Client(Protocol):
    """What is asked of the connection."""

    peer: str
    principal: str | None
    takes_answers: bool
    """False once it has ended, or is about to."""

    def settle(self) -> None: ...


class ClientRequests:
    """Belongs to the loop's thread. Implements the host of its fetch queues."""

    def __init__(
        self, server: PullServer, client: Client, protocol: ServerConnection, outbox: Outbox
    ) -> None:
        self.loop = server.loop
        self.cold_readers: Executor = server.cold_readers
        self.share = server.read_share
        self._server = server
        self._client = client
        self._protocol = protocol
        self._outbox = outbox
        self._limits = server.limits
        self._fetches: dict[str, FetchQueue] = {}
        self._done_frames: list[bytes] = []
        self._question = asyncio.Lock()

    def begin(self, request_id: int, message: Message) -> None:
        """One that may come after the login."""
        if isinstance(message, Fetch):
            self._fetch(request_id, message)
        elif isinstance(message, Cancel):
            for queue in list(self._fetches.values()):
                if queue.cancel(request_id):
                    break
        elif isinstance(message, Ping):
            self._answer(request_id, Pong())
        elif (starter := STARTERS.get(type(message))) is not None:
            self._start(request_id, message, starter)
        else:
            self._server.spawn(self._serve(request_id, message))

    def refuse(self, request_id: int, error: Exception) -> None:
        if not self._client.takes_answers:
            return
        if not isinstance(error, LiftlogError):
            logger.error("request-failed peer=%s", self._client.peer, exc_info=error)
            error = InternalError("the daemon failed to answer this request")
        elif not error.code:
            logger.error(
                "request-failed peer=%s error=%s", self._client.peer, error, exc_info=error
            )
        self._server.counters.refusal(error)
        self._outbox.put(self._protocol.error(request_id, error))

    def _answer(self, request_id: int, message: Message) -> None:
        if not self._client.takes_answers:
            return
        frame = self._protocol.answer(request_id, message)
        if len(frame) > ANSWER_FRAME_BYTES:
            self.refuse(request_id, LimitExceeded("the answer is longer than a frame may be"))
            return
        self._outbox.put(frame)

    def _caller(self) -> Caller:
        client, server = self._client, self._server
        return Caller(client.principal, server.gate, server.broker, client.peer)

    # --- requests that are begun at once, and end later ---

    def _start(self, request_id: int, message: Message, starter: Starter) -> None:
        try:
            start(self._caller(), message, starter, partial(self._told, request_id))
        except Exception as error:  # noqa: BLE001 - `refuse` tells a defect from a refusal
            self.refuse(request_id, error)

    def _told(self, request_id: int, error: LiftlogError | None) -> None:
        if not self._client.takes_answers:
            return
        if error is None:
            if not self._done_frames:
                # Many end in the same turn of the loop: one call of the system sends them all.
                self.loop.call_soon(self._send_done)
            self._done_frames.append(self._protocol.answer(request_id, _DONE))
        else:
            self.refuse(request_id, error)
            self.loop.call_soon(self.settle)

    def _send_done(self) -> None:
        frames, self._done_frames = self._done_frames, []
        if self._client.takes_answers:
            self._outbox.put(b"".join(frames))
            self._outbox.flush()  # which settles what else is to be done

    # --- requests that wait for the daemon ---

    async def _serve(self, request_id: int, message: Message) -> None:
        """They run to their end even if the client goes."""
        if isinstance(message, QUESTIONS):
            # Each keeps the loop busy for as long as there are streams to describe: one per turn
            # of the loop, and the connections take turns, so that a flood of them delays only
            # whoever sent it.
            async with self._question, self._server.question:
                await asyncio.sleep(0)  # nothing else would end this turn before the next one's
                if self._client.takes_answers:
                    await self._perform(request_id, message)
            return
        await self._perform(request_id, message)

    async def _perform(self, request_id: int, message: Message) -> None:
        try:
            self._answer(request_id, await perform(self._caller(), message))
        except Exception as error:  # noqa: BLE001 - `refuse` tells a defect from a refusal
            self.refuse(request_id, error)
        self.settle()

    # --- fetches ---

    def _fetch(self, request_id: int, fetch: Fetch) -> None:
        client = self._client
        try:
            self._server.gate.authorize(client.principal, "read", fetch.stream, peer=client.peer)
        except Exception as error:  # noqa: BLE001 - `refuse` tells a defect from a refusal
            self.refuse(request_id, error)
            return
        queue = self._fetches.get(fetch.stream)
        if queue is None:
            # Queues that have run empty are dropped here, so their number stays bounded by
            # that of the requests in flight, and of the threads that work for what was cancelled.
            for name in [name for name, one in self._fetches.items() if one.is_idle]:
                del self._fetches[name]
            queue = FetchQueue(self, fetch.stream, self._limits)
            self._fetches[fetch.stream] = queue
        queue.add(request_id, fetch)

    def pump(self) -> None:
        """There is room for answers again."""
        for queue in list(self._fetches.values()):
            queue.pump()

    def close(self, error: LiftlogError | None = None) -> None:
        """Drop every fetch, or refuse it with `error`."""
        fetches, self._fetches = self._fetches, {}
        for queue in fetches.values():
            queue.close(error)

    # --- what a fetch queue asks of its host ---

    @property
    def may_produce(self) -> bool:
        return self._outbox.unsent_bytes < self._limits.max_unsent_bytes

    @property
    def may_encode(self) -> bool:
        return self._outbox.unsent_bytes < ENCODED_UNSENT_BYTES

    @property
    def scanners(self) -> Executor:
        """Principals take turns, and so do the connections of each; who has none is alone."""
        return self._server.scanners.of(self._client.principal or self, self)

    def open_stream(self, name: str) -> ReadableStream:
        return self._server.broker.stream(name)

    def readable_subjects(self, name: str) -> tuple[str, ...] | None:
        client = self._client
        return self._server.gate.readable_subjects(client.principal, name, peer=client.peer)

    def tail_group(self, stream: ReadableStream) -> TailGroup:
        return self._server.tail_group(stream)

    def answer_fetch(
        self, request_id: int, header: FetchHeader, body: LogSlice | bytes | None
    ) -> None:
        if not self._client.takes_answers:
            if body is not None and not isinstance(body, bytes):
                body.release()
            return
        frame = self._protocol.answer(request_id, header)
        if isinstance(body, bytes) and len(body) <= MAX_TAIL_BYTES:
            self._outbox.put(frame + body)
        else:
            self._outbox.put(frame)
            if isinstance(body, bytes):
                self._outbox.put(body)
            elif body is not None:
                self._outbox.put_slice(body)
        self._server.counters.fetch(header)

    def settle(self) -> None:
        self._client.settle()
