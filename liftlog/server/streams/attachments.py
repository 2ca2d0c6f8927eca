"""The streams that receive messages from NATS, their subscriptions, and the times at which they may
have missed messages."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from liftlog.errors import LiftlogError, NatsUnavailable
from liftlog.log import Clock
from liftlog.server.commits.host import SYSTEM, StreamHost
from liftlog.server.ingest.nats_link import NatsLink
from liftlog.server.ingest.relay import Relay
from liftlog.server.ingest.subscriptions import LinkSubscription, RunHandler
from liftlog.server.streams.intake import Intake

logger = logging.getLogger("liftlog.server")

GapNoter = Callable[[StreamHost, str], None]


@dataclass(frozen=True, slots=True)
class RefusedSubject:
    """A subscription that NATS refuses."""

    stream: str
    subject: str
    problem: str
    is_required: bool
    """True if the daemon is not ready without this subscription."""


class Attachments:
    """Subscribes and unsubscribes for streams. Belongs to the event loop. No stream is attached
    before `set_link`."""

    def __init__(self, hosts: Mapping[str, StreamHost], intake: Intake, note_gap: GapNoter) -> None:
        """`note_gap` is called for each event in which a stream may have missed messages."""
        self._hosts = hosts
        self._intake = intake
        self._note_gap = note_gap
        self._link: NatsLink | None = None
        self._subscriptions: dict[str, LinkSubscription] = {}
        self._relays: dict[str, Relay] = {}
        """The relays of streams that can move to another node, by name."""
        self._own_receivers: dict[str, RunHandler] = {}
        self._optional: set[str] = set()

    # --- attaching ---

    def receive_for(self, name: str, receive: RunHandler, *, is_required: bool) -> None:
        """Attach a system stream. Its messages are passed to `receive`. Call this before
        `set_link`. If the stream is not required, the daemon is ready even if NATS refuses the
        subscription."""
        self._own_receivers[name] = receive
        if not is_required:
            self._optional.add(name)

    def set_link(self, link: NatsLink) -> None:
        """Attach streams through this link from now on."""
        self._link = link
        self._intake.write = link.send
        for host in self._hosts.values():
            self.want(host)

    def want(self, host: StreamHost) -> None:
        """Subscribe for a stream as soon as there is a connection."""
        if self._link is None or not self.is_attachable(host):
            return
        receive = self._own_receivers.get(host.name) or self._intake.receiver(host)
        if host.log.config.replicated:
            relay = self._relays[host.name] = Relay(time.monotonic, receive)
            receive = relay.receive
        self._subscriptions[host.name] = self._link.want(
            host.settings.subjects,
            host.settings.queue_group,
            receive,
            partial(self._note_gap, host),
            is_acked=host.settings.acks == "on",
        )

    def settings_changed(self) -> None:
        """Subscribe to changed subjects of streams as soon as possible."""
        for name, wanted in self._subscriptions.items():
            host = self._hosts.get(name)
            if self._link is not None and host is not None:
                self._link.retarget(wanted, host.settings.subjects)

    async def attach(self, host: StreamHost) -> None:
        """Attach a stream, and wait until NATS has confirmed the subscription. Raises
        NatsUnavailable, and NatsRefused if NATS does not allow the subscription."""
        wanted = self._subscriptions.get(host.name)
        if self._link is not None and wanted is not None:
            await self._link.attach(wanted)

    async def detach(self, host: StreamHost) -> bool:
        """Unsubscribe, and wait until no more messages can arrive. Returns False if NATS has not
        confirmed the end of the subscription. In this case the stream may have missed some
        messages."""
        self._relays.pop(host.name, None)
        wanted = self._subscriptions.pop(host.name, None)
        if self._link is None or wanted is None:
            return True
        return await self._link.unwant(wanted)

    # --- a stream that moves from one node to another ---

    def is_recorded(self, host: StreamHost) -> bool:
        """Return True if the leader of this stream receives messages from NATS. Some system streams
        receive none."""
        return host.origin != SYSTEM or host.name in self._own_receivers

    def relay(self, host: StreamHost) -> Relay | None:
        """Return the relay that receives the messages of this stream; None if the stream has no
        relay."""
        return self._relays.get(host.name)

    async def attach_early(self, host: StreamHost, relay: Relay) -> None:
        """Subscribe for a stream that another node still leads. Waits until NATS has confirmed the
        subscription. Raises NatsUnavailable, NatsRefused."""
        if self._link is None or host.name in self._subscriptions:
            raise NatsUnavailable("there is no connection to NATS at the moment")

        def missed(reason: str) -> None:
            if relay.taker is not None:
                relay.taker.broken(reason)

        wanted = self._link.want(
            host.settings.subjects,
            host.settings.queue_group,
            relay.receive,
            missed,
            is_acked=host.settings.acks == "on",
        )
        self._subscriptions[host.name], self._relays[host.name] = wanted, relay
        try:
            await self._link.attach(wanted)
        except BaseException:
            await self.detach(host)
            raise

    async def confirm_early(self, host: StreamHost) -> None:
        """Wait until all messages that NATS has sent so far have been received. Raises
        NatsUnavailable."""
        if self._link is None or not self._is_confirmed(host):
            raise NatsUnavailable("there is no connection to NATS at the moment")
        await self._link.confirm()

    def take(self, host: StreamHost) -> bool:
        """Store the messages that arrived early, because this node leads the stream from now on.
        Returns False if there is no usable subscription. In this case the caller must call
        `detach`, and shortly after that `want`."""
        relay, wanted = self._relays.get(host.name), self._subscriptions.get(host.name)
        if relay is None or wanted is None or not wanted.confirmed:
            return False
        if wanted.subjects != host.settings.subjects:  # the subjects were changed during the move
            return False
        receive = self._own_receivers.get(host.name) or self._intake.receiver(host)
        if not relay.take(host.log.log_end_offset, receive):
            return False
        wanted.on_gap = partial(self._note_gap, host)
        self._intake.mark_dirty(host)
        return True

    async def drain(self) -> None:
        """Detach everything. On return all messages that NATS has sent have been received."""
        if self._link is not None:
            await self._link.drain()

    # --- state ---

    def is_attachable(self, host: StreamHost) -> bool:
        """Return True if this stream receives messages from NATS on this node. Returns False if
        another node leads the stream, and for system streams that receive no messages."""
        return host.is_leading and self.is_recorded(host)

    def is_attached(self, host: StreamHost) -> bool:
        """Return True if NATS delivers messages to the stream, as far as this daemon knows."""
        return self.connected and self._is_confirmed(host)

    @property
    def all_confirmed(self) -> bool:
        """True while NATS has confirmed every subscription that the daemon needs."""
        return all(
            self._is_confirmed(host) or self._is_optional_and_refused(host)
            for host in self._hosts.values()
            if self.is_attachable(host)
        )

    def refused(self) -> list[RefusedSubject]:
        """The subscriptions that NATS refuses, ordered by stream."""
        return [
            RefusedSubject(
                name, wanted.refused_subjects, wanted.problem, name not in self._optional
            )
            for name, wanted in sorted(self._subscriptions.items())
            if wanted.problem
        ]

    def jetstream_warnings(self, host: StreamHost) -> list[str]:
        """Return a warning if streams of JetStream ack the same messages."""
        wanted = self._subscriptions.get(host.name)
        if wanted is None or not wanted.jetstream_streams or host.settings.acks != "on":
            return []
        names = ", ".join(wanted.jetstream_streams)
        return [
            f"JetStream acks the same messages (its stream {names}): publishers take the first ack"
        ]

    def _is_optional_and_refused(self, host: StreamHost) -> bool:
        wanted = self._subscriptions.get(host.name)
        return host.name in self._optional and wanted is not None and bool(wanted.problem)

    def _is_confirmed(self, host: StreamHost) -> bool:
        wanted = self._subscriptions.get(host.name)
        return wanted is not None and wanted.confirmed

    @property
    def connected(self) -> bool:
        return self._link is not None and self._link.connected

    @property
    def problem(self) -> str:
        """The reason why there is no connection to NATS; empty while there is a connection."""
        if self._link is None:
            return "no connection was made yet"
        return "" if self._link.connected else self._link.problem

    @property
    def server_url(self) -> str:
        """The address of the connected NATS server; empty without a connection."""
        return self._link.server_url if self._link is not None else ""

    @property
    def server_version(self) -> str:
        """The version of the connected NATS server; empty without a connection."""
        return self._link.server_version if self._link is not None else ""


async def _save_for_replicas(host: StreamHost, offset: int, time_ns: int, reason: str) -> None:
    """Store a possible loss in the side state. The other nodes copy the side state, so the
    information survives the loss of this leader. A failure is only logged, because the event is
    also in the log file."""
    try:
        await host.run_exclusive(
            lambda: host.log.leases.note_possible_loss(offset, time_ns, reason)
        )
    except LiftlogError as error:
        logger.warning("possible-loss-not-saved stream=%s error=%s", host.name, error)


class PossibleLosses:
    """Stores events in which a stream may have missed messages. No caller waits until an event is
    stored. Belongs to the event loop.

    A stream without replicas stores an event before it stores its next record. If the daemon
    crashes before that, the next start notes another event at the same offset, so nothing is lost.
    Because of this delay, streams that get no messages need no write, even if thousands of streams
    start or lose the connection to NATS.

    For a stream without records, a start notes no event. So an event of such a stream is stored at
    once.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._saving: set[asyncio.Task[None]] = set()

    def note(self, host: StreamHost, reason: str) -> None:
        """Note that `host` may have missed messages before the next message that it receives."""
        now_ns = self._clock.now_ns()
        offset = host.note_possible_loss(reason, now_ns)
        logger.warning("possible-loss stream=%s offset=%d reason=%s", host.name, offset, reason)
        if not host.log.config.replicated:
            if host.log.log_end_offset > host.settings.initial_offset:
                host.turns.before_commit = partial(_save, host)
            else:
                _save(host)
            return
        task = asyncio.get_running_loop().create_task(
            _save_for_replicas(host, offset, now_ns, reason)
        )
        self._saving.add(task)
        task.add_done_callback(self._saving.discard)

    async def close(self) -> None:
        """Cancel the events of replicated streams that are not stored yet."""
        saving = list(self._saving)
        for task in saving:
            task.cancel()
        await asyncio.gather(*saving, return_exceptions=True)


def _save(host: StreamHost) -> None:
    """Start a task that stores the possible losses of a stream. A failure is only logged, because
    the event is also in the log file."""

    def ended(saving: asyncio.Future[object]) -> None:
        error = None if saving.cancelled() else saving.exception()
        if error is not None:
            logger.warning("possible-loss-not-saved stream=%s error=%s", host.name, error)

    saving = host.run_exclusive(lambda: host.log.structure.set_metadata(host.metadata()))
    saving.add_done_callback(ended)
