"""Which operation of the ACL each request needs, and what answers it (`handlers`).

No request passes by the gate: each is registered together with its operation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from acl.rules import Operation
from liftlog.errors import InternalError, LiftlogError
from liftlog.protocol.administration import Metadata, StreamsFor
from liftlog.protocol.checkpoints import ListCheckpoints
from liftlog.protocol.messages import CreateStream, DescribeStream, ListStreams, Message
from liftlog.protocol.replication import DescribeCluster
from liftlog.server.access.gate import Gate
from liftlog.server.streams.broker import Broker


class Caller(NamedTuple):
    """The client that asks, and what it asks. `principal` None: no ACL is configured; `peer` names
    the client in the audit."""

    principal: str | None
    gate: Gate
    broker: Broker
    peer: str

    def may(self, operation: Operation, stream: str) -> bool:
        return self.gate.may(self.principal, operation, stream)


QUESTIONS = (
    ListStreams,
    DescribeStream,
    StreamsFor,
    Metadata,
    ListCheckpoints,
    DescribeCluster,
)
"""Answered without waiting for anything, but at a cost that grows with the number of streams."""

Asked = TypeVar("Asked", bound=Message)
Perform = Callable[[Caller, Any], Awaitable[Message]]


class Handler(NamedTuple):
    operation: Operation | None
    """Needed on the request's `stream`; None when the handler itself chooses what to show."""
    perform: Perform


HANDLERS: dict[type[Message], Handler] = {}


def handles(
    kind: type[Asked], operation: Operation | None
) -> Callable[
    [Callable[[Caller, Asked], Awaitable[Message]]], Callable[[Caller, Asked], Awaitable[Message]]
]:
    """Register the function that answers the requests of one kind."""

    def register(
        perform: Callable[[Caller, Asked], Awaitable[Message]],
    ) -> Callable[[Caller, Asked], Awaitable[Message]]:
        HANDLERS[kind] = Handler(operation, perform)
        return perform

    return register


Told = Callable[[LiftlogError | None], None]
"""Called once, later: None answers the request with `done`."""


class Starter(NamedTuple):
    operation: Operation
    start: Callable[[Caller, Any, Told], None]


STARTERS: dict[type[Message], Starter] = {}
"""Requests so frequent that a task for each would be most of their cost."""


def starts(
    kind: type[Asked], operation: Operation
) -> Callable[[Callable[[Caller, Asked, Told], None]], Callable[[Caller, Asked, Told], None]]:
    """Register the function that begins the requests of one kind: it returns at once and tells the
    result later."""

    def register(
        start: Callable[[Caller, Asked, Told], None],
    ) -> Callable[[Caller, Asked, Told], None]:
        STARTERS[kind] = Starter(operation, start)
        return start

    return register


def start(caller: Caller, message: Message, starter: Starter, told: Told) -> None:
    """Raises what `perform` raises; `told` is then not called."""
    _authorize(caller, message, starter.operation)
    starter.start(caller, message, told)


async def perform(caller: Caller, message: Message) -> Message:
    """The answer to a request; raises Forbidden, InvalidArgument and what the broker raises."""
    handler = HANDLERS.get(type(message))
    if handler is None:
        raise InternalError(f"no code answers the request {message.KIND!r}")
    if handler.operation is not None:
        _authorize(caller, message, handler.operation)
    return await handler.perform(caller, message)


def _authorize(caller: Caller, message: Message, operation: Operation) -> None:
    caller.gate.authorize(
        caller.principal,
        operation,
        message.stream,  # type: ignore[attr-defined]
        peer=caller.peer,
        subject=_subject(message),
    )


def _subject(message: Message) -> str | None:
    """The subject of a stream to be created. The broker reports any value that is not text."""
    if not isinstance(message, CreateStream):
        return None
    subject = message.settings.get("subject")
    return subject if isinstance(subject, str) else None
