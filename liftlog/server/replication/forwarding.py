"""Forwards requests of clients to the node that answers them: the leader of their stream.

A request is forwarded at most once. The node that receives the request from the client checks it
against its own ACL. The leader only executes the request. The number of waiting requests is
limited, in total and for each principal. So if a leader hangs, its requests do not fill the memory,
and do not block the requests of other principals.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial

from liftlog.errors import (
    ConnectionLost,
    InternalError,
    LiftlogError,
    LimitExceeded,
    RequestTimeout,
    ShuttingDown,
    UnknownRequest,
)
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.frames import encode_map
from liftlog.protocol.replication import Forward
from liftlog.protocol.wire import Message
from liftlog.server.replication.peer_link import PeerLink

Answered = Callable[[Message | None, LiftlogError | None], None]
"""A callback that receives the leader's answer, or the error, exactly once. It is never called
inside `send`."""

_SECONDS = 30.0
_MAX_WAITING = 4096
_MAX_OF_PRINCIPAL = 1024
_MAX_WAITING_BYTES = 64 * 1024 * 1024


class Forwarding:
    """Forwards requests. Belongs to one event loop. `link_to` returns the connection to another
    node, and `not_leader` returns the error that names the leader of a stream."""

    def __init__(
        self,
        link_to: Callable[[str], PeerLink],
        not_leader: Callable[[str], LiftlogError],
        *,
        seconds: float = _SECONDS,
        max_waiting: int = _MAX_WAITING,
        max_of_principal: int = _MAX_OF_PRINCIPAL,
        max_waiting_bytes: int = _MAX_WAITING_BYTES,
    ) -> None:
        self.forwarded_total = 0
        self._link_to = link_to
        self._not_leader = not_leader
        self._seconds = seconds
        self._max_waiting = max_waiting
        self._max_of_principal = max_of_principal
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting_bytes = 0
        self._waiting: Counter[str | None] = Counter()

    @property
    def waiting(self) -> int:
        """Number of requests without an answer."""
        return self._waiting.total()

    def send(
        self,
        node: str,
        stream: str,
        message: Message,
        principal: str | None,
        answered: Answered,
        *,
        seconds: float | None = None,
    ) -> Callable[[], None]:
        """Send `message` to `node`, which leads `stream`. Returns a function that cancels the
        request. After the cancellation `answered` is not called.

        Raises LimitExceeded. `answered` gets NotLeader if the request did not reach the leader or
        may be repeated. It gets RequestTimeout if the request may have taken effect.
        """
        data = encode_map(message.to_map(1))
        if (
            self.waiting >= self._max_waiting
            or self._waiting[principal] >= self._max_of_principal
            or self._waiting_bytes + len(data) > self._max_waiting_bytes
        ):
            raise LimitExceeded(
                f"too many requests wait for other nodes, of which {node} leads stream {stream}",
                hint="try again, or ask the leader itself",
            )
        loop = asyncio.get_running_loop()
        exchange = Exchange()
        link = self._link_to(node)

        def expired() -> None:
            give_up()
            answered(None, self._too_late(node, message))

        def settle() -> None:
            timer.cancel()
            exchange.on_done = None
            self._waiting_bytes -= len(data)
            self._waiting[principal] -= 1
            if not self._waiting[principal]:
                del self._waiting[principal]

        def give_up() -> None:
            if exchange.on_done is not None:
                settle()
                link.give_up(exchange)

        def done(_: Exchange) -> None:
            settle()
            error = exchange.error
            if error is not None:
                error = self._passed_on(error, node, stream, message, was_sent=exchange.sent)
            loop.call_soon(answered, exchange.answer, error)

        exchange.on_done = done
        timer = loop.call_later(self._seconds if seconds is None else seconds, expired)
        self._waiting_bytes += len(data)
        self._waiting[principal] += 1
        self.forwarded_total += 1
        link.request(Forward(data, principal), exchange)
        return give_up

    async def ask(
        self,
        node: str,
        stream: str,
        message: Message,
        principal: str | None,
        *,
        seconds: float | None = None,
    ) -> Message:
        """Send a message like `send`, and return the answer of `node`. Raises the errors that
        `send` passes to `answered`."""
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        give_up = self.send(
            node, stream, message, principal, partial(_complete, future), seconds=seconds
        )
        try:
            return await future
        finally:
            give_up()

    def _passed_on(
        self, error: LiftlogError, node: str, stream: str, message: Message, *, was_sent: bool
    ) -> LiftlogError:
        """Convert an error of the leader, or of the connection to it, to the error for the
        client."""
        if not isinstance(error, ConnectionLost | ShuttingDown | UnknownRequest):
            return error
        if isinstance(error, ConnectionLost) and was_sent and not message.is_repeatable:
            return self._undecided(node, message, f"the connection to it was lost: {error.message}")
        return self._not_leader(stream)

    def _too_late(self, node: str, message: Message) -> LiftlogError:
        return self._undecided(node, message, "it did not answer in time")

    def _undecided(self, node: str, message: Message, reason: str) -> LiftlogError:
        return RequestTimeout(
            f"node {node} was asked to {message.KIND}, and {reason}",
            hint="if the request changes something, check whether it took effect before you "
            "repeat it",
        )


def _complete(
    future: asyncio.Future[Message], answer: Message | None, error: LiftlogError | None
) -> None:
    if future.done():
        return
    if answer is not None and error is None:
        future.set_result(answer)
    else:
        future.set_exception(error or InternalError("there is neither an answer nor an error"))
