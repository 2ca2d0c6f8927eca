"""Handles clients that have read from a newer leader than this node. The newer leader leads the
same stream, or a stream of the same name that was created later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from liftlog.errors import LiftlogError, NotLeader
from liftlog.server.metadata.mirror import Mirror

logger = logging.getLogger("liftlog.server.replication")

_MOST_INCARNATIONS = 16
"""Limit for one stream. A client with an incarnation beyond this limit gets its answer a little
later."""


class _Gone(NamedTuple):
    """Epochs and incarnations that the store did not have, when the stream's record had this
    `incarnation` and `leader_epoch`."""

    incarnation: str = ""
    leader_epoch: int = 0
    epoch: int = 0
    """The metadata store does not have the epochs above `leader_epoch`, up to and including this
    one."""
    incarnations: tuple[str, ...] = ()


class Successors:
    """Checks clients that have read from a newer leader. Belongs to the event loop; `spawn` starts
    a task.

    A leader that was cut off from the others may not have received the news that it was replaced,
    or that its stream was deleted and created again. If it answered such a client that the client's
    records do not exist, the client would discard the records. That answer is right only in two
    cases: the metadata store, which always has the newest record, has another incarnation, or it
    does not have the client's epoch. Then the client has read an earlier stream of this name, or an
    operator has restored the metadata without the nodes that had newer metadata.
    """

    def __init__(self, mirror: Mirror, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._mirror = mirror
        self._spawn = spawn
        self._asking: set[str] = set()
        self._gone: dict[str, _Gone] = {}

    def check_epoch(self, name: str, epoch: int) -> None:
        """Check a client that has read a stream led here in `epoch`, which is above this leader's
        epoch. Raises NotLeader unless the store was read since then and does not have the epoch."""
        if epoch > self._known_gone(name).epoch:
            self._ask_about(name, epoch)
            raise NotLeader(
                f"stream {name} was led in epoch {epoch}, of which this node does not know yet",
                hint="try again",
            )

    def check_incarnation(self, name: str, present: str, wanted: str) -> None:
        """Check a client that has read the incarnation `wanted` of this stream, while the one here
        is `present`. Raises NotLeader unless the record or the store shows that `wanted` is an
        earlier incarnation."""
        record = self._mirror.records[name]
        if record.incarnation == present:
            if wanted in record.former or wanted in self._known_gone(name).incarnations:
                return
            self._ask_about(name, wanted)
        raise NotLeader(
            f"a stream {name} was read, but this node does not know it, or not yet",
            hint="try again",
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
                return  # a newer record exists; clients that retry are answered by it
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
