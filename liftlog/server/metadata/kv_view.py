"""This node's view of the bucket, put together from notices and scans. No I/O.

Neither source is reliable alone: notices may be missed, and a server that lags behind or no longer
leads may answer a scan. Sequences normally only rise, so the view ignores entries that are older
than its own entries. Sequences fall only if the bucket was restored from an older copy, or was
created again. The result of a write can prove this. The view is then filled again from the
beginning.
"""

from __future__ import annotations

from collections.abc import Mapping

from liftlog.cluster.store import Entry
from liftlog.server.metadata.kv_bucket import ABSENT, Found, Notice

Changes = dict[str, Entry | None]
"""Maps each changed key to its newest entry, or to None if the key was deleted or has expired."""


class BucketView:
    """The view of the bucket. `highest` is the newest sequence that was seen. `has_missed` is True
    if changes may have been missed."""

    def __init__(self) -> None:
        self.highest = 0
        self.has_missed = True
        self._found: dict[str, Found] = {}

    @property
    def messages(self) -> int:
        """Number of messages in the bucket, according to this view."""
        return len(self._found)

    def entries(self, prefix: str) -> Changes:
        return {
            key: one.entry
            for key, one in self._found.items()
            if one.value is not None and key.startswith(prefix)
        }

    def note(self, notice: Notice) -> Changes:
        """Add a notice; returns the changes."""
        sequence = notice.found.sequence
        if sequence > self.highest:
            self.has_missed = self.has_missed or sequence != self.highest + 1
            self.highest = sequence
        return self._take(notice.key, notice.found)

    def scanned(self, found: Mapping[str, Found], last_sequence: int) -> Changes:
        """Add the result of a scan of all keys; returns the changes.

        `found` contains ABSENT for a key that the scan listed but could not read. `last_sequence`
        is the bucket's last sequence before the scan.
        """
        changes: Changes = {}
        for key, one in found.items():
            changes |= self._take(key, one)
            self.highest = max(self.highest, one.sequence)
        for key, known in list(self._found.items()):
            if key not in found and known.sequence <= last_sequence:
                del self._found[key]
                if known.value is not None:
                    changes[key] = None
        self.has_missed = False
        return changes

    def set_back(self) -> None:
        """Note that the bucket has returned to an older state. The result of the next scan is
        accepted, even if it is older than the view."""
        self.highest = 0
        self.has_missed = True
        self._found = {key: Found(0, one.value) for key, one in self._found.items()}

    def _take(self, key: str, found: Found) -> Changes:
        known = self._found.get(key, ABSENT)
        if found.sequence <= known.sequence:
            return {}
        self._found[key] = found
        if found.value is None and known.value is None:
            return {}
        return {key: found.entry}
