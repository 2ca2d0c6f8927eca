"""The names of all consumers, according to the changes that the journal has accepted."""

from __future__ import annotations

from collections.abc import Iterable

from liftlog.server.journal.ledger import Ledger
from liftlog.server.journal.records import Change, ConsumerKey, Kind


class Names:
    def __init__(self, ledger: Ledger) -> None:
        """Begin with the consumers in the log."""
        self._by_stream = {one: set(ledger.consumers_of(one)) for one in ledger.incarnations()}

    def note(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if change.kind is Kind.SNAPSHOT:
                self._by_stream.setdefault(change.key.incarnation, set()).add(change.key.consumer)
            elif change.kind is Kind.DELETED:
                self._delete(*change.key)

    def _delete(self, incarnation: str, name: str) -> None:
        if name:
            self._by_stream.get(incarnation, set()).discard(name)
        else:
            self._by_stream.pop(incarnation, None)

    def has(self, key: ConsumerKey) -> bool:
        """Return True if this consumer exists."""
        return key.consumer in self._by_stream.get(key.incarnation, ())

    def of(self, incarnation: str) -> set[str]:
        """Return the consumers of a stream."""
        return set(self._by_stream.get(incarnation, ()))
