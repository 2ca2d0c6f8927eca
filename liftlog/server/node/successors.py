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
"""Maximum number of incarnations that are stored for one stream. If there are more, a client gets
its answer slightly later."""


class _Gone(NamedTuple):
    """Epochs and incarnations that the store did not have at a certain time. At that time the
    stream's record had this `incarnation` and `leader_epoch`."""

    incarnation: str = ""
    leader_epoch: int = 0
    epoch: int = 0
    """The highest missing epoch: the store has none of the epochs from `leader_epoch` + 1 to
    `epoch`."""
    incarnations: tuple[str, ...] = ()


class Successors:
    """Checks clients that have read from a newer leader. Belongs to the event loop; `spawn` starts
    a task.

    A leader that was disconnected from the other nodes may have been replaced, or its stream may
    have been deleted and created again. If it answered such a client that the client's records do
    not exist, the client would discard the records. This answer is correct only in two cases:

    - The client has read an earlier stream of this name. The store then has another incarnation.
    - An operator has restored the metadata without the nodes that had newer metadata. The store
      then lacks the client's epoch.

    The metadata store always has the newest record. Therefore this class reads the store to detect
    these cases.
    """

    def __init__(self, mirror: Mirror, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._mirror = mirror
        self._spawn = spawn
        self._asking: set[str] = set()
        self._gone: dict[str, _Gone] = {}

    def check_epoch(self, name: str, epoch: int) -> None:
        """Check a client that has read records of `epoch`, which is above the epoch in which this
        node leads the stream. Raises NotLeader, unless a read of the store has shown that the store
        lacks the epoch."""
        if epoch > self._known_gone(name).epoch:
            self._ask_about(name, epoch)
            raise NotLeader(
                f"stream {name} was led in epoch {epoch}, of which this node does not know yet",
                hint="try again",
            )

    def check_incarnation(self, name: str, present: str, wanted: str) -> None:
        """Check a client that has read the incarnation `wanted` of a stream. On this node, the
        stream has the incarnation `present`. Raises NotLeader unless the record or the store shows
        that `wanted` is an earlier incarnation."""
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
                return  # a newer record exists; when the client retries, that record is used
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
