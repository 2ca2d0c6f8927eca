"""Which of the other nodes this one hears.

Nodes ping each other all the time, so a node that is alive is never silent for long. All that a
node sends counts, not only its pings. Time in which this process itself did not run, because it was
stopped or its machine stood still, is not counted: what was sent meanwhile waits unread.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

LOOK_SECONDS = 0.1
"""How often silences are looked for: so late they may be told."""

HUNG_SECONDS = 3.0
"""No ack waits for a node that was silent for so long."""

ENDED_SECONDS = 0.3
"""The same, of a node whose machine says that its process has ended."""

_LATE_SECONDS = 3 * LOOK_SECONDS


@dataclass(slots=True)
class _Watch:
    tell: Callable[[str], None]
    silent: float
    gone: float
    refusing: float
    told: set[str] = field(default_factory=set)


class Hearing:
    """Belongs to one event loop; `run` looks until it is cancelled. `now` is monotonic, in seconds.

    Who needs to know of a silence asks for it once, by `watch`, and need not look again.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._looked_at = now()
        self._stood_still = 0.0
        self._heard: dict[str, float] = {}
        self._fresh: set[str] = set()  # heard since the last look
        self._connections: dict[str, int] = {}
        self._gone_since: dict[str, float] = {}
        self._refusing: set[str] = set()
        self._watches: list[_Watch] = []

    # --- what is heard ---

    def expect(self, node: str) -> None:
        """There is such a node: its silence is counted from now on, if it was not before."""
        if node not in self._heard:
            self._heard[node] = self._gone_since[node] = self._time()

    def heard(self, node: str) -> None:
        """Something has arrived from `node`."""
        self._fresh.add(node)

    def connected(self, node: str) -> None:
        """A connection to or from `node` is there."""
        self.expect(node)
        self._connections[node] = self._connections.get(node, 0) + 1
        self._gone_since.pop(node, None)
        self._refusing.discard(node)
        self.heard(node)

    def refused(self, node: str) -> None:
        """The machine of `node` says that no process listens there. One that had no connection yet
        may be about to listen."""
        if self._connections.get(node) == 0:
            self._refusing.add(node)

    def disconnected(self, node: str) -> None:
        """One of those has ended."""
        self._connections[node] -= 1
        if not self._connections[node]:
            self._gone_since[node] = self._time()

    # --- who asks ---

    def silent_seconds(self, node: str) -> float:
        """How long nothing has come from `node`; of one that was never heard, since it is known."""
        if node in self._fresh or node not in self._heard:
            return 0.0
        return self._time() - self._heard[node]

    def gone_seconds(self, node: str) -> float:
        """How long there has been no connection to or from `node`; 0.0 while there is one."""
        since = self._gone_since.get(node)
        return 0.0 if since is None else self._time() - since

    def is_refusing(self, node: str) -> bool:
        """Whether `node` has no connection because no process listens there."""
        return node in self._refusing

    def watch(
        self,
        tell: Callable[[str], None],
        *,
        silent: float,
        gone: float = math.inf,
        refusing: float = math.inf,
    ) -> None:
        """Call `tell` with each node that was silent for `silent` seconds, or without a connection
        for `gone` seconds, or for `refusing` seconds because no process listens there: once, and
        again after it was heard and is silent once more."""
        self._watches.append(_Watch(tell, silent, gone, refusing))

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Tell those who watch."""
        present = self._time()
        now = self._now()
        self._stood_still += max(0.0, now - self._looked_at - _LATE_SECONDS)
        self._looked_at = now
        fresh, self._fresh = self._fresh, set()
        for node in fresh:
            self._heard[node] = present
        for watch in self._watches:
            for node, heard_at in self._heard.items():
                gone = present - self._gone_since.get(node, present)
                patience = watch.gone
                if node in self._refusing:
                    patience = min(patience, watch.refusing)
                if present - heard_at < watch.silent and gone < patience:
                    watch.told.discard(node)
                elif node not in watch.told:
                    watch.told.add(node)
                    watch.tell(node)

    def _time(self) -> float:
        """Seconds of this process's own life: they pass only while it runs."""
        return min(self._now(), self._looked_at + _LATE_SECONDS) - self._stood_still
