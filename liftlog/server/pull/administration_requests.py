"""Requests that change streams, hold them, or ask about the daemon."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from liftlog.protocol.administration import (
    AcquireLease,
    DaemonAnswer,
    ExtentsAnswer,
    LeaseAnswer,
    LeasesAnswer,
    ListExtents,
    ListLeases,
    Metadata,
    PauseStream,
    ReleaseLease,
    RenewLease,
    ResumeStream,
    SetReadOnly,
    StreamsFor,
    TruncateStream,
    UpdateStream,
)
from liftlog.protocol.messages import Done, Message, StreamAnswer, StreamsAnswer
from liftlog.server.pull.requests import Caller, handles


@handles(UpdateStream, "admin")
async def _update(caller: Caller, message: UpdateStream) -> Message:
    update = await caller.broker.administration.update_stream(
        message.stream,
        message.settings,
        dry_run=message.dry_run,
        allow_deletion=message.allow_deletion,
    )
    return update.to_answer()


@handles(PauseStream, "admin")
async def _pause(caller: Caller, message: PauseStream) -> Message:
    return StreamAnswer((await caller.broker.administration.pause(message.stream)).to_wire())


@handles(ResumeStream, "admin")
async def _resume(caller: Caller, message: ResumeStream) -> Message:
    return StreamAnswer((await caller.broker.administration.resume(message.stream)).to_wire())


@handles(SetReadOnly, "admin")
async def _read_only(caller: Caller, message: SetReadOnly) -> Message:
    administration = caller.broker.administration
    info = await administration.set_read_only(message.stream, message.read_only)
    return StreamAnswer(info.to_wire())


@handles(TruncateStream, "admin")
async def _truncate(caller: Caller, message: TruncateStream) -> Message:
    info = await caller.broker.administration.truncate_prefix(
        message.stream, message.offset, incarnation=message.incarnation
    )
    return StreamAnswer(info.to_wire())


# Whoever reads takes leases, and gives back its own: nobody else is told its id.


@handles(AcquireLease, "read")
async def _lease(caller: Caller, message: AcquireLease) -> Message:
    lease = await caller.broker.administration.leases.acquire(
        message.stream,
        message.start,
        ttl_ms=message.ttl_ms,
        holder=message.holder,
        principal=caller.principal or "",
        incarnation=message.incarnation,
    )
    return LeaseAnswer(lease.to_wire())


@handles(RenewLease, "read")
async def _renew(caller: Caller, message: RenewLease) -> Message:
    finished = None
    if message.part is not None or message.parts is not None:
        finished = (message.part or 0, message.parts or 0)
    lease = await caller.broker.administration.leases.renew(
        message.stream,
        message.lease_id,
        ttl_ms=message.ttl_ms,
        low=message.low,
        finished=finished,
    )
    return LeaseAnswer(lease.to_wire())


@handles(ReleaseLease, "read")
async def _release(caller: Caller, message: ReleaseLease) -> Message:
    await caller.broker.administration.leases.release(message.stream, message.lease_id)
    return Done()


@handles(ListLeases, "read")
async def _leases(caller: Caller, message: ListLeases) -> Message:
    leases = caller.broker.administration.leases.live(message.stream)
    if not caller.may("admin", message.stream):
        leases = [replace(lease, lease_id="") for lease in leases]
    return LeasesAnswer([lease.to_wire() for lease in leases])


@handles(ListExtents, "read")
async def _extents(caller: Caller, message: ListExtents) -> Message:
    log = caller.broker.stream(message.stream).log
    found = await asyncio.to_thread(log.extents, message.start, message.step_bytes)
    borders = [first for first, _, _ in found] + [end for _, end, _ in found[-1:]]
    return ExtentsAnswer(borders, [size for _, _, size in found])


@handles(StreamsFor, None)
async def _streams_for(caller: Caller, message: StreamsFor) -> Message:
    found = caller.broker.administration.streams_for(message.subject)
    return StreamsAnswer([one.to_wire() for one in found if caller.may("read", one.name)])


@handles(Metadata, None)
async def _metadata(caller: Caller, _: Metadata) -> Message:
    info = caller.broker.administration.daemon_info(lambda name: caller.may("read", name))
    return DaemonAnswer(info.to_wire())
