"""What each replica needs of its node, and of what makes the hosts of streams."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from liftlog.log import DataDir, Log
from liftlog.server.commits.host import StreamHost
from liftlog.server.metadata.membership import Member
from liftlog.server.metadata.mirror import Mirror
from liftlog.server.node.handing_over import Handovers, MovingHosts
from liftlog.server.replication.fetching import FetchRoom, FollowedStream
from liftlog.server.replication.hearing import Hearing
from liftlog.server.replication.peer_link import PeerLink
from liftlog.server.replication.serving import CatchUpPace, ServedStream
from liftlog.server.streams.dedupe_restoring import LearnedIds
from liftlog.server.streams.ids_ahead import IdsAhead
from liftlog.server.vitals.rare_warnings import RareWarnings
from liftlog.settings import StreamSettings

logger = logging.getLogger("liftlog.server.replication")


class StreamHosts(MovingHosts, Protocol):
    """What makes and ends the hosts of streams: the broker."""

    broken: dict[str, str]

    async def host_replica(
        self,
        name: str,
        settings: StreamSettings,
        log: Log,
        *,
        origin: str,
        led: ServedStream | None,
        ids: LearnedIds | None = None,
    ) -> StreamHost:
        """Serve an open log, in the place of the host that it may have had; `led` is its gate if
        this node leads, None if it follows. `ids` are those that are known already."""
        ...

    async def attach_replica(self, host: StreamHost) -> bool:
        """Have NATS send its messages to this node, which leads. Returns whether they came here
        before, so that none was missed."""
        ...

    def streams_changed(self) -> None:
        """Settings of a stream have changed."""
        ...

    def streams_change(self) -> None:
        """As `streams_changed`, with one look for all that change in this turn of the loop, here or
        on other nodes."""
        ...

    def expects_repair(self, name: str, first: int, end: int) -> bool:
        """Whether damage in [first, end) is about to be repaired from another replica."""
        ...

    async def rest_replica(self, host: StreamHost, *, seconds: float) -> bool:
        """Detach it, and wait for what is under way. Returns whether its log is in order, and
        nothing of the role uses it any more; readers do."""
        ...

    @property
    def nats_connected(self) -> bool: ...

    async def end_replica(self, host: StreamHost, *, seconds: float) -> None:
        """Stop serving: detach it, wait for what is under way, close its log."""
        ...


@dataclass(frozen=True, slots=True)
class LocalNode:
    """This node, as each of its replicas needs it. `link_to` gives the connection to another one;
    `pace` is shared by all that catch up with streams led here."""

    member: Member
    mirror: Mirror
    hearing: Hearing
    hosts: StreamHosts
    handovers: Handovers
    ids: IdsAhead
    data_dir: DataDir
    pace: CatchUpPace
    link_to: Callable[[str], PeerLink]
    lag_max_seconds: float
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    """Have the event loop do this; it is cancelled when the node stops."""
    led: dict[str, ServedStream] = field(default_factory=dict)
    followed: dict[str, FollowedStream] = field(default_factory=dict)
    """The streams in these roles, by name. Each replica keeps its own entry."""
    stirred: set[str] = field(default_factory=set)
    """Of those that are led here, the ones whose leaders may have a change to propose."""
    room: FetchRoom = field(default_factory=FetchRoom)
    """Of all streams that are followed here."""
    warnings: RareWarnings = field(default_factory=partial(RareWarnings, logger))
    """Of what is tried again ten times a second."""
