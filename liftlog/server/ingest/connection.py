"""One connection to one NATS server, from login to its end.

nats-py logs in, speaks TLS, pings and reads; this module writes subscriptions and everything else
that is sent. A connection is never reused: after its end, the link opens another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import nats.errors

from acl.subjects import overlap_any
from liftlog.errors import NatsUnavailable
from liftlog.sequencing.run import MessageRun
from liftlog.server.ingest.endings import (
    Cause,
    Ending,
    Rejection,
    ending_of,
    error_words,
    rejection_of,
)
from liftlog.server.ingest.reading_pauses import STILL_SECONDS, ReadingPauses
from liftlog.server.ingest.seam import make_client
from liftlog.server.ingest.servers import NatsServerAddress, login_options
from liftlog.server.ingest.subscriptions import LinkSubscription, Refusals, RunHandler
from liftlog.settings import NatsSettings

logger = logging.getLogger("liftlog.server.nats")

CONFIRM_SECONDS = 10.0
_CLOSE_SECONDS = 1.0
_MAX_UNSENT_BYTES = 16 * 1024 * 1024
_BEHIND_BYTES = 256 * 1024
"""If at least this number of bytes is unread when a connection ends, the cause is assumed to be
that the daemon was too slow for NATS."""


class NatsConnection:
    """A connection to one NATS server. Belongs to one event loop."""

    def __init__(
        self,
        address: NatsServerAddress,
        seam: str,
        *,
        on_chunk_end: Callable[[], None],
        on_revoked: Callable[[LinkSubscription, str, str], None],
        on_publish_refused: Callable[[Rejection], None],
        on_change: Callable[[], None],
        wait_until_ready_to_read: Callable[[], Awaitable[None]],
        reading_is_held: Callable[[], bool],
        tls_name: str = "",
        stood_still_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`stood_still_seconds` is a function that returns the duration of the last pause of the
        process."""
        self.address = address
        self.ending: Ending | None = None
        self.lame_duck = False
        """True if the server is about to stop, and has asked its clients to reconnect elsewhere."""
        self.ended = asyncio.Event()
        self.max_payload_bytes = 0
        """The largest payload, in bytes, that the server accepts; 0 if it is not known."""
        self.connect_urls: list[object] = []
        """The addresses of the servers of the cluster, from the server's last announcement."""
        self.sids: dict[LinkSubscription, dict[str, int]] = {}
        """The numbers of the subjects of each subscription, without the subjects that NATS
        refuses."""
        self._handlers: dict[int, RunHandler] = {}
        """Maps each run number to the handler of the run. The run number of a subscription is the
        first number that the subscription had on this connection."""
        self._runs: dict[LinkSubscription, int] = {}
        self._joined_runs: dict[bytes, bytes] = {}
        """Maps each other number of a subscription to its run number."""
        self._wanted: dict[int, tuple[LinkSubscription, str]] = {}
        self._asked: dict[int, str] = {}
        """The subjects that wait for an answer, by their numbers. The value is the reason if NATS
        has refused the subject, and "" otherwise."""
        self._refused_unnamed = ""
        self.chunk_end = on_chunk_end
        self._on_revoked = on_revoked
        self._on_publish_refused = on_publish_refused
        self._on_change = on_change
        self._wait_ready = wait_until_ready_to_read
        self._reading_is_held = reading_is_held
        self._pauses = ReadingPauses(stood_still_seconds)
        self._last_sid = 0
        self._client, self._transport = make_client(
            seam,
            address.scheme,
            self,
            self._pressure,
            self._is_pressed,
            self,
            tls_name,
            self._joined_runs,
        )

    async def log_in(self, settings: NatsSettings) -> None:
        """Log in. Raises NatsUnavailable, OSError (also for files that the login needs),
        nats.errors.Error and TimeoutError."""
        options = login_options(settings, [self.address.url])
        if "tls" in options and self.address.tls_name:
            options.setdefault("tls_hostname", self.address.tls_name)
        seconds = settings.connect_timeout_seconds
        try:
            # This time limit applies separately to each step: TCP, INFO, TLS, login.
            async with asyncio.timeout(4 * seconds):
                await self._client.connect(
                    servers=[self.address.url],
                    name=settings.name,
                    no_echo=True,
                    allow_reconnect=False,
                    connect_timeout=seconds,  # type: ignore[arg-type]
                    ping_interval=settings.ping_interval_seconds,  # type: ignore[arg-type]
                    max_outstanding_pings=settings.max_outstanding_pings,
                    error_cb=_say_nothing,
                    **options,
                )
        except OSError as error:
            words = error_words(await self._transport.unread())
            if words is not None:  # the server gave a reason before it closed the connection
                raise NatsUnavailable(words) from error
            raise
        if not self._client.is_connected:
            raise NatsUnavailable("the server did not confirm the login")
        self.on_info(self._client._server_info)

    # --- state ---

    @property
    def connected(self) -> bool:
        return self.ending is None and self._client.is_connected

    @property
    def server_id(self) -> str:
        return str(self._client._server_info.get("server_id", ""))

    @property
    def cluster_name(self) -> str:
        """Name of the server's cluster; empty if it is in no cluster."""
        return str(self._client._server_info.get("cluster", ""))

    @property
    def server_version(self) -> str:
        return str(self._client._server_info.get("version", ""))

    @property
    def server_url(self) -> str:
        """The address of the connected server, without a login."""
        url = self._client.connected_url
        return f"{url.scheme}://{url.netloc.rpartition('@')[2]}" if url is not None else ""

    @property
    def has_jetstream(self) -> bool:
        """True if the server reports that JetStream is on."""
        return self._client._server_info.get("jetstream") is True

    @property
    def unsent_bytes(self) -> int:
        return self._transport.unsent_bytes()

    @property
    def is_read(self) -> bool:
        """True if the read loop runs. It stops only if nats-py fails."""
        task = self._client._reading_task
        return task is not None and not task.done()

    def end(self, ending: Ending) -> None:
        """Abandon the connection. Nothing is received from it afterwards."""
        if self.ending is not None:
            return
        self.ending = ending
        self._client._status = self._client.DISCONNECTED
        self._transport.abort()
        self.ended.set()
        self._on_change()

    # --- MessageSink ---

    def deliver(self, sid: int, run: MessageRun) -> None:
        handler = self._handlers.get(sid)
        if handler is not None:
            handler(run)

    # --- Owner of the client ---

    def on_error_words(self, words: str) -> None:
        rejection = rejection_of(words)
        if rejection is None:
            self.end(ending_of(words))
        elif rejection.is_publish:
            self._on_publish_refused(rejection)
        else:
            self._subscription_refused(rejection)

    def _subscription_refused(self, rejection: Rejection) -> None:
        named = rejection.subject.lower()
        if rejection.sid in self._wanted:
            found = [rejection.sid]
        else:
            found = [sid for sid, (_, one) in self._wanted.items() if one.lower() == named]
        waiting = [sid for sid in found if sid in self._asked] or found
        if len(waiting) != 1:
            self._refused_unnamed = rejection.text
        elif waiting[0] in self._asked:
            self._asked[waiting[0]] = rejection.text
        else:
            wanted, subject = self._forget(waiting[0])
            self._on_revoked(wanted, subject, rejection.text)

    def on_trouble(self, error: Exception) -> None:
        self.end(self._ending_by(error))

    def _ending_by(self, error: Exception) -> Ending:
        if isinstance(error, nats.errors.ProtocolError):
            logger.warning("nats-input-not-parsed cause=%r", error.__cause__)
            return Ending(Cause.PROTOCOL, "input that could not be parsed")
        behind_bytes = self._transport.behind_bytes()
        if isinstance(error, nats.errors.UnexpectedEOF | OSError) and behind_bytes >= _BEHIND_BYTES:
            return Ending(
                Cause.SLOW_CONSUMER,
                "NATS closed the connection while at least "
                f"{behind_bytes >> 10} KiB were unread: NATS treated the daemon as a slow consumer",
                is_guess=True,
            )
        if isinstance(error, nats.errors.UnexpectedEOF | OSError):
            still = self._pauses.not_read_seconds()
            if still >= STILL_SECONDS:
                # A reset of the connection discards bytes that had arrived. So there are no unread
                # bytes that could show why it ended.
                return Ending(
                    Cause.SLOW_CONSUMER,
                    "NATS closed the connection after the daemon had not read for "
                    f"{still:.0f} s: for NATS a slow consumer",
                    is_guess=True,
                )
        if self.lame_duck:
            return Ending(
                Cause.LAME_DUCK, "the NATS server has stopped, and no other server was available"
            )
        if isinstance(error, nats.errors.UnexpectedEOF):
            return Ending(Cause.CLOSED, "NATS closed the connection without a reason")
        if isinstance(error, nats.errors.StaleConnectionError):
            return Ending(Cause.STALE, "NATS did not answer our pings")
        if isinstance(error, OSError):
            return Ending(Cause.NETWORK, f"the connection to NATS broke: {error}")
        return Ending(Cause.OTHER, f"the connection to NATS was given up: {error!r}")

    def on_info(self, info: Mapping[str, Any]) -> None:
        urls = info.get("connect_urls")
        limit = info.get("max_payload")
        if isinstance(limit, int):  # a server may change its limit later
            self.max_payload_bytes = limit
        self.connect_urls = list(urls) if isinstance(urls, list) else []
        self.lame_duck = self.lame_duck or info.get("ldm") is True
        self._on_change()

    # --- reading ---

    async def _pressure(self) -> None:
        """Pause reading while too many bytes are unsent, or while another part of the daemon has
        paused reading. The parser awaits this after each chunk."""
        self._pauses.begin()
        try:
            if self._transport.unsent_bytes() > _MAX_UNSENT_BYTES:
                with contextlib.suppress(OSError):
                    await self._transport.drain()
            await self._wait_ready()
        finally:
            self._pauses.end()

    def _is_pressed(self) -> bool:
        """Return True if `_pressure` would have to wait."""
        return self._reading_is_held() or self._transport.unsent_bytes() > _MAX_UNSENT_BYTES

    # --- writing ---

    def send(self, commands: bytes) -> bool:
        """Queue NATS commands; returns False if the connection has ended."""
        return self.ending is None and self._transport.send(commands)

    async def room(self) -> None:
        """Wait until the server has taken most of the sent bytes, or until the connection has
        ended."""
        with contextlib.suppress(OSError):
            await self._transport.drain()

    # --- subscriptions ---

    async def subscribe(
        self,
        wanted: Sequence[LinkSubscription],
        handler_of: Callable[[LinkSubscription], RunHandler] = lambda one: one.handler,
    ) -> dict[LinkSubscription, Refusals]:
        """Subscribe to wanted subjects that NATS does not deliver yet, and unsubscribe from
        subjects that are no longer wanted.

        Waits for the answers of NATS, and returns the refused subjects with the reasons. Only one
        call may run at a time. Raises NatsUnavailable.
        """
        asked = [
            (one, subject)
            for one in wanted
            for subject in one.subjects
            if subject not in self.sids.get(one, {})
        ]
        for one in wanted:
            one.is_changed = False
        left = self._leave(wanted)
        try:
            refused = await self._ask(asked, handler_of)
        finally:
            for sid in left:
                if sid in self._wanted:
                    self._forget(sid)
        if self._refused_unnamed and len(asked) > 1:
            # NATS has not named the refused subject. To find it, request one subject at a time.
            self._unsubscribe(self._sids_of(asked))
            refused = []
            for pair in asked:
                refused += await self._ask([pair], handler_of)
        found: dict[LinkSubscription, dict[str, str]] = {}
        for subscription, subject, problem in refused:
            found.setdefault(subscription, {})[subject] = problem
        return dict(found)

    def _leave(self, wanted: Iterable[LinkSubscription]) -> list[int]:
        """Unsubscribe from subjects that are no longer wanted. Returns their numbers. This must
        come before new subscriptions: a new subject may overlap with an old one, and no message may
        arrive twice. Messages that NATS has already sent are still delivered."""
        left: list[int] = []
        for one in wanted:
            sids = self.sids.get(one, {})
            old = [subject for subject in sids if subject not in one.subjects]
            left += [sids[subject] for subject in old]
            if old and overlap_any(old, [new for new in one.subjects if new not in sids]):
                one.on_gap("its subjects were changed")
        self.send(b"".join(b"UNSUB %d\r\n" % sid for sid in left))
        return left

    async def _ask(
        self,
        asked: Sequence[tuple[LinkSubscription, str]],
        handler_of: Callable[[LinkSubscription], RunHandler],
    ) -> list[tuple[LinkSubscription, str, str]]:
        """Send the subscriptions. Returns the refused subjects with the reasons."""
        self._refused_unnamed = ""
        commands = []
        for one, subject in asked:
            sid = self._number(one, subject)
            self._handlers.setdefault(self._runs[one], handler_of(one))
            self._asked[sid] = ""
            queue = f" {one.queue_group}" if one.queue_group else ""
            commands.append(f"SUB {subject}{queue} {sid}\r\n".encode())
        self.send(b"".join(commands))
        try:
            await self.confirm()
            answers = dict(self._asked)
        finally:
            self._asked = {}
        if self._refused_unnamed and len(asked) == 1:
            answers = dict.fromkeys(answers, self._refused_unnamed)
        return [(*self._forget(sid), problem) for sid, problem in answers.items() if problem]

    def _number(self, wanted: LinkSubscription, subject: str) -> int:
        """Return a number for one subject. All subjects of a subscription share a run, which keeps
        the order of their messages."""
        self._last_sid += 1
        sid = self._last_sid
        self.sids.setdefault(wanted, {})[subject] = sid
        self._wanted[sid] = (wanted, subject)
        run = self._runs.setdefault(wanted, sid)
        if run != sid:
            self._joined_runs[b"%d" % sid] = b"%d" % run
        return sid

    def _forget(self, sid: int) -> tuple[LinkSubscription, str]:
        wanted, subject = self._wanted.pop(sid)
        self._joined_runs.pop(b"%d" % sid, None)
        sids = self.sids[wanted]
        del sids[subject]
        if not sids:
            del self.sids[wanted]
            self._handlers.pop(self._runs.pop(wanted), None)
        return wanted, subject

    def _sids_of(self, asked: Iterable[tuple[LinkSubscription, str]]) -> list[int]:
        """Return the numbers of the subscribed subjects."""
        found = [self.sids.get(one, {}).get(subject) for one, subject in asked]
        return [sid for sid in found if sid is not None]

    def set_handler(self, wanted: LinkSubscription, handler: RunHandler) -> None:
        """Pass the messages of the subscription `wanted` to `handler` from now on."""
        self._handlers[self._runs[wanted]] = handler

    def _unsubscribe(self, sids: Iterable[int]) -> None:
        """Unsubscribe without a drain: no more messages are delivered."""
        self.send(b"".join(b"UNSUB %d\r\n" % sid for sid in sids))
        for sid in sids:
            self._forget(sid)

    def stop(self, wanted: Iterable[LinkSubscription]) -> list[int]:
        """Unsubscribe. Returns the numbers of the subscriptions. Messages that NATS has already
        sent are delivered until the subscriptions are drained."""
        sids = [sid for one in wanted for sid in self.sids.get(one, {}).values()]
        self.send(b"".join(b"UNSUB %d\r\n" % sid for sid in sids))
        return sids

    async def drain(self, wanted: Iterable[LinkSubscription], seconds: float) -> None:
        """Unsubscribe, and wait until all messages in flight have been received. Raises
        NatsUnavailable if NATS does not answer in time."""
        sids = self.stop(wanted)
        try:
            await self.confirm(seconds)
        finally:
            for sid in sids:
                if sid in self._wanted:
                    self._forget(sid)

    async def confirm(self, seconds: float = CONFIRM_SECONDS) -> None:
        """Wait until the server has processed all commands sent so far, and has confirmed this.
        When the call returns, all bytes that the server sent before the confirmation have been
        received. Raises NatsUnavailable."""
        flushed = asyncio.ensure_future(self._client.flush(seconds))  # type: ignore[arg-type]
        ended = asyncio.ensure_future(self.ended.wait())
        try:
            await asyncio.wait((flushed, ended), return_when=asyncio.FIRST_COMPLETED)
            if flushed.done():
                flushed.result()
            if self.ending is not None or not flushed.done():
                raise NatsUnavailable(f"the connection to NATS has ended: {self.ending}")
        except (OSError, nats.errors.Error) as error:
            raise NatsUnavailable(f"NATS did not answer: {error}") from error
        finally:
            flushed.cancel()
            ended.cancel()
            await asyncio.gather(flushed, ended, return_exceptions=True)

    # --- the end ---

    async def close(self, *, flush: bool = False) -> None:
        """Close, even if unsent bytes remain. If `flush` is true, first wait briefly for the server
        to take them."""
        if flush and self.connected:
            with contextlib.suppress(NatsUnavailable):
                await self.confirm(_CLOSE_SECONDS)
        if self.ending is None:
            self.ending = Ending(Cause.OTHER, "closed by the daemon")
        self._handlers.clear()
        # uvloop raises RuntimeError if the remaining bytes are written to a closed transport.
        with contextlib.suppress(OSError, nats.errors.Error, TimeoutError, RuntimeError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._client.close()
        self._transport.abort()
        self.ended.set()


async def _say_nothing(error: Exception) -> None:
    """Ignore the error, because `connect` also raises it, or the owner of the connection receives
    it."""
