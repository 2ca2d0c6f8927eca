"""Where records may be sent because a client of JetStream's API asks for it.

`Destinations` decides by what the streams record, the ACL by what clients of NATS may name beside
their inboxes. Both may change, so the answer is sought again for each delivery.
"""

from __future__ import annotations

from dataclasses import dataclass

from acl.rules import OVER_NATS
from liftlog.server.access.gate import Gate
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.answers import JetStreamError, from_liftlog
from liftlog.server.streams.broker import Broker
from liftlog.stream.destinations import Destination, Why


def record_target(broker: Broker, gate: Gate, reply: bytes) -> Destination | Why:
    """For records that a client has asked for with this reply subject."""
    return broker.destinations.for_records(reply, gate.deliverable)


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Where the records of one consumer may go. Belongs to the event loop."""

    broker: Broker
    gate: Gate
    host: StreamHost
    deliver_subject: bytes
    """Empty: a pull consumer."""

    def pushes(self) -> Destination | Why:
        subjects = self.host.settings.subjects
        destinations = self.broker.destinations
        return destinations.for_pushes(self.deliver_subject, self.gate.deliverable, subjects)

    def pulls(self, reply: bytes) -> Destination | Why:
        return record_target(self.broker, self.gate, reply)

    def statuses(self, reply: bytes) -> Destination | None:
        """For what is no record."""
        return self.broker.destinations.for_answer(reply)

    def check(self) -> None:
        """Raises JetStreamError if nothing may be pushed."""
        found = self.pushes()
        if not self.deliver_subject or not isinstance(found, Why):
            return
        if found is Why.RECORDED:
            raise JetStreamError(400, 10081, "consumer deliver subject forms a cycle")
        if found is Why.NOT_GRANTED:
            shown = self.deliver_subject.decode("utf-8", "replace")
            denied = self.gate.delivery_denied(OVER_NATS, self.host.name, shown, peer="nats")
            raise from_liftlog(denied)
        raise JetStreamError(400, 10112, f"invalid push consumer deliver subject: {found.value}")
