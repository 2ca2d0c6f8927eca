"""The states of a stream's consumers with acks, on a node that follows the stream: fetches the
changes of the states from the leader, and writes them to the journal of this node.

`liftlog.cluster.consumer_states` contains the rules. This module does not decode the changes. A
request confirms the written changes and the synced changes. If a sync completes while a request
waits for changes, a new request replaces the waiting request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from liftlog.cluster.consumer_states import FollowerStates, Position, Received
from liftlog.cluster.record import StreamMetadata
from liftlog.errors import ConnectionLost, LiftlogError, ShuttingDown, StaleIncarnation
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.consumer_states import ConsumerChanges, FetchConsumers
from liftlog.server.journal import Change, ConsumerKey, Journal
from liftlog.server.journal.holding import JournalHolder
from liftlog.server.journal.records import Kind
from liftlog.server.journal.transfer import Sent, decode_changes
from liftlog.server.replication.peer_link import PeerLink

logger = logging.getLogger("liftlog.server.replication")

_SYNC_SECONDS = 0.1
"""Interval, in seconds, at which the journal syncs by itself. If no answer to a client waits for
the sync, the follower reports the sync to the leader only after this time."""
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 1.0


class FollowedConsumers:
    """Fetches the states of one stream's consumers. It does nothing while neither the leader nor
    this node has consumers. It belongs to the event loop."""

    def __init__(
        self,
        stream: str,
        incarnation: str,
        holder: JournalHolder,
        *,
        link_to: Callable[[str], PeerLink],
    ) -> None:
        self._stream = stream
        self._incarnation = incarnation
        self._holder = holder
        self._link_to = link_to
        self._loop = asyncio.get_running_loop()
        self._leader: str | None = None
        self._epoch = 0
        self._states = FollowerStates()
        self._is_wanted = asyncio.Event()
        self._has_news = asyncio.Event()
        """An event that is set when the open request is answered, or must be replaced."""
        self._to_sync = asyncio.Event()
        self._is_urgent = asyncio.Event()
        self._sync_until = 0  # answers to clients wait for the numbers up to this one
        # The last written change, and its position.
        self._last: tuple[FollowerStates, Position, int] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closed = False

    @property
    def has_old_states(self) -> bool:
        """True if the states of consumers on this node may differ from the leader's states."""
        return not self._states.is_complete and bool(self._holder.consumers_of(self._incarnation))

    # --- events ---

    def assigned(self, record: StreamMetadata) -> None:
        """Note the leader. In a new epoch all states are fetched again."""
        if (record.leader, record.leader_epoch) == (self._leader, self._epoch):
            return
        self._leader, self._epoch = record.leader, record.leader_epoch
        self._states = FollowerStates()
        self._sync_until = 0
        self._is_wanted.clear()
        self._has_news.set()
        if self._leader is not None and self.has_old_states:
            self.wanted()

    def connected(self, node: str) -> None:
        """Note that `node` is connected again."""
        if node == self._leader:
            self._has_news.set()

    def wanted(self) -> None:
        """Fetch the states, because the leader has consumers."""
        if self._is_closed:
            return
        self._is_wanted.set()
        if not self._tasks:
            self._tasks = [
                self._loop.create_task(self._keep_fetching()),
                self._loop.create_task(self._keep_synced()),
            ]

    def close(self) -> None:
        """Stop fetching. Changes that the journal has accepted are still written."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()

    # --- the exchange ---

    async def _keep_fetching(self) -> None:
        pause, told = _FIRST_PAUSE_SECONDS, ""
        while True:
            await self._is_wanted.wait()
            try:
                await self._fetch()
                pause, told = _FIRST_PAUSE_SECONDS, ""
            except LiftlogError as error:
                if told != str(error) and not isinstance(error, ConnectionLost):
                    told = str(error)
                    logger.warning("consumers-not-fetched stream=%s error=%s", self._stream, error)
                self._has_news.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._has_news.wait()
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            except Exception as error:  # a supervisor: the leader stops waiting for this node
                logger.exception("consumers-not-fetched stream=%s error=%r", self._stream, error)
                await asyncio.sleep(_LONGEST_PAUSE_SECONDS)

    async def _fetch(self) -> None:
        """Send one request, and write the changes in its answer. Returns early if the request must
        be replaced."""
        states, leader, epoch = self._states, self._leader, self._epoch
        if leader is None:
            self._is_wanted.clear()
            return
        self._has_news.clear()
        position = None if states.position is None else [*states.position]
        request = FetchConsumers(self._stream, self._incarnation, epoch, position)
        exchange = await self._ask(self._link_to(leader), request)
        if exchange is None or states is not self._states:
            return
        if exchange.error is not None:
            raise exchange.error
        answer = exchange.answer
        if not isinstance(answer, ConsumerChanges) or answer.epoch != epoch:
            raise StaleIncarnation("the leader answered something else")
        body = b"" if exchange.body is None else exchange.body
        sent = decode_changes(self._incarnation, epoch, body)
        await self._store(states, answer, sent)

    async def _ask(self, link: PeerLink, request: FetchConsumers) -> Exchange | None:
        """Return the answered exchange; None if the request must be replaced before the answer
        arrives."""
        exchange = Exchange(on_done=lambda _: self._has_news.set())
        link.request(request, exchange)
        try:
            await self._has_news.wait()
        finally:
            if not exchange.done:
                link.give_up(exchange)
        return exchange if exchange.done else None

    async def _store(
        self, states: FollowerStates, answer: ConsumerChanges, sent: list[Sent]
    ) -> None:
        """Write the changes of an answer, and wait until they survive the end of this process."""
        wanted, gone = states.answered(
            answer.base,
            answer.written,
            [_received(one) for one in sent],
            self._holder.consumers_of(self._incarnation),
        )
        changes = [sent[index].change for index in wanted]
        changes += [Change.deleted(ConsumerKey(self._incarnation, name)) for name in gone]
        if gone:
            logger.info("consumers-dropped stream=%s names=%s", self._stream, ",".join(gone[:20]))
        if changes or self._holder.opened is not None:
            journal = await self._holder.get()
            at = journal.write(changes) if changes else journal.accepted_position
            await _written(journal, at)
        else:
            at = 0
        states.written(answer.written, answer.cursor)
        assert states.position is not None
        if states is not self._states:
            return  # another epoch has begun, and it has its own numbers
        self._last = states, states.position, at
        self._sync_until = max(self._sync_until, answer.sync)
        self._to_sync.set()
        if states.position.synced < self._sync_until:
            self._is_urgent.set()

    async def _keep_synced(self) -> None:
        """Sync the written changes, and report this to the leader."""
        while True:
            await self._to_sync.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SYNC_SECONDS):
                    await self._is_urgent.wait()
            self._to_sync.clear()
            self._is_urgent.clear()
            last, journal = self._last, self._holder.opened
            if last is None:
                continue
            states, position, at = last
            if journal is not None:
                try:
                    await journal.synced(at)
                except LiftlogError:
                    await journal.writable()
                    self._to_sync.set()
                    continue
            if states.synced(position.base, position.written) and states is self._states:
                self._has_news.set()


async def _written(journal: Journal, at: int) -> None:
    while True:
        try:
            await journal.written(at)
        except ShuttingDown:
            raise
        except LiftlogError:  # the journal retries by itself
            await journal.writable()
        else:
            return


def _received(sent: Sent) -> Received:
    change = sent.change
    return Received(
        change.key.consumer,
        change.version.number,
        is_snapshot=change.kind is Kind.SNAPSHOT,
        is_deletion=change.kind is Kind.DELETED,
        continues=sent.continues,
    )
