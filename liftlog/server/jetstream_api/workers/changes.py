"""Passes a consumer's changes to the journal, and sends the commands that wait for these changes.
Without a cluster, commands wait only for the journal of this daemon. In a cluster, commands wait
twice: first until the followers of the stream have the changes, and then, in the outbox, for the
journal of this node.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from functools import partial
from typing import Protocol

from liftlog.errors import NotEnoughReplicas
from liftlog.server.jetstream_api.workers.outbox import Outbox
from liftlog.server.journal import Change, Journal
from liftlog.server.replication.serving_consumers import ServedConsumers

_CONFIRM_SECONDS = 4.0
"""Time limit of a confirmation, in seconds. It is lower than the timeout of JetStream's clients, 5
s."""
_MOST_BYTES = 4 * 1024 * 1024
_SPARE_BYTES = 64 * 1024
"""Additional space for a turn that began below `_MOST_BYTES`. The deliveries of such a turn are
already counted. They must not be dropped if a heartbeat of the same turn exceeds the limit."""
_ENTRY_BYTES = 128
"""Memory, in bytes, that an entry uses in addition to its commands."""


class StreamChanges(Protocol):
    """Accepts the changes of the consumers of one stream, or of all streams. It belongs to the
    event loop. All positions are positions in the journal."""

    @property
    def is_open(self) -> bool:
        """False as soon as another node may lead the stream. From then on, nothing is written or
        sent."""
        ...

    @property
    def is_full(self) -> bool:
        """True while too many bytes wait. Consumers then stop reading records."""
        ...

    def cluster(self) -> dict[str, object] | None:
        """Return JetStream's description of the nodes with a copy; None without a cluster."""
        ...

    def check(self) -> None:
        """Raise the error that states why nothing can be confirmed at present."""
        ...

    def write(self, change: Change) -> int:
        """Write a change; return its position."""
        ...

    def numbered(self, snapshot: Change) -> Change:
        """Return a snapshot with its number. The caller writes it after it was passed to other
        nodes."""
        ...

    def synced(self, position: int) -> Awaitable[None]:
        """Wait until the changes up to a position survive power cuts. Raises LiftlogError."""
        ...

    def written(self, position: int) -> asyncio.Future[None]:
        """Return a future that is done when the deliveries of the changes up to a position may be
        sent. If a write fails before that, the future gets the error."""
        ...

    def after_written(self, position: int, commands: bytes) -> None:
        """Send commands when the changes up to a position are written."""
        ...

    def after_synced(self, position: int, commands: bytes) -> None:
        """Send answers when the changes up to a position are synced."""
        ...


class LocalChanges:
    """The changes of a daemon without a cluster."""

    is_open = True

    def __init__(self, journal: Journal, outbox: Outbox) -> None:
        self._journal = journal
        self._outbox = outbox
        self.check = journal.check_writable
        self.after_written = outbox.after_written
        self.after_synced = outbox.after_synced

    @property
    def is_full(self) -> bool:
        return self._outbox.is_full

    def cluster(self) -> dict[str, object] | None:
        return None

    def write(self, change: Change) -> int:
        return self._journal.write([change])

    def synced(self, position: int) -> Awaitable[None]:
        return self._journal.synced(position)

    def written(self, position: int) -> asyncio.Future[None]:
        return self._journal.written(position)

    def numbered(self, snapshot: Change) -> Change:
        return snapshot


