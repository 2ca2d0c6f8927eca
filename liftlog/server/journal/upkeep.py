"""Keeps the log of the journal short: requests snapshots, and cuts off old segments."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from liftlog.errors import LiftlogError, StorageError
from liftlog.server.journal.jobs import Jobs
from liftlog.server.journal.ledger import Entry
from liftlog.server.journal.records import Change, ConsumerKey, Kind
from liftlog.server.journal.snapshots import Snapshots
from liftlog.server.journal.storing import JournalStore

logger = logging.getLogger("liftlog.server.journal")

_COPIED_AT_ONCE = 64

_Chosen = list[tuple[ConsumerKey, Entry]]
_Found = list[tuple[ConsumerKey, Entry, list[Change]]]


@dataclass(slots=True)
class JournalCounters:
    """Counters of the journal since the start of the daemon."""

    changes: int = 0
    snapshots: int = 0
    """Snapshots that the journal has requested."""
    copies: int = 0
    """Consumers whose records were copied."""
    appends: int = 0
    syncs: int = 0
    failures: int = 0
    """Failed writes and syncs."""
    bytes: int = 0
    """Appended bytes."""
    cut_bytes: int = 0
    unknown: int = 0
    """Number of changes that were dropped because their consumers do not exist."""


class Upkeep:
    """Decides when the log gets snapshots and loses old segments. Belongs to the event loop. `wake`
    requests a turn of the journal."""

    def __init__(
        self,
        store: JournalStore,
        jobs: Jobs,
        counters: JournalCounters,
        *,
        wake: Callable[[], None],
    ) -> None:
        self.snapshots = Snapshots(store.ledger)
        self.must_look = True
        """True if the log may have become too long. The next sync is then followed by a check."""
        self.needs_sync = False
        """True if a consumer cannot be copied before the next sync."""
        self._store = store
        self._jobs = jobs
        self._counters = counters
        self._wake = wake
        self._copied: list[tuple[ConsumerKey, Entry, list[Change]]] = []
        self._is_copying = False
        self._is_cutting = False

    def written(self, changes: Sequence[Change]) -> None:
        """Schedule the snapshots that became due by these written changes."""
        snapshots = self.snapshots
        for change in changes:
            if change.kind is Kind.DELETED:
                snapshots.forget(change.key)
            elif change.kind is not Kind.SNAPSHOT:
                snapshots.changed(change.key)
        snapshots.look_at_all()
        if snapshots.are_due:
            self._wake()

    def synced(self) -> None:
        """Cut off old segments. If old snapshots prevent the cut, schedule new snapshots of their
        consumers."""
        self.needs_sync = False
        if not self.must_look or self._is_cutting or self.snapshots.are_moving:
            return
        store, snapshots = self._store, self.snapshots
        offset = store.cut_offset()
        if offset is not None:
            self._is_cutting = True
            freed: list[int] = []
            self._jobs.run(lambda: freed.append(store.cut(offset)), partial(self._cut, freed))
        elif store.log.segment_count > 1 and snapshots.is_too_large(store.size_bytes):
            snapshots.move_from(store.log.segments[0].next_offset)
            self._wake()
        else:
            self.must_look = False

    def _cut(self, freed: list[int], error: LiftlogError | None) -> None:
        self._is_cutting = False
        self._counters.cut_bytes += sum(freed)
        if error is not None:
            self.must_look = False  # stays False until there is another segment
            logger.warning("journal-not-cut error=%s", error)

    # --- consumers that are written again ---

    def collect(self, queued: Sequence[Change]) -> list[Change]:
        """Return the snapshots and copies to append in this turn, after the `queued` changes."""
        snapshots = self.snapshots
        found: list[Change] = []
        if snapshots.are_due:
            found = snapshots.collect()
            self._counters.snapshots += len(found)
            if snapshots.are_due:
                self._wake()
        if self._copied:
            found += self._unchanged({change.key for change in queued})
        if snapshots.copies and not self._is_copying:
            self._copy_some()
        return found

    def _copy_some(self) -> None:
        """Read consumers that the owner does not have in memory."""
        entries, copies = self._store.ledger.entries, self.snapshots.copies
        chosen: _Chosen = []
        for key in list(copies)[:_COPIED_AT_ONCE]:
            entry = entries.get(key)
            if entry is None or self._store.is_readable(entry):
                del copies[key]
                if entry is not None:
                    chosen.append((key, entry))
            else:
                self.needs_sync = True
        if chosen:
            self._is_copying = True
            found: _Found = []
            self._jobs.run(
                partial(self._read_all, chosen, found), partial(self._copies_read, found)
            )

    def _read_all(self, chosen: _Chosen, found: _Found) -> None:
        for key, entry in chosen:
            try:
                found.append((key, entry, self._store.read_changes(key, entry)))
            except StorageError as error:
                logger.error("consumer-not-copied consumer=%s error=%s", "/".join(key), error)  # noqa: TRY400

    def _copies_read(self, found: _Found, error: LiftlogError | None) -> None:
        self._is_copying = False
        if error is None:
            self._copied = found
        self._wake()

    def _unchanged(self, queued: set[ConsumerKey]) -> list[Change]:
        """Return the records of the consumers that have not changed since the read. The records of
        all other consumers are read again."""
        entries = self._store.ledger.entries
        deleted = {key.incarnation for key in queued if not key.consumer}
        found: list[Change] = []
        for key, entry, changes in self._copied:
            if key in queued or key.incarnation in deleted or entries.get(key) != entry:
                self.snapshots.copies[key] = None
            else:
                self._counters.copies += 1
                found += changes
        self._copied = []
        return found
