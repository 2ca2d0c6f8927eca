"""All consumers with acks of the streams that this node leads, and their journal.

A consumer is created in three steps:

1. The table creates its state.
2. The journal syncs the state.
3. The client gets its answer, and the consumer starts.

Updates and deletions have the same steps.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from liftlog.deliveries.instructions import Ending
from liftlog.deliveries.settings import AckPolicy
from liftlog.deliveries.state import ConsumerState
from liftlog.errors import LiftlogError
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.answers import JetStreamError, unavailable
from liftlog.server.jetstream_api.consumers.config import ConsumerSpec
from liftlog.server.jetstream_api.consumers.leaf import LeafLink
from liftlog.server.jetstream_api.messages.ages import Ages
from liftlog.server.jetstream_api.workers.acked_consumer import AckedConsumer
from liftlog.server.jetstream_api.workers.admission import Admission, NameLocks, Place
from liftlog.server.jetstream_api.workers.advisories import Advisories
from liftlog.server.jetstream_api.workers.building import Builder
from liftlog.server.jetstream_api.workers.changes import LocalChanges, StreamChanges
from liftlog.server.jetstream_api.workers.composing import ack_answers
from liftlog.server.jetstream_api.workers.growth import Growth
from liftlog.server.jetstream_api.workers.interest_watch import InterestWatch
from liftlog.server.jetstream_api.workers.led_streams import LedStream, LedStreams
from liftlog.server.jetstream_api.workers.loading import Loader
from liftlog.server.jetstream_api.workers.outbox import Outbox
from liftlog.server.jetstream_api.workers.pressure import Pressure
from liftlog.server.jetstream_api.workers.pulls import PREFIX as PULL_PREFIX
from liftlog.server.jetstream_api.workers.renewing import Renewing, cursor_for
from liftlog.server.jetstream_api.workers.resetting import begin_again, cursor_at, reset_offset
from liftlog.server.jetstream_api.workers.rounds import Clock, Rounds
from liftlog.server.jetstream_api.workers.shared import Shared
from liftlog.server.jetstream_api.workers.stored import (
    Loaded,
    Origin,
    store_deletion,
    store_new,
    store_settings,
)
from liftlog.server.jetstream_api.workers.updates import check_update, settings_of
from liftlog.server.jetstream_api.workers.urgency import ConsumerUrgency
from liftlog.server.jetstream_api.workers.worker_link import Arrived, WorkerLink
from liftlog.server.journal import Change, ConsumerKey, Journal, StateVersion
from liftlog.server.journal.opening import JOURNAL
from liftlog.server.pull.services import PullServices
from liftlog.server.streams.broker import Broker

logger = logging.getLogger("liftlog.server.jetstream_api")

SWEEP_SECONDS = 1.0
PATIENCE_SECONDS = 4.0
"""Maximum time, in seconds, that a request waits until consumers are loaded. Clients of JetStream
wait for 5 s."""
LINGER_SECONDS = 5.0
"""Time, in seconds, for which the subscriptions for a stream stay after its last consumer was
deleted. Programs often create the next consumer at once. Without this time, they would wait for two
answers from NATS."""
_SUBSCRIBED_SECONDS = 2.0
"""Time, in seconds, for which consumers wait until NATS has confirmed the subscriptions for acks
and pulls. After this time they end the pulls that waited before a restart, or at an earlier
leader."""
_FIRST = StateVersion(1, 0)

Changing = Callable[[ConsumerSpec], ConsumerSpec]
"""Function that receives the present configuration of a consumer, after all earlier changes, and
returns the new configuration."""


class AckedConsumers:
    """The consumers with acks on this node. Belongs to the event loop."""

    def __init__(
        self,
        broker: Broker,
        services: PullServices,
        ages: Ages,
        leaf: LeafLink,
        link: WorkerLink,
    ) -> None:
        """`leaf` sends deliveries, `link` receives acks and pulls. The caller opens and closes both
        of them."""
        self.problem = ""
        """The reason why consumers with acks are not available; empty if they are."""
        self._broker = broker
        self._services = services
        self._builder = Builder(broker, services, ages)
        self._leaf = leaf
        self._link = link
        self._clock = Clock()
        self._rounds = Rounds(self._clock)
        self._shared: Shared | None = None
        self._led: LedStreams | None = None
        """The streams that this node of a cluster leads; None without a cluster."""
        if broker.settings.cluster is not None:
            self._led = LedStreams(broker, self._open_led, self._lost, self.take)
        self._all: dict[str, dict[str, AckedConsumer]] = {}
        self._hosts: dict[str, StreamHost] = {}
        """Maps each stream to the host to which all its consumers in `_all` belong."""
        self._by_key: dict[ConsumerKey, AckedConsumer] = {}
        self._opened = asyncio.Event()
        self._renewing = Renewing(self._builder, services)
        self._updating: set[ConsumerKey] = set()
        """Consumers whose state in the journal is newer than in memory."""
        self._lingering: dict[str, float] = {}
        """Streams whose last consumer was deleted, with the times at which their subscriptions
        end."""
        self._locks = NameLocks()
        self._admission = Admission()
        self._loader = Loader(self._builder, self._admission, self._changes_of, self._enter)
        self.pressure = Pressure(
            link,
            lambda: 0.0 if self._shared is None else self._shared.load_of_buffers(),
            lambda: broker.intake.ingested().size_bytes,
        )
        link.on_read_end = self.pressure.read_ended
        link.urgency = ConsumerUrgency(
            lambda stream: self._all.get(stream, {}),
            self._clock,
            lambda: 0 if self._shared is None else self._shared.room,
        )
        self._tasks: list[asyncio.Task[None]] = []

    # --- life ---

    def start(self) -> None:
        # Without this call, the first read of a consumer would start a thread, and the event loop
        # would wait 10 ms for it.
        self._services.scanners.of("(workers)").submit(int)
        if self._led is not None:
            self._rounds.start()
            self._opened.set()
            self._led.start()
        else:
            self._broker.hosted.on_deleted.append(self._on)
            self._broker.intake.on_rolled_up.append(partial(_wake, self))
            self._tasks = [asyncio.create_task(self._open(), name="consumers-open")]
        self._tasks += [
            asyncio.create_task(self._sweep(), name="consumers-sweep"),
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._led is not None:
            await self._led.close()
        elif self._on in self._broker.hosted.on_deleted:
            self._broker.hosted.on_deleted.remove(self._on)
            self._broker.intake.on_rolled_up.clear()
        self._rounds.close()
        await self.pressure.close()
        shared = self._shared
        if shared is None:
            return
        self._link.finish()
        for consumer in self._consumers():
            consumer.end(Ending.SERVER_SHUTDOWN)
        await shared.until_written()
        await shared.outbox.close()
        shared.interest.close()
        shared.journal.set_owner(lambda key: None)  # the broker closes the journal
        shared.journal.on_progress = lambda: None
        self._shared = None

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
                names = journal.ledger.consumers_of(incarnation)
                await self._loader.load_all(shared, hosts[incarnation], names)
            journal.write([Change.stream_deleted(one) for one in gone])
        except LiftlogError as error:
            self.problem = f"the states of consumers cannot be read: {error.message}"
            logger.exception("consumers-not-opened error=%s", error.message)
        except Exception as error:  # a supervisor: the daemon continues without them
            self.problem = "the states of consumers cannot be read"
            logger.exception("consumers-not-opened error=%r", error)
        finally:
            # A client whose pull is ended sends the next pull at once. That pull could be lost.
            await self._link.wait_confirmed([*self._all], _SUBSCRIBED_SECONDS)
            # This step comes last, because each read of the journal waits for the earlier changes.
            self._rounds.start()
            self._opened.set()

    async def _open_led(self, led: LedStream) -> None:
        """Open the consumers of a stream that this node has begun to lead."""
        names = sorted(led.served.leader.states.names)
        led.served.snapshot_of = partial(self._snapshot_for_followers, led.host.name)
        if names:
            self._link.lead(led.host.name)  # acks and pulls are held until the consumers are open
            await self._link.wait_confirmed([led.host.name], _SUBSCRIBED_SECONDS)
            shared = await self._opened_shared()
            await self._loader.load_all(shared, led.host, names, lambda: not led.served.is_closed)

    def _lost(self, led: LedStream) -> None:
        """End the consumers of a stream that this node no longer leads. The next leader ends the
        waiting pulls. If the stream was deleted, this node ends them."""
        self._lingering.pop(led.host.name, None)
        is_deleted = self._broker.catalog.was_deleted(led.host.name)
        for consumer in [*self._all.get(led.host.name, {}).values()]:
            if consumer.host is led.host:
                if is_deleted and self._shared is not None:
                    # The changes of the ended leadership no longer send anything.
                    consumer.changes = self._shared.changes
                    consumer.end(Ending.CONSUMER_DELETED, is_stored=False)
                consumer.abandon()
                self._forget(consumer)
        self._loader.forget(led.host.name)
        self._leave_unused(led.host.name)

    async def opened(self, stream: str) -> None:
        """Wait until the consumers of a stream are open, or until opening them has failed. Raises
        JetStreamError if the wait takes too long. Raises it at once if the consumers cannot be
        loaded at present because the journal cannot be written."""
        if self.is_open(stream):
            return
        journal = self._broker.journal.opened
        if journal is not None and journal.problem is not None:
            raise unavailable(f"the consumers are not loaded: {journal.problem}")
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._opened.wait()
                if self._led is not None:
                    await self._led.opened(stream)
        except TimeoutError:
            raise unavailable("the consumers are not loaded yet") from None

    def is_open(self, stream: str) -> bool:
        """Return True if `opened` would return at once."""
        return self._opened.is_set() and (self._led is None or self._led.is_open(stream))

    def _changes_of(self, shared: Shared, host: StreamHost) -> StreamChanges:
        """Return the object that accepts changes of a stream's consumers. Raises LiftlogError if
        another node leads the stream."""
        return shared.changes if self._led is None else self._led.changes_of(host, shared)

    async def _opened_shared(self) -> Shared:
        """Open the journal. Raises LiftlogError."""
        journal = await self._broker.journal.get()
        return self._shared or self._share(journal)  # there must never be two open journals

    def _share(self, journal: Journal) -> Shared:
        outbox = Outbox(journal, self._leaf.offer, self._leaf.send, self._link.link.send)
        journal.set_owner(self._snapshot)
        journal.set_inline(self._broker.intake.inline)
        journal.on_progress = outbox.advance
        self._rounds.on_end = journal.append_now
        self._shared = Shared(
            self._services,
            self._leaf,
            journal,
            outbox,
            self._rounds,
            self._clock,
            Advisories(self._leaf),
            InterestWatch(
                lambda: [
                    one
                    for one in self._consumers()
                    if one.spec.deliver_subject or one.machine.state.pulls or one.pulls.silent
                ],
                self._leaf.has_interest,
                self._clock.now_ns,
            ),
            Growth(self._services.live_group),
            on_inactive=lambda one: self._services.spawn(
                self._delete_inactive(one, one.active_ns())
            ),
            on_failure=self._failed,
            on_policy=self._renewing.begin,
            changes=LocalChanges(journal, outbox),
        )
        self._leaf.on_interest = self._shared.interest.changed
        return self._shared

    def _snapshot(self, key: ConsumerKey) -> Change | None:
        consumer = self._by_key.get(key)
        if consumer is None or key in self._updating or not consumer.changes.is_open:
            # The settings in memory would overwrite the settings that an update has just stored.
            return None
        return consumer.changes.numbered(consumer.snapshot())

    def _snapshot_for_followers(self, stream: str, name: str) -> Change | None:
        consumer = self._all.get(stream, {}).get(name)
        if consumer is None or consumer.is_closed or consumer.key in self._updating:
            return None
        return consumer.snapshot()

    # --- what there is ---

    def _consumers(self) -> list[AckedConsumer]:
        return [one for some in self._all.values() for one in some.values()]

    def count(self) -> int:
        return sum(map(len, self._all.values()))

    def of(self, stream: str) -> list[AckedConsumer]:
        self._link.pass_on()
        found = self._on(stream)
        return [found[name] for name in sorted(found)]

    def find(self, stream: str, name: str) -> AckedConsumer | None:
        """Return the consumer of this name, or None. Raises JetStreamError for a consumer that
        could not be loaded."""
        self._link.pass_on()  # the caller may ask for the effect of acks that are still waiting
        if self._led is not None and (problem := self._led.problem_of(stream)):
            raise JetStreamError(503, 10008, problem)
        broken = self._loader.problem_of(self._broker.hosts.get(stream), name)
        if broken is not None:
            raise JetStreamError(503, 10008, broken[1])
        return self._on(stream).get(name)

    def _on(self, stream: str) -> dict[str, AckedConsumer]:
        """Return the consumers of a stream. Ends the consumers of a deleted stream, so that a new
        stream of the same name does not inherit them."""
        found, host = self._all.get(stream, {}), self._broker.hosts.get(stream)
        if not found or (host is not None and self._hosts.get(stream) is host):
            return found
        stale = [one for one in found.values() if one.host is not host]
        if self._led is None:
            for consumer in stale:
                consumer.end(Ending.CONSUMER_DELETED, is_stored=False)
                self._forget(consumer)
                if self._shared is not None and self._shared.journal.names.has(consumer.key):
                    self._shared.journal.write([Change.deleted(consumer.key)])
        elif stale:
            return found
        if found and host is not None:
            self._hosts[stream] = host
        return found

    # --- requests ---

    async def create(
        self, spec: ConsumerSpec, host: StreamHost, party: bytes, *, is_local: bool = False
    ) -> AckedConsumer:
        """Return a new consumer, or the existing consumer of this name if its configuration is the
        same. `is_local` means that the client uses the pull socket. Raises LiftlogError or
        JetStreamError. An error leaves everything unchanged."""
        if self.problem:
            raise JetStreamError(503, 10008, self.problem)
        if self._led is not None:
            self._led.check(host)
        async with self._locks.hold(host.name, spec.name, seconds=PATIENCE_SECONDS):
            there = self.find(host.name, spec.name)
            if there is not None:
                if there.spec == spec:
                    return there
                raise JetStreamError(400, 10148, "consumer already exists")
            own = host.settings.jetstream
            most = None if own is None else own.max_consumers
            place = self._admission.enter(host.name, party, most, is_durable=spec.is_durable)
            try:
                consumer = await self._create(spec, host, place, is_local)
            except BaseException:
                place.leave()
                self._leave_unused(host.name)
                raise
            self._enter(consumer)
        consumer.wake()
        assert self._shared is not None
        self._shared.advisories.created(host.name, spec.name)
        return consumer

    async def _create(
        self, spec: ConsumerSpec, host: StreamHost, place: Place, is_local: bool
    ) -> AckedConsumer:
        """Create a consumer and store it. Return the consumer. Raises LiftlogError or
        JetStreamError. After an error the consumer is not stored."""
        self._link.lead(host.name)
        if not is_local:
            await self._leaf.wait_connected()
            await self._link.confirm(host.name)
        shared = await self._opened_shared()
        changes = self._changes_of(shared, host)
        changes.check()
        self._builder.deliveries(host, spec).check()
        consumer = await self._new(shared, spec, host, place, is_local)
        await store_new(
            changes,
            consumer,
            lambda: changes.is_open and self._broker.hosts.get(host.name) is host,
        )
        return consumer

    async def _new(
        self, shared: Shared, spec: ConsumerSpec, host: StreamHost, place: Place, is_local: bool
    ) -> AckedConsumer:
        changes = self._changes_of(shared, host)
        cursor, policy = await self._builder.placed(spec, host, is_local=is_local)
        state = ConsumerState(settings_of(spec, host.name), cursor.next_offset)
        new = Loaded(spec, state, _FIRST, Origin(time.time_ns(), is_local), cursor.chosen_end)
        return self._builder.consumer(shared, host, new, cursor, policy, place, changes)

    async def restart(self, named: AckedConsumer, change: Changing) -> AckedConsumer:
        """Let a consumer begin again with the configuration that `change` returns. This
        configuration has another start. Raises LiftlogError or JetStreamError. An error leaves
        everything unchanged."""
        async with self._change_of(named) as (_, consumer):
            spec, host = change(consumer.spec), consumer.host
            origin = consumer.local.origin._replace(created_ns=time.time_ns())
            cursor, policy = await self._builder.placed(spec, host, is_local=origin.is_local)
            await begin_again(consumer, spec, origin, cursor, policy, self._broker.hosts)
            return consumer

    async def update(self, named: AckedConsumer, change: Changing) -> AckedConsumer:
        """Change the settings of a consumer to those that `change` returns, and return the
        consumer. Raises LiftlogError or JetStreamError. An error leaves everything unchanged."""
        host = named.host
        async with self._change_of(named) as (shared, consumer):
            before = consumer.spec
            spec = change(before)
            check_update(before, spec)
            to = self._builder.deliveries(host, spec)
            to.check()
            cursor = policy = None
            if spec.filters != before.filters:
                cursor, policy = await cursor_for(self._builder, consumer, spec)
            try:
                await store_settings(consumer.changes, consumer, spec, cursor)
            except BaseException:
                if cursor is not None:
                    cursor.close()
                raise
            if cursor is not None:
                consumer.replace(cursor, policy)
            consumer.update(replace(spec, settings=settings_of(spec, host.name)), to)
        until_ns = spec.settings.pause_until_ns
        if until_ns != before.settings.pause_until_ns:
            shared.advisories.paused(host.name, spec.name, until_ns)
        return consumer

    async def reset(self, named: AckedConsumer, sequence: int) -> int:
        """Let a consumer begin again at `sequence`, or at its ack floor if `sequence` is 0. Returns
        the sequence. Raises LiftlogError or JetStreamError. An error leaves everything
        unchanged."""
        async with self._change_of(named) as (_, consumer):
            offset = await reset_offset(self._builder, consumer, sequence)
            cursor, policy = await cursor_at(self._builder, consumer, offset)
            spec, origin, hosts = consumer.spec, consumer.local.origin, self._broker.hosts
            await begin_again(consumer, spec, origin, cursor, policy, hosts)
            return offset

    @asynccontextmanager
    async def _change_of(self, named: AckedConsumer) -> AsyncIterator[tuple[Shared, AckedConsumer]]:
        """Wait for other changes of a consumer, which may have replaced it. Raises JetStreamError
        if the consumer was deleted, and LiftlogError if the journal cannot be written."""
        host, name = named.host, named.spec.name
        async with self._locks.hold(host.name, name, seconds=PATIENCE_SECONDS):
            shared, consumer = self._shared, self.find(host.name, name)
            if shared is None or consumer is None or consumer.key != named.key:
                raise JetStreamError(404, 10014, "consumer not found")
            consumer.changes.check()
            self._updating.add(consumer.key)
            try:
                yield shared, consumer
            finally:
                self._updating.discard(consumer.key)

    async def delete(self, stream: str, name: str) -> bool:
        """Delete a consumer. Raises LiftlogError or JetStreamError. After an error the consumer
        still exists."""
        shared = self._shared
        if shared is None:
            return False
        async with self._locks.hold(stream, name, seconds=PATIENCE_SECONDS):
            broken = self._loader.problem_of(self._broker.hosts.get(stream), name)
            if broken is not None:
                changes = self._changes_of(shared, self._broker.hosts[stream])
                await store_deletion(changes, broken[0], lambda: None)
                self._loader.broken.pop((stream, name), None)
                return True
            consumer = self.find(stream, name)
            if consumer is None:
                return False
            await self._delete(shared, consumer)
            return True

    async def _delete(self, shared: Shared, consumer: AckedConsumer) -> None:
        (_, name), stream, changes = consumer.key, consumer.host.name, consumer.changes
        changes.check()
        consumer.is_held = True  # a change after the deletion would have no effect
        try:
            await store_deletion(
                changes, consumer.key, lambda: None if consumer.is_closed else consumer.snapshot()
            )
        finally:
            consumer.is_held = False
            consumer.wake()
        consumer.end(Ending.CONSUMER_DELETED, is_stored=False)
        self._lingering[stream] = time.monotonic() + LINGER_SECONDS
        self._forget(consumer)
        shared.advisories.deleted(stream, name)

    def take(self, arrived: Arrived) -> None:
        """Pass the acks and pulls of one read to their consumers."""
        if self._led is not None and self._led.holds(arrived):
            return
        consumers = self._on(arrived.stream)
        lost: list[bytes] = []
        for acks in arrived.acks:
            consumer = consumers.get(acks.consumer)
            if (
                consumer is None
                or consumer.is_closed  # the consumer is being loaded again
                or consumer.spec.settings.ack_policy is AckPolicy.NONE
            ):
                lost += filter(None, acks.replies)
            else:
                consumer.acknowledge(acks)
        for pull in arrived.pulls:
            consumer = consumers.get(pull.consumer)
            if consumer is not None and consumer.is_closed:
                lost.append(pull.reply)
            elif consumer is not None:  # if the consumer is not here, the API answers the pull
                consumer.pull(pull.reply, pull.request)
        answers = ack_answers(self._broker.destinations, arrived.answers, lost)
        if answers:
            self._link.link.send(answers)
        self._rounds.run()

    def subscribed_at(self, stream: str) -> float:
        return self._link.subscribed_at(stream)

    def refuse_pull(self, stream: str, name: str, reply: bytes) -> bool:
        """Drop a pull that waits until the consumers of a stream are open. Called because the
        pull's client is about to get a refusal. Returns False if the consumer is already open and
        has the pull."""
        if name in self._all.get(stream, ()):
            return False
        if self._led is not None:
            self._led.drop_pull(stream, name, reply)
        return True

    def takes_pull(self, subject: bytes) -> bool:
        """Return True if `subject` belongs to a pull for a consumer here."""
        if not subject.startswith(PULL_PREFIX):
            return False
        stream, _, name = (
            subject.removeprefix(PULL_PREFIX).decode("utf-8", "replace").partition(".")
        )
        return name in self._all.get(stream, ())

    def flow_answered(self, subject: bytes) -> None:
        """Take an answer to a request of flow control."""
        tokens = subject.decode("utf-8", "replace").split(".")
        if len(tokens) == 5:
            consumer = self._all.get(tokens[2], {}).get(tokens[3])
            if consumer is not None:
                consumer.flow_answered(subject)

    # --- inside ---

    def _enter(self, consumer: AckedConsumer) -> None:
        name = consumer.host.name
        self._all.setdefault(name, {})[consumer.spec.name] = consumer
        if self._hosts.get(name) is not consumer.host:
            self._hosts.pop(name, None)
        self._by_key[consumer.key] = consumer
        self._link.lead(consumer.host.name)

    def _forget(self, consumer: AckedConsumer) -> None:
        found = self._all.get(consumer.host.name, {})
        if self._by_key.get(consumer.key) is consumer:
            del self._by_key[consumer.key]
        if found.get(consumer.spec.name) is consumer:
            del found[consumer.spec.name]
            if not found:
                del self._all[consumer.host.name]
                self._hosts.pop(consumer.host.name, None)
            self._leave_unused(consumer.host.name)

    def _leave_unused(self, stream: str) -> None:
        """Unsubscribe for a stream without consumers, unless its last consumer was just deleted."""
        if not self._admission.is_used(stream) and stream not in self._lingering:
            self._link.leave(stream)

    async def _delete_inactive(self, consumer: AckedConsumer, active_ns: int) -> None:
        """Delete a consumer, unless clients have used it after `active_ns`."""
        stream, name = consumer.host.name, consumer.spec.name
        try:
            async with self._locks.hold(stream, name):
                shared, found = self._shared, self.find(stream, name)
                if shared is None or found is not consumer or consumer.active_ns() != active_ns:
                    return
                await self._delete(shared, consumer)
        except LiftlogError as error:  # the attempt is repeated after the same time
            logger.warning("consumer-not-deleted stream=%s name=%s error=%s", stream, name, error)

    def _failed(self, consumer: AckedConsumer) -> None:
        """Load a consumer from the journal again after a defect has ended it in memory."""
        consumer.abandon()
        self._services.spawn(self._reload(consumer))

    async def _reload(self, consumer: AckedConsumer) -> None:
        await asyncio.sleep(SWEEP_SECONDS)
        host, name = consumer.host, consumer.spec.name

        def is_wanted() -> bool:
            return self._on(host.name).get(name) is consumer

        async with self._locks.hold(host.name, name):
            if self._shared is not None and is_wanted():
                await self._loader.load(self._shared, host, name, is_wanted)
                if is_wanted():
                    self._forget(consumer)  # the consumer could not be loaded

    async def _sweep(self) -> None:
        """End the consumers of deleted streams. End the subscriptions for streams that have had no
        consumers for some time. If a purge, retention or `max_age` has removed records, wake the
        consumers of these records."""
        starts: dict[str, int] = {}
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                starts = await self._sweep_once(starts)
            except Exception as error:  # a supervisor: the next sweep may succeed
                logger.exception("consumers-not-swept error=%r", error)

    async def _sweep_once(self, before: Mapping[str, int]) -> dict[str, int]:
        """Sweep once. `before` contains the starts of the streams at the previous sweep. Returns
        their present starts."""
        now = time.monotonic()
        for stream in [one for one, until in self._lingering.items() if until <= now]:
            del self._lingering[stream]
            self._leave_unused(stream)
        starts: dict[str, int] = {}
        for stream in [*self._all]:
            for consumer in self._on(stream).values():
                start = starts.setdefault(stream, consumer.local.cursor.log_start)
                if before.get(stream) == start:
                    break
                if consumer.machine.state.floor_offset < start:
                    # The consumer may have waited for an ack of a record that no longer exists.
                    consumer.wake()
        shared = self._shared
        if shared is None:
            return starts
        shared.interest.forget_closed()
        if self._loader.denied and shared.journal.problem is None:
            await self._loader.load_denied(shared, self._broker.hosts, self._locks)
        if shared.room <= 0:
            for consumer in self._consumers():
                consumer.wake()
        return starts


def _wake(consumers: AckedConsumers, stream: str) -> None:
    """Wake the consumers of a stream, whose pending messages may have been erased."""
    for consumer in consumers._on(stream).values():
        consumer.wake()
