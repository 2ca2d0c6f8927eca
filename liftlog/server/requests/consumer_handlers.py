"""Answers the requests about consumers with acks. `liftlog.server.pull` answers the requests of
workers.

Only the leader of the stream answers. All other nodes refuse the request with NOT_LEADER. This
error names the leader. They do not forward the request, because the leader compares the deliveries
of a consumer with the rights of the client.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from liftlog.protocol.messages import Done, Message
from liftlog.protocol.workers import (
    PAGE_CONSUMERS,
    ConsumerAnswer,
    ConsumersAnswer,
    CreateConsumer,
    DeleteConsumer,
    DescribeConsumer,
    ListConsumers,
    PauseConsumer,
    ResetConsumer,
    UpdateConsumer,
)
from liftlog.server.requests.rights import Caller, consumers_of, handles

_OfOne = CreateConsumer | UpdateConsumer | ResetConsumer | PauseConsumer


def _readable(caller: Caller, message: _OfOne) -> tuple[str, ...] | None:
    """Return the subjects that the caller may read."""
    return caller.gate.readable_subjects(caller.principal, message.stream, peer=caller.peer)


@handles(CreateConsumer, "work", and_read=True)
async def _create(caller: Caller, message: CreateConsumer) -> Message:
    info, is_new = await consumers_of(caller).create(
        message.stream,
        message.consumer,
        message.config,
        caller.principal or "",
        _readable(caller, message),
    )
    return ConsumerAnswer(info.to_wire(), is_new)


@handles(UpdateConsumer, "work", and_read=True)
async def _update(caller: Caller, message: UpdateConsumer) -> Message:
    info = await consumers_of(caller).update(
        message.stream, message.consumer, message.config, _readable(caller, message)
    )
    return ConsumerAnswer(info.to_wire())


@handles(PauseConsumer, "work", and_read=True)
async def _pause(caller: Caller, message: PauseConsumer) -> Message:
    info = await consumers_of(caller).update(
        message.stream,
        message.consumer,
        {"pause_until": _time(message.until_ns)},
        _readable(caller, message),
    )
    return ConsumerAnswer(info.to_wire())


@handles(ResetConsumer, "work", and_read=True)
async def _reset(caller: Caller, message: ResetConsumer) -> Message:
    info = await consumers_of(caller).reset(
        message.stream, message.consumer, message.config, _readable(caller, message)
    )
    return ConsumerAnswer(info.to_wire())


@handles(DeleteConsumer, "work", and_read=True)
async def _delete(caller: Caller, message: DeleteConsumer) -> Message:
    await consumers_of(caller).delete(message.stream, message.consumer)
    return Done()


@handles(DescribeConsumer, "read")
async def _describe(caller: Caller, message: DescribeConsumer) -> Message:
    info = await consumers_of(caller).describe(message.stream, message.consumer)
    return ConsumerAnswer(info.to_wire())


@handles(ListConsumers, "read")
async def _list(caller: Caller, message: ListConsumers) -> Message:
    found, has_more = await consumers_of(caller).list(message.stream, message.after, PAGE_CONSUMERS)
    return ConsumersAnswer(
        [one.to_wire() for one in found], found[-1].name if has_more and found else None
    )


def _time(until_ns: int) -> Any:
    """Return the end of a pause in the form of JetStream's configuration; None if the pause is
    over."""
    if until_ns <= time.time_ns():
        return None
    seconds, rest = divmod(until_ns, 10**9)
    moment = datetime.fromtimestamp(min(seconds, 253_402_300_799), UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
