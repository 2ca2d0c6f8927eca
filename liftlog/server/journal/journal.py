"""The journal of consumers: writes their changes, syncs them, and keeps its log short.

The changes of one turn of the event loop form one append, even if they belong to different
consumers and streams. One sync confirms everything that was written before it. A sync runs in a
writer thread, and appends continue during the sync. If a write or a sync fails, all waiting futures
get the error. The journal drops no change: it retries all changes that are not synced, in their
order.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from liftlog.errors import LiftlogError, ShuttingDown, StorageError, SyncFailed
from liftlog.log import ActiveState
from liftlog.server.commits.writing import InlineBudget, WriterPool
from liftlog.server.journal.content import StoredConsumer
from liftlog.server.journal.jobs import Done, Jobs, typed
from liftlog.server.journal.ledger import Entry
from liftlog.server.journal.names import Names
from liftlog.server.journal.records import Change, ConsumerKey
from liftlog.server.journal.snapshots import Owner
from liftlog.server.journal.storing import JournalStore, Prepared
from liftlog.server.journal.upkeep import JournalCounters, Upkeep
from liftlog.server.vitals.rare_warnings import RareWarnings

logger = logging.getLogger("liftlog.server.journal")

_INLINE_BYTES = 256 * 1024
"""An append above this size, in bytes, runs in a writer thread."""
_FIRST_RETRY_SECONDS = 0.1
_LAST_RETRY_SECONDS = 5.0

Read = TypeVar("Read")
Waiting = list[tuple[int, asyncio.Future[None]]]
"""Futures, each with the position that it waits for."""


class Journal:
    """Writes changes of consumers to the log, and reads consumers from it. Belongs to the event
    loop."""

    def __init__(
        self, store: JournalStore, pool: WriterPool, *, flush_interval_seconds: float
    ) -> None:
        self.counters = JournalCounters()
        self.problem: LiftlogError | None = None
        """The error of the last failed write or sync; None while writes succeed."""
        self.ledger = store.ledger
        """The written state of all consumers. Only the journal may change it."""
        self.on_progress: Callable[[], None] = lambda: None
        """A callback that runs when `written_position` or `synced_position` has moved. It must not
        raise."""
        self._store = store
        self._warnings = RareWarnings(logger)
        self._inline: InlineBudget | None = None
        self._flush_seconds = flush_interval_seconds
        self._queue: list[Change] = []
        self._accepted = 0
        self.names = Names(store.ledger)
        self._turn_is_due = False
        self._jobs = jobs = Jobs(pool)
        self._upkeep = Upkeep(store, jobs, self.counters, wake=self._soon)
        self._is_working = False
        self._is_appending = False  # True while an append runs in a thread
        self._must_sync = False
        self._is_closed = False
        self._flush_timer: asyncio.TimerHandle | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._retry_seconds = _FIRST_RETRY_SECONDS
        self._to_write: Waiting = []
        self._to_sync: Waiting = []
        self._recovered = asyncio.Event()
        self._recovered.set()

    def set_owner(self, owner: Owner) -> None:
        """Set the function that returns the snapshots of consumers; see `Owner`."""
        self._upkeep.snapshots.owner = owner

    def set_inline(self, budget: InlineBudget) -> None:
        """Allow syncs inside the event loop, within this budget."""
        self._inline = budget

    # --- writing ---

    def check_writable(self) -> None:
        """Raise the error of the last write or sync if it failed: DiskFull, StorageError. While
        this method raises an error, consumers must not deliver or confirm anything. Raises
        ShuttingDown after `close`."""
        if self._is_closed:
            raise ShuttingDown("the journal of consumers is closed")
        if self.problem is not None:
            raise self.problem

    async def writable(self) -> None:
        """Wait until writes and syncs succeed again and all changes that were accepted before are
        synced."""
        await self._recovered.wait()

    def write(self, changes: Iterable[Change]) -> int:
        """Accept changes, to be appended at the end of this turn of the loop. Returns the position
        of the last change.

        The journal keeps the order of the changes. If a consumer does not exist, its deltas and
        settings are dropped. While writes fail, the changes wait, and are written later. So if a
        client gets a refusal for a change that the journal has accepted, the caller must write
        another change that undoes it.
        """
        self._accept(list(changes))
        self._soon()
        return self._accepted

    def append_now(self) -> None:
        """Append the accepted changes now, instead of at the end of this turn of the loop."""
        if self._turn_is_due:
            self._turn()

    def sync_soon(self) -> None:
        """Request a sync of all accepted changes at once. Like `synced`, but returns no future."""
        self._must_sync = True
        self._soon()

    def _accept(self, changes: Sequence[Change]) -> None:
        self._queue += changes
        self._accepted += len(changes)
        self.names.note(changes)

    @property
    def accepted_position(self) -> int:
        """Position of the last change that was accepted."""
        return self._accepted

    @property
    def unsynced(self) -> int:
        """Number of accepted changes that are not synced. They are kept in memory."""
        return self._accepted - self.synced_position

    @property
    def written_position(self) -> int:
        """All changes up to this position are written, and survive a crash of the process."""
        return self._store.written_position

    @property
    def synced_position(self) -> int:
        """All changes up to this position are synced, and survive a power failure."""
        return self._store.synced_position

    def written(self, position: int) -> asyncio.Future[None]:
        """Return a future that is done when all changes up to `position` are written. If a write or
        sync fails before that, the future gets the error."""
        return self._wait(position, self.written_position, self._to_write)

    def synced(self, position: int) -> asyncio.Future[None]:
        """Request a sync of all changes up to `position`, and return a future that is done when
        they are synced. If a write or sync fails before that, the future gets the error."""
        return self._wait(position, self.synced_position, self._to_sync)

    def _wait(self, position: int, reached: int, waiting: Waiting) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if position <= reached:
            future.set_result(None)
        elif self._is_closed:
            _fail(future, ShuttingDown("the journal of consumers is closed"))
        elif self.problem is not None:
            _fail(future, self.problem)
        else:
            waiting.append((position, future))
            self._soon()
        return future

    # --- turns ---

    def _soon(self) -> None:
        if not self._turn_is_due and not self._is_closed:
            self._turn_is_due = True
            asyncio.get_running_loop().call_soon(self.append_now)

    def _turn(self) -> None:
        self._turn_is_due = False
        if self.problem is not None or self._is_closed:
            return
        if not self._is_appending:
            self._accept(self._upkeep.collect(self._queue))
            if self._upkeep.needs_sync:
                self._must_sync = True
            if self._queue:
                self._append()
        self._begin_sync()

    def _append(self) -> None:
        prepared = self._store.prepare(self._queue)
        if prepared.size_bytes > _INLINE_BYTES or self._store.rolls(prepared):
            if not self._is_working:  # otherwise the changes are appended after the running sync
                self._queue = []
                self._is_appending = True
                self._work(
                    partial(self._store.write, prepared), partial(self._append_ended, prepared)
                )
            return
        try:
            self._store.write(prepared)
        except Exception as error:  # noqa: BLE001  # a supervisor: the journal tries again
            self._failed(typed(error))
            return
        self._queue = []
        self._appended(prepared)

    def _append_ended(self, prepared: Prepared, error: LiftlogError | None) -> None:
        self._is_appending = False
        if error is not None:
            self._queue = [*prepared.changes, *self._queue]
            self._failed(error)
            return
        self._upkeep.must_look = True
        self._appended(prepared)

    def _appended(self, prepared: Prepared) -> None:
        store, counters = self._store, self.counters
        store.written(prepared)
        counters.appends += 1
        counters.changes += len(prepared.changes)
        counters.bytes += prepared.size_bytes
        unknown = prepared.offsets.count(0)
        if unknown:
            counters.unknown += unknown
            self._warnings.warn("changes-of-unknown-consumers")
        self._upkeep.written(prepared.changes)
        _settle(self._to_write, store.written_position)
        if self._flush_timer is None:
            loop = asyncio.get_running_loop()
            self._flush_timer = loop.call_later(self._flush_seconds, self._flush_is_due)
        self.on_progress()

    # --- syncs ---

    def _flush_is_due(self) -> None:
        self._flush_timer = None
        self._must_sync = True
        if self.problem is None:
            self._begin_sync()

    def _begin_sync(self) -> None:
        if self._is_working or not (self._must_sync or self._to_sync):
            return
        if not self._store.has_unsynced:
            self._must_sync = False
            _settle(self._to_sync, self.synced_position)
            return
        self._must_sync = False
        self._stop_flush_timer()
        count = self._store.written_position - self.synced_position
        self._store.sync_begins()
        if self._inline is not None and self._inline.allows(count):
            self._sync_inline(self._inline)
        else:
            self._work(self._store.sync, self._sync_ended)

    def _sync_inline(self, budget: InlineBudget) -> None:
        began = time.perf_counter()
        error: LiftlogError | None = None
        try:
            self._store.sync()
        except Exception as caught:  # noqa: BLE001  # a supervisor: the journal tries again
            error = typed(caught)
        budget.spent(time.perf_counter() - began)
        # The next turn of the loop gets its own budget, whether messages come from NATS or not.
        asyncio.get_running_loop().call_soon(budget.begin_chunk)
        self._sync_ended(error)

    def _stop_flush_timer(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None

    def _sync_ended(self, error: LiftlogError | None) -> None:
        if error is None:
            error = self._note_synced()
        if error is not None:
            self._failed(error)
            return
        self._soon()

    def _note_synced(self) -> LiftlogError | None:
        try:
            self._store.synced()
        except LiftlogError as error:
            return error
        self.counters.syncs += 1
        if self._inline is not None:
            self._inline.observe(self._store.log.writer.last_sync_seconds)
        _settle(self._to_sync, self.synced_position)
        self._upkeep.synced()
        self.on_progress()
        return None

    def _work(self, call: Callable[[], object], done: Done) -> None:
        """Run a blocking call in a writer thread, one at a time."""
        self._is_working = True
        self._jobs.run(call, partial(self._work_ended, done))

    def _work_ended(self, done: Done, error: LiftlogError | None) -> None:
        self._is_working = False
        done(error)

    # --- failures ---

    def _failed(self, error: LiftlogError) -> None:
        """Pass the error to all waiting futures, and schedule a retry."""
        self.counters.failures += 1
        logger.error("journal-not-written error=%s retry_seconds=%.1f", error, self._retry_seconds)
        if isinstance(error, SyncFailed):
            self._queue = [*self._store.failed(), *self._queue]
        self.problem = error
        self._recovered.clear()
        self._stop_flush_timer()
        for waiting in (self._to_write, self._to_sync):
            for _, future in waiting:
                _fail(future, error)
            waiting.clear()
        self._retry_later()

    def _retry_later(self) -> None:
        if self._retry_timer is None and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._retry_timer = loop.call_later(self._retry_seconds, self._retry)
            self._retry_seconds = min(2 * self._retry_seconds, _LAST_RETRY_SECONDS)

    def _retry(self) -> None:
        self._retry_timer = None
        if self._is_working:  # an append failed while a sync was running
            self._retry_later()
        elif self._store.must_abandon:
            self._work(self._store.abandon, self._abandoned)
        else:
            self._abandoned(None)

    def _abandoned(self, error: LiftlogError | None) -> None:
        if error is not None:
            self._failed(error)
            return
        changes, self._queue = self._queue, []
        prepared = self._store.prepare(changes)
        self._work(partial(self._write_and_sync, prepared), partial(self._retried, prepared))

    def _write_and_sync(self, prepared: Prepared) -> None:
        self._store.write(prepared)
        self._store.sync()

    def _retried(self, prepared: Prepared, error: LiftlogError | None) -> None:
        if error is None:
            self._store.written(prepared)
            self._store.sync_begins()
            error = self._note_synced()
        else:
            self._queue = [*prepared.changes, *self._queue]
        if error is not None:
            self._failed(error)
            return
        logger.warning("journal-written-again changes=%d", len(prepared.changes))
        self.problem = None
        self._retry_seconds = _FIRST_RETRY_SECONDS
        self._recovered.set()
        self._soon()

    # --- reading ---

    @property
    def size_bytes(self) -> int:
        """Size of the log in bytes."""
        return self._store.size_bytes

    async def load(self, key: ConsumerKey) -> StoredConsumer | None:
        """Read a consumer, including all changes that were already passed to `write`. Returns None
        if the consumer does not exist. While the journal cannot be written, waits for `writable`.
        Raises StorageError, ShuttingDown."""
        return await self._read(key, self._store.read)

    async def records_of(self, key: ConsumerKey) -> list[Change]:
        """Read the records of a consumer, from its snapshot on. The result is empty if the consumer
        does not exist. Call this only while the consumer does not change. Waits like `load`, and
        raises the same errors."""
        return await self._read(key, self._store.read_changes) or []

    async def _read(
        self, key: ConsumerKey, read: Callable[[ConsumerKey, Entry], Read]
    ) -> Read | None:
        while True:
            while self._queue or self._store.has_unsynced:
                try:
                    await self.synced(self._accepted)
                except ShuttingDown:
                    raise
                except LiftlogError:
                    await self.writable()
            entry = self._store.ledger.entries.get(key)
            if entry is None:
                return None
            try:
                return await asyncio.to_thread(read, key, entry)
            except StorageError:
                # Meanwhile, the upkeep may have copied the consumer, and removed the records that
                # were read.
                if self._store.ledger.entries.get(key) == entry:
                    raise

    # --- the end ---

    async def close(self) -> ActiveState | None:
        """Write and sync the accepted changes, and close the log. Returns the state of the log's
        end for the clean marker. Returns None if some changes are not synced. The writer threads
        must still run."""
        try:
            await self.synced(self._accepted)
        except LiftlogError as error:
            logger.error("changes-lost count=%d error=%s", len(self._queue), error)  # noqa: TRY400
        self._is_closed = True
        self._stop_flush_timer()
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        await self._jobs.ended()
        return await asyncio.to_thread(self._store.close)


def _settle(waiting: Waiting, position: int) -> None:
    """Complete the futures that wait for `position` or a lower position."""
    if not waiting:
        return
    later = [one for one in waiting if one[0] > position]
    for wanted, future in waiting:
        if wanted <= position and not future.done():
            future.set_result(None)
    waiting[:] = later


def _fail(future: asyncio.Future[None], error: LiftlogError) -> None:
    if not future.done():
        future.set_exception(error)
        # Without this call, asyncio would report an error that nobody has awaited.
        future.exception()
