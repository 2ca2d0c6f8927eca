"""The operation of the ACL that each request needs, the node that answers it, and the function that
does (`handlers`).

No request bypasses the gate: each is registered together with its operation. In a cluster, the node
that receives a client's request checks the rights. If another node is to answer, it gets the
request unchanged (`forward`), and the first node removes from the answer what the principal may not
see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, TypeVar

from acl.rules import Operation
from liftlog.errors import InternalError, LiftlogError, StreamNotFound
from liftlog.protocol.administration import (
    AcquireLease,
    ReleaseLease,
    RenewLease,
    UpdateStream,
)
from liftlog.protocol.checkpoints import CommitCheckpoint
from liftlog.protocol.messages import (
    CreateStream,
    Done,
    Message,
    StreamsAnswer,
)
from liftlog.server.access.gate import Gate
from liftlog.server.checkpoints import OFFSETS_STREAM
from liftlog.server.node.cluster_catalog import needed_node_of
from liftlog.server.streams.broker import Broker

_GATHER_SECONDS = 2.0


class Caller(NamedTuple):
    """The client of a request. `principal` None: no ACL is configured; `peer` names the client in
    the audit log. `is_forwarded`: another node has checked the rights, and asks for its client;
    `gate` then permits everything, and no further node is asked."""

    principal: str | None
    gate: Gate
    broker: Broker
    peer: str
    is_forwarded: bool = False

    def may(self, operation: Operation, stream: str) -> bool:
        return self.gate.may(self.principal, operation, stream)


class At(Enum):
    """The node of a cluster that answers."""

    HERE = "the one that is asked"
    LEADER = "the leader of the request's stream"
    OFFSETS = "the leader of the checkpoints"
    EVERYWHERE = "all leaders, each for its streams"


Asked = TypeVar("Asked", bound=Message)
Perform = Callable[[Caller, Any], Awaitable[Message]]
Ask = Callable[[Message], Awaitable[Message]]
Relay = Callable[[Caller, Any, Ask], Awaitable[Message]]
"""Answers a request with the answer of the responsible node, which `Ask` returns. That node shows
everything: the relay removes what the caller may not see."""


class Handler(NamedTuple):
    operation: Operation | None
    """Needed on the request's `stream`, or on `_offsets` if it is about the cluster; None if the
    handler itself chooses what to show."""
    perform: Perform
    at: At
    relay: Relay | None
    """None passes the answer on unchanged."""
    and_read: bool = False
    """True if the caller needs the right to read the stream, too."""


HANDLERS: dict[type[Message], Handler] = {}


def handles(
    kind: type[Asked],
    operation: Operation | None,
    *,
    at: At = At.HERE,
    relay: Callable[[Caller, Asked, Ask], Awaitable[Message]] | None = None,
    and_read: bool = False,
) -> Callable[
    [Callable[[Caller, Asked], Awaitable[Message]]], Callable[[Caller, Asked], Awaitable[Message]]
]:
    """Register the function that answers the requests of one kind."""

    def register(
        perform: Callable[[Caller, Asked], Awaitable[Message]],
    ) -> Callable[[Caller, Asked], Awaitable[Message]]:
        HANDLERS[kind] = Handler(operation, perform, at, relay, and_read)
        return perform

    return register


Told = Callable[[LiftlogError | None], None]
"""Called once, later: None answers the request with `done`."""


class Starter(NamedTuple):
    operation: Operation
    start: Callable[[Caller, Any, Told], None]


STARTERS: dict[type[Message], Starter] = {}
"""Requests so frequent that a task for each would be most of their cost. In a cluster the leader of
the checkpoints answers them."""


_LEASE_CHANGES = (AcquireLease, RenewLease, ReleaseLease)


def asks_only(message: Message) -> bool:
    """True if the request changes nothing."""
    handler = HANDLERS.get(type(message))
    return (
        handler is not None
        and handler.operation in (None, "read")
        and not isinstance(message, _LEASE_CHANGES)
    )


def starts(
    kind: type[Asked], operation: Operation
) -> Callable[[Callable[[Caller, Asked, Told], None]], Callable[[Caller, Asked, Told], None]]:
    """Register the function that begins the requests of one kind: it returns at once and reports
    the result later."""

    def register(
        start: Callable[[Caller, Asked, Told], None],
    ) -> Callable[[Caller, Asked, Told], None]:
        STARTERS[kind] = Starter(operation, start)
        return start

    return register


def start(caller: Caller, message: Message, starter: Starter, told: Told) -> None:
    """Raises the errors of `perform`; `told` is then not called."""
    _authorize(caller, message, starter.operation)
    _begin(caller, message, starter, told)


def _begin(caller: Caller, message: Message, starter: Starter, told: Told) -> None:
    node = _elsewhere(caller, At.OFFSETS, message)
    if node is None:
        starter.start(caller, message, told)
    elif isinstance(message, CommitCheckpoint) and not caller.broker.catalog.knows(message.stream):
        raise StreamNotFound(f"there is no stream {message.stream!r}")
    else:
        needed_node_of(caller.broker).forwarding.send(
            node, OFFSETS_STREAM, message, caller.principal, lambda _, error: told(error)
        )


async def perform(caller: Caller, message: Message) -> Message:
    """Answer a request. Raises Forbidden, InvalidArgument and the broker's errors."""
    handler = HANDLERS.get(type(message))
    if handler is None:
        raise InternalError(f"no code answers the request {message.KIND!r}")
    if handler.operation is not None:
        _authorize(caller, message, handler.operation)
    if handler.and_read:
        _authorize(caller, message, "read")
    return await carry_out(caller, message)


