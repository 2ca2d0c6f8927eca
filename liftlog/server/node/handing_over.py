"""Hands the leadership of a stream over to another node, or takes it over, by the rules of
`liftlog.cluster.handover`.

The leader performs the steps one after the other. At each step, it sends a request to the other
node. If a handover fails, it is undone, and the leader continues to lead the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from liftlog.cluster import transitions
from liftlog.cluster.handover import (
    DIGEST_BYTES,
    HOLD_SECONDS,
    KEY_BYTES,
    MAX_HELD_BYTES,
    SPREAD_SECONDS,
    Giver,
    Offer,
    Step,
    Taker,
)
from liftlog.cluster.record import StreamMetadata
from liftlog.errors import (
    BadRequest,
    Conflict,
    LiftlogError,
    MetadataUnavailable,
    StreamUnavailable,
)
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.replication import MAX_DIGEST_BYTES, HandOver, LookAgain
from liftlog.protocol.wire import Message
from liftlog.sequencing import MessageRun
from liftlog.sequencing.refusals import MOVING
from liftlog.server.commits.host import StreamHost
from liftlog.server.ingest.relay import Relay
from liftlog.server.metadata.mirror import Mirror
from liftlog.server.replication.peer_link import PeerLink
from liftlog.server.streams.hosted import HostedStreams
from liftlog.server.streams.ids_ahead import IdsAhead

logger = logging.getLogger("liftlog.server.replication")

LOOK_SECONDS = 2.0
"""Time limit, in seconds, for another node to adopt new metadata."""
_PAUSE_SECONDS = 0.05


@dataclass(slots=True)
class _Taking:
    """A stream that this node is about to take over."""

    taker: Taker[MessageRun]
    host: StreamHost
    relay: Relay
    told: list[bytes] = field(default_factory=list)
    watch: asyncio.TimerHandle | None = None


class Handovers:
    """All handovers of this node, in either direction. Belongs to the event loop. `link_to` returns
    the connection to another node; `spawn` starts a task."""

    def __init__(
        self,
        node: str,
        mirror: Mirror,
        streams: HostedStreams,
        ids: IdsAhead,
        link_to: Callable[[str], PeerLink],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self.is_stopping = False
        """True as soon as this node takes over no more streams."""
        self.given = 0
        """Number of streams that were handed over."""
        self.failed = 0
        """Number of failed attempts. After a failed attempt, this node still leads the stream, or
        an election chooses the leader."""
        self.node = node
        self._mirror = mirror
        self._streams = streams
        self._ids = ids
        self._link_to = link_to
        self._spawn = spawn
        self._taking: dict[str, _Taking] = {}
        self._giving: dict[str, asyncio.Event] = {}
        """Maps each stream to the event that is set when the handover of the stream has ended."""
        self._loop = asyncio.get_running_loop()

    # --- this node gives a stream away ---

    async def hand_over(self, name: str, to: str) -> None:
        """Make `to`, a node in the ISR, the leader of a stream that this node leads. Publishers are
        not interrupted.

        Raises Conflict if the handover is not possible. Raises StreamUnavailable if it failed. This
        node then still leads the stream, or another node was elected.
        """
        record, host = self._mirror.records.get(name), self._streams.hosts.get(name)
        if record is None or host is None or record.leader != self.node or not host.is_leading:
            raise Conflict(f"node {self.node} does not lead stream {name}")
        if to not in record.isr or to == self.node:
            raise Conflict(
                f"node {to} cannot take over stream {name}: in sync are {', '.join(record.isr)}",
                hint="wait until the node is in sync: see `liftlog cluster status`",
            )
        if name in self._giving:
            raise Conflict(f"stream {name} is being handed over already", hint="wait for that")
        relay = self._streams.attachments.relay(host)
        is_attached = self._streams.attachments.is_recorded(host)
        if is_attached and relay is None:
            raise Conflict(f"stream {name} is not attached to NATS", hint="try again")
        giver = Giver(
            Offer(
                name,
                record.incarnation,
                record.leader_epoch,
                self.node,
                secrets.token_bytes(KEY_BYTES),
                is_attached=is_attached,
                is_shared=host.settings.queue_group is not None,
            )
        )
        ended = self._giving[name] = asyncio.Event()
        began = self._loop.time()
        try:
            await _Giving(self, giver, host, relay, to).run()
        except LiftlogError:
            self.failed += 1
            raise
        finally:
            del self._giving[name]
            ended.set()
        self.given += 1
        seconds = self._loop.time() - began
        logger.info("handed-over stream=%s to=%s seconds=%.3f", name, to, seconds)

    def is_giving(self, name: str) -> bool:
        """Return True while this node is handing over this stream."""
        return name in self._giving

    async def finished(self, name: str) -> None:
        """Wait until no handover of this stream is in progress."""
        while (ended := self._giving.get(name)) is not None:
            await ended.wait()

    async def have_look(self, node: str, record: StreamMetadata) -> None:
        """Ask `node` to read this record. Wait until the node has adopted the record, or until a
        time limit has passed. Does not raise."""
        try:
            await self.ask(node, LookAgain(record.name, record.version), LOOK_SECONDS)
        except LiftlogError as error:  # the node receives the record later in any case
            logger.info("not-looked stream=%s node=%s reason=%s", record.name, node, error)

    def tell(self, record: StreamMetadata) -> None:
        """Ask all other nodes with a copy to read this record at once."""
        for node in record.members:
            if node != self.node:
                self._spawn(self.have_look(node, record))

    async def ask(self, node: str, message: Message, seconds: float) -> None:
        """Send a request, and wait until the node has carried it out. Raises StreamUnavailable if
        the node does not answer in time, ConnectionLost, and the node's error."""
        answered: asyncio.Future[None] = self._loop.create_future()

        def done(_: Exchange) -> None:
            if not answered.done():
                answered.set_result(None)

        link, exchange = self._link_to(node), Exchange(on_done=done)
        link.request(message, exchange)
        try:
            async with asyncio.timeout(seconds):
                await answered
        except TimeoutError:
            raise StreamUnavailable(f"node {node} did not answer in {seconds:.1f} s") from None
        finally:
            if not exchange.done:
                link.give_up(exchange)
        if exchange.error is not None:
            raise exchange.error

    # --- this node takes a stream over ---

    async def asked(self, message: HandOver) -> None:
        """Carry out a request of the leader of a stream. Raises Conflict if this node cannot take
        over, BadRequest, NatsUnavailable, NatsRefused."""
        if message.step == "prepare":
            await self._prepare(message)
            return
        taking = self._taking.get(message.stream)
        if taking is None or taking.taker.offer.key != message.token:
            if message.step == "drop":
                return
            raise Conflict(f"node {self.node} does not know of this handover")
        if message.step == "drop":
            await self._drop(taking, "the leader has abandoned the handover")
        elif message.step == "subscribe":
            await self._decline_if_it_stops(taking)
            await self._subscribe(taking)
        elif message.step == "tell":
            await self._be_told(taking, message)
        else:
            raise BadRequest(f"handover has no step {message.step!r}")

    @property
    def is_taking(self) -> bool:
        """Return True if a handover that has begun may still make this node the leader of a
        stream."""
        now = self._loop.time()
        return any(
            one.taker.is_needed(now) and self._is_led_by_giver(one.taker.offer)
            for one in self._taking.values()
        )

    def _is_led_by_giver(self, offer: Offer) -> bool:
        record = self._mirror.records.get(offer.stream)
        return record is not None and (
            (record.incarnation, record.leader, record.leader_epoch)
            == (offer.incarnation, offer.giver, offer.epoch)
        )

    def leads(self, name: str) -> None:
        """Note that this node leads the stream. The node has already stored the held messages that
        it could use."""
        taking = self._taking.pop(name, None)
        if taking is not None and taking.watch is not None:
            taking.watch.cancel()

    async def _prepare(self, message: HandOver) -> None:
        name = message.stream
        record = await self._record_of(message)
        host, attachments = self._streams.hosts.get(name), self._streams.attachments
        if (
            host is None
            or record is None
            or (attachments.is_recorded(host) and not attachments.connected)
            or host.is_leading
            or host.failure
            or self.is_stopping
            or self.node not in record.isr
            or (record.incarnation, record.leader, record.leader_epoch)
            != (message.incarnation, message.node, message.epoch)
        ):
            raise Conflict(f"node {self.node} cannot take over stream {name} now")
        if self._streams.reserve.is_disk_full():
            raise Conflict(f"node {self.node} cannot take over stream {name}: its disk is full")
        before = self._taking.pop(name, None)
        if before is not None:
            await self._drop(before, "another handover has begun")
        settings = host.settings
        offer = Offer(
            name,
            message.incarnation,
            message.epoch,
            message.node,
            message.token,
            is_attached=attachments.is_recorded(host),
            is_shared=settings.queue_group is not None,
        )
        # When this node begins to lead, all held messages are passed on at once, so their number
        # must be limited.
        taker = Taker[MessageRun](offer, min(MAX_HELD_BYTES, settings.max_pending_bytes // 2))
        taking = self._taking[name] = _Taking(taker, host, Relay(self._loop.time))
        await self._ids.catch_up(host)
        await self._decline_if_it_stops(taking)
        if not offer.is_attached:  # at the next await, this node may begin to lead the stream
            taker.subscribes()
            taker.subscribed(self._loop.time())

    async def _record_of(self, message: HandOver) -> StreamMetadata | None:
        """Return the record on which the leader's request is based. If this node has an older
        record, it reads the record from the store. This occurs if the leader has just begun its
        epoch, or has just added this node."""
        record = self._mirror.records.get(message.stream)
        if record is not None and (
            record.leader_epoch < message.epoch or self.node not in record.isr
        ):
            with contextlib.suppress(MetadataUnavailable):
                await self._mirror.change(message.stream, lambda present: None)
        return self._mirror.records.get(message.stream)

    async def _decline_if_it_stops(self, taking: _Taking) -> None:
        """Raise Conflict and drop the handover if this node is stopping. Called before the present
        leader relies on this node."""
        if self.is_stopping:
            await self._drop(taking, "this node stops")
            raise Conflict(f"node {self.node} stops, and takes over nothing more")

    async def _subscribe(self, taking: _Taking) -> None:
        taking.taker.subscribes()
        taking.relay.taker = taking.taker
        await self._streams.attachments.attach_early(taking.host, taking.relay)
        taking.taker.subscribed(self._loop.time())
        taking.watch = self._loop.call_later(HOLD_SECONDS + 0.1, self._look, taking)

    async def _be_told(self, taking: _Taking, message: HandOver) -> None:
        taking.told.append(message.digests)
        if message.more:
            return
        taker, host = taking.taker, taking.host
        if self._streams.hosts.get(host.name) is not host:
            taker.broken("the stream was opened again")
        if taker.offer.is_attached:
            await self._streams.attachments.confirm_early(host)
        await self._ids.catch_up(host)
        taker.told(message.token, message.end, taking.told, self._loop.time())
        if taker.problem:
            await self._drop(taking, taker.problem)
            raise Conflict(f"node {self.node} cannot take over stream {host.name}: {taker.problem}")

    def _look(self, taking: _Taking) -> None:
        """Drop the handover if it has taken too long."""
        if taking.taker.is_over(self._loop.time()):
            self._spawn(self._drop(taking, "it took too long"))

    async def _drop(self, taking: _Taking, reason: str) -> None:
        """Discard the held messages, and receive no more."""
        name = taking.host.name
        if self._taking.get(name) is taking:
            del self._taking[name]
        if taking.watch is not None:
            taking.watch.cancel()
        if taking.taker.leads:
            return
        logger.warning("handover-dropped stream=%s reason=%s", name, reason)
        taking.taker.broken(reason)
        if self._streams.attachments.relay(taking.host) is taking.relay:
            await self._streams.attachments.detach(taking.host)


class _Giving:
    """One handover, on the leader's side."""

    def __init__(
        self, handovers: Handovers, giver: Giver, host: StreamHost, relay: Relay | None, to: str
    ) -> None:
        self._handovers = handovers
        self._streams, self._mirror = handovers._streams, handovers._mirror
        self._giver = giver
        self._host = host
        self._relay = relay
        self._to = to
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        giver, name = self._giver, self._host.name
        if self._relay is not None:
            self._relay.giver = giver
        step = giver.begin(self._loop.time())
        try:
            while step is not Step.OVER:
                async with asyncio.timeout(giver.seconds_left(self._loop.time())):
                    await self._do(step)
                if giver.saw(self._mirror.records[name]):
                    break
                step = giver.done(self._loop.time())
        except (LiftlogError, TimeoutError) as error:
            await self._undo(is_declined=isinstance(error, Conflict))
            raise StreamUnavailable(
                f"stream {name} was not handed over to node {self._to}: "
                f"{str(error) or f'{step.value} took too long'}",
                hint="its leader has not changed; try again",
            ) from error
        except asyncio.CancelledError:  # the daemon is stopping
            self._handovers._spawn(self._undo(is_ending=True))
            raise
        finally:
            if self._relay is not None:
                self._relay.giver = None
        record = self._mirror.records[name]
        if record.leader != self._to:
            raise StreamUnavailable(
                f"stream {name} is led by node {record.leader or 'none'} since", hint="look again"
            )

    async def _do(self, step: Step) -> None:
        attachments, host = self._streams.attachments, self._host
        if step in (Step.PREPARE, Step.SUBSCRIBE):
            await self._ask(step)
        elif step is Step.SPREAD:
            await asyncio.sleep(SPREAD_SECONDS)
        elif step is Step.UNSUBSCRIBE:
            if not await attachments.detach(host):
                raise StreamUnavailable("NATS has not confirmed the end of the subscription")
        elif step is Step.COMMIT:
            host.refuse_new(MOVING)
            await host.drained()
            # Without fsync, acks have not waited for the next leader.
            if host.settings.durability != "fsync":
                await host.exclusively(host.log.sync)
                await host.wait_high_watermark(host.log.log_end_offset - 1)
            if host.failure or host.log.high_watermark < host.log.log_end_offset:
                raise StreamUnavailable("what was received has not been committed")
        elif step is Step.TELL:
            if self._giver.is_full:
                raise StreamUnavailable("too many messages arrived to report them")
            pieces = self._giver.told(MAX_DIGEST_BYTES // DIGEST_BYTES) or [b""]
            for number, piece in enumerate(pieces, 1):
                await self._ask(step, piece, more=number < len(pieces))
        else:
            await self._transfer()

    async def _ask(self, step: Step, digests: bytes = b"", *, more: bool = False) -> None:
        offer = self._giver.offer
        message = HandOver(
            offer.stream,
            offer.incarnation,
            offer.epoch,
            offer.giver,
            step.value,
            offer.key,
            self._host.log.log_end_offset,
            digests,
            more,
        )
        seconds = self._giver.seconds_left(self._loop.time()) or 1.0
        await self._handovers.ask(self._to, message, seconds)

    async def _transfer(self) -> None:
        offer = self._giver.offer

        def step(present: StreamMetadata) -> StreamMetadata | None:
            if (present.incarnation, present.leader_epoch) != (offer.incarnation, offer.epoch):
                return None
            return transitions.transfer(present, self._to)

        while True:
            try:
                record = await self._mirror.change(offer.stream, step)
                break
            except MetadataUnavailable as error:  # the change may have been stored
                logger.warning("not-transferred-yet stream=%s error=%s", offer.stream, error)
                await asyncio.sleep(_PAUSE_SECONDS)
        if record is not None:
            self._handovers.tell(record)

    async def _undo(self, *, is_ending: bool = False, is_declined: bool = False) -> None:
        """Undo the handover, so that this node continues to lead the stream. If this node
        `is_ending`, an election follows instead. Does not raise."""
        undo = self._giver.failed(is_declined=is_declined, is_ending=is_ending)
        host = self._host
        host.accept_again(MOVING)
        still_led = self._streams.hosts.get(host.name) is host and host.is_accepting
        if undo.subscribe and still_led and not is_ending:
            self._streams.attachments.want(host)
            # The stream is attached again as soon as possible.
            with contextlib.suppress(LiftlogError):
                await self._streams.attachments.attach(host)
        if undo.loss:
            self._streams.note_possible_loss(host, f"a handover failed: {undo.loss}")
        if undo.drop:
            offer = self._giver.offer
            message = HandOver(
                offer.stream, offer.incarnation, offer.epoch, offer.giver, "drop", offer.key
            )
            with contextlib.suppress(LiftlogError):
                await self._handovers.ask(self._to, message, LOOK_SECONDS)
