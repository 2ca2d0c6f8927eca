"""Clients that have read of a leader whom this node, which leads, does not know: of its own stream,
or of one that was created in the place of that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from liftlog.errors import LiftlogError, NotLeader
from liftlog.server.metadata.mirror import Mirror

logger = logging.getLogger("liftlog.server.replication")

_MOST_INCARNATIONS = 16
"""Of one stream. Each further client with another one only has its answer a little later."""


class _Gone(NamedTuple):
    """What the store did not have when its record was this one."""

    incarnation: str = ""
    leader_epoch: int = 0
    epoch: int = 0
    """And all before it, up to `leader_epoch`."""
    incarnations: tuple[str, ...] = ()


class Successors:
    """Belongs to the event loop; `spawn` has it do something.

    A leader that was cut off from the others may not have heard that it is replaced, or that its
    stream was deleted and created again. Were it to tell such a client that its records are gone,
    the client would give up what it has read. That is true only if the metadata store, in which the
    newest is always, has another incarnation, or no such epoch: then the client has read before the
    stream was created, or an operator has restored the metadata without the nodes that knew of it.
    """

    def __init__(self, mirror: Mirror, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._mirror = mirror
        self._spawn = spawn
        self._asking: set[str] = set()
        self._gone: dict[str, _Gone] = {}

    def check_epoch(self, name: str, epoch: int) -> None:
        """A client has read of a stream led here in this epoch, which is above the leader's. Raises
        NotLeader unless the store was asked since, and does not have it."""
        if epoch > self._known_gone(name).epoch:
            self._ask_about(name, epoch)
            raise NotLeader(
                f"stream {name} was led in epoch {epoch}, of which this node does not know yet",
                hint="try again",
            )

    def check_incarnation(self, name: str, present: str, wanted: str) -> None:
        """A client has read of another stream of this name than `present`, which is here. Raises
        NotLeader unless that one was before this, as its record or the store says."""
        record = self._mirror.records[name]
        if record.incarnation == present:
            if wanted in record.former or wanted in self._known_gone(name).incarnations:
                return
            self._ask_about(name, wanted)
        raise NotLeader(
            f"a stream {name} was read that this node does not know, or not yet", hint="try again"
        )

    def _known_gone(self, name: str) -> _Gone:
        gone, record = self._gone.get(name, _Gone()), self._mirror.records[name]
        if (gone.incarnation, gone.leader_epoch) == (record.incarnation, record.leader_epoch):
            return gone
        return _Gone(record.incarnation, record.leader_epoch)

    def _ask_about(self, name: str, what: int | str) -> None:
        if name not in self._asking:
            self._asking.add(name)
            self._spawn(self._ask(name, what))

    async def _ask(self, name: str, what: int | str) -> None:
        try:
            record = await self._mirror.confirmed(name)
            if record is None or record != self._mirror.records.get(name):
                return  # there is news: clients that come again are answered by it
            gone = self._known_gone(name)
            if isinstance(what, str):
                if what != record.incarnation:
                    known = [one for one in gone.incarnations if one != what]
                    known = [*known, what][-_MOST_INCARNATIONS:]
                    self._gone[name] = gone._replace(incarnations=tuple(known))
            elif record.leader_epoch < what:
                self._gone[name] = gone._replace(epoch=max(gone.epoch, what))
        except LiftlogError as error:
            logger.info("successor-not-known stream=%s read=%s reason=%s", name, what, error)
        finally:
            self._asking.discard(name)