async def carry_out(caller: Caller, message: Message) -> Message:
    """Like `perform`, for a caller that has checked the rights. Raises the broker's errors."""
    starter = STARTERS.get(type(message))
    if starter is not None:
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        _begin(caller, message, starter, partial(_settle, told))
        await told
        return Done()
    handler = HANDLERS[type(message)]
    if isinstance(message, UpdateStream):
        _authorize_subjects(caller, message)
    node = _elsewhere(caller, handler.at, message)
    if node is not None:
        stream = OFFSETS_STREAM if handler.at is At.OFFSETS else _stream_of(message)
        return await _at(caller, node, stream, message, handler)
    others = await _gathered(caller, message) if handler.at is At.EVERYWHERE else []
    answer = await handler.perform(caller, message)
    return _merged(answer, others) if others else answer


def _settle(told: asyncio.Future[None], error: LiftlogError | None) -> None:
    if told.done():  # its caller was cancelled
        return
    if error is None:
        told.set_result(None)
    else:
        told.set_exception(error)


async def ask_leader(caller: Caller, message: Message) -> Message | None:
    """Return the answer of the leader of the request's stream; None if this node leads it. Raises
    NotLeader."""
    node = _elsewhere(caller, At.LEADER, message)
    if node is None:
        return None
    return await _at(caller, node, _stream_of(message), message, HANDLERS[type(message)])


async def _at(
    caller: Caller, node: str, stream: str, message: Message, handler: Handler
) -> Message:
    forwarding = needed_node_of(caller.broker).forwarding

    async def ask(one: Message) -> Message:
        return await forwarding.ask(node, stream, one, caller.principal)

    return await (ask(message) if handler.relay is None else handler.relay(caller, message, ask))


def _elsewhere(caller: Caller, at: At, message: Message) -> str | None:
    """Return the other node that is to answer; None if this one does. Raises NotLeader if there is
    none, or if the request comes from a node that took this one for the leader."""
    if at not in (At.LEADER, At.OFFSETS):
        return None
    catalog = caller.broker.catalog
    stream = OFFSETS_STREAM if at is At.OFFSETS else _stream_of(message)
    node = catalog.answerer(stream)
    if node is not None and caller.is_forwarded:
        raise catalog.not_leader(stream)
    return node


async def _gathered(caller: Caller, message: Message) -> list[dict[str, Any]]:
    """Return the other leaders' descriptions of their streams, without what the caller may not
    read. A node that does not answer soon is left out."""
    leaders = {} if caller.is_forwarded else caller.broker.catalog.other_leaders()
    if not leaders:
        return []
    forwarding = needed_node_of(caller.broker).forwarding
    asked = [
        forwarding.ask(node, stream, message, caller.principal, seconds=_GATHER_SECONDS)
        for node, stream in leaders.items()
    ]
    found: list[dict[str, Any]] = []
    for answer in await asyncio.gather(*asked, return_exceptions=True):
        if isinstance(answer, StreamsAnswer):
            found += [one for one in answer.streams if caller.may("read", str(one.get("name")))]
        elif isinstance(answer, BaseException) and not isinstance(answer, LiftlogError):
            raise answer
    return found


def _merged(answer: Message, others: list[dict[str, Any]]) -> Message:
    """The leaders' descriptions of their streams replace those of this node."""
    assert isinstance(answer, StreamsAnswer), "the answers of several nodes are lists of streams"
    found = {str(one.get("name")): one for one in (*answer.streams, *others)}
    return StreamsAnswer([found[name] for name in sorted(found)])


def _authorize(caller: Caller, message: Message, operation: Operation) -> None:
    caller.gate.authorize(
        caller.principal,
        operation,
        _stream_of(message),
        peer=caller.peer,
        subjects=subjects_of(message.settings) if isinstance(message, CreateStream) else (),
    )


def _authorize_subjects(caller: Caller, message: UpdateStream) -> None:
    """Recording other subjects requires the same right as creating a stream for them."""
    subjects = subjects_of(message.settings)
    if subjects:
        caller.gate.authorize(
            caller.principal, "create", message.stream, peer=caller.peer, subjects=subjects
        )


def _stream_of(message: Message) -> str:
    """Requests that concern the whole cluster use the stream that all nodes share."""
    name: str = getattr(message, "stream", OFFSETS_STREAM)
    return name


def subjects_of(settings: Mapping[str, Any]) -> Sequence[str]:
    """Return the subjects of a stream to be created or changed. The broker reports any value that
    is not text."""
    wanted = settings.get("subject")
    if isinstance(wanted, list) and all(isinstance(one, str) for one in wanted):
        return wanted
    return (wanted,) if isinstance(wanted, str) else ()
