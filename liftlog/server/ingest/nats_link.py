"""The daemon's permanent link to NATS, over one connection after another.

It connects to the first server that answers, and makes the wanted subscriptions. It repeats refused
subscriptions. When a server is about to stop, it moves to another server. It reports every period
in which messages may have been missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial

from liftlog.errors import NatsRefused, NatsUnavailable
from liftlog.sequencing.acks import within_payload
from liftlog.server.ingest.coalescing import Coalescing
from liftlog.server.ingest.connection import NatsConnection
from liftlog.server.ingest.counters import LinkCounters
from liftlog.server.ingest.dialing import Dialer, checked
from liftlog.server.ingest.echoes import Echoes
from liftlog.server.ingest.endings import Cause, Ending, Rejection
from liftlog.server.ingest.handover import Handover
from liftlog.server.ingest.jetstream import JetStreamWatch
from liftlog.server.ingest.refused_acks import RefusedAcks
from liftlog.server.ingest.subscriptions import LinkSubscription, RunHandler, SubscriptionBook
from liftlog.server.vitals.rare_warnings import RareWarnings
from liftlog.settings import NatsSettings

logger = logging.getLogger("liftlog.server.nats")

_WATCH_SECONDS = 0.5
_DRAIN_SECONDS = 3.0
_HANDOVER_PAUSE_SECONDS = 1.0


class NatsLink:
    """Owns the connection. Belongs to one event loop.

    `on_chunk_end()` is called after the messages of one read were delivered. While
    `reading_is_held()` is true, the link awaits `wait_until_ready_to_read()` before it reads more.
    `stood_still_seconds()` returns the duration of the last pause of the process.
    """

    def __init__(
        self,
        settings: NatsSettings,
        servers: list[str],
        seam: str,
        *,
        on_chunk_end: Callable[[], None],
        wait_until_ready_to_read: Callable[[], Awaitable[None]],
        reading_is_held: Callable[[], bool],
        stood_still_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._settings = settings
        self.seam = seam
        self._on_chunk_end = on_chunk_end
        self._connection: NatsConnection | None = None
        self._handover: Handover | None = None
        self._echoes = Echoes(time.monotonic)
        self._book = SubscriptionBook()
        self._closing = False
        self._answers = True
        self._work = asyncio.Event()
        self._stopping = asyncio.Event()
        self._lock = asyncio.Lock()  # one change of subscriptions or connection at a time
        # A stopping node and the nodes that take over from it change hundreds of subscriptions.
        self._attaching = Coalescing(self._lock, self._attach)
        self._leaving = Coalescing(self._lock, self._leave)
        self._supervisor: asyncio.Task[None] | None = None
        new_connection = partial(
            NatsConnection,
            seam=seam,
            on_chunk_end=on_chunk_end,
            on_revoked=self._book.revoked,
            on_publish_refused=self._publish_refused,
            on_change=self._work.set,
            wait_until_ready_to_read=wait_until_ready_to_read,
            reading_is_held=reading_is_held,
            stood_still_seconds=stood_still_seconds,
        )
        self._warnings = RareWarnings(logger)
        self._dialer = Dialer(settings, servers, new_connection, self._warnings)
        self._jetstream = JetStreamWatch(self._lock)
        self.refused_acks = RefusedAcks()
        self.counters = LinkCounters()
        self.on_connected: list[Callable[[], None]] = []
        """Callbacks that run when the subscriptions of a new connection have been requested."""
        self.on_publish_refused: list[Callable[[str], bool]] = []
        """Callbacks that get the subject of a message that NATS refuses. They are called in turn
        until one returns True because it has sent the message. If none returns True, the message
        was an ack."""

    # --- state ---

    @property
    def subscriptions_refused(self) -> int:
        """Number of times that NATS has refused or ended a subscription."""
        return self._book.refusals

    @property
    def connected(self) -> bool:
        return self._connection is not None and self._connection.connected

    @property
    def problem(self) -> str:
        """The reason why there is no connection."""
        return self._dialer.problem

    @property
    def servers(self) -> list[str]:
        """The configured servers. The link may discover other servers of the same cluster."""
        return self._dialer.urls

    @property
    def server_url(self) -> str:
        """The address of the connected server, without a login; empty without a connection."""
        return self._connection.server_url if self._connection is not None else ""

    @property
    def server_version(self) -> str:
        """The version of the connected server; empty without a connection."""
        return self._connection.server_version if self._connection is not None else ""

    @property
    def generation(self) -> int:
        """A number that changes with each connection that begins or ends."""
        return self.counters.changes

    @property
    def server_has_jetstream(self) -> bool:
        """True if the connected server reports that JetStream is on."""
        return self._connection is not None and self._connection.has_jetstream

    @property
    def max_payload_bytes(self) -> int:
        """The largest message that the server accepts; 0 if not known."""
        return 0 if self._connection is None else self._connection.max_payload_bytes

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the server has not taken yet."""
        return 0 if self._connection is None else self._connection.unsent_bytes

    @property
    def is_lame_duck(self) -> bool:
        """True if the server is about to stop, and no other was found."""
        return self._connection is not None and self._connection.lame_duck

    def send(self, commands: bytes) -> None:
        """Queue commands (acks). Acks are lost without a connection; their publishers then publish
        again."""
        max_payload_bytes = self.max_payload_bytes
        if 0 < max_payload_bytes < len(commands):
            commands = self._within_payload(commands, max_payload_bytes)
        if not commands:
            return
        handover = self._handover
        if self._connection is not None and self._connection.send(commands):
            if handover is not None:
                handover.sent(commands)
        elif handover is None or not handover.new.send(commands):
            self.counters.acks_dropped += commands.count(b"PUB ")

    async def room(self) -> None:
        """Wait until NATS has taken most of the sent bytes. Raises NatsUnavailable."""
        connection = self._connection
        if connection is None or not connection.connected:
            raise NatsUnavailable("there is no connection to NATS at the moment")
        await connection.room()

    def _within_payload(self, commands: bytes, max_payload_bytes: int) -> bytes:
        """Drop commands that are too large. Otherwise the server would close the connection, and
        messages of other streams would be lost."""
        commands, left_out = within_payload(commands, max_payload_bytes)
        if left_out:
            self.counters.acks_oversized += left_out
            logger.error(
                "nats-answer-too-large count=%d max_payload=%d", left_out, max_payload_bytes
            )
        return commands

    # --- life cycle ---

    def start(self) -> None:
        """Connect in the background, and again after every disconnect until `close`."""
        self._supervisor = asyncio.create_task(self._supervise(), name="nats-link")

    def ask_again(self) -> None:
        """Request refused subscriptions again at once, because permissions may have changed. Also
        check JetStream again."""
        self._jetstream.start_over()
        self._book.ask_at_once()
        self._work.set()

    async def _supervise(self) -> None:
        ending: Ending | None = None
        while not self._closing:
            connection: NatsConnection | None = None
            try:
                connection = await self._connect(ending)
                ending = await self._serve(connection)
            except Exception as error:  # noqa: BLE001  # a supervisor: nats-py may raise anything
                if connection is not None:  # messages are missed from now on: report a gap
                    ending = connection.ending or Ending(Cause.OTHER, f"the link failed: {error!r}")
                self._warnings.warn("nats-link-failed error=%r", error)
                await self._abandon()
                await asyncio.sleep(self._settings.reconnect_wait_seconds)

    async def _connect(self, ending: Ending | None) -> NatsConnection:
        """Return a connection on which every wanted subscription was requested. Retries forever."""
        while True:
            for address in self._dialer.round():
                connection = await self._dialer.open(address)
                if connection is None:
                    continue
                try:
                    async with self._lock:
                        asked = self._book.wanted
                        refused = await connection.subscribe(asked)
                        self._connection = connection
                        self._book.answered(asked, refused)
                except BaseException as error:
                    self._connection = None
                    await connection.close()
                    if not isinstance(error, NatsUnavailable):
                        raise
                    self._dialer.failed(address, error)
                    continue
                self._connected(connection, ending)
                return connection
            await asyncio.sleep(self._settings.reconnect_wait_seconds * random.uniform(0.8, 1.2))

    def _connected(self, connection: NatsConnection, ending: Ending | None) -> None:
        self.counters.connects += 1
        self._warnings.forget()
        self.refused_acks.log_at_once()
        logger.info(
            "nats-connected server=%s version=%s",
            connection.address.shown,
            connection.server_version,
        )
        if ending is not None:
            self._book.gap(ending.text)
        self._tell_connected()

    def _tell_connected(self) -> None:
        for tell in self.on_connected:
            tell()

    async def _serve(self, connection: NatsConnection) -> Ending | None:
        """Serve until the connection, or its successor after a handover, ends; return the
        reason."""
        hand_over_at = 0.0
        while not self._closing:
            self._work.clear()
            if connection.ending is None and not connection.is_read:
                # nats-py considers itself connected, but its read loop has ended.
                self.counters.watchdog_reconnects += 1
                connection.end(Ending(Cause.OTHER, "the read loop ended"))
            if connection.ending is not None:
                ending = await checked(connection.ending, connection.address)
                self._ended(ending)
                await self._abandon()
                return ending
            self._dialer.learn(connection)
            now = time.monotonic()
            if connection.lame_duck and now >= hand_over_at:
                connection = await self._go_elsewhere(connection)
                hand_over_at = time.monotonic() + _HANDOVER_PAUSE_SECONDS
                continue
            await self._attach_missing(now)
            self._jetstream.look(connection, self._book.all_wanted, time.monotonic())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_SECONDS):
                    await self._work.wait()
        return connection.ending

    def _ended(self, ending: Ending) -> None:
        self.counters.ended(ending.cause)
        self._dialer.problem = ending.text
        if not self._closing:
            logger.warning("nats-disconnected cause=%s reason=%s", ending.cause.value, ending.text)

    async def _abandon(self) -> None:
        """Close the connection and forget it."""
        connection, self._connection = self._connection, None
        self._book.disconnected()
        if connection is not None:
            await connection.close()

    # --- lame duck mode ---

    async def _go_elsewhere(self, old: NatsConnection) -> NatsConnection:
        """Move to another server. Returns the connection to use then; it may still be `old`."""
        self._warnings.warn("nats-lame-duck server=%s action=go-elsewhere", old.address.shown)
        for address in self._dialer.round_elsewhere(old):
            new = await self._dialer.open_other(address, old)
            if new is not None and await self._hand_over(old, new):
                return new
        return old

    async def _hand_over(self, old: NatsConnection, new: NatsConnection) -> bool:
        """Hand over from `old` to `new`; return True if `new` is in use."""
        try:
            async with self._lock:
                handover = Handover(
                    old,
                    new,
                    self._book.wanted,
                    self._on_chunk_end,
                    hurry=self._stopping,
                    echoes=self._echoes,
                )
                self._handover = handover
                await handover.run()
                self._connection, self._handover = new, None
                self._echoes = handover.echoes
                self._book.answered(handover.wanted, handover.refused)
        except NatsUnavailable as error:
            self._warnings.warn("nats-handover-failed to=%s error=%s", new.address.shown, error)
            await new.close()
            return False
        except BaseException:
            await new.close()
            raise
        finally:
            self._handover = None
        self.counters.handovers += 1
        logger.info(
            "nats-handed-over from=%s to=%s copies=%d doubt=%s",
            old.address.shown,
            new.address.shown,
            handover.copies,
            handover.doubt or "none",
        )
        self._tell_connected()
        if handover.doubt:
            self._book.gap(f"the daemon moved to another NATS server, but {handover.doubt}")
        await old.close(flush=True)
        return True

    # --- what NATS refuses ---

    def _publish_refused(self, rejection: Rejection) -> None:
        if any(is_own(rejection.subject) for is_own in self.on_publish_refused):
            return
        if self._jetstream.refuses(rejection.subject):
            return
        if self._handover is not None and self._handover.publish_refused(rejection.subject):
            return
        self.counters.acks_refused += 1
        self.refused_acks.add(rejection)

    async def _attach_missing(self, now: float) -> None:
        """Request subscriptions that are not confirmed: new subscriptions, and refused ones."""
        missing = self._book.missing(now)
        if not missing:
            return
        try:
            async with self._lock:
                still = self._book.unconfirmed_among(missing)
                if still:
                    await self._ask(still)
                if any(one.confirmed for one in still):
                    self._book.shorten_pause()
        except NatsUnavailable as error:
            if self.connected:  # without a connection, the end of the connection was already logged
                logger.warning("nats-not-subscribed error=%s", error)

    async def _ask(self, missing: list[LinkSubscription]) -> None:
        """Request the missing subscriptions. The caller holds the lock. Raises NatsUnavailable."""
        connection = self._connection
        if connection is None or not connection.connected:
            raise NatsUnavailable("there is no connection to NATS at the moment")
        # A new subscription may have the same subjects as one that waits for its end. Stop the old
        # one first, so that no message arrives for both.
        connection.stop([one for one, _ in self._leaving.waiting])
        self._book.answered(missing, await connection.subscribe(missing))

    # --- subscriptions ---

    def want(
        self,
        subjects: tuple[str, ...],
        queue_group: str | None,
        handler: RunHandler,
        on_gap: Callable[[str], None] = lambda reason: None,
        *,
        is_acked: bool = False,
    ) -> LinkSubscription:
        """Request a subscription to subjects that do not overlap. The subscription is made as soon
        as NATS is available.

        `on_gap` is called with the reason whenever messages may have been missed. If `is_acked`,
        the link checks whether JetStream acks the same messages.
        """
        wanted = LinkSubscription(subjects, queue_group, handler, on_gap, is_acked)
        self._jetstream.changed()
        self._book.add(wanted)
        self._work.set()
        return wanted

    def retarget(self, wanted: LinkSubscription, subjects: tuple[str, ...]) -> None:
        """Change the subjects of a subscription. Messages on the old subjects are delivered until
        NATS has confirmed the new subjects; see `attach`. Does nothing if the subjects are the
        same."""
        if self._book.retarget(wanted, subjects):
            self._jetstream.changed()
            self._work.set()

    async def attach(self, wanted: LinkSubscription) -> None:
        """Make a wanted subscription and wait until NATS confirms it.

        Raises NatsRefused, and NatsUnavailable without a connection. After NatsUnavailable, the
        subscription is made later.
        """
        await self._attaching.do(wanted)
        if wanted.problem:
            raise NatsRefused(
                f"NATS refused the subscription to {wanted.refused_subjects}: {wanted.problem}"
            )

    async def _attach(self, wanted: list[LinkSubscription]) -> None:
        """Make the subscriptions. The caller holds the lock. Raises NatsUnavailable."""
        missing = self._book.unconfirmed_among(wanted)
        if missing:
            await self._ask(missing)

    async def unwant(self, wanted: LinkSubscription) -> bool:
        """End a subscription, even if the caller is cancelled.

        Returns True if NATS answered in time. In this case all messages in flight were delivered
        before the return.
        """
        self._book.remove(wanted)  # `_leave` may run late, on a newer connection
        connection = self._connection
        is_made = connection is not None and wanted in connection.sids
        ended = await self._leaving.do((wanted, is_made))
        return connection is not None and wanted in ended

    async def _leave(self, leaving: list[tuple[LinkSubscription, bool]]) -> set[LinkSubscription]:
        """End the subscriptions. The caller holds the lock.

        Returns the subscriptions of which all messages were received. Subscriptions on a connection
        that ended in the meantime are not in the result.
        """
        connection = self._connection
        if connection is None:
            return set()
        whole = {one for one, was_made in leaving if not was_made or one in connection.sids}
        try:
            await connection.drain([one for one, _ in leaving], _DRAIN_SECONDS)
        except NatsUnavailable:
            return set()
        return whole

    async def confirm(self) -> None:
        """Wait until all data that NATS sent before this call has been received. Raises
        NatsUnavailable."""
        connection = self._connection
        if connection is None or not connection.connected:
            raise NatsUnavailable("there is no connection to NATS at the moment")
        await connection.confirm()

    async def drain(self) -> None:
        """Unsubscribe from everything and receive the messages in flight. Nothing is delivered
        afterwards.

        Waits only briefly for a server that does not answer, because the received messages must
        still be committed and acked.
        """
        self._stopping.set()
        wanted = self._book.take_all()
        try:
            async with asyncio.timeout(2 * _DRAIN_SECONDS), self._lock:
                connection = self._connection
                if connection is not None and connection.connected:
                    await connection.drain(wanted, _DRAIN_SECONDS)
        except (NatsUnavailable, TimeoutError) as error:
            logger.warning("nats-drain-unconfirmed error=%s", str(error) or "no answer in time")
            self._answers = False

    async def close(self) -> None:
        """Send queued commands and close the connection."""
        self._closing = True
        self._stopping.set()
        while self._supervisor is not None and not self._supervisor.done():
            self._supervisor.cancel()  # repeated: nats-py suppresses it at some places
            await asyncio.wait({self._supervisor}, timeout=_WATCH_SECONDS)
        await self._jetstream.close()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close(flush=self._answers)
        await self._attaching.close()
        await self._leaving.close()
