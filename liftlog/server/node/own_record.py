"""This node's own record in the metadata store. Detects that another process has taken over the
record. Restores the record if the store has lost it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from liftlog.errors import LiftlogError
from liftlog.server.metadata.membership import Member
from liftlog.server.metadata.mirror import Mirror

logger = logging.getLogger("liftlog.server.replication")

_AGAIN_SECONDS = 1.0
_TELL_SECONDS = 2.0


class OwnRecord:
    """The record of this node. Belongs to the event loop. `spawn` starts a task."""

    def __init__(
        self,
        member: Member,
        mirror: Mirror,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._member = member
        self._mirror = mirror
        self._spawn = spawn
        self._displaced = asyncio.Event()
        self._is_listed = False
        """True after this node's record was found in the metadata store."""
        self._is_restoring = False

    @property
    def is_displaced(self) -> bool:
        """True if the record belongs to another process that runs as this node."""
        return self._displaced.is_set()

    async def displaced(self) -> None:
        """Wait until another process has registered as this node."""
        await self._displaced.wait()

    def yield_to_other(self) -> None:
        """Stop changing the record, because another process is this node now."""
        self._displaced.set()

    def check(self) -> None:
        """Detect another process, and restore the record if the store has lost it. Without the
        record, other nodes have no address of this node. Called when the records of nodes have
        changed."""
        own, start = self._mirror.directory.nodes.get(self._member.name), self._member.start
        self._is_listed = self._is_listed or own is not None
        if own is not None and own.start > start:
            self._displaced.set()
        is_set_back = self._is_listed and (own is None or own.start < start)
        if is_set_back and not self._is_restoring:
            self._is_restoring = True
            self._spawn(self._restore())

    async def _restore(self) -> None:
        try:
            while True:
                try:
                    return await self._mirror.nodes.restore(self._member.name, self._member.record)
                except LiftlogError as error:
                    logger.warning("node-not-restored error=%s", error)
                await asyncio.sleep(_AGAIN_SECONDS)
        finally:
            self._is_restoring = False

    async def tell_that_it_stops(self) -> None:
        """Store that this node is stopping, so that no leadership is handed over to it. Does not
        raise. If the store does not answer in time, other nodes get this information when they
        contact this node."""

        def step(value: Mapping[str, Any]) -> dict[str, Any] | None:
            is_told = value["start"] != self._member.start or value.get("stopping")
            return None if is_told else {**value, "stopping": True}

        with contextlib.suppress(LiftlogError, TimeoutError):
            async with asyncio.timeout(_TELL_SECONDS):
                await self._mirror.nodes.change(self._member.name, step)
