"""Clients that have read of a leader whom this node, which leads, does not know."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from liftlog.cluster.guard import is_regressed
from liftlog.errors import LiftlogError, NotLeader
from liftlog.server.replication.mirror import Mirror

logger = logging.getLogger("liftlog.server.replication")


class NewerEpochs:
    """Belongs to the event loop; `spawn` has it do something.

    A leader that was cut off from the others may not have heard that it is replaced. Were it to
    tell such a client that its records are gone, the client would give up what it has read. That is
    true only if the epoch is not in the metadata store, in which the newest one always is: an
    operator has restored the metadata without the nodes that knew of it.
    """

    def __init__(self, mirror: Mirror, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._mirror = mirror
        self._spawn = spawn
        self._asking: set[str] = set()
        self._gone: dict[str, tuple[str, int, int]] = {}
        """By stream: incarnation, newest epoch, and a later one that the store does not have."""

    def check(self, name: str, epoch: int) -> None:
        """A client has read of a stream led here in this epoch, which is above the leader's. Raises
        NotLeader unless the store was asked since, and does not have it."""
        record = self._mirror.records[name]
        incarnation, newest, gone = self._gone.get(name, ("", 0, 0))
        if (incarnation, newest) == (record.incarnation, record.leader_epoch) and epoch <= gone:
            return
        if name not in self._asking:
            self._asking.add(name)
            self._spawn(self._ask(name, epoch))
        raise NotLeader(
            f"stream {name} was led in epoch {epoch}, of which this node does not know yet",
            hint="try again",
        )

    async def _ask(self, name: str, epoch: int) -> None:
        try:
            record, _ = await self._mirror.read_newest(name)
            known = self._mirror.known.get(name)
            if record is None or known is None or is_regressed(known, record):
                return  # the store was set back: whoever watches over that sees to it
            self._mirror.told(record)
            if record.leader_epoch < epoch:
                self._gone[name] = (record.incarnation, record.leader_epoch, epoch)
        except LiftlogError as error:
            logger.info("epoch-not-known stream=%s epoch=%d reason=%s", name, epoch, error)
        finally:
            self._asking.discard(name)
