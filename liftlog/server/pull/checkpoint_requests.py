"""Requests about checkpoints: where consumers go on."""

from __future__ import annotations

import asyncio
from functools import partial

from liftlog.protocol.checkpoints import (
    PAGE_CHECKPOINTS,
    Checkpoint,
    CheckpointAnswer,
    CheckpointsAnswer,
    CommitCheckpoint,
    DeleteCheckpoint,
    FetchCheckpoint,
    ListCheckpoints,
)
from liftlog.protocol.messages import Message
from liftlog.server.pull.requests import Caller, Told, handles, starts


@starts(CommitCheckpoint, "commit")
def _commit(caller: Caller, message: CommitCheckpoint, told: Told) -> None:
    caller.broker.checkpoints.commit(
        message.consumer,
        message.stream,
        message.offset,
        told,
        expected=message.expected,
        metadata=message.metadata,
        incarnation=message.incarnation,
        epoch=message.epoch,
        owner=caller.principal or "",
    )


@starts(DeleteCheckpoint, "commit")
def _delete(caller: Caller, message: DeleteCheckpoint, told: Told) -> None:
    caller.broker.checkpoints.delete(
        message.consumer, message.stream, told, expected=message.expected
    )


@handles(FetchCheckpoint, "read")
async def _fetch(caller: Caller, message: FetchCheckpoint) -> Message:
    found = caller.broker.checkpoints.fetch(
        message.consumer, message.stream, check=not message.unchecked
    )
    return CheckpointAnswer({} if found is None else found.to_wire())


@handles(ListCheckpoints, None)
async def _list(caller: Caller, message: ListCheckpoints) -> Message:
    """A page is full, or the last: so it ends with a checkpoint that is in it, and `after` tells
    nothing of those that the caller may not see."""
    found: list[Checkpoint] = []
    reached = message.after
    while True:
        some, reached = caller.broker.checkpoints.page(
            partial(caller.may, "read"),
            consumer=message.consumer,
            stream=message.stream,
            after=reached,
            limit=PAGE_CHECKPOINTS - len(found),
        )
        found += some
        if reached is None or len(found) == PAGE_CHECKPOINTS:
            return CheckpointsAnswer([one.to_wire() for one in found], reached)
        await asyncio.sleep(0)  # it looked at as many as one turn of the loop is for
