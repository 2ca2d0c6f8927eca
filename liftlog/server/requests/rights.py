"""Registers requests. Each kind of request has an operation of the ACL that it needs, a node that
answers it, and a function that computes the answer (`handlers`).

No request bypasses the gate, because each request is registered with its operation. In a cluster,
the node that receives a client's request checks the rights. If another node must answer, the first
node forwards the request unchanged (`forward`). It then removes from the answer the data that the
principal may not see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, TypeVar

from acl.rules import Operation
from liftlog.errors import InternalError, LiftlogError, NotReady, StreamNotFound
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
from liftlog.server.consumers.door import Door
from liftlog.server.node.cluster_catalog import needed_node_of
from liftlog.server.streams.broker import Broker

_GATHER_SECONDS = 2.0


class Caller(NamedTuple):
    """The client that sent a request. `principal` is None if no ACL is configured. `peer` names the
    client in the audit log. If `is_forwarded` is true, another node forwards its client's request
    and has checked the rights. In this case `gate` permits everything, and the request is not
    forwarded again."""

    principal: str | None
    gate: Gate
    broker: Broker
    peer: str
    is_forwarded: bool = False

    def may(self, operation: Operation, stream: str) -> bool:
        return self.gate.may(self.principal, operation, stream)


class At(Enum):
    """The node of a cluster that answers a request."""

    HERE = "the one that is asked"
    LEADER = "the leader of the request's stream"
    OFFSETS = "the leader of the checkpoints"
    EVERYWHERE = "all leaders, each for its streams"


Asked = TypeVar("Asked", bound=Message)
Perform = Callable[[Caller, Any], Awaitable[Message]]
Ask = Callable[[Message], Awaitable[Message]]
Relay = Callable[[Caller, Any, Ask], Awaitable[Message]]
"""Function that answers a request with the answer of the responsible node, which `Ask` returns.
That node does not check the client's rights, so the function removes the data that the caller may
not see."""


class Handler(NamedTuple):
    operation: Operation | None
    """The operation that is needed on the request's `stream`. If the request concerns the cluster,
    the operation is needed on `_offsets`. None if the handler itself selects the data that the
    caller may see."""
    perform: Perform
    at: At
    relay: Relay | None
    """Function that computes the answer from the other node's answer; None to return that answer
    unchanged."""
    and_read: bool = False
    """True if the caller also needs the right to read the stream."""


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
"""Function that is called once, after `start` has returned. If the request succeeded, the function
gets None, and the answer to the client is `done`. Otherwise the function gets the error."""


class Starter(NamedTuple):
    operation: Operation
    start: Callable[[Caller, Any, Told], None]


STARTERS: dict[type[Message], Starter] = {}
"""Frequent requests, each with its starter. A task for each of them would take more time than the
request itself. In a cluster the leader of the checkpoints answers them."""


_LEASE_CHANGES = (AcquireLease, RenewLease, ReleaseLease)


def asks_only(message: Message) -> bool:
    """Return True if the request changes nothing."""
    handler = HANDLERS.get(type(message))
    return (
        handler is not None
        and handler.operation in (None, "read")
        and not isinstance(message, _LEASE_CHANGES)
    )


def starts(
    kind: type[Asked], operation: Operation
) -> Callable[[Callable[[Caller, Asked, Told], None]], Callable[[Caller, Asked, Told], None]]:
    """Register the function that starts the requests of one kind. The function returns at once, and
    reports the result later."""

    def register(
        start: Callable[[Caller, Asked, Told], None],
    ) -> Callable[[Caller, Asked, Told], None]:
        STARTERS[kind] = Starter(operation, start)
        return start

    return register


def start(caller: Caller, message: Message, starter: Starter, told: Told) -> None:
    """Start a request. Raises the same errors as `perform`. After an error `told` is not called."""
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
    """Answer a request. The caller has already checked the rights. Raises the broker's errors."""
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
    if told.done():  # the caller was cancelled
        return
    if error is None:
        told.set_result(None)
    else:
        told.set_exception(error)


async def ask_leader(caller: Caller, message: Message) -> Message | None:
    """Return the answer of the leader of the request's stream. Return None if this node leads it.
    Raises NotLeader."""
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
    """Return the node that must answer; None if this node must answer. Raises NotLeader if there is
    no such node. Also raises NotLeader if the request was forwarded to this node although it is not
    the leader."""
    if at not in (At.LEADER, At.OFFSETS):
        return None
    catalog = caller.broker.catalog
    stream = OFFSETS_STREAM if at is At.OFFSETS else _stream_of(message)
    node = catalog.answerer(stream)
    if node is not None and caller.is_forwarded:
        raise catalog.not_leader(stream)
    return node


async def _gathered(caller: Caller, message: Message) -> list[dict[str, Any]]:
    """Ask the other nodes for descriptions of the streams that they lead, and return the
    descriptions. Leaves out streams that the caller may not read, and nodes that do not answer
    within `_GATHER_SECONDS`."""
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
    """Replace this node's descriptions of streams by the descriptions from the streams' leaders."""
    assert isinstance(answer, StreamsAnswer), "the answers of several nodes are lists of streams"
    found = {str(one.get("name")): one for one in (*answer.streams, *others)}
    return StreamsAnswer([found[name] for name in sorted(found)])


def _authorize(caller: Caller, message: Message, operation: Operation) -> None:
    if operation == "work":
        consumer: str = getattr(message, "consumer", "")
        caller.gate.authorize_work(
            caller.principal, _stream_of(message), consumer, peer=caller.peer
        )
        return
    caller.gate.authorize(
        caller.principal,
        operation,
        _stream_of(message),
        peer=caller.peer,
        subjects=subjects_of(message.settings) if isinstance(message, CreateStream) else (),
    )


def _authorize_subjects(caller: Caller, message: UpdateStream) -> None:
    """Check the right to record the new subjects. The same right is needed to create a stream with
    these subjects."""
    subjects = subjects_of(message.settings)
    if subjects:
        caller.gate.authorize(
            caller.principal, "create", message.stream, peer=caller.peer, subjects=subjects
        )


def consumers_of(caller: Caller) -> Door:
    """Return the consumers with acks. Raises NotReady while they are not served."""
    door = caller.broker.consumers
    if door is None:
        raise NotReady("the consumers with acks are not opened yet", hint="try again")
    return door


def _stream_of(message: Message) -> str:
    """Return the stream on which the caller needs rights. Requests that concern the whole cluster
    use the stream `_offsets`, which all nodes share."""
    name: str = getattr(message, "stream", OFFSETS_STREAM)
    return name


def subjects_of(settings: Mapping[str, Any]) -> Sequence[str]:
    """Return the subjects of a stream that is to be created or changed. Ignores values that are not
    text, because the broker reports such values."""
    wanted = settings.get("subject")
    if isinstance(wanted, list) and all(isinstance(one, str) for one in wanted):
        return wanted
    return (wanted,) if isinstance(wanted, str) else ()
