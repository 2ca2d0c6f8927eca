"""Owns the journal of a daemon: opens it at the start, and closes it at the end. The journal is
created for the first consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator

from liftlog.errors import LiftlogError, StreamUnavailable
from liftlog.log import DataDir
from liftlog.server.commits.writing import WriterPool
from liftlog.server.journal.journal import Journal
from liftlog.server.journal.opening import JOURNAL, close_journal, create_journal, open_journal
from liftlog.server.journal.records import Change
from liftlog.server.metadata.records import RECORDS_NAME, StreamRecords
from liftlog.server.vitals.conditions import Condition
from liftlog.settings.consumers import ConsumerSettings

_MAX_NAMED = 20


class JournalHolder:
    """Holds the open journal, if there is one. Belongs to the event loop."""

    def __init__(
        self,
        data_dir: DataDir,
        pool: WriterPool,
        settings: ConsumerSettings,
        records: StreamRecords | None,
    ) -> None:
        """`records` is the file that states whether a journal exists. It is None in a cluster."""
        self.opened: Journal | None = None
        """The open journal. It is None if this daemon has no consumers with acks, or if the journal
        could not be opened."""
        self._data_dir = data_dir
        self._pool = pool
        self._settings = settings
        self._records = records
        self.problem: LiftlogError | None = None
        """The reason why the journal could not be opened; empty if there is no problem."""
        self._creation: asyncio.Task[None] | None = None
        self._was_opened = asyncio.Event()

    async def open(self) -> None:
        """Open the journal if it exists. After an error no journal is open until the next start.
        Raises NewerFormat, StorageError, DiskFull, CorruptMetadata."""
        try:
            self.opened = await open_journal(self._data_dir, self._pool, self._settings)
        except LiftlogError as error:
            self.problem = error
            raise
        finally:
            self._was_opened.set()

    async def was_opened(self) -> None:
        """Wait until the journal was opened, or until opening it has failed."""
        await self._was_opened.wait()

    async def check_held(self) -> str:
        """Note in the records that the data directory has a journal. If the records name a journal
        but its directory is missing, return a problem, and create no journal until the next start.
        A new journal would not contain the earlier consumers. Clients would then create them again,
        and they would deliver all records again."""
        records = self._records
        if records is None or self.problem is not None:
            return ""
        if self.opened is not None:
            await records.hold([JOURNAL])
            return ""
        path = self._data_dir.stream_path(JOURNAL)
        if records.is_held(JOURNAL):
            why = f"its directory {path} is missing, and this data directory had it"
        elif records.problem:
            why = f"it is not known whether this data directory had it: {records.problem}"
        else:
            return ""
        why += (
            "; put it back and restart the daemon. If it is gone for good, and all streams are "
            f"there, stop the daemon and take the file {RECORDS_NAME} away: the daemon then "
            "starts without consumers with acks"
        )
        self.problem = StreamUnavailable(why)
        return why

    async def get(self) -> Journal:
        """Return the journal. If it does not exist, create it for the first consumer. Raises
        StreamUnavailable if the journal could not be opened. Raises StorageError, DiskFull."""
        if self.problem is not None:
            raise StreamUnavailable(
                f"the journal of consumers could not be opened: {self.problem}",
                hint="the daemon's log has the cause",
            ) from self.problem
        if self.opened is None and self._creation is None:
            self._creation = asyncio.create_task(self._create(), name="journal-create")
        if self._creation is not None:
            # If the request is cancelled, the thread that creates the journal continues.
            await asyncio.shield(self._creation)
        assert self.opened is not None
        return self.opened

    async def _create(self) -> None:
        try:
            self.opened = await create_journal(self._data_dir, self._pool, self._settings)
            await self.check_held()
        finally:
            self._creation = None

    def consumers_of(self, incarnation: str) -> set[str]:
        """Return the consumers of a stream, according to all accepted changes."""
        return set() if self.opened is None else self.opened.names.of(incarnation)

    def stream_deleted(self, incarnation: str) -> None:
        """Delete the consumers of a stream that was deleted."""
        journal = self.opened
        if journal is not None and journal.names.of(incarnation):
            journal.write([Change.stream_deleted(incarnation)])

    def keep_only(self, incarnations: Collection[str]) -> None:
        """Delete the consumers of all streams except these. The other streams were deleted while
        this daemon did not run, or just before it stopped."""
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
        """Close the journal. Call this while the writer threads run, and before the data directory
        is closed."""
        if self._creation is not None:
            await asyncio.gather(self._creation, return_exceptions=True)
        journal, self.opened = self.opened, None
        if journal is not None:
            await close_journal(self._data_dir, journal, self._records)
