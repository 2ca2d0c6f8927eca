"""Answers all requests except fetches: streams, leases, checkpoints, the daemon."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from liftlog.errors import Conflict, InvalidArgument, NotLeader, NotReady, StreamNotFound
from liftlog.log.segment.sketch import Probe
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
from liftlog.protocol.checkpoints import (
    PAGE_CHECKPOINTS,
    CheckpointAnswer,
    CheckpointsAnswer,
    CommitCheckpoint,
    DeleteCheckpoint,
    FetchCheckpoint,
    ListCheckpoints,
)
from liftlog.protocol.described import StreamInfo
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
from liftlog.protocol.replication import (
    ClusterAnswer,
    DescribeCluster,
    DrainNode,
    ElectLeader,
    ForgetNode,
    HandOver,
    LeaderAnswer,
    LookAgain,
    MoveStream,
    RestoreMetadata,
)
from liftlog.server.node.cluster_catalog import needed_node_of
from liftlog.server.requests.rights import (
    Ask,
    At,
    Caller,
    Told,
    ask_leader,
    handles,
    starts,
)

# --- streams ---


async def _created(caller: Caller, message: CreateStream) -> StreamInfo:
    """Create the stream. Any node can store its metadata. If another node leads the stream, this
    node asks that node to describe it."""
    try:
        return await caller.broker.create_stream(message.stream, message.settings)
    except NotLeader:
        answer = await ask_leader(caller, message)
        # This node is about to lead the stream, but does not lead it yet.
        if not isinstance(answer, StreamAnswer):
            raise
        return answer.info


@handles(CreateStream, "create")
async def _create(caller: Caller, message: CreateStream) -> Message:
    try:
        created = await _created(caller, message)
    except Conflict:
        if caller.may("read", message.stream):
            raise
        # The differences show the subjects and the settings of the stream. Only readers of the
        # stream may see these.
        raise Conflict(
            f"there is already a stream {message.stream!r}, with other settings",
            hint="choose another name",
        ) from None
    if not caller.may("read", message.stream):
        # If the stream existed before, the other fields describe messages of other publishers.
        created = StreamInfo(
            name=created.name,
            subject=created.subject,
            subjects=created.subjects,
            state=created.state,
        )
    return StreamAnswer(created.to_wire())


async def _relay_description(caller: Caller, message: DescribeStream, ask: Ask) -> Message:
    answer = await ask(message)
    assert isinstance(answer, StreamAnswer), "the answer to describe"
    readable = caller.gate.readable_subjects(caller.principal, message.stream, peer=caller.peer)
    return StreamAnswer({**answer.stream, "readable_subjects": list(readable or ())})


@handles(DescribeStream, "read", at=At.LEADER, relay=_relay_description)
async def _describe(caller: Caller, message: DescribeStream) -> Message:
    caller.broker.catalog.check_end_is_known(message.stream)
    info = await caller.broker.describe_stream(message.stream)
    readable = caller.gate.readable_subjects(caller.principal, message.stream, peer=caller.peer)
    return StreamAnswer(replace(info, readable_subjects=list(readable or ())).to_wire())


@handles(ListStreams, None, at=At.EVERYWHERE)
async def _list(caller: Caller, _: ListStreams) -> Message:
    return _shown(caller, await caller.broker.list_streams())


def _shown(caller: Caller, infos: list[StreamInfo]) -> StreamsAnswer:
    """Return the streams that the caller may see. If the caller is another node, return only the
    streams that this node leads. The caller can describe all other streams itself."""
    catalog, is_forwarded = caller.broker.catalog, caller.is_forwarded
    return StreamsAnswer(
        [
            one.to_wire()
            for one in infos
            if caller.may("read", one.name) and (not is_forwarded or catalog.leads(one.name))
        ]
    )


@handles(DeleteStream, "delete")
async def _delete(caller: Caller, message: DeleteStream) -> Message:
    await caller.broker.delete_stream(message.stream)
    return Done()


@handles(CompactStream, "admin", at=At.LEADER)
async def _compact(caller: Caller, message: CompactStream) -> Message:
    return StreamAnswer((await caller.broker.compact_stream(message.stream)).to_wire())


@handles(UpdateStream, "admin", at=At.LEADER)
async def _update(caller: Caller, message: UpdateStream) -> Message:
    update = await caller.broker.administration.update_stream(
        message.stream,
        message.settings,
        dry_run=message.dry_run,
        allow_deletion=message.allow_deletion,
    )
    return update.to_answer()


@handles(PauseStream, "admin", at=At.LEADER)
async def _pause(caller: Caller, message: PauseStream) -> Message:
    return StreamAnswer((await caller.broker.administration.pause(message.stream)).to_wire())


@handles(ResumeStream, "admin", at=At.LEADER)
async def _resume(caller: Caller, message: ResumeStream) -> Message:
    return StreamAnswer((await caller.broker.administration.resume(message.stream)).to_wire())


@handles(SetReadOnly, "admin", at=At.LEADER)
async def _read_only(caller: Caller, message: SetReadOnly) -> Message:
    administration = caller.broker.administration
    info = await administration.set_read_only(message.stream, message.read_only)
    return StreamAnswer(info.to_wire())


@handles(TruncateStream, "admin", at=At.LEADER)
async def _truncate(caller: Caller, message: TruncateStream) -> Message:
    info = await caller.broker.administration.truncate_prefix(
        message.stream, message.offset, incarnation=message.incarnation
    )
    return StreamAnswer(info.to_wire())


# --- information about the daemon ---


async def _relay_extents(caller: Caller, message: ListExtents, ask: Ask) -> Message:
    return await ask(_without_conditions(caller, message))


@handles(ListExtents, "read", at=At.LEADER, relay=_relay_extents)
async def _extents(caller: Caller, message: ListExtents) -> Message:
    log = caller.broker.stream(message.stream).log
    probe = _probe_of(_without_conditions(caller, message))
    found = await asyncio.to_thread(log.extents, message.start, message.step_bytes, probe)
    borders = [first for first, _, _ in found] + [end for _, end, _ in found[-1:]]
    return ExtentsAnswer(borders, [size for _, _, size in found], True if probe else None)


def _without_conditions(caller: Caller, message: ListExtents) -> ListExtents:
    """Remove the conditions if the principal may read only some subjects, because the answer would
    reveal other subjects and keys."""
    if caller.gate.readable_subjects(caller.principal, message.stream, peer=caller.peer) is None:
        return message
    return ListExtents(message.stream, message.start, message.step_bytes)


def _probe_of(message: ListExtents) -> Probe | None:
    """Return the reader's conditions; None if it requests all records."""
    newest = 2**63 - 1
    probe = Probe(
        not_before_ns=min(message.not_before_ns or 0, newest),
        not_after_ns=newest if message.not_after_ns is None else min(message.not_after_ns, newest),
        subject=None if message.subject is None else message.subject.encode(),
        key=message.record_key,
    )
    return None if probe == Probe(not_before_ns=0) else probe


