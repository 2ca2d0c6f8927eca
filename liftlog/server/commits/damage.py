"""Quarantines damage that a reader finds, before the reader gets the error.

The scrubber would also find the damage, but later. Until then every reader would get the error
again, and neither metrics nor health would report the damage.
"""

from __future__ import annotations

import logging

from liftlog.errors import CorruptRange, DiskFull
from liftlog.log import Log

logger = logging.getLogger("liftlog.server")


def quarantine_damage(log: Log, first_offset: int, next_offset: int) -> None:
    """Quarantine the damage in this range, unless all of it is already known. Blocking, so call it
    in a thread.

    Raises StorageError if the manifest cannot be written. In this case the fault may be temporary,
    because even writes fail, so the reader should retry. If the disk is full, the failure is only
    logged, and the reader gets the error about the damage.
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


def quarantine_found(log: Log, damage: CorruptRange) -> None:
    """Call `quarantine_damage` for the range of an error."""
    quarantine_damage(log, damage.first_offset, damage.next_offset)
