"""The catalog: which streams there are, which node leads each, and how one changes.

A daemon on its own has an `OwnCatalog`; a node of a cluster has the `ClusterCatalog` of the room
`node`. Code that serves clients asks the catalog, and need not know which of the two it is.
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
        """Why the record of a stream cannot be read, by name: a newer version wrote it."""
        ...

    # --- from the start to the end ---

    async def open(self, *, assume_yes: bool, is_stopping: Callable[[], bool]) -> None:
        """See `Broker.open_streams`."""
        ...

    async def stop(self, hurry: asyncio.Event, seconds: float) -> None:
        """Before messages are refused: other nodes lead the streams of this one, as far as that can
        be done in `seconds`, or until `hurry` is set. Does not raise."""
        ...

    async def leave(self) -> None:
        """After all that was received is answered: no other node waits for this one any more."""
        ...

    # --- which there are ---

    def names(self) -> Iterable[str]:
        """The streams that other nodes may have, too, without the system streams."""
        ...

    def knows(self, name: str) -> bool:
        """True if there is such a stream, here or on other nodes."""
        ...

    def describe_elsewhere(self, name: str) -> StreamInfo | None:
        """A stream without a copy here; None if this daemon knows of none."""
        ...

    async def look_for(self, name: str) -> None:
        """Read the newest metadata of a stream that this daemon does not know: it may have been
        created a moment ago, on another node. Does not raise."""
        ...

    def was_deleted(self, name: str) -> bool:
        """True if the stream was deleted, though its copy may still be open here."""
        ...

    def addresses(self) -> list[str]:
        """Return where the nodes of the cluster serve clients; empty for a daemon on its own."""
        ...

    def describe_cluster(self, may_read: Callable[[str], bool]) -> ClusterInfo:
        """The nodes, and those streams that the caller may read; empty for a daemon on its own."""
        ...

    # --- who answers ---

    def leads(self, name: str) -> bool:
        """True if this daemon is to lead the stream, by the newest that it knows."""
        ...

    def leads_elsewhere(self, name: str) -> bool:
        """True if another node leads the stream, by the newest that this one knows."""
        ...

    def may_answer(self, name: str) -> bool:
        """True if this daemon leads the stream, and no other node can have been elected since."""
        ...

    def answerer(self, name: str) -> str | None:
        """The other node that answers requests about a stream; None: this daemon does. Raises
        NotLeader while none leads."""
        ...

    def other_leaders(self) -> Mapping[str, str]:
        """The other nodes that lead a stream, and one such stream of each."""
        ...

    def not_leader(self, name: str) -> LiftlogError:
        """The error for a request that only the leader of `name` can answer."""
        ...

    def no_checkpoints(self) -> LiftlogError:
        """The error for a request for checkpoints while this daemon serves none."""
        ...

    def check_leads(self, name: str) -> None:
        """Raises NotLeader if another node leads the stream, NotReady while this one begins to."""
        ...

    def begins_to_lead(self, name: str) -> bool:
        """True while this daemon is to lead the stream, and cannot answer for it yet."""
        ...

    def check_end_is_known(self, name: str) -> None:
        """Raises NotReady while this node begins to lead the stream, and may not know yet how far
        clients have read it."""
        ...

    def may_read_copy(self, name: str, replica: str) -> bool:
        """True if a client that asks for the copy of node `replica` is served from the copy here,
        although another node may lead. Raises NotLeader if it means another node."""
        ...

    def check_incarnation(self, name: str, present: str, wanted: str) -> None:
        """A client has read another stream of this name than `present`, the one here. Raises
        NotLeader unless `wanted` is known to have been before."""
        ...

    def check_epoch(self, name: str, epoch: int) -> None:
        """A client has read the stream in a newer leader epoch than the one here. Raises NotLeader
        unless there is known to be no such epoch."""
        ...

    # --- ages ---

    def may_judge_ages(self) -> bool:
        """False while the clocks of the cluster differ too much to delete anything for its age."""
        ...

    async def first_since(self, name: str, time_ns: int) -> tuple[str, int] | None:
        """Incarnation of a stream without a copy here, and its first offset that is not older than
        `time_ns`, as its leader tells; None when it does not."""
        ...

    # --- changes ---

    async def create(self, name: str, settings: StreamSettings) -> StreamHost:
        """Create a stream, or find the one that exists. Returns when NATS has confirmed its
        subscription. Raises ShuttingDown, StreamUnavailable, LimitExceeded, Conflict for other
        settings, and what `Broker.create_stream` raises."""
        ...

    async def update(
        self, host: StreamHost, settings: StreamSettings, apply: Callable[[], Awaitable[object]]
    ) -> None:
        """Store other settings of a stream: in its record, and by `apply` in its manifest. Raises
        InvalidArgument, StorageError, MetadataUnavailable; then the manifest is as it was."""
        ...

    async def truncate(
        self, host: StreamHost, offset: int, apply: Callable[[], Awaitable[int]]
    ) -> int:
        """Delete the records below `offset`, on every node with a copy; `apply` does it here.
        Returns what `apply` returns. Raises OffsetOutOfRange, Conflict, StorageError,
        MetadataUnavailable."""
        ...

    async def side_confirmed(self, name: str) -> None:
        """Return when the leases of a stream, as they are now, outlive this daemon. Raises
        NotLeader, NotEnoughReplicas."""
        ...

    async def delete(self, name: str) -> None:
        """Delete a stream, on every node. Call it while streams may not change otherwise. Raises
        StreamNotFound, Conflict for a stream of the configuration, StorageError,
        MetadataUnavailable."""
        ...
