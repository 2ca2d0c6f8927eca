"""Tracks the other nodes that are in contact with this node.

Nodes ping each other continuously, so a live node is never silent for long. Every message of a node
counts, not only its pings. Time in which this process did not run does not count as silence: the
process was stopped, or its machine was suspended. Messages that arrived during this time have not
been read yet.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

LOOK_SECONDS = 0.1
"""Interval, in seconds, of the checks for silence. The report of a silence is late by at most this
time."""

HUNG_SECONDS = 3.0
"""Acks stop waiting for a node that has been silent for this time (in seconds)."""

ENDED_SECONDS = 0.3
"""Like `HUNG_SECONDS`, for a node whose machine reports that the node's process has ended."""

_LATE_SECONDS = 3 * LOOK_SECONDS


@dataclass(slots=True)
class _Watch:
    tell: Callable[[str], None]
    silent: float
    gone: float
    refusing: float
    told: set[str] = field(default_factory=set)


class Hearing:
    """Measures how long other nodes have been silent. Belongs to one event loop; `run` checks until
    it is cancelled. `now` is monotonic, in seconds.

    Code that must react to a silence registers once, by `watch`, and does not have to poll.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._looked_at = now()
        self._stood_still = 0.0
        self._heard: dict[str, float] = {}
        self._fresh: set[str] = set()  # received since the last check
        self._connections: dict[str, int] = {}
        self._gone_since: dict[str, float] = {}
        self._refusing: set[str] = set()
        self._watches: list[_Watch] = []

    # --- signs of life ---

    def expect(self, node: str) -> None:
        """Note that `node` exists. At the first call for a node, the measurement of its silence
        begins."""
        if node not in self._heard:
            self._heard[node] = self._gone_since[node] = self._time()

    def heard(self, node: str) -> None:
        """Note that a message has arrived from `node`."""
        self._fresh.add(node)

    def connected(self, node: str) -> None:
        """Note a new connection to or from `node`."""
        self.expect(node)
        self._connections[node] = self._connections.get(node, 0) + 1
        self._gone_since.pop(node, None)
        self._refusing.discard(node)
        self.heard(node)

    def refused(self, node: str) -> None:
        """Note that the machine of `node` reports that no process listens there. Ignored if there
        was no connection before, because the node may not have begun to listen yet."""
        if self._connections.get(node) == 0:
            self._refusing.add(node)

    def disconnected(self, node: str) -> None:
        """Note the end of a connection to or from `node`."""
        self._connections[node] -= 1
        if not self._connections[node]:
            self._gone_since[node] = self._time()

    # --- queries ---

    def silent_seconds(self, node: str) -> float:
        """Return the seconds since the last message from `node`, or since `expect` if the node has
        never sent one."""
        if node in self._fresh or node not in self._heard:
            return 0.0
        return self._time() - self._heard[node]

    def gone_seconds(self, node: str) -> float:
        """Return the time, in seconds, without any connection to or from `node`; 0.0 while a
        connection exists."""
        since = self._gone_since.get(node)
        return 0.0 if since is None else self._time() - since

    def is_refusing(self, node: str) -> bool:
        """Return True if `node` has no connection because no process listens there."""
        return node in self._refusing

    def watch(
        self,
        tell: Callable[[str], None],
        *,
        silent: float,
        gone: float = math.inf,
        refusing: float = math.inf,
    ) -> None:
        """Call `tell` with a node in one of these cases:

        - no message has arrived from it for `silent` seconds
        - it has had no connection for `gone` seconds
        - no process has listened there for `refusing` seconds

        `tell` is called once for such a silence. It is called again only if the node has sent a
        message and has then fallen silent again.
        """
        self._watches.append(_Watch(tell, silent, gone, refusing))

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Call the callbacks that are due."""
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
        """Return the time, in seconds, for which this process has run. Time in which the process
        was stopped is not included."""
        return min(self._now(), self._looked_at + _LATE_SECONDS) - self._stood_still
