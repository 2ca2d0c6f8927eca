"""Decides to which subjects records may be sent for clients of JetStream's API.

`Destinations` contains the subjects that streams record. The ACL lists the subjects that clients of
NATS may name in addition to inboxes. Streams and the ACL can change, so each delivery is checked.
"""

from __future__ import annotations

from acl.rules import OVER_NATS
from liftlog.sequencing.destinations import Destination, Destinations, Why
from liftlog.server.access.gate import Gate
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.answers import JetStreamError, from_liftlog
from liftlog.server.streams.broker import Broker


def record_target(broker: Broker, gate: Gate, reply: bytes) -> Destination | Why:
    """Return the subject for records that a client has requested with this reply subject."""
    return broker.destinations.for_records(reply, gate.deliverable)


class Deliveries:
    """The subjects to which records of one consumer may be sent. Belongs to the event loop."""

    def __init__(self, broker: Broker, gate: Gate, host: StreamHost, deliver_subject: str) -> None:
        """An empty `deliver_subject` means a pull consumer."""
        self._broker = broker
        self._gate = gate
        self._host = host
        self.subject = deliver_subject.encode()
        """The subject of a push consumer; empty for a pull consumer."""
        self._judged: tuple[Destinations, int, tuple[str, ...] | None] | None = None
        self._pushes: Destination | Why = Why.RESERVED

    def pushes(self) -> Destination | Why:
        """Return the subject of a push consumer. Called at each step. The subject is checked again
        only after a change of streams or of the ACL."""
        destinations, granted = self._broker.destinations, self._gate.deliverable
        version, judged = destinations.version, self._judged
        if (
            judged is None
            or destinations is not judged[0]
            or version != judged[1]
            or granted is not judged[2]
        ):
            self._judged = destinations, version, granted
            source = self._host.settings.subjects
            self._pushes = destinations.for_pushes(self.subject, granted, source)
        return self._pushes

    def pulls(self, reply: bytes) -> Destination | Why:
        return record_target(self._broker, self._gate, reply)

    def statuses(self, reply: bytes) -> Destination | None:
        """Return the subject for a status. A status contains no record."""
        return self._broker.destinations.for_answer(reply)

    def check(self) -> None:
        """Raise JetStreamError if records may not be pushed to the deliver subject."""
        found = self.pushes()
        if not self.subject or not isinstance(found, Why):
            return
        if found is Why.RECORDED:
            raise JetStreamError(400, 10081, "consumer deliver subject forms a cycle")
        if found is Why.NOT_GRANTED:
            shown = self.subject.decode("utf-8", "replace")
            denied = self._gate.delivery_denied(OVER_NATS, self._host.name, shown, peer="nats")
            raise from_liftlog(denied)
        raise JetStreamError(400, 10112, f"invalid push consumer deliver subject: {found.value}")