class ReplicatedChanges:
    """The changes of the consumers of one stream that this node leads.

    While too few replicas are in sync, deliveries, statuses and answers to acks wait. If too many
    bytes wait, no consumer delivers messages, and further statuses and answers are dropped. If an
    answer to an ack was dropped, the client repeats the ack. If the status of a pull was dropped,
    the pull ends when its own time limit is over.
    """

    def __init__(
        self, cluster: str, served: ServedConsumers, journal: Journal, outbox: Outbox
    ) -> None:
        self._cluster = cluster
        self._served = served
        self._journal = journal
        self._outbox = outbox
        self._deliveries: deque[tuple[int, bytes]] = deque()
        self._written: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._open: set[asyncio.Future[None]] = set()
        """The futures of `written` that are not done."""
        self._answers: deque[tuple[int, bytes]] = deque()
        self._size_bytes = self._answers_bytes = 0
        self.write = served.write
        self.numbered = served.numbered
        served.watch(self._confirmed)

    @property
    def is_open(self) -> bool:
        return not self._served.is_closed

    @property
    def is_full(self) -> bool:
        return self._size_bytes > _MOST_BYTES or self._outbox.is_full

    def cluster(self) -> dict[str, object] | None:
        leader = self._served.leader
        others = [one for one in leader.record.replicas if one != leader.node]
        now = asyncio.get_running_loop().time()
        replicas = [
            {
                "name": one,
                "current": one in leader.record.isr,
                "active": round(leader.states.silent_seconds(one, now) * 1e9),
            }
            for one in others
        ]
        return {"name": self._cluster, "leader": leader.node, "replicas": replicas}

    def check(self) -> None:
        self._served.check()
        self._journal.check_writable()

    async def synced(self, position: int) -> None:
        here = self._journal.synced(position)  # synced here at the same time as on the followers
        try:
            async with asyncio.timeout(_CONFIRM_SECONDS):
                await self._served.synced(position)
                await here
        except TimeoutError:
            raise NotEnoughReplicas(
                "the other replicas have not stored the change of the consumer",
                hint="try again when more replicas are in sync: see `liftlog cluster status`",
            ) from None

    def written(self, position: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self.is_open:
            future.set_exception(self._served.over())
        elif self._written or not self._served.is_written(position):
            self._written.append((position, future))
            self._note_open(future)
        else:
            here = self._journal.written(position)
            if here.done():
                return here
            self._note_open(future)
            here.add_done_callback(partial(_pass_on, future))
        return future

    def _note_open(self, future: asyncio.Future[None]) -> None:
        self._open.add(future)
        future.add_done_callback(self._open.discard)

    def after_written(self, position: int, commands: bytes) -> None:
        if not self.is_open:
            return
        if not self._deliveries and self._served.is_written(position):
            self._outbox.after_written(position, commands, self)
        elif self._size_bytes <= _MOST_BYTES + _SPARE_BYTES:
            self._deliveries.append((position, commands))
            self._size_bytes += len(commands) + _ENTRY_BYTES

    def after_synced(self, position: int, commands: bytes) -> None:
        if not self.is_open:
            return
        if not self._answers and self._served.is_synced(position):
            self._outbox.after_synced(position, commands, self)
        elif self._answers_bytes <= _MOST_BYTES:
            self._answers.append((position, commands))
            self._answers_bytes += len(commands) + _ENTRY_BYTES
            self._served.want_sync(position)
            self._journal.synced(position)  # synced here at the same time as on the followers

    def _confirmed(self) -> None:
        """Pass on the commands for the changes that the followers have. When the leadership ends,
        drop all commands. This includes commands that wait for the journal of this node or for
        NATS."""
        served, outbox = self._served, self._outbox
        if served.is_closed:
            self._deliveries.clear()
            self._answers.clear()
            self._size_bytes = self._answers_bytes = 0
            outbox.drop(self)
            for future in [one for one in self._open if not one.done()]:
                future.set_exception(served.over())
            self._written.clear()
            return
        while self._written and served.is_written(self._written[0][0]):
            position, future = self._written.popleft()
            self._journal.written(position).add_done_callback(partial(_pass_on, future))
        while self._deliveries and served.is_written(self._deliveries[0][0]):
            position, commands = self._deliveries.popleft()
            self._size_bytes -= len(commands) + _ENTRY_BYTES
            outbox.after_written(position, commands, self)
        while self._answers and served.is_synced(self._answers[0][0]):
            position, commands = self._answers.popleft()
            self._answers_bytes -= len(commands) + _ENTRY_BYTES
            outbox.after_synced(position, commands, self)


def _pass_on(to: asyncio.Future[None], done: asyncio.Future[None]) -> None:
    if to.done():
        return
    error = None if done.cancelled() else done.exception()
    if error is None:
        to.set_result(None)
    else:
        to.set_exception(error)
