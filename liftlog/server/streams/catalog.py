"""The catalog: which streams there are, which node leads each, and how one changes.

A daemon on its own has an `OwnCatalog`; a node of a cluster has the `ClusterCatalog` of the room
`node`. Code that serves clients asks the catalog, and need not know which of the two it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from liftlog.errors import LiftlogError
from liftlog.server.commits.host import StreamHost
from liftlog.settings import StreamSettings


class Catalog(Protocol):
    """Belongs to the event loop."""

    @property
    def recorded(self) -> Mapping[str, StreamSettings]:
        """Settings of all streams of the cluster, by name; none for a daemon on its own."""
        ...

    def names(self) -> Iterable[str]:
        """The streams that other nodes may have, too, without the system streams."""
        ...

    def knows(self, name: str) -> bool:
        """True if there is such a stream, here or on other nodes."""
        ...

    def was_deleted(self, name: str) -> bool:
        """True if the stream was deleted, though its copy may still be open here."""
        ...

    def addresses(self) -> list[str]:
        """Return where the nodes of the cluster serve clients; empty for a daemon on its own."""
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

    def check_leads(self, name: str) -> None:
        """Raises NotLeader if another node leads the stream, NotReady while this one begins to."""
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

    # --- changes ---

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
