"""Encodes the answers to one client's requests as frames, and sends them in the order in which they
are created."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from liftlog.errors import InternalError, LiftlogError, LimitExceeded
from liftlog.log import LogSlice
from liftlog.protocol.consumer_states import ConsumerChanges
from liftlog.protocol.limits import ANSWER_FRAME_BYTES
from liftlog.protocol.messages import Done, FetchHeader, Message
from liftlog.protocol.replication import Replica
from liftlog.protocol.server_connection import ServerConnection
from liftlog.protocol.workers import Delivered
from liftlog.server.pull.limits import ENCODED_UNSENT_BYTES
from liftlog.server.pull.send_queue import SendQueue
from liftlog.server.pull.services import PullServices
from liftlog.server.reading.tailing import MAX_TAIL_BYTES
from liftlog.server.vitals.descriptors import for_want_of_descriptors
from liftlog.server.vitals.disk import for_failed_storage

logger = logging.getLogger("liftlog.server.pull")

_DONE = Done()


class Answers:
    """The answers to one client. `peer` names the client in logs. Belongs to the loop's thread.

    Every callback of the loop that has created answers must then call `settle`. This method sends
    the answers, and handles the requests that waited for free space in the send queue.
    """

    def __init__(
        self,
        services: PullServices,
        protocol: ServerConnection,
        queue: SendQueue,
        peer: str,
        settle: Callable[[], None],
    ) -> None:
        self.is_open = True
        """False once the connection is closed or closing; further answers are dropped."""
        self.settle = settle
        self._protocol = protocol
        self._queue = queue
        self._peer = peer
        self._counters = services.counters
        self._max_unsent_bytes = services.limits.max_unsent_bytes
        self._done_frames: list[bytes] = []

    @property
    def may_produce(self) -> bool:
        """Return False while too many bytes wait to be sent. The connection resumes the client's
        fetches when enough of them have been sent."""
        return self._queue.unsent_bytes < self._max_unsent_bytes

    @property
    def may_encode(self) -> bool:
        """Return False while the waiting answers take too much memory; the connection resumes the
        fetches later, as for `may_produce`."""
        return self._queue.unsent_bytes < ENCODED_UNSENT_BYTES

    def answer(self, request_id: int, message: Message) -> None:
        if not self.is_open:
            return
        frame = self._protocol.answer(request_id, message)
        if len(frame) > ANSWER_FRAME_BYTES:
            self.refuse(request_id, LimitExceeded("the answer is longer than a frame may be"))
            return
        self._queue.put(frame)

    def done(self, request_id: int) -> None:
        """Answer that the request was carried out. Many requests may be answered in the same turn
        of the loop. One system call sends all these answers."""
        if not self.is_open:
            return
        if not self._done_frames:
            asyncio.get_running_loop().call_soon(self._send_done)
        self._done_frames.append(self._protocol.answer(request_id, _DONE))

    def _send_done(self) -> None:
        frames, self._done_frames = self._done_frames, []
        if self.is_open:
            self._queue.put(b"".join(frames))
            self._queue.flush()  # this call also handles waiting requests

    def fetched(
        self,
        request_id: int,
        header: FetchHeader,
        body: LogSlice | bytes | tuple[bytearray, ...] | None,
    ) -> None:
        """Answer a fetch. Takes ownership of `body`, even if the connection is closed."""
        if not self.is_open:
            if isinstance(body, LogSlice):
                body.release()
            return
        frame = self._protocol.answer(request_id, header)
        parts = (body,) if isinstance(body, bytes) else body
        if isinstance(parts, tuple) and header.body_length <= MAX_TAIL_BYTES:
            self._queue.put(b"".join((frame, *parts)))
        else:
            self._queue.put(frame)
            if isinstance(parts, tuple):
                for part in parts:
                    self._queue.put(part)
            elif parts is not None:
                self._queue.put_slice(parts)
        self._counters.fetch(header)

    def delivered(
        self, request_id: int, header: Delivered, bodies: Sequence[bytes | bytearray | memoryview]
    ) -> None:
        """Answer a worker with messages, and send the answer at once."""
        if not self.is_open:
            return
        self._queue.put(b"".join((self._protocol.answer(request_id, header), *bodies)))
        self._queue.flush()

    def replicated(
        self, request_id: int, header: Replica | ConsumerChanges, body: LogSlice | bytes | None
    ) -> None:
        """Answer a follower, and send the answer at once. Takes ownership of `body`, even if the
        connection is closed."""
        if not self.is_open:
            if body is not None and not isinstance(body, bytes):
                body.release()
            return
        frame = self._protocol.answer(request_id, header)
        if isinstance(body, bytes):
            self._queue.put(frame + body)
        else:
            self._queue.put(frame)
            if body is not None:
                self._queue.put_slice(body)
        self._queue.flush()

    def flush(self) -> None:
        """Send as many of the answers as the socket accepts."""
        if self.is_open:
            self._queue.flush()

    def allow_in_flight(self, count: int) -> None:
        """Set the number of requests that the client may have in flight."""
        self._protocol.allow_in_flight(count)

    def refuse(self, request_id: int, error: Exception) -> None:
        """Answer with an error. If the error is not meant for clients, it is logged and the client
        gets INTERNAL."""
        if not self.is_open:
            return
        if (want := for_want_of_descriptors(error)) is not None:
            logger.error("no-descriptor-left peer=%s error=%s", self._peer, error)
            error = want
        elif (failed := for_failed_storage(error)) is not None:
            logger.error("storage-failed peer=%s error=%s", self._peer, error)
            error = failed
        elif not isinstance(error, LiftlogError):
            logger.error("request-failed peer=%s", self._peer, exc_info=error)
            error = InternalError("the daemon failed to answer this request")
        elif not error.code:
            logger.error("request-failed peer=%s error=%s", self._peer, error, exc_info=error)
        self._counters.refusal(error)
        self._queue.put(self._protocol.error(request_id, error))

    def end_with(self, error: LiftlogError, request_id: int) -> None:
        """Send the reason why the connection is closed; no other answer follows."""
        self._queue.put(self._protocol.error(request_id, error))
        self.is_open = False
