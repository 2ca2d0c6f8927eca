"""The copies of this node as its elections use them: their ends, and whether each can lead."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from liftlog.cluster.election import LogEnd
from liftlog.cluster.leading import Leader
from liftlog.cluster.record import StreamMetadata
from liftlog.server.node.local_node import LocalNode
from liftlog.server.node.replica import Replica

_BUSY_SECONDS = 1.0
"""Maximum time, in seconds, for which a copy may have waited for the disk if this node begins to
lead with this copy."""


class ElectionCopies:
    """Implements `Copies` of `replication.succession`. Belongs to the event loop. `replicas` are
    the replicas on this node, by stream."""

    def __init__(self, node: LocalNode, replicas: Mapping[str, Replica]) -> None:
        self._node = node
        self._replicas = replicas

    def names(self) -> Collection[str]:
        """Return the streams of this node; see `Copies`."""
        return self._replicas.keys()

    def log_end(self, name: str) -> LogEnd | None:
        """Return the end of a copy; see `Copies`."""
        replica = self._replicas.get(name)
        return None if replica is None else replica.copy.log_end

    def leading(self) -> Iterable[tuple[str, Leader]]:
        """Return the streams that this node leads; see `Copies`."""
        return ((name, led.leader) for name, led in self._node.led.items())

    def stalled(self, names: Iterable[str]) -> Iterable[tuple[StreamMetadata, float]]:
        """Return streams that wait for the disk; see `Copies`."""
        me = self._node.member.name
        for name in names:
            replica = self._replicas.get(name)
            seconds = 0.0 if replica is None else replica.waits_for_disk_seconds
            record = self._node.mirror.records.get(name) if seconds else None
            if record is not None and record.leader == me and not record.deleted:
                yield record, seconds

    def hear_again(self) -> None:
        """Make followers send a request now; see `Copies`."""
        for led in list(self._node.led.values()):
            led.hear_again()

    def prepare_to_lead(self, name: str) -> bool:
        """Begin slow preparations to lead; see `Copies`."""
        host, replica = self._node.hosts.hosts.get(name), self._replicas.get(name)
        if replica is None or replica.waits_for_disk_seconds >= _BUSY_SECONDS:
            return False
        return host is None or host.is_leading or self._node.ids.prepare(host)

    def stop_leading(self, name: str, reason: str) -> None:
        """Stop leading a stream; see `Copies`."""
        self._replicas[name].role.stop_leading(reason)

    def stand_aside(self, name: str) -> None:
        """Stop leading a stream, because the metadata store has lost changes of the stream that
        this node has received."""
        if name in self._replicas:
            self.stop_leading(name, "the metadata store was set back")

    def may_recover(self, name: str) -> bool:
        """Return True if this node can lead a stream of which no complete copy is left. Return
        False if this node's copy must be dropped, because it has records that were abandoned
        earlier."""
        replica = self._replicas.get(name)
        return replica is not None and not replica.copy.is_given_up and self.prepare_to_lead(name)
