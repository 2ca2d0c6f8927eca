"""Owns the journal of a daemon: opens it at the start, and closes it at the end. It is created for
the first consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator

from liftlog.errors import LiftlogError, StreamUnavailable
from liftlog.log import DataDir
from liftlog.server.commits.writing import WriterPool
from liftlog.server.journal.journal import Journal
from liftlog.server.journal.opening import close_journal, create_journal, open_journal
from liftlog.server.journal.records import Change
from liftlog.server.vitals.conditions import Condition
from liftlog.settings.consumers import ConsumerSettings

_MAX_NAMED = 20


class JournalHolder:
    """Belongs to the event loop."""

    def __init__(self, data_dir: DataDir, pool: WriterPool, settings: ConsumerSettings) -> None:
        self.opened: Journal | None = None
        """None if there are no consumers with acks, or the journal could not be opened."""
        self._data_dir = data_dir
        self._pool = pool
        self._settings = settings
        self._problem: LiftlogError | None = None
        self._creating = asyncio.Lock()

    async def open(self) -> None:
        """Open the journal if there is one. Raises NewerFormat, StorageError, DiskFull,
        CorruptMetadata; then there is none until the next start."""
        try:
            self.opened = await open_journal(self._data_dir, self._pool, self._settings)
        except LiftlogError as error:
            self._problem = error
            raise

    async def get(self) -> Journal:
        """Return the journal, and create it for the first consumer. Raises StreamUnavailable if it
        could not be opened, StorageError, DiskFull."""
        async with self._creating:
            if self._problem is not None:
                raise StreamUnavailable(
                    f"the journal of consumers could not be opened: {self._problem}",
                    hint="the daemon's log has the cause",
                ) from self._problem
            if self.opened is None:
                self.opened = await create_journal(self._data_dir, self._pool, self._settings)
            return self.opened

    def stream_deleted(self, incarnation: str) -> None:
        """Delete the consumers of a stream that was deleted."""
        journal = self.opened
        if journal is not None and incarnation in journal.ledger.incarnations():
            journal.write([Change.stream_deleted(incarnation)])

    def keep_only(self, incarnations: Collection[str]) -> None:
        """Delete the consumers of all other streams. These streams were deleted while this daemon
        did not run, or just before it stopped."""
        if self.opened is not None:
            for one in self.opened.ledger.incarnations():
                if one not in incarnations:
                    self.stream_deleted(one)

    def conditions(self) -> Iterator[Condition]:
        """Yield the problems of the journal."""
        journal = self.opened
        if journal is None:
            return
        if journal.problem is not None:
            yield Condition.of("consumers_not_stored", str(journal.problem))
        uncertain = journal.ledger.uncertain()
        lost = [*uncertain, *journal.ledger.lost]
        if lost:
            names = ", ".join(sorted({key.consumer for key in lost})[:_MAX_NAMED])
            text = f"{len(lost)} consumers have lost changes: {names}"
            yield Condition.of("consumers_uncertain", text)

    async def close(self) -> None:
        """Close the journal, while the writer threads run and before the data directory closes."""
        journal, self.opened = self.opened, None
        if journal is not None:
            await close_journal(self._data_dir, journal)
