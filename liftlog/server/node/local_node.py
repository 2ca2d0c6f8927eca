"""What each replica needs of its node, and of what makes the hosts of streams."""

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
    """This node, as each of its replicas needs it. `link_to` gives the connection to another one;
    `pace` is shared by all that catch up with streams led here."""

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
