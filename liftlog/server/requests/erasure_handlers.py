"""Answers the requests that erase records, or ask about erasures."""

from __future__ import annotations

from liftlog.errors import Forbidden
from liftlog.protocol.administration import (
    EraseRecords,
    ListErasedOffsets,
    ListErasures,
    ProveErasure,
    RemoveErased,
)
from liftlog.protocol.messages import Done, Message
from liftlog.server.requests.rights import At, Caller, handles
from liftlog.server.streams.erasing import Eraser


@handles(EraseRecords, "erase", at=At.LEADER)
async def _erase(caller: Caller, message: EraseRecords) -> Message:
    gate, principal, stream = caller.gate, caller.principal, message.stream
    readable: tuple[str, ...] | None = ()
    if message.dry_run and caller.may("read", stream):
        readable = gate.readable_subjects(principal, stream, peer=caller.peer)
    erasable = gate.erasable_subjects(principal, stream, peer=caller.peer)

    def check() -> None:
        if gate.erasable_subjects(principal, stream, peer=caller.peer) != erasable:
            raise Forbidden("the permissions have changed during the request", hint="try again")

    by = Eraser(principal or "", principal or caller.peer, check)
    return await caller.broker.erasing.erase(message, by, erasable=erasable, readable=readable)


@handles(ListErasures, "erase", at=At.LEADER)
async def _erasures(caller: Caller, message: ListErasures) -> Message:
    only = _only_own(caller, message.stream)
    return await caller.broker.erasing.erasures(message.stream, message.erasure_id, only)


@handles(ProveErasure, "erase", at=At.LEADER)
async def _prove(caller: Caller, message: ProveErasure) -> Message:
    party = caller.principal or caller.peer
    only = _only_own(caller, message.stream)
    return await caller.broker.erasing.prove(message.stream, message.erasure_id, party, only)


@handles(ListErasedOffsets, "read", at=At.LEADER)
async def _offsets(caller: Caller, message: ListErasedOffsets) -> Message:
    gate, principal, stream = caller.gate, caller.principal, message.stream
    if gate.readable_subjects(principal, stream, peer=caller.peer) is not None:
        raise Forbidden(
            f"the offsets of erased records of {stream!r} need read on the whole stream",
            hint="grant read on the stream without subjects",
        )
    party = principal or caller.peer
    return await caller.broker.erasing.erased_offsets(stream, message.after, message.part, party)


@handles(RemoveErased, "erase", at=At.LEADER)
async def _remove(caller: Caller, message: RemoveErased) -> Message:
    only = _only_own(caller, message.stream)
    await caller.broker.erasing.remove(message.stream, message.erasure_id, only)
    return Done()


def _only_own(caller: Caller, stream: str) -> str | None:
    """Return the principal if it may erase records on some subjects only: it sees its own erasures,
    because the reasons and offsets of others tell about other subjects. Otherwise None."""
    principal = caller.principal
    subjects = caller.gate.erasable_subjects(principal, stream, peer=caller.peer)
    return None if subjects is None else principal or ""
