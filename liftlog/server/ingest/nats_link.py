"""The connection to NATS: there for ever, replaced when it dies, honest about what may be lost.

nats-py reconnects and replays subscriptions; this class adds what it leaves open: a first connect
that may wait for minutes, a client that closed itself for good, a read loop that ended while the
client still says "connected", and confirmation that a subscription has reached the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription as NatsSubscription

from liftlog.errors import NatsUnavailable
from liftlog.server.ingest.batch_parser import MessageSink
from liftlog.server.ingest.login import login_options
from liftlog.server.ingest.seam import make_client
from liftlog.server.ingest.transport import WideTransport
from liftlog.settings import NatsSettings
from liftlog.stream.acks import within_payload
from liftlog.stream.run import MessageRun

logger = logging.getLogger("liftlog.server.nats")

_WATCH_SECONDS = 0.5
_CONFIRM_SECONDS = 10.0
_DRAIN_SECONDS = 3.0
_CLOSE_SECONDS = 1.0
_LOST_LOOKS = 4  # this many looks of the watchdog without connection and without an attempt
_MAX_UNSENT_BYTES = 16 * 1024 * 1024

RunHandler = Callable[[MessageRun], None]


@dataclass(slots=True, eq=False)
class LinkSubscription:
    """One wanted subscription; it outlives clients and reconnects."""

    subject: str
    queue_group: str | None
    handler: RunHandler
    confirmed: bool = False
    problem: str = ""
    nats: NatsSubscription | None = field(default=None, repr=False)


@dataclass(slots=True)
class LinkCounters:
    connects: int = 0
    disconnects: int = 0
    protocol_errors: int = 0
    slow_consumer_errors: int = 0
    watchdog_reconnects: int = 0
    acks_dropped: int = 0
    acks_oversized: int = 0


class NatsLink:
    """Owns the nats-py client. Lives on one event loop.

    `on_gap(reason)` is called whenever messages may have been missed; `on_chunk_end()` after the
    messages of one read were handed out; while `reading_is_held()`,
    `wait_until_ready_to_read()` is awaited before more is read.
    """

    def __init__(
        self,
        settings: NatsSettings,
        servers: list[str],
        seam: str,
        *,
        on_chunk_end: Callable[[], None],
        on_gap: Callable[[str], None],
        wait_until_ready_to_read: Callable[[], Any],
        reading_is_held: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._servers = servers
        self.seam = seam
        self._on_chunk_end = on_chunk_end
        self._on_gap = on_gap
        self._wait_ready = wait_until_ready_to_read
        self._reading_is_held = reading_is_held
        self._client: Client | None = None
        self._transport: WideTransport | None = None
        self._wanted: list[LinkSubscription] = []
        self._handlers: dict[int, RunHandler] = {}
        self._closing = False
        self._answers = True
        self._closed_client = asyncio.Event()
        self._lock = asyncio.Lock()  # one change of subscriptions or client at a time
        self._supervisor: asyncio.Task[None] | None = None
        self._disconnect_reason = ""
        self._told_error: Exception | None = None
        self.counters = LinkCounters()

    # --- MessageSink ---

    def deliver(self, sid: int, run: MessageRun) -> None:
        handler = self._handlers.get(sid)
        if handler is not None:
            handler(run)

    def chunk_end(self) -> None:
        self._on_chunk_end()

    # --- state ---

    @property
    def connected(self) -> bool:
        return self._client is not None and self._client.is_connected

    @property
    def servers(self) -> list[str]:
        """What it connects to; it may find others of a cluster by itself."""
        return list(self._servers)

    @property
    def server_version(self) -> str:
        """Of the server that it is connected to; empty without one."""
        if self._client is None:
            return ""
        # nats-py shows its object of a version as "<nats server v2.15.1>".
        shown = str(self._client.connected_server_version)
        return shown.removeprefix("<nats server v").removesuffix(">")

    def send(self, commands: bytes) -> None:
        """Queue NATS commands (acks). Lost when there is no connection: a publisher that waits for
        an ack times out and asks again, which is what the ack protocol is for."""
        client = self._client
        if client is not None and 0 < client.max_payload < len(commands):
            commands = self._within_payload(commands, client.max_payload)
        if not commands:
            return
        if not self.connected or self._transport is None or not self._transport.send(commands):
            self.counters.acks_dropped += commands.count(b"PUB ")

    def _within_payload(self, commands: bytes, max_payload_bytes: int) -> bytes:
        """The server would end the connection because of one command that is too large, and what
        other streams are about to receive would be lost with it."""
        commands, left_out = within_payload(commands, max_payload_bytes)
        if left_out:
            self.counters.acks_oversized += left_out
            logger.error(
                "nats-answer-too-large count=%d max_payload=%d", left_out, max_payload_bytes
            )
        return commands

    async def _pressure(self) -> None:
        """Awaited by the parser after each chunk: stop reading while too much is unsent."""
        transport = self._transport
        if transport is not None and transport.unsent_bytes() > _MAX_UNSENT_BYTES:
            with contextlib.suppress(OSError):
                await transport.drain()
        await self._wait_ready()

    def _is_pressed(self) -> bool:
        """Whether `_pressure` would have to wait."""
        transport = self._transport
        return self._reading_is_held() or (
            transport is not None and transport.unsent_bytes() > _MAX_UNSENT_BYTES
        )

    # --- life cycle ---

    def start(self) -> None:
        """Begin to connect, in the background and for ever."""
        self._supervisor = asyncio.create_task(self._supervise(), name="nats-link")

    async def _supervise(self) -> None:
        while not self._closing:
            try:
                await self._connect()
                await self._watch()
            except Exception as error:  # noqa: BLE001  # a supervisor: nats-py may raise anything
                logger.warning("nats-connect-failed error=%r", error)
                await asyncio.sleep(self._settings.reconnect_wait_seconds)

    async def _connect(self) -> None:
        """A new client, connected, with every wanted subscription confirmed."""
        self._closed_client.clear()
        sink: MessageSink = self
        client = make_client(self.seam, sink, self._pressure, self._is_pressed, self._on_trouble)
        try:
            # Not under the lock: with NATS down this lasts for as long as NATS is down.
            await client.connect(**self._options())
            async with self._lock:
                self._handlers.clear()
                self._transport = client._transport  # type: ignore[assignment]
                self._client = client
                for wanted in self._wanted:
                    await self._subscribe(client, wanted)
                await self._confirm(client)
                for wanted in self._wanted:
                    wanted.confirmed = not wanted.problem
        except BaseException:
            self._client = None
            await self._close_client(client)
            raise
        self.counters.connects += 1
        url = client.connected_url
        logger.info("nats-connected server=%s version=%s", url and url.netloc, self.server_version)
        if self.counters.connects > 1:
            self._on_gap(self._disconnect_reason or "the NATS client was replaced")
        self._disconnect_reason = ""

    async def _watch(self) -> None:
        """Returns when this client is beyond repair."""
        client = self._client
        looks_lost = 0
        while client is not None and not self._closing:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closed_client.wait(), _WATCH_SECONDS)
            if client.is_closed:
                # For what NATS had said: nats-py closes itself for most of that and tells nobody.
                if client.last_error is not None and client.last_error is not self._told_error:
                    self._disconnect_reason = f"NATS ended the connection: {client.last_error}"
                    await self._on_error(client.last_error)
                self._mark_detached()
                return
            if client.is_connected:
                looks_lost = 0
                await self._look_after(client)
                continue
            # Not connected: then nats-py's own task must be at work on it.
            trying = client._reconnection_task
            looks_lost = looks_lost + 1 if trying is None or trying.done() else 0
            if looks_lost >= _LOST_LOOKS:
                self.counters.watchdog_reconnects += 1
                logger.error("nats-reconnect-gone action=replace-client")
                await self._close_client(client)
                self._mark_detached()
                return

    async def _look_after(self, client: Client) -> None:
        task = client._reading_task
        if task is None or task.done():
            # The client believes that it is connected, and nobody reads.
            self.counters.watchdog_reconnects += 1
            logger.error("nats-read-loop-gone action=reconnect")
            self._disconnect_reason = "the read loop ended"
            await client.force_reconnect()
            return
        for wanted in list(self._wanted):
            if not wanted.confirmed and not wanted.problem:
                # Wanted while there was no connection.
                try:
                    await self.attach(wanted)
                except NatsUnavailable as error:
                    logger.warning("attach-failed subject=%s error=%s", wanted.subject, error)
                    return

    def _options(self) -> dict[str, Any]:
        s = self._settings
        options: dict[str, Any] = {
            "servers": self._servers,
            "name": s.name,
            "no_echo": True,
            "allow_reconnect": True,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": s.reconnect_wait_seconds,
            "connect_timeout": s.connect_timeout_seconds,
            "ping_interval": s.ping_interval_seconds,
            "max_outstanding_pings": s.max_outstanding_pings,
            "error_cb": self._on_error,
            "disconnected_cb": self._on_disconnected,
            "reconnected_cb": self._on_reconnected,
            "closed_cb": self._on_closed,
        }
        return options | login_options(s, self._servers)

    # --- callbacks of nats-py ---

    async def _on_error(self, error: Exception) -> None:
        self._told_error = error
        text = str(error)
        if "slow consumer" in text.lower():
            self.counters.slow_consumer_errors += 1
            self._disconnect_reason = "NATS dropped us as a slow consumer"
        if "permissions violation for subscription" in text.lower():
            for wanted in self._wanted:
                if f'"{wanted.subject.lower()}"' in text.lower():
                    wanted.problem, wanted.confirmed = text, False
        logger.warning("nats-error error=%s", text or type(error).__name__)

    def _on_trouble(self, error: Exception) -> None:
        """The connection is given up because of `error`."""
        if isinstance(error, nats.errors.ProtocolError):
            self.counters.protocol_errors += 1
            self._disconnect_reason = "input that could not be parsed"
            cause = error.__cause__
            logger.warning("nats-input-not-parsed cause=%r", cause)

    def _mark_detached(self) -> None:
        for wanted in self._wanted:
            wanted.confirmed = False
            wanted.problem = ""

    async def _on_disconnected(self) -> None:
        self.counters.disconnects += 1
        if not self._closing:
            logger.warning("nats-disconnected reason=%s", self._disconnect_reason or "unknown")
            self._mark_detached()

    async def _on_reconnected(self) -> None:
        # nats-py replayed the subscriptions and saw a PONG behind them.
        for wanted in self._wanted:
            wanted.confirmed = wanted.nats is not None and not wanted.problem
        logger.info("nats-reconnected")
        self._on_gap(self._disconnect_reason or "the connection to NATS was lost")
        self._disconnect_reason = ""

    async def _on_closed(self) -> None:
        self._closed_client.set()

    # --- subscriptions ---

    def want(self, subject: str, queue_group: str | None, handler: RunHandler) -> LinkSubscription:
        """Ask for a subscription; it is made now or as soon as NATS is there."""
        wanted = LinkSubscription(subject, queue_group, handler)
        self._wanted.append(wanted)
        return wanted

    async def attach(self, wanted: LinkSubscription) -> None:
        """Make a wanted subscription and wait until NATS confirmed it.

        Raises NatsUnavailable when there is no connection; the wish stays and is fulfilled later.
        """
        async with self._lock:
            if wanted.confirmed:
                return
            client = self._client
            if client is None or not client.is_connected:
                raise NatsUnavailable("there is no connection to NATS at the moment")
            try:
                if wanted.nats is None:
                    await self._subscribe(client, wanted)
                await self._confirm(client)
            except (OSError, nats.errors.Error, TimeoutError) as error:
                raise NatsUnavailable(f"NATS did not confirm the subscription: {error}") from error
            if wanted.problem:
                raise NatsUnavailable(
                    f"NATS refused the subscription to {wanted.subject}: {wanted.problem}",
                    hint="give the daemon's NATS user permission to subscribe there",
                )
            wanted.confirmed = True

    async def _subscribe(self, client: Client, wanted: LinkSubscription) -> None:
        wanted.nats = await client.subscribe(
            wanted.subject, queue=wanted.queue_group or "", cb=_never_called
        )
        self._handlers[wanted.nats._id] = wanted.handler

    async def _confirm(self, client: Client) -> None:
        """Returns when the server has seen everything sent before.

        Twice: the first PING may overtake a SUB that still waits in nats-py's own buffer.
        """
        await client.flush(_CONFIRM_SECONDS)  # type: ignore[arg-type]
        await client.flush(_CONFIRM_SECONDS)  # type: ignore[arg-type]

    async def unwant(self, wanted: LinkSubscription) -> None:
        """End a subscription. Messages that are still under way are delivered before it returns,
        if NATS answers in time."""
        async with self._lock:
            if wanted in self._wanted:
                self._wanted.remove(wanted)
            subscription, wanted.nats = wanted.nats, None
            wanted.confirmed = False
            client = self._client
            if subscription is None or client is None:
                return
            with contextlib.suppress(OSError, nats.errors.Error, TimeoutError):
                await subscription.unsubscribe()
                if client.is_connected:
                    await self._confirm(client)
            self._handlers.pop(subscription._id, None)

    async def drain(self) -> None:
        """UNSUB everything and take in what was already under way. No more messages afterwards.

        A server that does not answer is waited for only briefly: what was received must still be
        committed and acked.
        """
        wanted, self._wanted = self._wanted, []
        try:
            async with asyncio.timeout(_DRAIN_SECONDS), self._lock:
                client = self._client
                if client is not None and client.is_connected:
                    for subscription in wanted:
                        if subscription.nats is not None:
                            await subscription.nats.unsubscribe()
                    await self._confirm(client)
        except (OSError, nats.errors.Error, TimeoutError) as error:
            logger.warning("nats-drain-unconfirmed error=%r", error)
            self._answers = False
        self._handlers.clear()

    async def close(self) -> None:
        """Send what is queued and close the connection."""
        self._closing = True
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(OSError, nats.errors.Error, TimeoutError):
                if client.is_connected and self._answers:
                    async with asyncio.timeout(_CLOSE_SECONDS):
                        await client.flush(_CONFIRM_SECONDS)  # type: ignore[arg-type]
            await self._close_client(client)

    async def _close_client(self, client: Client) -> None:
        """Close, also when the server does not take what is still to be sent."""
        with contextlib.suppress(OSError, nats.errors.Error, TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await client.close()
        transport = client._transport
        if isinstance(transport, WideTransport):
            transport.abort()


async def _never_called(message: Any) -> None:
    """nats-py wants a callback; messages never get that far."""
    raise AssertionError("a message passed the seam")
