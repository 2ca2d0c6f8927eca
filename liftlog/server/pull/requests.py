"""The requests that wait for the daemon: what each needs of the ACL, and what answers it.

Nothing is reached without the gate: a request is only known here together with its operation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from acl.rules import Operation
from liftlog.errors import Conflict, InternalError, LiftlogError
from liftlog.protocol.administration import Metadata, StreamsFor
from liftlog.protocol.checkpoints import ListCheckpoints
from liftlog.protocol.messages import (
    CompactStream,
    CreateStream,
    DeleteStream,
    DescribeStream,
    Done,
    ListStreams,
    Message,
    StreamAnswer,
    StreamsAnswer,
)
from liftlog.protocol.stream_info import StreamInfo
from liftlog.server.access.gate import Gate
from liftlog.server.pull.seams import Broker


class Caller(NamedTuple):
    """Who asks, and whom."""

    principal: str | None
    gate: Gate
    broker: Broker
    peer: str = ""

    def may(self, operation: Operation, stream: str) -> bool:
        return self.gate.may(self.principal, operation, stream)


QUESTIONS = (ListStreams, DescribeStream, StreamsFor, Metadata, ListCheckpoints)
"""Answered without waiting for anything, and not at no cost."""

Asked = TypeVar("Asked", bound=Message)
Perform = Callable[[Caller, Any], Awaitable[Message]]


class Handler(NamedTuple):
    operation: Operation | None
    """Asked of the ACL for the request's `stream`; None when the handler chooses what to show."""
    perform: Perform


HANDLERS: dict[type[Message], Handler] = {}


def handles(
    kind: type[Asked], operation: Operation | None
) -> Callable[
    [Callable[[Caller, Asked], Awaitable[Message]]], Callable[[Caller, Asked], Awaitable[Message]]
]:
    """Register what answers the requests of one kind."""

    def register(
        perform: Callable[[Caller, Asked], Awaitable[Message]],
    ) -> Callable[[Caller, Asked], Awaitable[Message]]:
        HANDLERS[kind] = Handler(operation, perform)
        return perform

    return register


Told = Callable[[LiftlogError | None], None]
"""None: the request is answered with `done`."""


class Starter(NamedTuple):
    operation: Operation
    start: Callable[[Caller, Any, Told], None]


STARTERS: dict[type[Message], Starter] = {}
"""Requests of which so many come that a task for each would be most of what they cost."""


def starts(
    kind: type[Asked], operation: Operation
) -> Callable[[Callable[[Caller, Asked, Told], None]], Callable[[Caller, Asked, Told], None]]:
    """Register what begins the requests of one kind; it returns at once and tells the end later."""

    def register(
        start: Callable[[Caller, Asked, Told], None],
    ) -> Callable[[Caller, Asked, Told], None]:
        STARTERS[kind] = Starter(operation, start)
        return start

    return register


def start(caller: Caller, message: Message, starter: Starter, told: Told) -> None:
    """Raises as `perform`; `told` is then not called."""
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
    """What a stream is to be attached to; the daemon says what is wrong with any other value."""
    if not isinstance(message, CreateStream):
        return None
    subject = message.settings.get("subject")
    return subject if isinstance(subject, str) else None


@handles(CreateStream, "create")
async def _create(caller: Caller, message: CreateStream) -> Message:
    try:
        created = await caller.broker.create_stream(message.stream, message.settings)
    except Conflict:
        if caller.may("read", message.stream):
            raise
        # The differences tell what it records and how: the business of whoever may read it.
        raise Conflict(
            f"there is a stream {message.stream!r} already, with other settings",
            hint="choose another name",
        ) from None
    if not caller.may("read", message.stream):
        # It may have been there before; then the rest is what others recorded.
        created = StreamInfo(name=created.name, subject=created.subject, state=created.state)
    return StreamAnswer(created.to_wire())


@handles(DescribeStream, "read")
async def _describe(caller: Caller, message: DescribeStream) -> Message:
    info = await caller.broker.describe_stream(message.stream)
    readable = caller.gate.readable_subjects(caller.principal, message.stream, peer=caller.peer)
    return StreamAnswer(replace(info, readable_subjects=list(readable or ())).to_wire())


@handles(ListStreams, None)
async def _list(caller: Caller, _: ListStreams) -> Message:
    infos = await caller.broker.list_streams()
    return StreamsAnswer([one.to_wire() for one in infos if caller.may("read", one.name)])


@handles(DeleteStream, "delete")
async def _delete(caller: Caller, message: DeleteStream) -> Message:
    await caller.broker.delete_stream(message.stream)
    return Done()


@handles(CompactStream, "admin")
async def _compact(caller: Caller, message: CompactStream) -> Message:
    return StreamAnswer((await caller.broker.compact_stream(message.stream)).to_wire())
