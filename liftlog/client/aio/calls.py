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
        """Return when the daemon has answered. Raises the errors of every call."""
        await self._call(Ping(), Pong)

    async def metadata(self) -> DaemonInfo:
        """Return the daemon's description of itself. From then on the client also has the addresses
        of the other nodes of its cluster, and asks them if this one does not answer. Raises the
        errors of every call."""
        info = (await self._call(Metadata(), DaemonAnswer)).info
        self._session.learn(info.nodes)
        return info

    @property
    def addresses(self) -> list[str]:
        """The addresses of nodes that the client was given, and those that it has learnt."""
        return [target.address.text for target in self._session.targets]

    async def cluster(self) -> ClusterInfo:
        """Return the nodes of the daemon's cluster, and the streams that the caller may read.
        Raises the errors of every call."""
        return (await self._call(DescribeCluster(), ClusterAnswer)).info

    async def move_stream(self, stream: str, replicas: Sequence[str]) -> None:
        """Begin to move a stream to these nodes, the preferred leader first. Without nodes, cancel
        a move and return to the previous replicas. `cluster` shows the progress.

        The move continues without this client. Raises StreamNotFound, InvalidArgument for unknown
        nodes, Conflict if it is being moved elsewhere or a new node cannot take it.
        """
        await self._call(MoveStream(stream, list(replicas)), Done)

    async def drain_node(self, node: str, *, ends: bool = False) -> None:
        """Place nothing more on a node, and move its replicas to others; with `ends`, place
        replicas there again. `cluster` shows the progress.

        The moves continue without this client. Raises InvalidArgument for an unknown node, Conflict
        if there are too few others.
        """
        await self._call(DrainNode(node, ends), Done)

    async def forget_node(self, node: str) -> None:
        """Remove a node from the cluster for good. Raises InvalidArgument for an unknown node,
        Conflict while it is live or has replicas."""
        await self._call(ForgetNode(node), Done)

    async def elect_leader(
        self, stream: str, node: str | None = None, *, lost: Sequence[str] = ()
    ) -> str:
        """Make `node`, or by default the first replica, the leader of a stream of a cluster,
        without an interruption for publishers and consumers. Returns the node, once it leads.

        `lost`: no node can lead the stream, because all complete copies were on these nodes and are
        gone for good. Then `node` is elected, and the records that its copy lacks are abandoned.

        Raises StreamNotFound, Conflict if the node is not in sync, or if another node could lead
        without a loss, and StreamUnavailable if the handover failed; then the stream keeps its
        leader.
        """
        return (await self._call(ElectLeader(stream, node, list(lost)), LeaderAnswer)).node

    async def restore_metadata(self, *, dry_run: bool = False) -> RestoreAnswer:
        """Store the newest records that the nodes of the cluster have seen, if its metadata store
        has older ones or none; with `dry_run`, only report them. Raises Forbidden,
        MetadataUnavailable."""
        return await self._call(RestoreMetadata(dry_run), RestoreAnswer)

    # --- streams ---

    async def create_stream(
        self, name: str, subject: str | None = None, **settings: Any
    ) -> StreamInfo:
        """Create a stream; settings have the keys of the YAML file. A stream that exists with the
        same settings is not an error.

        Returns once NATS has confirmed the subscription. Raises Conflict when the stream exists
        with other settings (`details["differences"]`), InvalidArgument for a name or setting,
        NatsRefused (then there is no stream, unless it has messages on others of its subjects
        already), and NatsUnavailable (then the stream exists and subscribes as soon as possible).
        """
        return (await self._call(create_request(name, subject, settings), StreamAnswer)).info

    async def describe_stream(self, name: str) -> StreamInfo:
        """Return the present description of a stream. Raises StreamNotFound."""
        return (await self._call(DescribeStream(name), StreamAnswer)).info

    async def list_streams(self) -> list[StreamInfo]:
        """Return the streams that the principal may read. Raises the errors of every call."""
        return (await self._call(ListStreams(), StreamsAnswer)).infos

    async def streams_for(self, subject: str) -> list[StreamInfo]:
        """Return the streams that record `subject`; for a pattern, those that record any part of
        it. Raises InvalidArgument."""
        return (await self._call(StreamsFor(subject), StreamsAnswer)).infos

    async def delete_stream(self, name: str) -> None:
        """Delete the stream and its records.

        Raises StreamNotFound, Conflict for a stream of the configuration file, and
        StreamUnavailable if its disk does not respond.
        """
        await self._call(DeleteStream(name), Done)

    async def compact_stream(self, name: str, *, wait: bool = False) -> StreamInfo:
        """Request a compaction pass now, whatever the dirty ratio; the active segment is rolled
        first. With `wait` it returns once the pass is over, however long that takes.

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
        """Change the named settings of a stream, given as a mapping or as keywords with the keys of
        the YAML file. Other settings stay. Durable on return.

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
        """Make the stream refuse new messages until it is resumed, also after a restart; publishers
        that ask for an ack get a refusal.

        On return all messages that it received before are committed. Raises StreamNotFound, and
        StreamUnavailable if the disk does not respond.
        """
        return (await self._call(PauseStream(name), StreamAnswer)).info

    async def resume_stream(self, name: str) -> StreamInfo:
        """The opposite of `pause_stream`. Raises StreamNotFound."""
        return (await self._call(ResumeStream(name), StreamAnswer)).info

    async def set_read_only(self, name: str, read_only: bool = True) -> StreamInfo:
        """Like pausing, but the refusal tells publishers not to retry; with False, accept messages
        again. Raises StreamNotFound, and StreamUnavailable if the disk does not respond."""
        return (await self._call(SetReadOnly(name, read_only), StreamAnswer)).info

    async def truncate_prefix(
        self, name: str, offset: int, *, incarnation: str | None = None
    ) -> StreamInfo:
        """Make `offset` the log start, and delete all records below it. Durable on return.

        Raises StreamNotFound, OffsetOutOfRange above the high watermark, Conflict while a lease
        holds records below `offset`, StaleIncarnation when the stream is not the one of
        `incarnation`, and InvalidArgument.
        """
        request = truncate_request(name, offset, incarnation)
        return (await self._call(request, StreamAnswer)).info

    async def stream_extents(
        self, stream: str, start: int = 0, *, step_bytes: int = DEFAULT_STEP_BYTES
    ) -> list[StreamExtent]:
        """How the bytes of the stream are spread over its offsets, from the segment of offset
        `start` to the high watermark. For readers that divide a stream by size.

        Each piece has about `step_bytes`, or more where there would be more than 4096 pieces.
        Sizes are those on disk, after compression. Raises StreamNotFound, and UnknownRequest from
        an older daemon.
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
        """Hold the stream from `start` to its present high watermark for `ttl` seconds: the records
        in [`low`, `high`) of the answer stay as they are. Durable on return.

        "earliest" is where retention wants the log to start. That is above the log start while
        another lease holds retention up.

        Renew the lease well before `ttl` has passed. It ends early only when the disk is full.
        `for_export` takes a lease from the share that is kept for exports when others have taken
        theirs. Raises StreamNotFound, OffsetOutOfRange, StaleIncarnation, LimitExceeded (too many
        leases), and InvalidArgument (a lease lasts at most an hour).
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
        """Let a lease last `ttl` seconds from now. With `low` it holds the records from there on;
        give it once what is below has been read.

        For a read that several clients share: `finished=(part, parts)` reports that one of `parts`
        parts, counted from 0, has been read, and `begun=part` that its reader begins. The lease
        ends when each part was named once. `stopped=True` reports that the reader of a finished
        part needed no more records. When a stream has no lease left, the daemon ends those whose
        readers have all stopped, or have not renewed for 15 seconds.

        Raises LeaseGone (the records that it held may have changed since), StreamNotFound, and
        InvalidArgument.
        """
        request = renewal_request(stream, lease_id, ttl, low, finished, begun, stopped)
        return (await self._call(request, LeaseAnswer)).info

    async def release_lease(self, stream: str, lease_id: str) -> None:
        """Release a lease. A lease that has already ended is not an error. Raises
        StreamNotFound."""
        await self._call(ReleaseLease(stream, lease_id), Done)

    async def list_leases(self, stream: str) -> list[LeaseInfo]:
        """Return the leases on a stream. Their ids are shown only to principals that may administer
        it. Raises StreamNotFound."""
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
        """Store `offset` as the next one that `consumer` reads in `stream`. Durable on return.

        With `expected` it is stored only if that offset is stored now; 0 means none. `incarnation`
        and `epoch` of the records that were read ensure that it is still the same stream: give both
        if you can. `metadata` is text of your own.

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

        Raises an error for a checkpoint from which the stream can no longer be read:
        StreamNotFound, StaleIncarnation, OffsetOutOfRange (below the log start or beyond the log
        end), Diverged. Raises CheckpointUncertain if there is none, but damage may have destroyed
        it. With `check=False` the checkpoint is returned unchecked, with its `problem`.
        """
        request = FetchCheckpoint(stream, consumer, not check)
        return (await self._call(request, CheckpointAnswer)).info

    async def list_checkpoints(
        self, *, consumer: str | None = None, stream: str | None = None
    ) -> list[Checkpoint]:
        """Return checkpoints of the streams that the principal may read, with their lag, sorted by
        consumer and stream. Raises the errors of every call."""
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
        """Delete a checkpoint, durably. A missing one is not an error. Raises CheckpointMoved if
        `expected` is given and another offset is stored."""
        await self._call(DeleteCheckpoint(stream, consumer, expected), Done)

    # --- consumer groups ---

    async def describe_group(self, group: str, stream: str) -> GroupInfo | None:
        """Return the members of a group, and owner and offset of each slot; None if there is no
        such group. Raises the errors of every call."""
        return (await self._call(DescribeGroup(stream, group), GroupAnswer)).info

    async def list_groups(self, *, stream: str | None = None) -> list[GroupInfo]:
        """Return groups of the streams that the principal may read, with their lag, sorted by name,
        without a description of their slots. Raises the errors of every call."""
        found: list[GroupInfo] = []
        after: str | None = None
        while True:
            page = await self._call(ListGroups(stream, after), GroupsAnswer)
            found += page.infos
            after = page.after
            if after is None:
                return found

    async def seek_group(self, group: str, stream: str, offset: int) -> None:
        """Let all slots of a group continue at `offset`; 0 is the log start. Durable on return.

        Raises Conflict while the group has members, StreamNotFound, and OffsetOutOfRange beyond the
        log end.
        """
        await self._call(SeekGroup(stream, group, offset), Done)

    async def remove_group(self, group: str, stream: str) -> None:
        """Delete a group, durably. A missing one is not an error. Raises Conflict while it has
        members."""
        await self._call(RemoveGroup(stream, group), Done)
