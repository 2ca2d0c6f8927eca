"""The services that each replica uses. The node, and the objects that create hosts of streams,
provide these services."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from liftlog.log import DataDir
from liftlog.server.metadata.membership import Member
from liftlog.server.metadata.mirror import Mirror
from liftlog.server.node.handing_over import Handovers
from liftlog.server.replication.fetching import FetchRoom, FollowedStream
from liftlog.server.replication.hearing import Hearing
from liftlog.server.replication.peer_link import PeerLink
from liftlog.server.replication.serving import CatchUpPace, ServedStream
from liftlog.server.streams.hosted import HostedStreams
from liftlog.server.streams.ids_ahead import IdsAhead
from liftlog.server.vitals.rare_warnings import RareWarnings

logger = logging.getLogger("liftlog.server.replication")


@dataclass(frozen=True, slots=True)
class LocalNode:
    """This node, as its replicas use it. `link_to` returns the connection to another node. `pace`
    limits the total rate at which followers catch up with the streams that this node leads."""

    member: Member
    mirror: Mirror
    hearing: Hearing
    hosts: HostedStreams
    handovers: Handovers
    ids: IdsAhead
    data_dir: DataDir
    pace: CatchUpPace
    link_to: Callable[[str], PeerLink]
    lag_max_seconds: float
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    """Function that starts a task in the event loop. The task is cancelled when the node stops."""
    led: dict[str, ServedStream] = field(default_factory=dict)
    followed: dict[str, FollowedStream] = field(default_factory=dict)
    """The streams that this node follows, by name. Each replica keeps its own entry."""
    stirred: set[str] = field(default_factory=set)
    """The streams that this node leads and whose `Leader` may propose a change of the in-sync
    set."""
    room: FetchRoom = field(default_factory=FetchRoom)
    """Memory for fetches, shared by all streams that this node follows."""
    warnings: RareWarnings = field(default_factory=partial(RareWarnings, logger))
    """Limits the number of warnings about operations that are retried ten times a second."""
