"""A publisher's connection to NATS: a connection of the caller, or one that this module opens.

The only module of the client that uses nats-py, which it imports when a publisher is opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from liftlog.errors import InvalidArgument, MissingDependency, NatsRefused, NatsUnavailable

if TYPE_CHECKING:
    from nats.aio.client import Client as NatsClient
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

NatsTarget: TypeAlias = "NatsClient | str | Sequence[str]"
OnAnswer = Callable[[int, int, bytes, str | None], None]
"""A callback that receives the numbers of the message and of the attempt, the payload and the
status line."""

_PING_SECONDS = 10
_RECONNECT_SECONDS = 0.25
_CLOSE_SECONDS = 5
_FLUSH_SECONDS = 5


class PublisherLink:
    """Sends messages and receives the answers to them."""

    def __init__(self, nats: NatsTarget, options: Mapping[str, Any], timeout: float) -> None:
        """`options` are passed to `nats.connect` if the link opens the connection."""
        self._servers: list[str] | None = None
        if isinstance(nats, str):
            self._servers = [nats]
        elif isinstance(nats, Sequence):
            self._servers = list(nats)
        else:
            self._client = nats
        if options and self._servers is None:
            raise InvalidArgument("connect options cannot be given with a connection that is open")
        self._options = dict(options)
        self._timeout = timeout
        self._inbox = ""
        self._subscription: Subscription | None = None
        self.last_error: Exception | None = None
        self._last_error_at = 0.0
        # Errors of nats-py after which the message was not sent, and after which it may have been
        # sent. `open` imports nats-py and sets them.
        self._unsent: tuple[type[Exception], ...] = ()
        self._uncertain: tuple[type[Exception], ...] = ()

    async def open(self, on_answer: OnAnswer) -> None:
        """Connect to NATS, and subscribe to the answers: `on_answer` is called with each. Raises
        NatsUnavailable, and MissingDependency if nats-py is not installed."""
        try:
            import nats.errors
        except ModuleNotFoundError as error:
            raise MissingDependency(
                "publishing needs nats-py, which is not installed",
                hint="pip install nats-py (it is the extra publish of liftlog-client)",
            ) from error

        self._uncertain = (nats.errors.Error, OSError)
        self._unsent = (
            nats.errors.ConnectionClosedError,
            nats.errors.ConnectionDrainingError,
            nats.errors.OutboundBufferLimitError,
            nats.errors.MaxPayloadError,
        )
        if self._servers is not None:
            await self._connect(self._servers)
        self._inbox = self._client.new_inbox()
        start = len(self._inbox) + 1

        async def hear(message: Msg) -> None:
            number, _, attempt = message.subject[start:].partition(".")
            if number.isdecimal() and attempt.isdecimal():
                status = (message.headers or {}).get("Status")
                on_answer(int(number), int(attempt), message.data, status)

        try:
            self._subscription = await self._client.subscribe(f"{self._inbox}.>", cb=hear)
        except (nats.errors.Error, OSError) as error:
            raise NatsUnavailable(f"NATS accepts no subscription: {error!r}") from error

    async def _connect(self, servers: list[str]) -> None:
        import nats.errors
        from nats.aio.client import Client

        self._client = Client()
        options: dict[str, Any] = {
            "name": "liftlog publisher",
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": _RECONNECT_SECONDS,
            "ping_interval": _PING_SECONDS,
            "error_cb": self._on_error,
            **self._options,
        }
        try:
            async with asyncio.timeout(self._timeout):
                await self._client.connect(servers=servers, **options)
        except (nats.errors.Error, OSError, ValueError) as error:
            await self.close()
            raise NatsUnavailable(
                f"cannot connect to NATS: {why_not_connected(self.last_error or error)}",
                hint="check the address, the login, and that nats-server runs there",
            ) from error
        except BaseException:
            await self.close()
            raise

    async def _on_error(self, error: Exception) -> None:
        self.last_error = error
        self._last_error_at = asyncio.get_running_loop().time()

    def error_since(self, start: float) -> Exception | None:
        """Return the last error that NATS has reported since `start`, such as a missing permission;
        None if there is no such error. The result is always None on a connection of the caller,
        because nats-py reports errors to the owner of the connection."""
        return self.last_error if self._last_error_at >= start else None

    @property
    def is_closed(self) -> bool:
        """True if the connection is closed for good and will not reconnect."""
        return bool(self._client.is_closed)

    @property
    def reconnects(self) -> int:
        """Number of reconnects so far. Messages that were in flight before a reconnect may be
        lost."""
        return int(self._client.stats["reconnects"])

    def check_size(self, payload: bytes, block: bytes) -> None:
        """Raise InvalidArgument if the message is so large that NATS would close the connection."""
        size = len(payload) + len(block)
        allowed = self._client.max_payload
        if size > allowed:
            raise InvalidArgument(
                f"the message has {size:,} bytes, NATS allows {allowed:,}",
                hint="raise max_payload of nats-server",
            )

    def reply(self, number: int, attempt: int) -> str:
        return f"{self._inbox}.{number}.{attempt}"

    async def send(self, subject: str, payload: bytes, reply: str, block: bytes) -> bool:
        """Send one attempt. Returns False if the message was certainly not sent; after True it may
        or may not have been sent."""
        if not self._client.is_connected:
            # nats-py would keep the message and send it after reconnecting, however long that
            # takes.
            return False
        try:
            if block or not subject.isascii():
                await self._send_whole(subject, payload, reply, block)
            else:
                await self._client.publish(subject, payload, reply=reply)
        except self._unsent as error:
            self.last_error = error
            return False
        except self._uncertain as error:
            self.last_error = error
        return True

    async def _send_whole(self, subject: str, payload: bytes, reply: str, block: bytes) -> None:
        """Publish with this header block, without `Client.publish`. `publish` takes headers as a
        mapping. A mapping cannot hold repeated names, or bytes that are not UTF-8. And `publish`
        does not accept subjects that are not ASCII."""
        import nats.errors

        client = self._client
        if client.is_closed:
            raise nats.errors.ConnectionClosedError
        if client.is_draining_pubs:
            raise nats.errors.ConnectionDrainingError
        size = len(block) + len(payload)
        if size > client.max_payload:
            raise nats.errors.MaxPayloadError
        client.stats["out_msgs"] += 1
        client.stats["out_bytes"] += size
        words = (
            f"HPUB {subject} {reply} {len(block)} {size}"
            if block
            else f"PUB {subject} {reply} {size}"
        )
        head = f"{words}\r\n".encode(errors="surrogateescape")
        await client._send_command(b"".join((head, block, payload, b"\r\n")))
        waiting = client._flush_queue
        if waiting is not None and waiting.empty():
            await client._flush_pending()

    async def confirm(self, since: float) -> None:
        """Wait until NATS has received all messages that were sent since `since`.

        Raises NatsUnavailable if NATS may not have received all of them, and NatsRefused if NATS
        has reported an error.
        """
        import nats.errors

        try:
            await self._client.flush(_FLUSH_SECONDS)
            # nats-py writes the PING before messages that it has buffered. The second PING follows
            # these messages.
            await self._client.flush(_FLUSH_SECONDS)
        except (nats.errors.Error, OSError) as error:
            reason = self.error_since(since) or error
            raise NatsUnavailable(
                f"NATS may not have received every message: {reason}",
                hint="publish with acks to know, or publish everything again",
            ) from error
        refused = self.error_since(since)
        if refused is not None:
            raise NatsRefused(
                f"NATS refused a message: {refused}",
                hint="give the publisher's NATS user permission to publish there",
            )

    async def close(self) -> None:
        """Unsubscribe; close the connection if this link has opened it. A connection of the caller
        stays open."""
        import nats.errors

        with suppress(nats.errors.Error, OSError):
            async with asyncio.timeout(_CLOSE_SECONDS):  # the server may hang
                if self._servers is not None:
                    await self._client.close()
                elif self._subscription is not None:
                    await self._subscription.unsubscribe()


def why_not_connected(error: Exception) -> str:
    """Describe the error. asyncio's TimeoutError has no text: it means that the port accepts
    connections, but NATS's INFO does not arrive."""
    if isinstance(error, TimeoutError) and not str(error):
        return "the process that listens there does not answer like a NATS server"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
