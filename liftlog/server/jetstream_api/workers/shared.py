"""The objects that all consumers with acks of a daemon share, and the fill level of their
buffers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from liftlog.errors import LiftlogError
from liftlog.server.jetstream_api.consumers.leaf import LeafLink
from liftlog.server.jetstream_api.workers.admission import Place
from liftlog.server.jetstream_api.workers.advisories import Advisories
from liftlog.server.jetstream_api.workers.changes import LocalChanges
from liftlog.server.jetstream_api.workers.growth import Growth
from liftlog.server.jetstream_api.workers.interest_watch import InterestWatch
from liftlog.server.jetstream_api.workers.outbox import Outbox
from liftlog.server.jetstream_api.workers.rounds import Clock, Rounds
from liftlog.server.journal import Journal
from liftlog.server.pull.services import PullServices

logger = logging.getLogger("liftlog.server.jetstream_api")

MAX_PENDING_OF_ALL = 4_000_000
_MOST_UNSERVED = 20_000
_MOST_OF_TURN = 100_000
_MOST_UNSENT_BYTES = 8 * 2**20
_MOST_UNSYNCED, _MOST_UNWRITTEN = 20_000, 1_000
"""Limits on the number of unsynced changes in the journal. The first limit applies while the
journal can be written, the second limit while it cannot be written."""


@dataclass(slots=True)
class Shared:
    """The objects that all consumers of a daemon share. Each function among them is called with a
    consumer."""

    services: PullServices
    leaf: LeafLink
    journal: Journal
    outbox: Outbox
    rounds: Rounds
    clock: Clock
    advisories: Advisories
    interest: InterestWatch
    growth: Growth
    on_inactive: Callable[[Any], None]
    on_failure: Callable[[Any], None]
    on_policy: Callable[[Any], None]
    """Called in each turn of a consumer whose cursor was opened under an earlier ACL policy."""
    changes: LocalChanges
    """Passes changes to the journal, on a daemon without a cluster."""
    pending: int = 0
    """Number of pending messages of all consumers."""
    unserved: int = 0
    """Number of acks and pulls that arrived after the last turns of their consumers."""

    @property
    def room(self) -> int:
        """Number of further messages that may become pending."""
        return MAX_PENDING_OF_ALL - self.pending

    def load_of_buffers(self) -> float:
        """Return the highest fill level of the buffers for acks and pulls; 1 means full."""
        journal = self.journal
        most = _MOST_UNSYNCED if journal.problem is None else _MOST_UNWRITTEN
        return max(
            self.unserved / _MOST_UNSERVED,
            self.outbox.size_bytes / _MOST_UNSENT_BYTES,
            journal.unsynced / most,
        )

    async def until_written(self) -> None:
        """Wait a short time for the last statuses to be sent and the last changes to be written."""
        try:
            async with asyncio.timeout(1.0):
                await self.journal.synced(self.journal.write([]))
                await asyncio.sleep(0.01)
        except (TimeoutError, LiftlogError) as error:
            logger.warning("consumers-not-synced error=%r", error)


class Tally:
    """One consumer's part in the counts of `Shared`, and its place among the consumers."""

    def __init__(self, shared: Shared, place: Place) -> None:
        self._shared = shared
        self._place = place
        self._pending = 0
        self.unserved = 0
        """Number of acks and pulls since the last turn."""

    def arrived(self, count: int) -> None:
        """Count acks and pulls that wait for a turn."""
        self.unserved += count
        self._shared.unserved += count

    @property
    def is_full(self) -> bool:
        """True if the turn must end, because one delta cannot contain the changes of more acks
        (`codec.MAX_NUMBERS`)."""
        return self.unserved >= _MOST_OF_TURN

    def turn_ended(self, pending: int) -> None:
        """Note the end of a turn. `pending` is the number of pending messages after the turn."""
        self._shared.pending += pending - self._pending
        self._shared.unserved -= self.unserved
        self._pending, self.unserved = pending, 0

    def close(self) -> None:
        self.turn_ended(0)
        self._place.leave()
