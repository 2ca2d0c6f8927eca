"""Which streams receive messages from NATS, by which subscriptions, and when they may have missed
some."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from liftlog.errors import LiftlogError
from liftlog.log import Clock
from liftlog.server.commits.host import SYSTEM, StreamHost
from liftlog.server.ingest.nats_link import NatsLink
from liftlog.server.ingest.subscriptions import LinkSubscription, RunHandler
from liftlog.server.streams.intake import Intake
from liftlog.server.streams.settings import save_metadata

logger = logging.getLogger("liftlog.server")

GapNoter = Callable[[StreamHost, str], None]


@dataclass(frozen=True, slots=True)
class RefusedSubject:
    """A subscription that NATS refuses."""

    stream: str
    subject: str
    problem: str
    is_required: bool
    """Whether the daemon is not ready without it."""


class Attachments:
    """Belongs to the event loop. Nothing is attached before there is a link."""

    def __init__(self, hosts: Mapping[str, StreamHost], intake: Intake, note_gap: GapNoter) -> None:
        """`note_gap` is called for each event in which a stream may have missed messages."""
        self._hosts = hosts
        self._intake = intake
        self._note_gap = note_gap
        self._link: NatsLink | None = None
        self._subscriptions: dict[str, LinkSubscription] = {}
        self._own_receivers: dict[str, RunHandler] = {}
        self._optional: set[str] = set()

    # --- attaching ---

    def receive_for(self, name: str, receive: RunHandler, *, is_required: bool) -> None:
        """Attach a system stream, whose messages `receive` gets. Call it before `set_link`. Unless
        it `is_required`, the daemon is ready even when NATS refuses the subscription."""
        self._own_receivers[name] = receive
        if not is_required:
            self._optional.add(name)

    def set_link(self, link: NatsLink) -> None:
        """Streams are attached through this link from now on."""
        self._link = link
        self._intake.send = link.send
        for host in self._hosts.values():
            self.want(host)

    def want(self, host: StreamHost) -> None:
        """Subscribe for a stream as soon as there is a connection."""
        if self._link is None or not self.is_attachable(host):
            return
        receive = self._own_receivers.get(host.name) or self._intake.receiver(host)
        self._subscriptions[host.name] = self._link.want(
            host.settings.subject,
            host.settings.queue_group,
            receive,
            partial(self._note_gap, host),
            is_acked=host.settings.acks == "on",
        )

    async def attach(self, host: StreamHost) -> None:
        """Returns when NATS has confirmed the subscription. Raises NatsUnavailable, and NatsRefused
        when NATS does not allow it."""
        wanted = self._subscriptions.get(host.name)
        if self._link is not None and wanted is not None:
            await self._link.attach(wanted)

    async def detach(self, host: StreamHost) -> None:
        """Unsubscribe. Returns when no more messages can arrive."""
        wanted = self._subscriptions.pop(host.name, None)
        if self._link is not None and wanted is not None:
            await self._link.unwant(wanted)

    async def drain(self) -> None:
        """Detach everything. On return all that NATS had sent has been received."""
        if self._link is not None:
            await self._link.drain()

    # --- state ---

    def is_attachable(self, host: StreamHost) -> bool:
        """Whether it receives messages from NATS at all: not if another node leads it, and a system
        stream may not."""
        return host.is_leading and self._is_recorded(host)

    def _is_recorded(self, host: StreamHost) -> bool:
        return host.origin != SYSTEM or host.name in self._own_receivers

    def is_attached(self, host: StreamHost) -> bool:
        """Whether NATS delivers to the stream, as far as is known."""
        return self.connected and self._is_confirmed(host)

    @property
    def all_confirmed(self) -> bool:
        """Whether every subscription that the daemon needs is confirmed."""
        return all(
            self._is_confirmed(host) or self._is_optional_and_refused(host)
            for host in self._hosts.values()
            if self.is_attachable(host)
        )

    def refused(self) -> list[RefusedSubject]:
        """The subscriptions that NATS refuses, ordered by stream."""
        return [
            RefusedSubject(name, wanted.subject, wanted.problem, name not in self._optional)
            for name, wanted in sorted(self._subscriptions.items())
            if wanted.problem
        ]

    def jetstream_warnings(self, host: StreamHost) -> list[str]:
        """A warning if streams of JetStream ack the same messages."""
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
        """Why there is no connection; empty when there is one."""
        if self._link is None:
            return "no connection was made yet"
        return "" if self._link.connected else self._link.problem

    @property
    def server_version(self) -> str:
        """Empty without a connection."""
        return self._link.server_version if self._link is not None else ""


async def _save_for_replicas(host: StreamHost, offset: int, time_ns: int, reason: str) -> None:
    """In the side state, which the others copy: it outlives this leader. A failure is logged only:
    the event is in the log file."""
    try:
        await host.run_exclusive(
            lambda: host.log.leases.note_possible_loss(offset, time_ns, reason)
        )
    except LiftlogError as error:
        logger.warning("possible-loss-not-saved stream=%s error=%s", host.name, error)


class PossibleLosses:
    """Events in which a stream may have missed messages. Belongs to the event loop. They are stored
    in the background, so they delay nothing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._saving: set[asyncio.Task[None]] = set()

    def note(self, host: StreamHost, reason: str) -> None:
        """Note such an event for `host`, at the offset that its next message gets."""
        now_ns = self._clock.now_ns()
        offset = host.note_possible_loss(reason, now_ns)
        logger.warning("possible-loss stream=%s offset=%d reason=%s", host.name, offset, reason)
        saving = save_metadata(host)
        if host.log.config.replicated:
            saving = _save_for_replicas(host, offset, now_ns, reason)
        task = asyncio.get_running_loop().create_task(saving)
        self._saving.add(task)
        task.add_done_callback(self._saving.discard)

    async def close(self) -> None:
        """Give up what is not stored yet."""
        saving = list(self._saving)
        for task in saving:
            task.cancel()
        await asyncio.gather(*saving, return_exceptions=True)
