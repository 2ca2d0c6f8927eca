"""The catalog: lists the existing streams and the node that leads each of them, and changes
streams.

A daemon without a cluster has an `OwnCatalog`; a node of a cluster has the `ClusterCatalog` of the
room `node`. Code that serves clients calls the catalog, and does not have to distinguish the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from liftlog.errors import LiftlogError
from liftlog.protocol.described import StreamInfo
from liftlog.protocol.replication import ClusterInfo
from liftlog.server.commits.host import StreamHost
from liftlog.settings import StreamSettings


class Catalog(Protocol):
    """All streams. Belongs to the event loop."""

    @property
    def in_cluster(self) -> bool:
        """True if this daemon is a node of a cluster."""
        ...

    @property
    def recorded(self) -> Mapping[str, StreamSettings]:
        """Settings of all streams of the cluster, by name; empty without a cluster."""
        ...

    @property
    def newer(self) -> Mapping[str, str]:
        """The streams whose metadata record a newer version has written, and the reason why this
        version cannot read the record."""
        ...

    # --- from the start to the end ---

    async def open(self, *, assume_yes: bool, is_stopping: Callable[[], bool]) -> None:
        """Open the streams; see `Broker.open_streams`."""
        ...

    async def stop(self, hurry: asyncio.Event, seconds: float) -> None:
        """Hand over the streams that this node leads. Ends when all are handed over, when `seconds`
        have passed, or when `hurry` is set. Called before messages are refused. Does not raise."""
        ...

    async def leave(self) -> None:
        """Make the other nodes stop waiting for this node. Called after every received message has
        been answered."""
        ...

    # --- the streams ---

    def names(self) -> Iterable[str]:
        """Return the names of all streams except the system streams. In a cluster, the copies of a
        stream may all be on other nodes."""
        ...

    def knows(self, name: str) -> bool:
        """Return True if a stream of this name exists, here or on other nodes."""
        ...

    def describe_elsewhere(self, name: str) -> StreamInfo | None:
        """Describe a stream without a copy on this daemon; return None if this daemon has no
        metadata of the stream."""
        ...

    async def look_for(self, name: str) -> None:
        """Read the newest metadata of a stream that this daemon does not know, because another node
        may have just created it. Does not raise."""
        ...

    async def look_again(self, name: str) -> None:
        """Read the newest metadata of a stream that this daemon knows, because another node may
        have just deleted it. Does not raise."""
        ...

    def was_deleted(self, name: str) -> bool:
        """Return True if the stream was deleted; its copy may still be open here."""
        ...

    def reaches(self, node: str) -> bool:
        """Return True if this node is connected to another node."""
        ...

    def addresses(self) -> list[str]:
        """Return the addresses at which the nodes of the cluster serve clients; empty without a
        cluster."""
        ...

    def describe_cluster(self, may_read: Callable[[str], bool]) -> ClusterInfo:
        """Describe the nodes, and the streams that the caller may read; empty without a cluster."""
        ...

    # --- the nodes that answer ---

    def leads(self, name: str) -> bool:
        """Return True if this daemon leads the stream, or is about to lead it, according to the
        newest metadata."""
        ...

    def leads_elsewhere(self, name: str) -> bool:
        """Return True if another node leads the stream, according to the newest metadata here."""
        ...

    def may_answer(self, name: str) -> bool:
        """Return True if this daemon leads the stream, and no other node can have been elected."""
        ...

    def answerer(self, name: str) -> str | None:
        """Return the other node that answers requests about a stream; None if this daemon answers
        them. Raises NotLeader if the stream has no leader."""
        ...

    def other_leaders(self) -> Mapping[str, str]:
        """Return the other nodes that lead streams, each with one of the streams that it leads."""
        ...

    def not_leader(self, name: str) -> LiftlogError:
        """Return the error for a request that only the leader of `name` can answer."""
        ...

    def no_checkpoints(self) -> LiftlogError:
        """Return the error for a request for checkpoints while this daemon serves none."""
        ...

    def check_leads(self, name: str) -> None:
        """Raise NotLeader if another node leads the stream. Raise NotReady while this node takes
        over the leadership."""
        ...

    def begins_to_lead(self, name: str) -> bool:
        """Return True while this daemon takes over the leadership, and cannot answer requests for
        the stream yet."""
        ...

    def check_end_is_known(self, name: str) -> None:
        """Raise NotReady while this node takes over the leadership. During this time its high
        watermark may be lower than the high watermark that clients have received."""
        ...

    def may_read_copy(self, name: str, replica: str) -> bool:
        """Return True if this node may answer a client that requests the copy of node `replica`.
        This node's copy is then used even if another node leads. Raises NotLeader if `replica` is
        another node."""
        ...

    def check_incarnation(self, name: str, present: str, wanted: str) -> None:
        """Compare two incarnations of a stream: `wanted`, which a client has read, and `present` on
        this node. Raises NotLeader, unless `wanted` is certainly an earlier incarnation."""
        ...

    def check_epoch(self, name: str, epoch: int) -> None:
        """Check a client that has read the stream in a newer leader epoch than this node's epoch.
        Raises NotLeader, unless the newer epoch certainly does not exist."""
        ...

    # --- ages ---

    def may_judge_ages(self) -> bool:
        """Return False while the clocks of the cluster differ too much for deletion by age."""
        ...

    async def first_since(self, name: str, time_ns: int) -> tuple[str, int] | None:
        """Return the incarnation of a stream that has no copy on this node, and the offset of its
        first record at or after `time_ns`. Asks the stream's leader. Returns None if the leader
        does not answer."""
        ...

    # --- changes ---

    async def create(self, name: str, settings: StreamSettings) -> StreamHost:
        """Create a stream, or find the existing one. Waits until NATS has confirmed its
        subscription. Raises Conflict if a stream with other settings exists. Also raises
        ShuttingDown, StreamUnavailable, LimitExceeded, and the errors of `Broker.create_stream`."""
        ...

    async def update(
        self, host: StreamHost, settings: StreamSettings, apply: Callable[[], Awaitable[object]]
    ) -> None:
        """Store other settings of a stream in its metadata record and, by `apply`, in its manifest.
        Raises InvalidArgument, StorageError, MetadataUnavailable; after an error the manifest is
        unchanged."""
        ...

    async def truncate(
        self, host: StreamHost, offset: int, apply: Callable[[], Awaitable[int]]
    ) -> int:
        """Delete the records below `offset`, on every node with a copy. `apply` deletes the records
        on this node; returns the result of `apply`. Raises OffsetOutOfRange, Conflict,
        StorageError, MetadataUnavailable."""
        ...

    async def side_confirmed(self, name: str) -> None:
        """Wait until the current leases of a stream survive even the loss of this daemon. Raises
        NotLeader, NotEnoughReplicas."""
        ...

    async def delete(self, name: str) -> None:
        """Delete a stream, on every node. The caller must prevent other changes of streams during
        the deletion. Raises StreamNotFound, Conflict for a stream of the configuration,
        StorageError, MetadataUnavailable."""
        ...
