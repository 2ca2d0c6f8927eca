"""Housekeeping that is repeated, each kind at its own interval."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from liftlog.server.checkpoints.expiry import expire
from liftlog.server.streams.broker import Broker
from liftlog.server.streams.housekeeping import Housekeeping

logger = logging.getLogger("liftlog.server")


async def keep_house(housekeeping: Housekeeping, broker: Broker) -> None:
    """Retention, rolls, recovery points and expiry of old checkpoints, until it is cancelled."""
    settings, guard = broker.settings, broker.clock_guard

    async def retention() -> None:
        await housekeeping.apply_retention(by_time=guard.wall_clock_is_trusted())

    async def expiry() -> None:
        seconds = settings.checkpoints.expire_after_seconds
        if seconds is not None and broker.has_checkpoints and guard.wall_clock_is_trusted():
            before_ns = broker.now_ns() - int(seconds * 1_000_000_000)
            await expire(broker.checkpoints, broker.stream, before_ns)

    log = settings.log
    async with asyncio.TaskGroup() as group:
        group.create_task(_every(log.retention_interval_seconds, retention))
        group.create_task(
            _every(log.recovery_checkpoint_interval_seconds, housekeeping.save_recovery_points)
        )
        group.create_task(_every(log.retention_interval_seconds, expiry))


async def _every(seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Repeat `work`. A failure is logged and does not stop the repetition."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except Exception:  # a supervisor: housekeeping must not end the daemon
            logger.exception("housekeeping-failed work=%s", work.__name__)
