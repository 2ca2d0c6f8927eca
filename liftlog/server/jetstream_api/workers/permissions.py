"""Checks the rights of workers over NATS, whose acks and pulls do not pass through the API."""

from __future__ import annotations

from acl.rules import OVER_NATS
from liftlog.errors import Forbidden
from liftlog.server.access.gate import Gate
from liftlog.server.jetstream_api.answers import JetStreamError
from liftlog.server.jetstream_api.consumers.pull_body import BadPull
from liftlog.server.jetstream_api.workers.acked_table import AckedConsumers
from liftlog.server.jetstream_api.workers.socket_door import check_covered
from liftlog.server.jetstream_api.workers.worker_link import Arrived

_FORBIDDEN = BadPull(b"403 Permissions Violation")


class NatsRights:
    """Checks acks and pulls from NATS. It belongs to the event loop."""

    def __init__(self, gate: Gate, table: AckedConsumers) -> None:
        self._gate = gate
        self._table = table

    def permitted(self, arrived: Arrived) -> Arrived:
        """Return the acks and pulls that are permitted. Acks that are not permitted are dropped,
        and pulls that are not permitted are refused with a status."""
        if self._gate.policy is None:
            return arrived
        names = {one.consumer for one in arrived.acks} | {one.consumer for one in arrived.pulls}
        denied = {name for name in names if not self._may(arrived.stream, name)}
        if not denied:
            return arrived
        return arrived._replace(
            acks=[one for one in arrived.acks if one.consumer not in denied],
            pulls=[
                one._replace(request=_FORBIDDEN) if one.consumer in denied else one
                for one in arrived.pulls
            ],
        )

    def _may(self, stream: str, name: str) -> bool:
        """Return True if clients of NATS may use this consumer. A consumer that was created on the
        pull socket can deliver records that these clients may not read."""
        gate = self._gate
        if not gate.may_work(OVER_NATS, stream, name):
            return False
        try:
            found = self._table.find(stream, name)
        except JetStreamError:
            return True  # the consumer could not be loaded, so it accepts no acks or pulls
        if found is None or not found.local.origin.is_local:
            return True
        try:
            readable = gate.readable_subjects(OVER_NATS, stream, peer="nats")
            check_covered(found.local.cursor.wanted_subjects, readable, name)
        except Forbidden:
            return False
        return True
