"""The catalog: the existing streams, the node that leads each, and changes of streams.

A daemon on its own has an `OwnCatalog`; a node of a cluster has the `ClusterCatalog` of the room
`node`. Code that serves clients asks the catalog, and need not distinguish the two.
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
    """Belongs to the event loop."""

    @property
    def in_cluster(self) -> bool:
        """True if this daemon is a node of a cluster."""
        ...

    @property
    def recorded(self) -> Mapping[str, StreamSettings]:
        """Settings of all streams of the cluster, by name; none for a daemon on its own."""
        ...

    @property
    def newer(self) -> Mapping[str, str]:
        """The reason why the record of a stream cannot be read, by name: a newer version wrote
        it."""
        ...

    # --- from the start to the end ---

    async def open(self, *, assume_yes: bool, is_stopping: Callable[[], bool]) -> None:
        """See `Broker.open_streams`."""
        ...

    async def stop(self, hurry: asyncio.Event, seconds: float) -> None:
        """Hand over the streams that this node leads, as far as that can be done in `seconds`, or
        until `hurry` is set. Called before messages are refused. Does not raise."""
        ...

    async def leave(self) -> None:
        """Called after every received message is answered: no other node waits for this one any
        more."""
        ...

    # --- which there are ---

    def names(self) -> Iterable[str]:
        """Return the streams that other nodes may have, too, without the system streams."""
        ...

    def knows(self, name: str) -> bool:
        """Return True if such a stream exists, here or on other nodes."""
        ...

    def describe_elsewhere(self, name: str) -> StreamInfo | None:
        """Describe a stream without a copy here; None if this daemon has no record of one."""
        ...

    async def look_for(self, name: str) -> None:
        """Read the newest metadata of a stream that this daemon has no record of: it may have been
        created a moment ago, on another node. Does not raise."""
        ...

    def was_deleted(self, name: str) -> bool:
        """Return True if the stream was deleted, though its copy may still be open here."""
        ...

    def addresses(self) -> list[str]:
        """Return the addresses at which the nodes of the cluster serve clients; empty for a daemon
        on its own."""
        ...

    def describe_cluster(self, may_read: Callable[[str], bool]) -> ClusterInfo:
        """Return the nodes, and those streams that the caller may read; empty for a daemon on its
        own."""
        ...

    # --- who answers ---

    def leads(self, name: str) -> bool:
        """Return True if this daemon leads the stream, or is about to, by its newest metadata."""
        ...

    def leads_elsewhere(self, name: str) -> bool:
        """Return True if another node leads the stream, by the newest metadata here."""
        ...

    def may_answer(self, name: str) -> bool:
        """Return True if this daemon leads the stream, and no other node can have been elected
        since."""
        ...

    def answerer(self, name: str) -> str | None:
        """Return the other node that answers requests about a stream; None if this daemon does.
        Raises NotLeader if the stream has no leader."""
        ...

    def other_leaders(self) -> Mapping[str, str]:
        """Return the other nodes that lead a stream, with one such stream of each."""
        ...

    def not_leader(self, name: str) -> LiftlogError:
        """Return the error for a request that only the leader of `name` can answer."""
        ...

    def no_checkpoints(self) -> LiftlogError:
        """Return the error for a request for checkpoints while this daemon serves none."""
        ...

    def check_leads(self, name: str) -> None:
        """Raises NotLeader if another node leads the stream, NotReady while this one is taking
        over."""
        ...

    def begins_to_lead(self, name: str) -> bool:
        """Return True while this daemon takes over the leadership, and cannot answer for the stream
        yet."""
        ...

    def check_end_is_known(self, name: str) -> None:
        """Raises NotReady while this node takes over the leadership, and may not yet have the high
        watermark that clients have seen."""
        ...

    def may_read_copy(self, name: str, replica: str) -> bool:
        """Return True if a client that asks for the copy of node `replica` is served from the copy
        here, although another node may lead. Raises NotLeader if it means another node."""
        ...

    def check_incarnation(self, name: str, present: str, wanted: str) -> None:
        """Called for a client that has read another stream of this name than `present`, the one
        here. Raises NotLeader unless `wanted` is known to be an earlier one."""
        ...

    def check_epoch(self, name: str, epoch: int) -> None:
        """Called for a client that has read the stream in a newer leader epoch than the one here.
        Raises NotLeader unless it is known that this epoch does not exist."""
        ...

    # --- ages ---

    def may_judge_ages(self) -> bool:
        """False while the clocks of the cluster differ too much to delete anything by age."""
        ...

    async def first_since(self, name: str, time_ns: int) -> tuple[str, int] | None:
        """Ask the leader of a stream without a copy here for the incarnation, and the first offset
        that is not older than `time_ns`; None if it does not answer."""
        ...

    # --- changes ---

    async def create(self, name: str, settings: StreamSettings) -> StreamHost:
        """Create a stream, or find the existing one. Returns when NATS has confirmed its
        subscription. Raises ShuttingDown, StreamUnavailable, LimitExceeded, Conflict for other
        settings, and the errors of `Broker.create_stream`."""
        ...

    async def update(
        self, host: StreamHost, settings: StreamSettings, apply: Callable[[], Awaitable[object]]
    ) -> None:
        """Store other settings of a stream: in its record, and by `apply` in its manifest. Raises
        InvalidArgument, StorageError, MetadataUnavailable; then the manifest is unchanged."""
        ...

    async def truncate(
        self, host: StreamHost, offset: int, apply: Callable[[], Awaitable[int]]
    ) -> int:
        """Delete the records below `offset`, on every node with a copy; `apply` does it here, and
        its result is returned. Raises OffsetOutOfRange, Conflict, StorageError,
        MetadataUnavailable."""
        ...

    async def side_confirmed(self, name: str) -> None:
        """Return when the leases of a stream, in their present state, outlive this daemon. Raises
        NotLeader, NotEnoughReplicas."""
        ...

    async def delete(self, name: str) -> None:
        """Delete a stream, on every node. The caller must prevent other changes of streams
        meanwhile. Raises StreamNotFound, Conflict for a stream of the configuration, StorageError,
        MetadataUnavailable."""
        ...
