"""Creates consumers with acks from their parts, and gives each consumer its share of common
budgets."""

from __future__ import annotations

import asyncio

from acl.policy import Policy
from acl.rules import OVER_NATS
from liftlog.deliveries.consumer import Consumer
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.consumers.budget import Budget, Budgets
from liftlog.server.jetstream_api.consumers.config import ConsumerSpec
from liftlog.server.jetstream_api.consumers.cursor import Cursor
from liftlog.server.jetstream_api.consumers.deliveries import Deliveries
from liftlog.server.jetstream_api.consumers.placing import place as place_cursor
from liftlog.server.jetstream_api.consumers.push_flow import LEAST_WINDOW_BYTES, PushFlow
from liftlog.server.jetstream_api.messages.ages import Ages
from liftlog.server.jetstream_api.messages.purges import AllPurges
from liftlog.server.jetstream_api.messages.shown import Shown
from liftlog.server.jetstream_api.workers.acked_consumer import AckedConsumer
from liftlog.server.jetstream_api.workers.admission import MAX_CONSUMERS, Place
from liftlog.server.jetstream_api.workers.arriving import ArrivingPulls
from liftlog.server.jetstream_api.workers.changes import StreamChanges
from liftlog.server.jetstream_api.workers.composing import Composer
from liftlog.server.jetstream_api.workers.local_work import LocalWork
from liftlog.server.jetstream_api.workers.shared import Shared
from liftlog.server.jetstream_api.workers.stored import Loaded
from liftlog.server.pull.services import PullServices
from liftlog.server.streams.broker import Broker

_MAX_NOTED, _NOTED_SHARE = 1_000_000, 60_000
_MAX_CHOSEN = 8_000_000
_MAX_WINDOWS_BYTES = 16 * 2**20
MAX_PULLS = 16_384
"""Limit on the waiting pulls of all consumers. One pull of each consumer is always accepted."""


class Builder:
    """Builds consumers with acks from their parts. It belongs to the event loop."""

    def __init__(self, broker: Broker, services: PullServices, ages: Ages) -> None:
        self._broker = broker
        self._services = services
        self._ages = ages
        self._budgets = Budgets(
            Budget(_MAX_NOTED, _NOTED_SHARE), Budget(_MAX_CHOSEN, _MAX_CHOSEN // MAX_CONSUMERS)
        )
        self._windows = Budget(_MAX_WINDOWS_BYTES, LEAST_WINDOW_BYTES)
        self._pulls = Budget(MAX_PULLS, 1)
        self._purges = AllPurges()

    def shown(self, host: StreamHost) -> Shown:
        return Shown(host, self._ages, None)

    def deliveries(self, host: StreamHost, spec: ConsumerSpec) -> Deliveries:
        return Deliveries(self._broker, self._services.gate, host, spec.deliver_subject)

    def cursor(
        self, spec: ConsumerSpec, host: StreamHost, *, is_local: bool
    ) -> tuple[Cursor, Policy | None]:
        """Return a cursor that reads with the present rights of clients of NATS, and the policy
        that gives these rights. If `is_local` is true, the cursor returns all records. Each worker
        then needs the right to read all of them. Raises Forbidden."""
        gate = self._services.gate
        policy, readable = gate.policy, None
        if not is_local:
            readable = gate.readable_subjects(OVER_NATS, host.name, peer="nats")
        member = (host.name, spec.name)
        cursor = Cursor(
            self._services,
            self.shown(host),
            spec.filters,
            readable,
            member,
            self._budgets,
            self._purges.of(host),
        )
        return cursor, policy

    async def placed(
        self, spec: ConsumerSpec, host: StreamHost, *, is_local: bool
    ) -> tuple[Cursor, Policy | None]:
        """Return a cursor like `cursor`, but at the start that the deliver policy of `spec`
        chooses. Raises LiftlogError, JetStreamError."""
        cursor, policy = self.cursor(spec, host, is_local=is_local)
        try:
            await place_cursor(cursor, spec, self.shown(host))
        except BaseException:
            cursor.close()
            raise
        return cursor, policy

    async def begin(
        self, cursor: Cursor, spec: ConsumerSpec, host: StreamHost, offset: int, chosen_end: int
    ) -> None:
        """Move the cursor of an existing consumer to `offset`. Raises LimitExceeded."""
        newest = 1 if spec.policy == "last_per_subject" else self.shown(host).history
        await cursor.begin(offset, newest, chosen_end or None)

    def consumer(
        self,
        shared: Shared,
        host: StreamHost,
        loaded: Loaded,
        cursor: Cursor,
        policy: Policy | None,
        place: Place,
        changes: StreamChanges,
    ) -> AckedConsumer:
        spec = loaded.spec
        now = asyncio.get_running_loop().time()
        composer = Composer(
            host.name,
            spec,
            self.deliveries(host, spec),
            PushFlow(spec, host.name, self._windows.part(), now),
            shared.leaf,
            shared.advisories,
            shared.clock,
        )
        return AckedConsumer(
            spec,
            host,
            Consumer(loaded.state),
            loaded.version,
            cursor,
            composer,
            shared,
            changes,
            ArrivingPulls(self._pulls.part()),
            LocalWork(spec.name, host, loaded.origin, self._services, changes, shared.clock.now_ns),
            policy=policy,
            place=place,
        )
