"""Deletes the checkpoints of consumers that are gone, and corrects times ahead of the clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from liftlog.errors import CheckpointMoved, LiftlogError, NotLeader, StreamNotFound
from liftlog.server.checkpoints.checkpoint import CheckpointKey
from liftlog.server.checkpoints.service import Checkpoints
from liftlog.server.commits.host import StreamHost

logger = logging.getLogger("liftlog.server.checkpoints")

_EXPIRED_AT_ONCE = 1000

FirstSince = Callable[[str, int], Awaitable[tuple[str, int] | None]]
"""Function that returns the incarnation of a stream, and the offset of its first record at or after
a time. Returns None if these are not known."""


async def expire(
    checkpoints: Checkpoints,
    find_stream: Callable[[str], StreamHost],
    before_ns: int,
    *,
    elsewhere: FirstSince | None = None,
) -> int:
    """Delete checkpoints that were committed before `before_ns` although there were records to read
    after that. Returns the number of deleted checkpoints.

    A consumer of a quiet stream has nothing to commit, so it does not count as gone. Groups without
    members expire in the same way. If the stream of a checkpoint was deleted or recreated, only the
    age of the checkpoint counts. `elsewhere` is called for streams that have no copy on this node.
    """
    table = checkpoints.table
    unread_since = partial(_unread_since, find_stream, elsewhere, before_ns=before_ns)
    # The age of an uncertain checkpoint is unreliable, because a newer checkpoint may have been
    # lost.
    old = [
        (key, stored)
        for key, stored in table.items()
        if stored.time_ns < before_ns and not table.is_uncertain(key)
    ]
    waited: dict[str, tuple[str, int] | None] = {}
    count = 0
    for start in range(0, len(old), _EXPIRED_AT_ONCE):
        due = []
        for key, stored in old[start : start + _EXPIRED_AT_ONCE]:
            stream = key[1]
            if stream not in waited:
                waited[stream] = await unread_since(stream)
            known = waited[stream]
            if known is not None and (stored.incarnation != known[0] or stored.offset < known[1]):
                due.append((key, stored))
        changes = [(key, checkpoints.deleted(*key, only_if=stored)) for key, stored in due]
        count += sum(await asyncio.gather(*(_done(key, change) for key, change in changes)))
    if count:
        logger.info("checkpoints-expired count=%d", count)
    return count + await checkpoints.groups.expire(before_ns, unread_since)


async def restamp_ahead(checkpoints: Checkpoints, ahead_ns: int) -> int:
    """Store checkpoints, and groups without members, again with the present time if their times are
    after `ahead_ns`. Returns their number.

    Such times come from a clock that was ahead. With these times, the checkpoints would expire too
    late.
    """
    table = checkpoints.table
    ahead = [
        (key, stored)
        for key, stored in table.items()
        if stored.time_ns > ahead_ns and not table.is_uncertain(key)
    ]
    count = 0
    for start in range(0, len(ahead), _EXPIRED_AT_ONCE):
        some = ahead[start : start + _EXPIRED_AT_ONCE]
        changes = [(key, checkpoints.restamped(*key, stored)) for key, stored in some]
        count += sum(await asyncio.gather(*(_done(key, change) for key, change in changes)))
    count += await checkpoints.groups.restamp_ahead(ahead_ns)
    if count:
        logger.info("checkpoints-restamped count=%d", count)
    return count


async def _unread_since(
    find_stream: Callable[[str], StreamHost],
    elsewhere: FirstSince | None,
    name: str,
    before_ns: int,
) -> tuple[str, int] | None:
    """Return the incarnation of the stream, and the offset of its first record at or after
    `before_ns`; None if the stream exists but cannot be read."""
    try:
        log = find_stream(name).log
        return log.incarnation, await asyncio.to_thread(log.offset_for_timestamp, before_ns)
    except StreamNotFound:
        return "", 0
    except NotLeader:  # only other nodes have a copy, and so the timestamps
        return None if elsewhere is None else await elsewhere(name, before_ns)
    except LiftlogError as error:
        logger.warning("checkpoints-not-expired stream=%s error=%s", name, error)
        return None


async def _done(key: CheckpointKey, change: Coroutine[Any, Any, None]) -> bool:
    """Return True if the change of a checkpoint was stored."""
    try:
        await change
    except CheckpointMoved:
        return False  # the consumer has committed again
    except LiftlogError as error:
        logger.warning("checkpoint-not-expired consumer=%s stream=%s error=%s", *key, error)
        return False
    return True
