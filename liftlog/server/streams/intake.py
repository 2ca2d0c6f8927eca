"""Resources that the streams share for incoming messages: writer threads, the inline budget, the
connection that sends acks, and the limit on data that waits for the disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from liftlog.log import Clock
from liftlog.sequencing import MessageRun
from liftlog.server.commits.host import StreamHost
from liftlog.server.commits.rounds import Rounds
from liftlog.server.commits.writing import InlineBudget, WriterPool
from liftlog.settings import CommitSettings

_LOOK_AGAIN_SECONDS = 0.1
_SMALL_RUN = 4096


class Ingested(NamedTuple):
    """The numbers of chunks and bytes received from NATS since the daemon started."""

    chunks: int
    size_bytes: int


class Intake:
    """Implements the streams' Committers. Belongs to the event loop."""

    def __init__(
        self,
        commit: CommitSettings,
        max_pending_bytes: int,
        clock: Clock,
        hosts: Mapping[str, StreamHost],
        *,
        start_ns: int | None = None,
    ) -> None:
        """`start_ns` is the time from which ages are computed at the start. By default, it is the
        current time of `clock`."""
        self.pool = WriterPool(commit.writer_threads)
        self.inline = InlineBudget(commit.inline_max_messages, commit.inline_budget_seconds)
        self.dirty: dict[StreamHost, None] = {}
        self.rounds = Rounds(self)
        self.write: Callable[[bytes], None] = lambda commands: None
        """The function that sends acks: `NatsLink.send`, as soon as there is a link."""
        self._collected: list[bytes] | None = None
        self.on_rolled_up: list[Callable[[str], None]] = []
        """Called with the name of a stream whose messages have erased older ones."""
        self.now_ns = clock.now_ns
        self._hosts = hosts
        self._clock = clock
        start_ns = clock.now_ns() if start_ns is None else start_ns
        self._start_ns = start_ns - clock.monotonic_ns()
        self._max_pending_bytes = max_pending_bytes
        self._kick_scheduled = False
        self._pending_estimate = 0
        self._crowded: set[StreamHost] = set()
        self._chunks = self._size_bytes = 0
        self._room = asyncio.Event()

    # --- commits ---

    def steady_ns(self) -> int:
        return self._start_ns + self._clock.monotonic_ns()

    @property
    def rounds_are_out(self) -> bool:
        return self.rounds.are_out

    def mark_dirty(self, host: StreamHost) -> None:
        """Commit this stream soon. Called while no chunk from NATS is being parsed."""
        self.dirty[host] = None
        if not self._kick_scheduled:
            self._kick_scheduled = True
            asyncio.get_running_loop().call_soon(self._kick_dirty)

    def chunk_ended(self) -> None:
        """Commit the messages of a chunk from NATS that has been parsed."""
        self._chunks += 1
        self._kick_dirty()

    def _kick_dirty(self) -> None:
        self._kick_scheduled = False
        self.inline.begin_chunk()
        dirty, self.dirty = self.dirty, {}
        self.rounds.commit(dirty)

    def send(self, commands: bytes) -> None:
        """Send NATS commands, or collect them until `one_send` ends."""
        if self._collected is None:
            self.write(commands)
        else:
            self._collected.append(commands)

    @contextlib.contextmanager
    def one_send(self) -> Iterator[None]:
        """Collect the commands of `send` until the context ends, and send them in one write."""
        if self._collected is not None:  # an outer context sends them
            yield
            return
        collected: list[bytes] = []
        self._collected = collected
        try:
            yield
        finally:
            self._collected = None
            if collected:
                self.write(b"".join(collected))

    # --- limits of waiting data ---

    def ingested(self) -> Ingested:
        """Return the counts of everything that NATS has sent so far."""
        return Ingested(self._chunks, self._size_bytes)

    def receiver(self, host: StreamHost) -> Callable[[MessageRun], None]:
        """Return the callback for messages of the subscription of `host`."""

        def receive(run: MessageRun) -> None:
            self._pending_estimate += run.memory_bytes
            self._size_bytes += run.size_bytes
            host.receive(run)
            if run.size_bytes > _SMALL_RUN and host.is_crowded():
                self._crowded.add(host)

        return receive

    def pending_changed(self) -> None:
        """Note that a commit has ended, so that reading may continue."""
        self._room.set()

    def rolled_up(self, stream: str) -> None:
        for note in self.on_rolled_up:
            note(stream)

    def reading_is_held(self) -> bool:
        """Return True while too much data waits for the disk, so that NATS must not be read."""
        return bool(self._crowded) or self._pending_estimate > self._max_pending_bytes

    async def wait_until_ready_to_read(self) -> None:
        """Wait while too much data waits for the disk. Messages that wait only for other nodes do
        not count, because they use hardly any memory.

        The daemon stops reading for all streams, but only while the crowded stream makes progress.
        A stream whose disk stalls must not delay other streams; so it refuses messages beyond its
        own limit.
        """
        while self.reading_is_held():
            self._crowded = {host for host in self._crowded if host.is_crowded()}
            self._pending_estimate = sum(
                host.sequencer.pending_bytes - host.sequencer.held_bytes
                for host in self._hosts.values()
            )
            if not self.reading_is_held():
                return
            self._room.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN_SECONDS):
                    await self._room.wait()
