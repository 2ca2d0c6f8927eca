# Made from liftlog/client/aio/calls.py by `make blocking`: edit that one.
"""The calls of the blocking client that send one request and receive one answer: for streams,
leases, checkpoints, groups and the daemon."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from liftlog.client.blocking.erasure_calls import SyncErasureCalls
from liftlog.client.requests import (
    DEFAULT_STEP_BYTES,
    DEFAULT_TTL_SECONDS,
    PassWatch,
    create_request,
    milliseconds,
    renewal_request,
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


class SyncCalls(SyncErasureCalls):
    """Calls that send one request. A call that gets no answer within `request_timeout` seconds
    raises RequestTimeout."""

    # --- the daemon ---

    @property
    def server(self) -> Welcome:
        """The daemon's description of itself and its limits, from the newest connection."""
        return self._session.link.connection.welcome

    def ping(self) -> None:
        """Send a request without effect, and wait for the daemon's answer. Raises only the errors
        that every call can raise (see `SyncClient`)."""
        self._call(Ping(), Pong)

    def metadata(self) -> DaemonInfo:
        """Return the daemon's description of itself, with the addresses of all nodes of its
        cluster. The client stores these addresses, and tries them when this daemon does not answer.
        Raises only the errors that every call can raise (see `SyncClient`)."""
        info = (self._call(Metadata(), DaemonAnswer)).info
        self._session.learn(info.nodes)
        return info

    @property
    def addresses(self) -> list[str]:
        """The addresses of all known nodes: addresses given to `connect`, and addresses received
        from the cluster."""
        return [target.address.text for target in self._session.targets]

    def cluster(self) -> ClusterInfo:
        """Return the nodes of the daemon's cluster, and the streams that the principal may read.
        Raises only the errors that every call can raise (see `SyncClient`)."""
        return (self._call(DescribeCluster(), ClusterAnswer)).info

    def move_stream(self, stream: str, replicas: Sequence[str]) -> None:
        """Begin to move a stream to the nodes `replicas`. The first node is the preferred leader.
        An empty list ends a move, and the stream returns to its previous replicas. `cluster` shows
        the progress.

        The move continues without this client. Raises StreamNotFound, InvalidArgument for unknown
        nodes, and Conflict if the stream is already being moved to other nodes, or if a new node
        cannot accept a replica.
        """
        self._call(MoveStream(stream, list(replicas)), Done)

    def drain_node(self, node: str, *, ends: bool = False) -> None:
        """Move all replicas of a node to other nodes, and place no new replicas on it. With
        `ends=True`, replicas can be placed on the node again. `cluster` shows the progress.

        The moves continue without this client. Raises InvalidArgument for an unknown node, and
        Conflict if the cluster has too few other nodes.
        """
        self._call(DrainNode(node, ends), Done)

    def forget_node(self, node: str) -> None:
        """Remove a node from the cluster permanently. Raises InvalidArgument for an unknown node,
        and Conflict while the node is live or has replicas."""
        self._call(ForgetNode(node), Done)

    def elect_leader(
        self, stream: str, node: str | None = None, *, lost: Sequence[str] = ()
    ) -> str:
        """Make `node` the leader of a replicated stream. The default of `node` is the stream's
        first replica. Publishers and consumers are not interrupted. Returns the name of the new
        leader when it leads.

        Use `lost` for a stream that has no leader because all its complete copies are permanently
        lost. `lost` lists the nodes that had these copies. With `lost`, `node` is required. The
        call elects this node even if its copy lacks records, and these records are lost.

        Raises StreamNotFound. Raises Conflict if the node is not in sync, or, with `lost`, if
        another node could lead without a loss. Raises StreamUnavailable if the handover failed; the
        stream then keeps its leader.
        """
        return (self._call(ElectLeader(stream, node, list(lost)), LeaderAnswer)).node

    def restore_metadata(self, *, dry_run: bool = False) -> RestoreAnswer:
        """Restore the cluster's metadata store from copies of the metadata on its nodes. The call
        writes an entry of a stream if the store has no entry, or an older version than a node. With
        `dry_run` the call only reports the changes. Raises Forbidden, MetadataUnavailable."""
        return self._call(RestoreMetadata(dry_run), RestoreAnswer)

    # --- streams ---

    def create_stream(self, name: str, subject: str | None = None, **settings: Any) -> StreamInfo:
        """Create a stream. `settings` uses the same keys as the YAML file. If the stream already
        exists with the same settings, the call changes nothing.

        The call returns when NATS has confirmed the subscription. Raises Conflict if the stream
        exists with other settings (`details["differences"]`), and InvalidArgument for an invalid
        name or setting. Raises NatsRefused if NATS refuses the subscription. The new stream is then
        removed, unless it has already stored messages on its other subjects. Raises NatsUnavailable
        if the daemon has no connection to NATS. The stream then exists, and subscribes as soon as
        NATS is connected.
        """
        return (self._call(create_request(name, subject, settings), StreamAnswer)).info

    def describe_stream(self, name: str) -> StreamInfo:
        """Return the current state and settings of a stream. Raises StreamNotFound."""
        return (self._call(DescribeStream(name), StreamAnswer)).info

    def list_streams(self) -> list[StreamInfo]:
        """Return the streams that the principal may read. Raises only the errors that every call
        can raise (see `SyncClient`)."""
        return (self._call(ListStreams(), StreamsAnswer)).infos

    def streams_for(self, subject: str) -> list[StreamInfo]:
        """Return the streams that record `subject`. If `subject` is a pattern, these are the
        streams that record at least one subject that matches it. Raises InvalidArgument."""
        return (self._call(StreamsFor(subject), StreamsAnswer)).infos

    def delete_stream(self, name: str) -> None:
        """Delete the stream and its records.

        Raises StreamNotFound, Conflict if the stream is defined in the daemon's configuration file,
        and StreamUnavailable if the stream's disk does not respond.
        """
        self._call(DeleteStream(name), Done)

    def compact_stream(self, name: str, *, wait: bool = False) -> StreamInfo:
        """Request a compaction pass as soon as possible, independently of the dirty ratio. The
        daemon first seals the active segment. With `wait` the call returns after the pass.
        `request_timeout` does not limit this wait.

        Raises StreamNotFound, InvalidArgument if the stream has no compaction, and with `wait`
        StreamUnavailable if the pass failed.
        """
        info = (self._call(CompactStream(name), StreamAnswer)).info
        watch = PassWatch(info)
        while wait and not watch.is_over(info):
            time.sleep(watch.seconds)
            info = self.describe_stream(name)
        return info

    def update_stream(
        self,
        name: str,
        settings: Mapping[str, Any] | None = None,
        *,
        dry_run: bool = False,
        allow_deletion: bool = False,
        **more: Any,
    ) -> StreamUpdate:
        """Change some settings of a stream. Pass them as a mapping or as keywords, with the keys
        of the YAML file. Other settings keep their values. The change is durable on return.

        With `dry_run` nothing changes, and the answer describes the change. Raises StreamNotFound,
        InvalidArgument for an invalid value or a setting that cannot be changed, and Conflict if
        the stream is defined in the daemon's configuration file. Also raises Conflict if
        `allow_deletion` is false and the new limits would remove more than a tenth of the stream
        (`details["removal"]`).
        """
        request = update_request(
            name, settings, more, dry_run=dry_run, allow_deletion=allow_deletion
        )
        return StreamUpdate.from_answer(self._call(request, Updated))

    def pause_stream(self, name: str) -> StreamInfo:
        """Make the stream refuse new messages until `resume_stream` is called, even after a restart
        of the daemon. Publishers that request an ack receive a refusal.

        On return, all messages that the stream received before the pause are committed. Raises
        StreamNotFound, and StreamUnavailable if the disk does not respond.
        """
        return (self._call(PauseStream(name), StreamAnswer)).info

    def resume_stream(self, name: str) -> StreamInfo:
        """Make a paused stream accept messages again. Raises StreamNotFound."""
        return (self._call(ResumeStream(name), StreamAnswer)).info

    def set_read_only(self, name: str, read_only: bool = True) -> StreamInfo:
        """Make the stream refuse new messages, like `pause_stream`, but with a permanent error, so
        that publishers do not retry. With `read_only=False` the stream accepts messages again.
        Raises StreamNotFound, and StreamUnavailable if the disk does not respond."""
        return (self._call(SetReadOnly(name, read_only), StreamAnswer)).info

    def truncate_prefix(
        self, name: str, offset: int, *, incarnation: str | None = None
    ) -> StreamInfo:
        """Make `offset` the log start, and delete all records below it. The change is durable on
        return.

        Raises StreamNotFound, OffsetOutOfRange if `offset` is above the high watermark, Conflict if
        a lease protects records below `offset`, StaleIncarnation if `incarnation` is not the
        stream's incarnation, and InvalidArgument.
        """
        request = truncate_request(name, offset, incarnation)
        return (self._call(request, StreamAnswer)).info

    def stream_extents(
        self, stream: str, start: int = 0, *, step_bytes: int = DEFAULT_STEP_BYTES
    ) -> list[StreamExtent]:
        """Return the sizes of consecutive offset ranges. The first range begins with the segment
        that contains `start`. The last range ends at the high watermark. Readers use the sizes to
        divide a stream into parts of equal size.

        Each range has about `step_bytes` bytes. Ranges are larger if the answer would otherwise
        have more than 4,096 ranges. The sizes are sizes on disk, after compression. Raises
        StreamNotFound, and UnknownRequest if the daemon is too old.
        """
        request = ListExtents(stream, start, step_bytes)
        return (self._call(request, ExtentsAnswer)).extents

    # --- leases ---

    def acquire_lease(
        self,
        stream: str,
        start: int | str = EARLIEST,
        *,
        ttl: float = DEFAULT_TTL_SECONDS,
        holder: str = "",
        incarnation: str | None = None,
        for_export: bool = False,
    ) -> LeaseInfo:
        """Keep the records from `start` to the stream's present high watermark for `ttl` seconds.
        During this time retention and compaction do not change the records at the offsets [`low`,
        `high`); the answer has both offsets. The lease is durable on return.

        `start="earliest"` is the first offset that retention would keep if the stream had no
        leases. While another lease delays retention, this offset is above the log start.

        Renew the lease well before `ttl` has passed. The daemon ends a lease early only if the
        disk is full. Some leases of a stream are reserved for exports. With `for_export` the call
        may take a reserved lease if all other leases are in use. Raises StreamNotFound,
        OffsetOutOfRange, StaleIncarnation, LimitExceeded if the stream has too many leases, and
        InvalidArgument, for example if `ttl` is more than an hour.
        """
        wish = for_export or None  # older daemons do not have this field
        request = AcquireLease(stream, start, milliseconds(ttl), holder, incarnation, wish)
        return (self._call(request, LeaseAnswer)).info

    def renew_lease(
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
        """Extend a lease so that it ends `ttl` seconds from now. `low` is the new start of the
        lease, and the lease no longer protects records below `low`. So pass `low` only after all
        records below it have been read.

        Several readers can share a lease. Each reader reads one of n parts, which are numbered from
        0. `begun=i` reports that the reader of part i has started. `finished=(i, n)` reports that
        part i has been read. The lease ends when all parts have been reported as finished.
        `stopped=True` reports that the reader of a finished part needs no more records. When all
        readers of a shared lease have stopped, or have not renewed for 15 seconds, the daemon may
        end the lease to grant one to a new reader.

        Raises LeaseGone if the lease has ended (its records may have changed since then),
        StreamNotFound, and InvalidArgument.
        """
        request = renewal_request(stream, lease_id, ttl, low, finished, begun, stopped)
        return (self._call(request, LeaseAnswer)).info

    def release_lease(self, stream: str, lease_id: str) -> None:
        """Release a lease. If the lease has already ended, nothing changes. Raises
        StreamNotFound."""
        self._call(ReleaseLease(stream, lease_id), Done)

    def list_leases(self, stream: str) -> list[LeaseInfo]:
        """Return the leases on a stream. The leases contain their ids only if the principal may
        administer the stream. Raises StreamNotFound."""
        return (self._call(ListLeases(stream), LeasesAnswer)).infos

    # --- checkpoints ---

    def commit_checkpoint(
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
        """Store `offset` as the next offset that `consumer` reads in `stream`. The checkpoint is
        durable on return.

        With `expected` the commit succeeds only if `expected` is the stored offset, or 0 if no
        checkpoint is stored. If possible, pass the `incarnation` and `epoch` that the stream had
        when the records were read. The daemon then checks that the stream is still the same.
        `metadata` is free text, which is stored with the checkpoint.

        Raises CheckpointMoved (`details["offset"]` is the stored offset), StreamNotFound,
        OffsetOutOfRange beyond the log end, StaleIncarnation, Diverged, InvalidArgument, and
        LimitExceeded while too many commits wait for the disk.
        """
        request = CommitCheckpoint(stream, consumer, offset, expected, metadata, incarnation, epoch)
        self._call(request, Done)

    def fetch_checkpoint(
        self, consumer: str, stream: str, *, check: bool = True
    ) -> Checkpoint | None:
        """Return the stored checkpoint; None if no checkpoint is stored.

        Raises StreamNotFound, StaleIncarnation, OffsetOutOfRange (below the log start or beyond the
        log end) or Diverged if the stream can no longer be read from the checkpoint. Raises
        CheckpointUncertain if no checkpoint is stored, but the daemon may have lost one through
        damage. With `check=False` the call does not raise these errors, but returns the checkpoint.
        Its `problem` is then the name of the error.
        """
        request = FetchCheckpoint(stream, consumer, not check)
        return (self._call(request, CheckpointAnswer)).info

    def list_checkpoints(
        self, *, consumer: str | None = None, stream: str | None = None
    ) -> list[Checkpoint]:
        """Return the checkpoints of all streams that the principal may read, with their lag,
        sorted by consumer and stream. `consumer` and `stream` select the checkpoints of one
        consumer or stream. Raises only the errors that every call can raise (see `SyncClient`)."""
        found: list[Checkpoint] = []
        after: str | None = None
        while True:
            page = self._call(ListCheckpoints(stream, consumer, after), CheckpointsAnswer)
            found += page.infos
            after = page.after
            if after is None:
                return found

    def delete_checkpoint(self, consumer: str, stream: str, expected: int | None = None) -> None:
        """Delete a checkpoint. The change is durable on return. If the checkpoint does not exist,
        nothing changes. Raises CheckpointMoved if `expected` is given and another offset is
        stored."""
        self._call(DeleteCheckpoint(stream, consumer, expected), Done)

    # --- consumer groups ---

    def describe_group(self, group: str, stream: str) -> GroupInfo | None:
        """Return the members of a group, and the owner and the next offset of each slot; None if
        the group does not exist. Raises only the errors that every call can raise (see
        `SyncClient`)."""
        return (self._call(DescribeGroup(stream, group), GroupAnswer)).info

    def list_groups(self, *, stream: str | None = None) -> list[GroupInfo]:
        """Return the groups of all streams that the principal may read, with their lag, sorted by
        name. `stream` selects the groups of one stream. Only `describe_group` describes the slots.
        Raises only the errors that every call can raise (see `SyncClient`)."""
        found: list[GroupInfo] = []
        after: str | None = None
        while True:
            page = self._call(ListGroups(stream, after), GroupsAnswer)
            found += page.infos
            after = page.after
            if after is None:
                return found

    def seek_group(self, group: str, stream: str, offset: int) -> None:
        """Make all slots of a group continue at `offset` (0: the log start). The change is durable
        on return.

        Raises Conflict while the group has members, StreamNotFound, and OffsetOutOfRange if
        `offset` is beyond the log end.
        """
        self._call(SeekGroup(stream, group, offset), Done)

    def remove_group(self, group: str, stream: str) -> None:
        """Delete a group. The change is durable on return. If the group does not exist, nothing
        changes. Raises Conflict while the group has members."""
        self._call(RemoveGroup(stream, group), Done)
