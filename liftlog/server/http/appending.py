"""Appends a message to a stream: publishes it on NATS like any other message, and returns the
stream's ack.

The appender has its own NATS connection. The daemon's connection is opened with `no_echo`, so it
does not receive the messages that it publishes itself. The first append opens the appender's
connection. It then stays open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import nats.errors
from nats.aio.client import Client

from acl.subjects import is_literal, matches_any
from liftlog.client.publisher import Publisher
from liftlog.client.publishing.headers import Headers, lines_of
from liftlog.client.publishing.results import Ack
from liftlog.errors import Conflict, Forbidden, InvalidArgument, NatsUnavailable
from liftlog.protocol.described import StreamInfo
from liftlog.records.message_headers import EXPECTED_LAST_SEQUENCE, without
from liftlog.server.http.bodies import PostedMessage
from liftlog.server.ingest.servers import login_options
from liftlog.settings import NatsSettings

logger = logging.getLogger("liftlog.server.http")

_CLOSE_SECONDS = 1.0


class Appender:
    """Publishes messages on NATS and returns their acks. `is_connected` returns True while the
    daemon has a connection to NATS."""

    def __init__(
        self,
        settings: NatsSettings,
        servers: Sequence[str],
        is_connected: Callable[[], bool],
        recording: Callable[[str], Sequence[str]],
        *,
        ack_timeout_seconds: float,
    ) -> None:
        """`recording` is a function that returns the streams that record and ack a subject."""
        self._recording = recording
        self._settings = settings
        self._servers = list(servers)
        self._is_connected = is_connected
        self._ack_timeout = ack_timeout_seconds
        self._lock = asyncio.Lock()
        self._client: Client | None = None
        self._publishers: dict[bool, Publisher] = {}

    async def append(
        self, stream: StreamInfo, message: PostedMessage, may_administer: Callable[[str], bool]
    ) -> Ack:
        """Publish the message once, and return the stream's ack.

        Raises PublishUnknown after a timeout. The message may then have been stored. It is safe to
        publish it again with the same message id. The caller must have checked that the client may
        administer `stream`. `may_administer` is called for each other stream that records the
        subject, because the client needs the right to administer all of them.

        Raises InvalidArgument, Forbidden, Conflict, NatsUnavailable, PublishFailed.
        """
        subject = subject_of(stream, message.subject)
        if not all(map(may_administer, self._recording(subject))):
            raise Forbidden(
                f"another stream records {subject[:80]!r}, too, and you may not administer it",
                hint="publish on NATS as a user that may, or ask for `admin` on that stream",
            )
        if stream.acks == "off":
            raise Conflict(
                f"the stream {stream.name} sends no acks, so the result would remain unknown",
                hint="publish on its subject, or set acks: on",
            )
        headers: Headers = message.headers
        if message.expected_last_offset is not None:
            expected = (EXPECTED_LAST_SEQUENCE.encode(), b"%d" % message.expected_last_offset)
            headers = [*without(lines_of(headers), EXPECTED_LAST_SEQUENCE), expected]
        # Other subscribers may be unable to parse envelopes, so the message is sent without an
        # envelope if possible.
        enveloped = stream.acks == "envelope" or not _fits_header(message.key)
        publisher = await self._publisher(enveloped)
        published = await publisher.publish(
            subject,
            message.value,
            key=message.key,
            headers=headers,
            message_id=message.message_id,
            expect=[stream.name],
        )
        return published.ack(stream.name)

    async def close(self) -> None:
        async with self._lock:
            await self._drop()

    async def _publisher(self, enveloped: bool) -> Publisher:
        if not self._is_connected():
            raise NatsUnavailable("the daemon has no connection to NATS at the moment")
        async with self._lock:
            if self._client is not None and _is_dead(self._client):
                await self._drop()
            if self._client is None:
                self._client = await self._connect()
            publisher = self._publishers.get(enveloped)
            if publisher is None:
                publisher = Publisher(
                    self._client,
                    use_envelope=enveloped,
                    ack_timeout=self._ack_timeout,
                    retry_for=0,
                )
                self._publishers[enveloped] = await publisher.open()
            return publisher

    async def _connect(self) -> Client:
        settings, servers = self._settings, self._servers
        client = Client()
        try:
            options: dict[str, Any] = {
                "servers": servers,
                "name": f"{settings.name} http",
                "max_reconnect_attempts": -1,
                "reconnect_time_wait": settings.reconnect_wait_seconds,
                "connect_timeout": settings.connect_timeout_seconds,
                "ping_interval": settings.ping_interval_seconds,
                "max_outstanding_pings": settings.max_outstanding_pings,
                "error_cb": _log_error,
                **login_options(settings, servers),
            }
            async with asyncio.timeout(settings.connect_timeout_seconds):
                await client.connect(**options)
        except (nats.errors.Error, OSError, ValueError) as error:
            await _close(client)
            raise NatsUnavailable(f"cannot connect to NATS: {error!r}") from error
        except BaseException:
            await _close(client)
            raise
        return client

    async def _drop(self) -> None:
        publishers, self._publishers = list(self._publishers.values()), {}
        client, self._client = self._client, None
        for publisher in publishers:
            await publisher.close()
        if client is not None:
            await _close(client)


def subject_of(stream: StreamInfo, asked: str | None) -> str:
    """Return the subject on which `stream` stores the message. Raises InvalidArgument for a subject
    that the stream does not record."""
    if asked is None:
        patterns = stream.recorded_subjects
        if len(patterns) == 1 and is_literal(patterns[0]):
            return patterns[0]
        raise InvalidArgument(
            f"the stream {stream.name} records {stream.subject}: the subject is missing",
            hint='set "subject" in JSON, or the header Liftlog-Subject with raw bytes',
        )
    if not is_literal(asked) or not matches_any(stream.recorded_subjects, asked):
        raise InvalidArgument(
            f"the stream {stream.name} records {stream.subject}; {asked[:80]!r} does not match that"
        )
    return asked


def _fits_header(key: bytes | None) -> bool:
    """Return True if a NATS header can carry the key unchanged. NATS clients remove blanks at both
    ends of a header's value."""
    if key is None:
        return True
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return False
    return text == text.strip() and not any(char in text for char in "\r\n\0")


def _is_dead(client: Client) -> bool:
    """Return True if `client` cannot be used any more. Either the client is closed, or its read
    loop has ended, even if the client still reports a connection. The read loop ends after input
    that nats-py cannot parse."""
    reading = client._reading_task
    return bool(client.is_closed) or (
        client.is_connected and (reading is None or bool(reading.done()))
    )


async def _log_error(error: Exception) -> None:
    logger.warning("nats-error connection=http error=%r", error)


async def _close(client: Client) -> None:
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await client.close()
    except (nats.errors.Error, OSError, TimeoutError) as error:
        logger.warning("nats-close-failed connection=http error=%r", error)