@handles(StreamsFor, None, at=At.EVERYWHERE)
async def _streams_for(caller: Caller, message: StreamsFor) -> Message:
    return _shown(caller, caller.broker.administration.streams_for(message.subject))


@handles(Metadata, None)
async def _metadata(caller: Caller, _: Metadata) -> Message:
    may_read = partial(caller.may, "read")
    conditions = await caller.broker.conditions.now(may_read)
    info = caller.broker.daemon_info(may_read, conditions)
    return DaemonAnswer(info.to_wire())


# --- leases --- Every reader may take a lease. Only the holder of a lease receives its id, so only
# the holder can renew and release it.


@handles(AcquireLease, "read", at=At.LEADER)
async def _lease(caller: Caller, message: AcquireLease) -> Message:
    lease = await caller.broker.administration.leases.acquire(
        message.stream,
        message.start,
        ttl_ms=message.ttl_ms,
        holder=message.holder,
        principal=caller.principal or "",
        incarnation=message.incarnation,
        for_export=bool(message.for_export),
    )
    return LeaseAnswer(lease.to_wire())


@handles(RenewLease, "read", at=At.LEADER)
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
        begun=message.begun,
        stopped=bool(message.stopped),
    )
    return LeaseAnswer(lease.to_wire())


@handles(ReleaseLease, "read", at=At.LEADER)
async def _release(caller: Caller, message: ReleaseLease) -> Message:
    await caller.broker.administration.leases.release(message.stream, message.lease_id)
    return Done()


async def _relay_leases(caller: Caller, message: ListLeases, ask: Ask) -> Message:
    answer = await ask(message)
    assert isinstance(answer, LeasesAnswer), "the answer to leases"
    if caller.may("admin", message.stream):
        return answer
    return LeasesAnswer([{**lease, "lease_id": ""} for lease in answer.leases])


@handles(ListLeases, "read", at=At.LEADER, relay=_relay_leases)
async def _leases(caller: Caller, message: ListLeases) -> Message:
    leases = caller.broker.administration.leases.live(message.stream)
    if not caller.may("admin", message.stream):
        leases = [replace(lease, lease_id="") for lease in leases]
    return LeasesAnswer([lease.to_wire() for lease in leases])


# --- the cluster ---


@handles(DescribeCluster, None)
async def _describe_cluster(caller: Caller, _: DescribeCluster) -> Message:
    found = caller.broker.catalog.describe_cluster(partial(caller.may, "read"))
    return ClusterAnswer(found.to_wire())


@handles(MoveStream, "admin")
async def _move(caller: Caller, message: MoveStream) -> Message:
    moves = needed_node_of(caller.broker).moves
    if message.replicas:
        await moves.move(message.stream, message.replicas)
    else:
        await moves.cancel(message.stream)
    return Done()


@handles(DrainNode, "admin")
async def _drain(caller: Caller, message: DrainNode) -> Message:
    moves = needed_node_of(caller.broker).moves
    await (moves.undrain if message.ends else moves.drain)(message.node)
    return Done()


