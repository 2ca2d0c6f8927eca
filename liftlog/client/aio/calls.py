"""The calls of the asyncio client with one request and one answer: streams, leases, checkpoints,
the daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from liftlog.client.aio.routing import Router
from liftlog.client.requests import (
    DEFAULT_STEP_BYTES,
    DEFAULT_TTL_SECONDS,
    Expected,
    PassWatch,
    create_request,
    milliseconds,
    renewal_request,
    result_of,
    truncate_request,
    update_request,
)
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
    ResumeStream,
    SetReadOnly,
    StreamExtent,
    StreamsFor,
    StreamUpdate,
    Updated,
)
from liftlog.protocol.checkpoints import (
    Checkpoint,
    CheckpointAnswer,
    CheckpointsAnswer,
    CommitCheckpoint,
    DeleteCheckpoint,
    FetchCheckpoint,
    ListCheckpoints,
)
from liftlog.protocol.described import DaemonInfo, LeaseInfo, StreamInfo
from liftlog.protocol.groups import (
    DescribeGroup,
    GroupAnswer,
    GroupInfo,
    GroupsAnswer,
    ListGroups,
    RemoveGroup,
    SeekGroup,
)
from liftlog.protocol.messages import (
    EARLIEST,
    CompactStream,
    DeleteStream,
    DescribeStream,
    Done,
    ListStreams,
    Message,
    Ping,
    Pong,
    StreamAnswer,
    StreamsAnswer,
    Welcome,
)
from liftlog.protocol.replication import (
    ClusterAnswer,
    ClusterInfo,
    DescribeCluster,
    DrainNode,
    ElectLeader,
    ForgetNode,
    LeaderAnswer,
    MoveStream,
    RestoreAnswer,
    RestoreMetadata,
)


class Calls:
    """Each call is answered within `request_timeout` seconds or ends with RequestTimeout."""

    def __init__(self, session: Router) -> None:
        self.address = session.target.address.text
        self.request_timeout = session.target.request_timeout
        self._session = session

    async def _call(self, message: Message, expected: type[Expected]) -> Expected:
        return result_of(await self._session.ask(message, self.request_timeout), expected)

    # --- the daemon ---

    @property
    def server(self) -> Welcome:
        """The daemon's description of itself and its limits, from the newest connection."""
        return self._session.link.connection.welcome

    async def ping(self) -> None:
        """Return when the daemon has answered. Raises only the errors that every call can raise
        (see `Client`)."""
        await self._call(Ping(), Pong)

    async def metadata(self) -> DaemonInfo:
        """Return the daemon's description of itself. From then on the client also tries the other
        nodes of the daemon's cluster if this one does not answer. Raises only the errors that every
        call can raise (see `Client`)."""
        info = (await self._call(Metadata(), DaemonAnswer)).info
        self._session.learn(info.nodes)
        return info

    @property
    def addresses(self) -> list[str]:
        """Addresses of nodes: those given to the client, and those received from the cluster."""
        return [target.address.text for target in self._session.targets]

    async def cluster(self) -> ClusterInfo:
        """Return the nodes of the daemon's cluster, and the streams that the caller may read.
        Raises only the errors that every call can raise (see `Client`)."""
        return (await self._call(DescribeCluster(), ClusterAnswer)).info

    async def move_stream(self, stream: str, replicas: Sequence[str]) -> None:
        """Begin to move a stream to the nodes `replicas`, the preferred leader first. Without
        nodes, cancel a move and return to the previous replicas. `cluster` shows the progress.

        The move continues without this client. Raises StreamNotFound, InvalidArgument for unknown
        nodes, and Conflict if the stream is already being moved elsewhere, or if a new node cannot
        accept a replica.
        """
        await self._call(MoveStream(stream, list(replicas)), Done)

    async def drain_node(self, node: str, *, ends: bool = False) -> None:
        """Stop placing replicas on a node, and move its replicas to other nodes. `ends=True` ends
        this: the node can get replicas again. `cluster` shows the progress.

        The moves continue without this client. Raises InvalidArgument for an unknown node, and
        Conflict if the cluster has too few other nodes.
        """
        await self._call(DrainNode(node, ends), Done)

    async def forget_node(self, node: str) -> None:
        """Remove a node from the cluster for good. Raises InvalidArgument for an unknown node, and
        Conflict while the node is live or has replicas."""
        await self._call(ForgetNode(node), Done)

    async def elect_leader(
        self, stream: str, node: str | None = None, *, lost: Sequence[str] = ()
    ) -> str:
        """Make `node`, or by default the first replica, the leader of a stream of a cluster,
        without an interruption for publishers and consumers. Returns its name, once it leads.

        `lost`: nodes that held all the complete copies of the stream, if these copies are gone for
        good, so that no node can lead the stream. `node` is then elected, and records that its copy
        does not have are abandoned.

        Raises StreamNotFound, Conflict if the node is not in sync, or if another node could lead
        without a loss, and StreamUnavailable if the handover failed (the stream then keeps its
        leader).
        """
        return (await self._call(ElectLeader(stream, node, list(lost)), LeaderAnswer)).node

    async def restore_metadata(self, *, dry_run: bool = False) -> RestoreAnswer:
        """Restore the cluster's metadata store from the newest metadata that its nodes hold, where
        the store has an older version or none. With `dry_run` the call only reports the changes.
        Raises Forbidden, MetadataUnavailable."""
        return await self._call(RestoreMetadata(dry_run), RestoreAnswer)

    # --- streams ---

    async def create_stream(
        self, name: str, subject: str | None = None, **settings: Any
    ) -> StreamInfo:
        """Create a stream. `settings` uses the same keys as the YAML file. If the stream exists
        with the same settings, nothing changes.

        Returns once NATS has confirmed the subscription. Raises Conflict if the stream exists with
        other settings (`details["differences"]`), InvalidArgument for an invalid name or setting,
        NatsRefused (the new stream is then removed, unless it already has messages on another of
        its subjects), and NatsUnavailable (the stream then exists, and subscribes as soon as
        possible).
        """
        return (await self._call(create_request(name, subject, settings), StreamAnswer)).info

    async def describe_stream(self, name: str) -> StreamInfo:
        """Return the present description of a stream. Raises StreamNotFound."""
        return (await self._call(DescribeStream(name), StreamAnswer)).info

    async def list_streams(self) -> list[StreamInfo]:
        """Return the streams that the principal may read. Raises only the errors that every call
        can raise (see `Client`)."""
        return (await self._call(ListStreams(), StreamsAnswer)).infos

    async def streams_for(self, subject: str) -> list[StreamInfo]:
        """Return the streams that record `subject`. For a pattern, returns the streams that record
        at least one of its subjects. Raises InvalidArgument."""
        return (await self._call(StreamsFor(subject), StreamsAnswer)).infos

    async def delete_stream(self, name: str) -> None:
        """Delete the stream and its records.

        Raises StreamNotFound, Conflict for a stream of the configuration file, and
        StreamUnavailable if its disk does not respond.
        """
        await self._call(DeleteStream(name), Done)

    async def compact_stream(self, name: str, *, wait: bool = False) -> StreamInfo:
        """Request a compaction pass now, whatever the dirty ratio; the active segment is rolled
        first. With `wait` the call returns after the pass, however long the pass takes.

        Raises StreamNotFound, InvalidArgument if the stream has no compaction, and with `wait`
        StreamUnavailable if the pass failed.
        """
        info = (await self._call(CompactStream(name), StreamAnswer)).info
        watch = PassWatch(info)
        while wait and not watch.is_over(info):
            await asyncio.sleep(watch.seconds)
            info = await self.describe_stream(name)
        return info

    async def update_stream(
        self,
        name: str,
        settings: Mapping[str, Any] | None = None,
        *,
        dry_run: bool = False,
        allow_deletion: bool = False,
        **more: Any,
    ) -> StreamUpdate:
        """Change the given settings of a stream: a mapping or keywords, with the keys of the YAML
        file. Other settings keep their values. Durable on return.

        With `dry_run` nothing changes; the answer describes the change. Raises StreamNotFound,
        InvalidArgument for a bad value or a setting that cannot be changed, and Conflict for a
        stream of the configuration file. Raises Conflict, too, if the new limits would remove more
        than a tenth of the stream and `allow_deletion` is false (`details["removal"]`).
        """
        request = update_request(
            name, settings, more, dry_run=dry_run, allow_deletion=allow_deletion
        )
        return StreamUpdate.from_answer(await self._call(request, Updated))

    async def pause_stream(self, name: str) -> StreamInfo:
        """Make the stream refuse new messages until `resume_stream`, even after a restart.
        Publishers that request an ack get a refusal.

        On return, all messages that the stream received before are committed. Raises
        StreamNotFound, and StreamUnavailable if the disk does not respond.
        """
        return (await self._call(PauseStream(name), StreamAnswer)).info

    async def resume_stream(self, name: str) -> StreamInfo:
        """Let a paused stream accept messages again. Raises StreamNotFound."""
        return (await self._call(ResumeStream(name), StreamAnswer)).info

    async def set_read_only(self, name: str, read_only: bool = True) -> StreamInfo:
        """Like `pause_stream`, but the refusal tells publishers not to retry. With
        `read_only=False` the stream accepts messages again. Raises StreamNotFound, and
        StreamUnavailable if the disk does not respond."""
        return (await self._call(SetReadOnly(name, read_only), StreamAnswer)).info

    async def truncate_prefix(
        self, name: str, offset: int, *, incarnation: str | None = None
    ) -> StreamInfo:
        """Make `offset` the log start, and delete all records below it. Durable on return.

        Raises StreamNotFound, OffsetOutOfRange above the high watermark, Conflict while a lease
        holds records below `offset`, StaleIncarnation if the stream has another incarnation than
        `incarnation`, and InvalidArgument.
        """
        request = truncate_request(name, offset, incarnation)
        return (await self._call(request, StreamAnswer)).info

    async def stream_extents(
        self, stream: str, start: int = 0, *, step_bytes: int = DEFAULT_STEP_BYTES
    ) -> list[StreamExtent]:
        """Return the sizes of consecutive offset ranges, from the segment that contains `start` to
        the high watermark. Readers use them to divide a stream by size.

        Each range has about `step_bytes`, or more if there would be more than 4096 ranges. Sizes
        are sizes on disk, after compression. Raises StreamNotFound, and UnknownRequest if the
        daemon is too old.
        """
        request = ListExtents(stream, start, step_bytes)
        return (await self._call(request, ExtentsAnswer)).extents

    # --- leases ---

    async def acquire_lease(
        self,
        stream: str,
        start: int | str = EARLIEST,
        *,
        ttl: float = DEFAULT_TTL_SECONDS,
        holder: str = "",
        incarnation: str | None = None,
        for_export: bool = False,
    ) -> LeaseInfo:
        """Keep the records of the stream from `start` to its present high watermark for `ttl`
        seconds: retention and compaction do not change [`low`, `high`) of the answer. Durable on
        return.

        "earliest" is the offset up to which retention would delete if there were no leases. It is
        above the log start while another lease delays retention.

        Renew the lease well before `ttl` has passed. It ends early only if the disk is full. With
        `for_export` the lease can be one of those reserved for exports, if all others are taken.
        Raises StreamNotFound, OffsetOutOfRange, StaleIncarnation, LimitExceeded (too many leases),
        and InvalidArgument (a lease lasts at most an hour).
        """
        wish = for_export or None  # older daemons do not have this field
        request = AcquireLease(stream, start, milliseconds(ttl), holder, incarnation, wish)
        return (await self._call(request, LeaseAnswer)).info

    async def renew_lease(
        self,
        stream: str,
        lease_id: str,
        *,
        ttl: float = DEFAULT_TTL_SECONDS,
        low: int | None = None,
        finished: tuple[int, int] | None = None,
        begun: int | None = None,
        stopped: bool = False,
    ) -> LeaseInfo:
        """Extend a lease to `ttl` seconds from now. `low` moves the start of the lease up to that
        offset; pass it once all records below it have been read.

        For a read that several clients share: `begun=i` reports that the reader of part i starts,
        and `finished=(i, n)` that part i of n (counted from 0) has been read. The lease ends when
        every part has been reported as finished. `stopped=True` reports that the reader of a
        finished part needed no more records. When the limit of leases is reached, the daemon
        releases shared leases whose readers have all stopped, or have not renewed for 15 seconds.

        Raises LeaseGone (the records of the lease may have changed since it ended), StreamNotFound,
        and InvalidArgument.
        """
        request = renewal_request(stream, lease_id, ttl, low, finished, begun, stopped)
        return (await self._call(request, LeaseAnswer)).info

    async def release_lease(self, stream: str, lease_id: str) -> None:
        """Release a lease. A lease that has already ended is not an error. Raises
        StreamNotFound."""
        await self._call(ReleaseLease(stream, lease_id), Done)

    async def list_leases(self, stream: str) -> list[LeaseInfo]:
        """Return the leases on a stream, with their ids only if the principal may administer the
        stream. Raises StreamNotFound."""
        return (await self._call(ListLeases(stream), LeasesAnswer)).infos

    # --- checkpoints ---

    async def commit_checkpoint(
        self,
        consumer: str,
        stream: str,
        offset: int,
        expected: int | None = None,
        *,
        metadata: str = "",
        incarnation: str | None = None,
        epoch: int | None = None,
    ) -> None:
        """Store `offset` as the next offset that `consumer` reads in `stream`. Durable on return.

        With `expected` the commit succeeds only if `expected` is the stored offset (0: there is no
        checkpoint yet). Pass `incarnation` and `epoch` of the records that were read, if possible:
        the daemon then checks that the stream is still the same. `metadata` is free text.

        Raises CheckpointMoved (`details["offset"]` is the stored offset), StreamNotFound,
        OffsetOutOfRange beyond the log end, StaleIncarnation, Diverged, InvalidArgument, and
        LimitExceeded while too many commits wait for the disk.
        """
        request = CommitCheckpoint(stream, consumer, offset, expected, metadata, incarnation, epoch)
        await self._call(request, Done)

    async def fetch_checkpoint(
        self, consumer: str, stream: str, *, check: bool = True
    ) -> Checkpoint | None:
        """Return the stored checkpoint; None if there is none.

        If the stream can no longer be read from the checkpoint, raises StreamNotFound,
        StaleIncarnation, OffsetOutOfRange (below the log start or beyond the log end) or Diverged.
        If no checkpoint is stored, but damage may have destroyed one, raises CheckpointUncertain.
        With `check=False` the call returns the checkpoint without these checks, and with its
        `problem`.
        """
        request = FetchCheckpoint(stream, consumer, not check)
        return (await self._call(request, CheckpointAnswer)).info

    async def list_checkpoints(
        self, *, consumer: str | None = None, stream: str | None = None
    ) -> list[Checkpoint]:
        """Return the checkpoints in streams that the principal may read, with their lag, sorted by
        consumer and stream. Raises only the errors that every call can raise (see `Client`)."""
        found: list[Checkpoint] = []
        after: str | None = None
        while True:
            page = await self._call(ListCheckpoints(stream, consumer, after), CheckpointsAnswer)
            found += page.infos
            after = page.after
            if after is None:
                return found

    async def delete_checkpoint(
        self, consumer: str, stream: str, expected: int | None = None
    ) -> None:
        """Delete a checkpoint, durably. A missing checkpoint is not an error. Raises
        CheckpointMoved if `expected` is given and another offset is stored."""
        await self._call(DeleteCheckpoint(stream, consumer, expected), Done)

    # --- consumer groups ---

    async def describe_group(self, group: str, stream: str) -> GroupInfo | None:
        """Return the members of a group, and the owner and offset of each slot; None if the group
        does not exist. Raises only the errors that every call can raise (see `Client`)."""
        return (await self._call(DescribeGroup(stream, group), GroupAnswer)).info

    async def list_groups(self, *, stream: str | None = None) -> list[GroupInfo]:
        """Return groups of the streams that the principal may read, with their lag, sorted by name,
        without a description of their slots. Raises only the errors that every call can raise (see
        `Client`)."""
        found: list[GroupInfo] = []
        after: str | None = None
        while True:
            page = await self._call(ListGroups(stream, after), GroupsAnswer)
            found += page.infos
            after = page.after
            if after is None:
                return found

    async def seek_group(self, group: str, stream: str, offset: int) -> None:
        """Make all slots of a group continue at `offset` (0: the log start). Durable on return.

        Raises Conflict while the group has members, StreamNotFound, and OffsetOutOfRange beyond the
        log end.
        """
        await self._call(SeekGroup(stream, group, offset), Done)

    async def remove_group(self, group: str, stream: str) -> None:
        """Delete a group, durably. A missing group is not an error. Raises Conflict while the group
        has members."""
        await self._call(RemoveGroup(stream, group), Done)
