"""All consumers with acks of the streams that this node leads, and their journal.

A consumer is created in three steps: the table creates its state, the journal syncs it, and only
then the client gets its answer and the consumer starts. The same holds for updates and deletions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace

from acl.policy import Policy
from acl.rules import OVER_NATS
from liftlog.deliveries.consumer import Consumer
from liftlog.deliveries.instructions import Ending
from liftlog.deliveries.state import ConsumerState
from liftlog.errors import LiftlogError
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.answers import JetStreamError, command
from liftlog.server.jetstream_api.consumers.budget import Budget
from liftlog.server.jetstream_api.consumers.config import ConsumerSpec, refused
from liftlog.server.jetstream_api.consumers.cursor import Budgets, Cursor
from liftlog.server.jetstream_api.consumers.deliveries import Deliveries
from liftlog.server.jetstream_api.consumers.leaf import LeafLink
from liftlog.server.jetstream_api.consumers.placing import place
from liftlog.server.jetstream_api.consumers.push_flow import LEAST_WINDOW_BYTES, PushFlow
from liftlog.server.jetstream_api.messages.ages import Ages
from liftlog.server.jetstream_api.messages.shown import Shown
from liftlog.server.jetstream_api.workers.acked_consumer import (
    MAX_PENDING_OF_ALL,
    AckedConsumer,
    Shared,
)
from liftlog.server.jetstream_api.workers.advisories import Advisories
from liftlog.server.jetstream_api.workers.composing import Composer
from liftlog.server.jetstream_api.workers.outbox import Outbox
from liftlog.server.jetstream_api.workers.rounds import Clock, Rounds
from liftlog.server.jetstream_api.workers.stored import load
from liftlog.server.jetstream_api.workers.updates import check_update, settings_of
from liftlog.server.jetstream_api.workers.worker_link import Arrived, WorkerLink
from liftlog.server.journal import Change, ConsumerKey, Journal, StateVersion
from liftlog.server.journal.opening import JOURNAL
from liftlog.server.pull.services import PullServices
from liftlog.server.streams.broker import Broker

logger = logging.getLogger("liftlog.server.jetstream_api")

MAX_CONSUMERS = 10_000
MAX_OF_PARTY = 128
"""Ephemeral consumers of one client."""
_MAX_NOTED, _NOTED_SHARE = 1_000_000, 60_000
_MAX_CHOSEN = 8_000_000
_MAX_WINDOWS_BYTES = 16 * 2**20
_SWEEP_SECONDS = 1.0
_LOADED_AT_ONCE = 64
_FIRST = StateVersion(1, 0)


class AckedConsumers:
    """Belongs to the event loop."""

    def __init__(
        self,
        broker: Broker,
        services: PullServices,
        ages: Ages,
        leaf: LeafLink | None,
        link: WorkerLink,
    ) -> None:
        """`leaf` sends deliveries, `link` receives acks and pulls. The caller opens and closes
        both."""
        self.problem = ""
        """The reason why consumers with acks are not available; empty if they are."""
        self._broker = broker
        self._services = services
        self._ages = ages
        self._leaf = leaf
        self._link = link
        self._clock = Clock()
        self._rounds = Rounds(self._clock)
        self._shared: Shared | None = None
        self._all: dict[str, dict[str, AckedConsumer]] = {}
        self._opened = asyncio.Event()
        self._broken: dict[tuple[str, str], tuple[ConsumerKey, str]] = {}
        """Consumers that could not be loaded, by stream and name, with the reasons."""
        self._renewing: set[ConsumerKey] = set()
        self._changing = asyncio.Lock()
        self._budgets = Budgets(
            Budget(_MAX_NOTED, _NOTED_SHARE), Budget(_MAX_CHOSEN, _MAX_CHOSEN // MAX_CONSUMERS)
        )
        self._windows = Budget(_MAX_WINDOWS_BYTES, LEAST_WINDOW_BYTES)
        self._tasks: list[asyncio.Task[None]] = []

    # --- life ---

    def start(self) -> None:
        if self._leaf is None or self._broker.settings.cluster is not None:
            self._opened.set()
            return
        self._tasks = [
            asyncio.create_task(self._open(), name="consumers-open"),
            asyncio.create_task(self._watch_interest(), name="consumers-interest"),
            asyncio.create_task(self._sweep(), name="consumers-sweep"),
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._rounds.close()
        shared = self._shared
        if shared is None:
            return
        for consumer in self._consumers():
            consumer.end(Ending.SERVER_SHUTDOWN)
        await self._until_written(shared)
        await shared.outbox.close()
        shared.journal.set_owner(lambda key: None)  # the broker closes it
        self._shared = None

    async def _until_written(self, shared: Shared) -> None:
        """Wait a moment until the last statuses and changes are sent."""
        try:
            async with asyncio.timeout(1.0):
                await shared.journal.synced(shared.journal.write([]))
                await asyncio.sleep(0.01)
        except (TimeoutError, LiftlogError) as error:
            logger.warning("consumers-not-synced error=%r", error)

    async def _open(self) -> None:
        """Open all consumers in the journal."""
        try:
            broker = self._broker
            journal = broker.journal.opened
            if journal is None:
                if JOURNAL in broker.broken:
                    self.problem = f"the journal cannot be opened: {broker.broken[JOURNAL]}"
                return
            shared = self._share(journal)
            hosts = {host.log.incarnation: host for host in broker.hosts.values()}
            gone = [one for one in journal.ledger.incarnations() if one not in hosts]
            for incarnation in hosts.keys() & journal.ledger.incarnations():
                names, host = journal.ledger.consumers_of(incarnation), hosts[incarnation]
                for at in range(0, len(names), _LOADED_AT_ONCE):
                    some = names[at : at + _LOADED_AT_ONCE]
                    await asyncio.gather(*[self._try_load(shared, host, one) for one in some])
            journal.write([Change.stream_deleted(one) for one in gone])
        except LiftlogError as error:
            self.problem = f"the states of consumers cannot be read: {error.message}"
            logger.exception("consumers-not-opened error=%s", error.message)
        except Exception as error:  # a supervisor: the daemon goes on without them
            self.problem = "the states of consumers cannot be read"
            logger.exception("consumers-not-opened error=%r", error)
        finally:
            # Only now: each read of the journal waits for the changes that were made before it.
            self._rounds.start()
            self._opened.set()

    async def opened(self) -> None:
        """Return when the consumers of the journal are open, or opening them has failed."""
        await self._opened.wait()

    def _share(self, journal: Journal) -> Shared:
        assert self._leaf is not None
        outbox = Outbox(journal, self._leaf.send, self._send_answers)
        outbox.start()
        journal.set_owner(self._snapshot)
        self._shared = Shared(
            self._services,
            self._leaf,
            journal,
            outbox,
            self._rounds,
            self._clock,
            Advisories(self._leaf),
            on_inactive=self._inactive,
            on_failure=self._failed,
            on_policy=self._policy_changed,
        )
        return self._shared

    async def _send_answers(self, commands: bytes) -> None:
        self._link.link.send(commands)

    async def _try_load(self, shared: Shared, host: StreamHost, name: str) -> None:
        """Load a consumer. If that fails, its name stays taken: a new consumer of this name would
        replace the stored state."""
        try:
            await self._load(shared, host, name)
            self._broken.pop((host.name, name), None)
        except (LiftlogError, JetStreamError, ValueError, KeyError) as error:
            key = ConsumerKey(host.log.incarnation, name)
            self._broken[host.name, name] = key, str(error)
            logger.exception("consumer-not-loaded stream=%s name=%s", host.name, name)

    async def _load(self, shared: Shared, host: StreamHost, name: str) -> None:
        stored = await shared.journal.load(ConsumerKey(host.log.incarnation, name))
        if stored is None:
            return
        loaded = load(stored, name)
        spec, state, policy = loaded.spec, loaded.state, self._services.gate.policy
        cursor = self._cursor(spec, host)
        newest = 1 if spec.policy == "last_per_subject" else Shown(host, self._ages, None).history
        await cursor.begin(state.next_offset, newest, loaded.chosen_end or None)
        consumer = self._made(
            shared,
            spec,
            host,
            state,
            loaded.version,
            cursor,
            policy,
            created_ns=loaded.created_ns,
            party=b"",
        )
        consumer.machine.log_truncated(host.log.log_end_offset)
        consumer.take_over()

    def _snapshot(self, key: ConsumerKey) -> Change | None:
        for consumer in self._consumers():
            if consumer.key == key:
                return consumer.snapshot()
        return None

    # --- what there is ---

    def _consumers(self) -> list[AckedConsumer]:
        return [one for some in self._all.values() for one in some.values()]

    def count(self) -> int:
        return sum(map(len, self._all.values()))

    def of(self, stream: str) -> list[AckedConsumer]:
        found = self._on(stream)
        return [found[name] for name in sorted(found)]

    def find(self, stream: str, name: str) -> AckedConsumer | None:
        """Raises JetStreamError for a consumer that could not be loaded."""
        broken = self._broken.get((stream, name))
        if broken is not None:
            problem = f"the state of the consumer is unreadable: {broken[1]}"
            raise JetStreamError(503, 10008, f"{problem}; delete it, and create it again")
        return self._on(stream).get(name)

    def _on(self, stream: str) -> dict[str, AckedConsumer]:
        """Return the consumers of a stream. Ends the consumers of a deleted stream, so that a new
        stream of the same name does not inherit them."""
        found = self._all.get(stream, {})
        for consumer in [*found.values()]:
            if self._broker.hosts.get(stream) is not consumer.host:
                self._end(consumer)
        return found

    def _end(self, consumer: AckedConsumer) -> None:
        consumer.end(Ending.CONSUMER_DELETED)
        self._forget(consumer)
        if self._shared is not None:
            self._shared.journal.write([Change.deleted(consumer.key)])

    # --- requests ---

    async def create(self, spec: ConsumerSpec, host: StreamHost, party: bytes) -> AckedConsumer:
        """Raises LiftlogError, JetStreamError."""
        if self._broker.settings.cluster is not None:
            raise refused("consumers with acks are not supported in a cluster yet")
        if self.problem:
            raise JetStreamError(503, 10008, self.problem)
        assert self._leaf is not None
        async with self._changing:
            if self.find(host.name, spec.name) is not None:
                raise JetStreamError(400, 10148, "consumer already exists")
            self._check_room(spec, host, party)
            await self._leaf.wait_connected()
            await self._link.ensure(host.name)
            shared = self._shared or self._share(await self._broker.journal.get())
            shared.journal.check_writable()
            deliveries = Deliveries(self._broker, self._services.gate, host, spec.deliver_subject)
            deliveries.check()
            cursor = self._cursor(spec, host)
            policy = self._services.gate.policy
            try:
                await place(cursor, spec, Shown(host, self._ages, None))
                state = ConsumerState(settings_of(spec, host.name), cursor.next_offset)
                consumer = self._made(
                    shared,
                    spec,
                    host,
                    state,
                    _FIRST,
                    cursor,
                    policy,
                    created_ns=time.time_ns(),
                    party=party,
                )
            except BaseException:
                cursor.close()
                raise
            try:
                await shared.journal.synced(shared.journal.write([consumer.snapshot()]))
            except LiftlogError:
                shared.journal.write([Change.deleted(consumer.key)])
                self._forget(consumer)
                raise
            shared.advisories.created(host.name, spec.name)
            return consumer

    async def update(self, consumer: AckedConsumer, spec: ConsumerSpec) -> None:
        """Raises LiftlogError, JetStreamError."""
        before = consumer.spec
        check_update(before, spec)
        async with self._changing:
            shared = self._shared
            assert shared is not None
            shared.journal.check_writable()
            host = consumer.host
            Deliveries(self._broker, self._services.gate, host, spec.deliver_subject).check()
            if spec.filters != before.filters:
                await self._read_anew(consumer, spec)
            consumer.update(replace(spec, settings=settings_of(spec, host.name)))
            change = Change.updated(consumer.key, consumer.version, consumer.stored_settings())
            await shared.journal.synced(shared.journal.write([change]))
            until_ns = spec.settings.pause_until_ns
            if until_ns != before.settings.pause_until_ns:
                shared.advisories.paused(host.name, spec.name, until_ns)

    async def delete(self, stream: str, name: str) -> bool:
        """Raises LiftlogError."""
        broken = self._broken.pop((stream, name), None)
        if broken is not None and self._shared is not None:
            journal = self._shared.journal
            await journal.synced(journal.write([Change.deleted(broken[0])]))
            return True
        consumer = self.find(stream, name)
        if consumer is None or self._shared is None:
            return False
        await self._delete(consumer, Ending.CONSUMER_DELETED)
        return True

    async def _delete(self, consumer: AckedConsumer, why: Ending) -> None:
        shared, stream, name = self._shared, consumer.host.name, consumer.spec.name
        if shared is None or self.find(stream, name) is not consumer:
            return
        consumer.end(why)
        self._forget(consumer)
        await shared.journal.synced(shared.journal.write([Change.deleted(consumer.key)]))
        shared.advisories.deleted(stream, name)

    def take(self, arrived: Arrived) -> None:
        """Take the acks and pulls of one read."""
        consumers = self._on(arrived.stream)
        for acks in arrived.acks:
            consumer = consumers.get(acks.consumer)
            if consumer is not None:
                consumer.acknowledge(acks)
        for pull in arrived.pulls:
            consumer = consumers.get(pull.consumer)
            if consumer is not None:  # else the API answers
                consumer.pull(pull.reply, pull.request)
        targets = [self._broker.destinations.for_answer(one) for one in arrived.answers]
        answers = b"".join([command(one, b"") for one in targets if one is not None])
        if answers:
            self._link.link.send(answers)

    def flow_answered(self, subject: bytes) -> None:
        """Take an answer to a request of flow control."""
        tokens = subject.decode("utf-8", "replace").split(".")
        if len(tokens) == 5:
            consumer = self._all.get(tokens[2], {}).get(tokens[3])
            if consumer is not None:
                consumer.flow_answered(subject)

    # --- inside ---

    def _cursor(self, spec: ConsumerSpec, host: StreamHost) -> Cursor:
        """Return a cursor with the present rights of clients of NATS. Raises Forbidden."""
        readable = self._services.gate.readable_subjects(OVER_NATS, host.name, peer="nats")
        shown, member = Shown(host, self._ages, None), (host.name, spec.name)
        return Cursor(self._services, shown, spec.filters, readable, member, self._budgets)

    async def _read_anew(self, consumer: AckedConsumer, spec: ConsumerSpec) -> None:
        """Replace a consumer's cursor by one with the filters of `spec` and the present rights.
        Raises LiftlogError."""
        policy = self._services.gate.policy
        cursor = self._cursor(spec, consumer.host)
        await cursor.begin(consumer.machine.state.next_offset, None)
        cursor.move(consumer.machine.state.next_offset)
        if consumer.is_closed:
            cursor.close()
        else:
            consumer.replace(cursor, policy)

    def _policy_changed(self, consumer: AckedConsumer) -> None:
        if consumer.key not in self._renewing:
            self._renewing.add(consumer.key)
            self._services.spawn(self._renew(consumer))

    async def _renew(self, consumer: AckedConsumer) -> None:
        try:
            await self._read_anew(consumer, consumer.spec)
        except LiftlogError as error:  # it may read nothing; the next turn asks again
            logger.warning(
                "consumer-not-read stream=%s name=%s error=%s", *consumer.key, error.message
            )
            await asyncio.sleep(_SWEEP_SECONDS)
        finally:
            self._renewing.discard(consumer.key)
        consumer.wake()

    def _made(
        self,
        shared: Shared,
        spec: ConsumerSpec,
        host: StreamHost,
        state: ConsumerState,
        version: StateVersion,
        cursor: Cursor,
        policy: Policy | None,
        *,
        created_ns: int,
        party: bytes,
    ) -> AckedConsumer:
        now = asyncio.get_running_loop().time()
        composer = Composer(
            host.name,
            spec,
            Deliveries(self._broker, self._services.gate, host, spec.deliver_subject),
            PushFlow(spec, host.name, self._windows.part(), now),
            shared.leaf,
            shared.advisories,
            self._clock,
        )
        consumer = AckedConsumer(
            spec,
            host,
            Consumer(state),
            version,
            cursor,
            composer,
            shared,
            policy=policy,
            created_ns=created_ns,
            party=party,
        )
        self._all.setdefault(host.name, {})[spec.name] = consumer
        self._link.lead(host.name)
        self._rounds.ready(consumer)
        return consumer

    def _forget(self, consumer: AckedConsumer) -> None:
        found = self._all.get(consumer.host.name, {})
        if found.get(consumer.spec.name) is consumer:
            del found[consumer.spec.name]
            if not found:
                del self._all[consumer.host.name]
                self._link.leave(consumer.host.name)

    def _check_room(self, spec: ConsumerSpec, host: StreamHost, party: bytes) -> None:
        own = host.settings.jetstream
        most = None if own is None else own.max_consumers
        here = self._on(host.name)
        is_full = self.count() >= MAX_CONSUMERS or (most is not None and len(here) >= most)
        if not spec.is_durable:
            of_party = [one for one in self._consumers() if one.party == party]
            is_full = is_full or len(of_party) >= MAX_OF_PARTY
        if is_full:
            raise JetStreamError(400, 10026, "maximum consumers limit reached")

    def _inactive(self, consumer: AckedConsumer) -> None:
        self._services.spawn(self._delete(consumer, Ending.CONSUMER_DELETED))

    def _failed(self, consumer: AckedConsumer) -> None:
        """Load a consumer again from the journal, after a defect has ended it in memory."""
        consumer.abandon()
        self._services.spawn(self._reload(consumer))

    async def _reload(self, consumer: AckedConsumer) -> None:
        await asyncio.sleep(_SWEEP_SECONDS)
        host, name = consumer.host, consumer.spec.name
        if self._shared is not None and self._on(host.name).get(name) is consumer:
            await self._try_load(self._shared, host, name)

    async def _watch_interest(self) -> None:
        assert self._leaf is not None
        while True:
            await self._leaf.interest_changed()
            for consumer in self._consumers():
                if consumer.spec.deliver_subject or consumer.machine.state.pulls:
                    consumer.wake()
            await asyncio.sleep(0.02)

    async def _sweep(self) -> None:
        """End the consumers of streams that were deleted."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            for stream in [*self._all]:
                self._on(stream)
            if self._shared is not None and self._shared.pending >= MAX_PENDING_OF_ALL:
                for consumer in self._consumers():
                    consumer.wake()
