"""Requests about checkpoints: where consumers go on."""

from __future__ import annotations

import asyncio
from functools import partial

from liftlog.errors import LiftlogError
from liftlog.protocol.checkpoints import (
    CheckpointAnswer,
    CheckpointsAnswer,
    CommitCheckpoint,
    DeleteCheckpoint,
    FetchCheckpoint,
    ListCheckpoints,
)
from liftlog.protocol.messages import Done, Message
from liftlog.server.pull.requests import Caller, handles


@handles(CommitCheckpoint, "commit")
async def _commit(caller: Caller, message: CommitCheckpoint) -> Message:
    durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    caller.broker.checkpoints.commit(
        message.consumer,
        message.stream,
        message.offset,
        partial(_settle, durable),
        expected=message.expected,
        metadata=message.metadata,
        incarnation=message.incarnation,
        epoch=message.epoch,
    )
    await durable
    return Done()


@handles(DeleteCheckpoint, "commit")
async def _delete(caller: Caller, message: DeleteCheckpoint) -> Message:
    durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    caller.broker.checkpoints.delete(
        message.consumer, message.stream, partial(_settle, durable), expected=message.expected
    )
    await durable
    return Done()


@handles(FetchCheckpoint, "read")
async def _fetch(caller: Caller, message: FetchCheckpoint) -> Message:
    found = caller.broker.checkpoints.fetch(
        message.consumer, message.stream, check=not message.unchecked
    )
    return CheckpointAnswer({} if found is None else found.to_wire())


@handles(ListCheckpoints, None)
async def _list(caller: Caller, message: ListCheckpoints) -> Message:
    found, after = caller.broker.checkpoints.page(
        partial(caller.may, "read"),
        consumer=message.consumer,
        stream=message.stream,
        after=message.after,
    )
    return CheckpointsAnswer([one.to_wire() for one in found], after)


def _settle(future: asyncio.Future[None], error: LiftlogError | None) -> None:
    if future.done():
        return  # the client is gone, and so is who waited
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
