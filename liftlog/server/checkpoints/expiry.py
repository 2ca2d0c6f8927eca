"""Expires the checkpoints of consumers that are gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from liftlog.errors import CheckpointMoved, LiftlogError, StreamNotFound
from liftlog.server.checkpoints.layout import CheckpointKey, Stored
from liftlog.server.checkpoints.service import Checkpoints
from liftlog.server.commits.host import StreamHost

logger = logging.getLogger("liftlog.server.checkpoints")

_AT_ONCE = 1000


async def expire(
    checkpoints: Checkpoints,
    find_stream: Callable[[str], StreamHost],
    before_ns: int,
) -> int:
    """Delete checkpoints that were committed before `before_ns` although there have been records to
    read since. A consumer of a quiet stream has nothing to commit, so it is not taken for gone.
    Returns how many were deleted.

    Checkpoints of streams that were deleted or recreated expire by age alone.
    """
    table = checkpoints.table
    # A newer checkpoint than an uncertain one may be lost, so its age says nothing.
    old = [
        (key, stored)
        for key, stored in table.items()
        if stored.time_ns < before_ns and not table.is_uncertain(key)
    ]
    waited: dict[str, tuple[str, int] | None] = {}
    count = 0
    for start in range(0, len(old), _AT_ONCE):
        due = []
        for key, stored in old[start : start + _AT_ONCE]:
            stream = key[1]
            if stream not in waited:
                waited[stream] = await _unread_since(find_stream, stream, before_ns)
            known = waited[stream]
            if known is not None and (stored.incarnation != known[0] or stored.offset < known[1]):
                due.append((key, stored))
        done = await asyncio.gather(*(_forget(checkpoints, key, stored) for key, stored in due))
        count += sum(done)
    if count:
        logger.info("checkpoints-expired count=%d", count)
    return count


async def _unread_since(
    find_stream: Callable[[str], StreamHost], name: str, before_ns: int
) -> tuple[str, int] | None:
    """Incarnation of the stream, and its first offset that is not older than `before_ns`. None if
    the stream exists but cannot be read."""
    try:
        log = find_stream(name).log
        return log.incarnation, await asyncio.to_thread(log.offset_for_timestamp, before_ns)
    except StreamNotFound:
        return "", 0
    except LiftlogError as error:
        logger.warning("checkpoints-not-expired stream=%s error=%s", name, error)
        return None


async def _forget(checkpoints: Checkpoints, key: CheckpointKey, stored: Stored) -> bool:
    try:
        await checkpoints.deleted(*key, only_if=stored)
    except CheckpointMoved:
        return False  # the consumer is back
    except LiftlogError as error:
        logger.warning("checkpoint-not-expired consumer=%s stream=%s error=%s", *key, error)
        return False
    return True
