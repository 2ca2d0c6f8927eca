"""Damage that a reader met: in the books of the daemon before anybody is told.

The scrubber would find it too, in its time. Until then each reader would meet it anew, and neither
metrics nor health would say anything.
"""

from __future__ import annotations

import logging
from typing import Protocol

from liftlog.errors import CorruptRange, DiskFull

logger = logging.getLogger("liftlog.server")


class Quarantining(Protocol):
    """See `liftlog.log.Log`."""

    def is_quarantined(self, first_offset: int, next_offset: int) -> bool: ...
    def quarantine_damage(self, first_offset: int, next_offset: int) -> None: ...


def quarantine_damage(log: Quarantining, first_offset: int, next_offset: int) -> None:
    """Quarantine what is damaged there, unless all of it is known. Blocking: for threads.

    Raises StorageError: who cannot write to the disk either knows little about what is on it, so
    readers had better try again. With the disk full they are told the damage all the same.
    """
    if log.is_quarantined(first_offset, next_offset):
        return
    try:
        log.quarantine_damage(first_offset, next_offset)
    except DiskFull as error:
        logger.warning(
            "damage-not-quarantined first_offset=%d next_offset=%d error=%s",
            first_offset,
            next_offset,
            error,
        )


def quarantine_found(log: Quarantining, damage: CorruptRange) -> None:
    """The same for the range that was told."""
    quarantine_damage(log, damage.first_offset, damage.next_offset)