@handles(ForgetNode, "admin")
async def _forget_node(caller: Caller, message: ForgetNode) -> Message:
    await needed_node_of(caller.broker).moves.forget(message.node)
    return Done()


@handles(HandOver, "replicate")
async def _hand_over(caller: Caller, message: HandOver) -> Message:
    await needed_node_of(caller.broker).handovers.asked(message)
    return Done()


@handles(LookAgain, "replicate")
async def _look_again(caller: Caller, message: LookAgain) -> Message:
    await needed_node_of(caller.broker).peers.look_again(message.stream, message.version)
    return Done()


@handles(ElectLeader, "admin")
async def _elect(caller: Caller, message: ElectLeader) -> Message:
    """Elect a new leader. The present leader hands over. If there is no leader, this node starts
    the election."""
    leadership = needed_node_of(caller.broker).leadership
    if message.lost:
        if message.node is None:
            raise InvalidArgument("name the node that is to lead without the lost copies")
        return LeaderAnswer(await leadership.recover(message.stream, message.node, message.lost))
    answer = await ask_leader(caller, message)
    return answer or LeaderAnswer(await leadership.elect(message.stream, message.node))


@handles(RestoreMetadata, "admin")
async def _restore_metadata(caller: Caller, message: RestoreMetadata) -> Message:
    return await needed_node_of(caller.broker).candidacy.guard.restore(dry_run=message.dry_run)


# --- checkpoints ---


@contextlib.contextmanager
def _known_elsewhere(caller: Caller) -> Iterator[None]:
    """Replace StreamNotFound by NotReady for a forwarded request. The other node may have received
    the stream's metadata before this node. Its client must then retry, and must not conclude that
    the stream was deleted."""
    try:
        yield
    except StreamNotFound as error:
        if caller.is_forwarded:
            raise NotReady(f"the checkpoints' leader: {error.message}", hint="try again") from None
        raise


@starts(CommitCheckpoint, "commit")
def _commit_checkpoint(caller: Caller, message: CommitCheckpoint, told: Told) -> None:
    with _known_elsewhere(caller):
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
def _delete_checkpoint(caller: Caller, message: DeleteCheckpoint, told: Told) -> None:
    caller.broker.checkpoints.delete(
        message.consumer, message.stream, told, expected=message.expected
    )


async def _relay_checkpoint(caller: Caller, message: FetchCheckpoint, ask: Ask) -> Message:
    try:
        return await ask(message)
    except NotReady:
        if caller.broker.catalog.knows(message.stream):
            raise
        raise StreamNotFound(f"there is no stream {message.stream!r}") from None


@handles(FetchCheckpoint, "read", at=At.OFFSETS, relay=_relay_checkpoint)
async def _fetch_checkpoint(caller: Caller, message: FetchCheckpoint) -> Message:
    with _known_elsewhere(caller):
        found = caller.broker.checkpoints.fetch(
            message.consumer, message.stream, check=not message.unchecked
        )
    return CheckpointAnswer({} if found is None else found.to_wire())


_PIECE_CHECKPOINTS = 250

Page = Callable[[str | None, int], Awaitable[tuple[list[dict[str, Any]], str | None]]]
"""Function that returns checkpoints after a cursor, and the next cursor. It returns only
checkpoints that the caller may see, and at most the given number."""


async def _relay_checkpoints(caller: Caller, message: ListCheckpoints, ask: Ask) -> Message:
    async def page(after: str | None, limit: int) -> tuple[list[dict[str, Any]], str | None]:
        answer = await ask(message.replaced(after=after))
        assert isinstance(answer, CheckpointsAnswer), "the answer to checkpoints"
        seen = [one for one in answer.checkpoints if caller.may("read", str(one.get("stream")))]
        if len(seen) <= limit:
            return seen, answer.after
        return seen[:limit], f"{seen[limit - 1]['consumer']}/{seen[limit - 1]['stream']}"

    return await _page_of(page, message.after)


@handles(ListCheckpoints, None, at=At.OFFSETS, relay=_relay_checkpoints)
async def _list_checkpoints(caller: Caller, message: ListCheckpoints) -> Message:
    async def page(after: str | None, limit: int) -> tuple[list[dict[str, Any]], str | None]:
        await asyncio.sleep(0)  # the work for one piece is enough for one turn of the loop
        found, reached = caller.broker.checkpoints.page(
            partial(caller.may, "read"),
            consumer=message.consumer,
            stream=message.stream,
            after=after,
            limit=min(limit, _PIECE_CHECKPOINTS),
        )
        return [one.to_wire() for one in found], reached

    return await _page_of(page, message.after)


async def _page_of(page: Page, after: str | None) -> CheckpointsAnswer:
    """Return one page. Only the last page may be shorter than the limit. The cursor `after` is the
    last checkpoint of the page, so it never names a checkpoint that the caller may not see."""
    found: list[dict[str, Any]] = []
    while True:
        some, after = await page(after, PAGE_CHECKPOINTS - len(found))
        found += some
        if after is None or len(found) == PAGE_CHECKPOINTS:
            return CheckpointsAnswer(found, after)
