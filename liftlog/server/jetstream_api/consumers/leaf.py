"""The connection over which consumers deliver. On this connection, the daemon is a leaf node of
NATS.

JetStream delivers a record to a client's inbox, but under the record's own subject. An ordinary
NATS client cannot send such a message. A leaf node can: if the reply subject of a message is
`$JS.ACK.<...>@<subject>`, the server uses the part after the `@` as the subject. The servers of a
cluster use the same form. The server also reports to a leaf node which subjects have subscribers.
So a consumer can detect that its client is gone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import secrets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from liftlog.errors import NatsUnavailable
from liftlog.server.jetstream_api.consumers.interest import Interest
from liftlog.server.jetstream_api.consumers.leaf_frames import LeafParser
from liftlog.server.jetstream_api.consumers.leaf_login import LeafLogin
from liftlog.settings import NatsSettings

logger = logging.getLogger("liftlog.server.jetstream_api")

FLOW_PREFIX = "$JS.FC."
"""Prefix of the subjects on which clients answer requests of flow control."""

_CONNECT_SECONDS = 5.0
_CLOSE_SECONDS = 1.0
_RECONNECT_SECONDS = 1.0
_PING_SECONDS = 20.0
_READ_BYTES = 256 * 1024
_UNSENT_BYTES = 1024 * 1024
_PROTOCOL_VERSION = "2.10.0"
"""The version of nats-server whose leaf node protocol is implemented here."""


class InterestChange(NamedTuple):
    """The changes of interest that one read of the connection has reported."""

    added: set[bytes]
    """Subjects and patterns that have got subscribers."""
    removed: set[bytes]
    """Subjects and patterns that have lost their subscribers, or the subscribers of one queue
    group."""
    is_connection: bool = False
    """True if the connection has begun or ended. The subscribers of every subject may then have
    changed."""


class LeafLink:
    """The daemon's connection as a leaf node. Belongs to the event loop."""

    def __init__(self, addresses: Sequence[str], login: LeafLogin, *, name: str) -> None:
        """`addresses` are HOST:PORT of the `leafnodes` listeners of one or several servers. The
        link connects to one of them at a time, and switches to the next address if the connection
        fails."""
        # Each daemon begins with another address, so the daemons are spread over the servers.
        self._addresses = random.sample(addresses, len(addresses))
        self.problem = "no connection was made yet"
        """The reason why there is no connection; empty while there is a connection."""
        self._told: dict[str, str] = {}
        """The last problem that was logged for each address since the last connection."""
        self.on_flow: Callable[[bytes], None] = lambda subject: None
        """Receives the subject of each answer to a request of flow control."""
        self.on_interest: Callable[[InterestChange], None] = lambda change: None
        """Receives each change of interest."""
        self._name = name
        self._login = login
        self._id = f"LIFTLOG{secrets.token_hex(12).upper()}"
        self._writer: asyncio.StreamWriter | None = None
        self._put: list[bytes] = []  # the commands of this turn of the event loop
        self._put_bytes = 0
        self._interest = Interest()
        self.interest_version = 0
        """A number that changes whenever a subject gets or loses subscribers."""
        self._change = InterestChange(set(), set())
        self._changed = asyncio.Event()
        self._ready = asyncio.Event()
        self._heard = False
        self.max_payload_bytes = 0
        """Maximum size of one message; 0 if unknown. NATS closes the connection after a larger
        message."""
        self._tasks: list[asyncio.Task[None]] = []

    # --- what others use ---

    @property
    def address(self) -> str:
        """The server to which the link is connected, or tries to connect."""
        return self._addresses[0]

    @property
    def connected(self) -> bool:
        return self._ready.is_set()

    async def send(self, commands: bytes) -> None:
        """Send a command. Waits until the server has accepted most of the earlier bytes. Raises
        NatsUnavailable."""
        if not self.connected or self._writer is None:
            raise self._unavailable()
        self._write_put()
        try:
            self._writer.write(commands)
            await self._writer.drain()
        except OSError as error:
            raise NatsUnavailable(f"the leaf node connection ended: {error}") from error

    def offer(self, commands: bytes) -> bool:
        """Send without waiting. Returns False and sends nothing if there is no connection, or if
        the server has not yet read the earlier data."""
        writer = self._writer
        if not self.connected or writer is None:
            return False
        if writer.transport.get_write_buffer_size() >= _UNSENT_BYTES:
            return False
        writer.write(commands)
        return True

    @property
    def has_room(self) -> bool:
        """True if there is a connection, and the server has read most of the earlier data."""
        writer = self._writer
        if writer is None or not self.connected:
            return False
        return writer.transport.get_write_buffer_size() + self._put_bytes < _UNSENT_BYTES

    def put(self, commands: bytes) -> None:
        """Send in the next turn of the event loop. One system call then sends the commands of all
        consumers. Call this method only if `has_room` is true. The commands are lost if the
        connection ends first."""
        if not self._put:
            asyncio.get_running_loop().call_soon(self._write_put)
        self._put.append(commands)
        self._put_bytes += len(commands)

    def _write_put(self) -> None:
        commands, self._put, self._put_bytes = self._put, [], 0
        if commands and self._writer is not None and self.connected:
            self._writer.write(b"".join(commands))

    def _unavailable(self) -> NatsUnavailable:
        return NatsUnavailable(
            f"consumers deliver over a leaf node connection, and there is none to {self.address}: "
            f"{self.problem}"
        )

    async def wait_connected(self) -> None:
        """Wait a few seconds for the connection. Raises NatsUnavailable if there is no connection
        after that time."""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await self._ready.wait()
        except TimeoutError:
            raise self._unavailable() from None

    def has_interest(self, subject: bytes) -> bool:
        """Return True if NATS has a subscriber for this subject."""
        return self._interest.has(subject)

    def queues(self, subject: bytes) -> bytes:
        """Return the queue groups that subscribe to this subject, separated by blanks."""
        return self._interest.queues(subject)

    async def interest_changed(self) -> None:
        """Wait for the next change of interest in any subject."""
        await self._changed.wait()

    # --- life cycle ---

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._supervise(), name="nats-leaf"),
            asyncio.create_task(self._ping(), name="nats-leaf-ping"),
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _supervise(self) -> None:
        while True:
            try:
                await self._serve()
                problem = "the server closed it"
            except (OSError, ValueError, EOFError, TimeoutError, NatsUnavailable) as error:
                problem = str(error) or type(error).__name__
            except Exception as error:  # a supervisor: the next connection may work
                problem = repr(error)
                logger.exception("nats-leaf-failed error=%r", error)
            finally:
                await self._abandon()
            if problem != self._told.get(self.address):
                logger.warning("nats-leaf-not-connected server=%s error=%s", self.address, problem)
            self._told[self.address] = self.problem = problem
            self._addresses.append(self._addresses.pop(0))
            await asyncio.sleep(_RECONNECT_SECONDS / len(self._addresses))

    async def _abandon(self) -> None:
        had_interest = self.connected or self._interest.size
        self._ready.clear()
        self._put, self._put_bytes = [], 0
        self._interest.clear()
        self.interest_version += 1
        # Only here, and not after each attempt to connect, because this wakes all consumers.
        if had_interest:
            self._tell_changed(InterestChange(set(), set(), is_connection=True))
        writer, self._writer = self._writer, None
        if writer is None:
            return
        writer.close()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await writer.wait_closed()
        except (OSError, TimeoutError):  # a server that is gone does not complete the end of TLS
            writer.transport.abort()

    async def _serve(self) -> None:
        """Serve one connection until it ends."""
        host, _, port = self.address.rpartition(":")
        host = host.strip("[]")
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(host, int(port), limit=_READ_BYTES)
            self._writer = writer
            writer.transport.set_write_buffer_limits(_UNSENT_BYTES)
            await self._log_in(reader, writer, host)
        parser = LeafParser(self)
        while data := await reader.read(_READ_BYTES):
            self._heard = True
            parser.feed(data)
            if any(self._change):  # thousands can arrive at once when clients connect
                self._tell_changed(self._change)

    async def _log_in(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str
    ) -> None:
        login, info = self._login, {}
        if not login.first:
            info = await _read_info(reader)
        context = login.tls(info)
        if context is not None:
            await writer.start_tls(context, server_hostname=login.server_name(host))
            writer.transport.set_write_buffer_limits(_UNSENT_BYTES)
        if login.first:
            info = await _read_info(reader)
        limit = info.get("max_payload")
        self.max_payload_bytes = limit if type(limit) is int and limit > 0 else 0
        connect = {
            "version": _PROTOCOL_VERSION,
            "server_id": self._id,
            "name": f"liftlog {self._name}",
            "headers": True,
            "compression": "off",
            **login.fields(str(info.get("nonce") or ""), host),
        }
        writer.write(b"CONNECT %b\r\nLS+ %b>\r\nPING\r\n" % (_json(connect), FLOW_PREFIX.encode()))

    # --- LeafEvents ---

    def interest_added(self, subject: bytes, queue: bytes) -> None:
        self._interest.add(subject, queue)
        self.interest_version += 1
        self._change.added.add(subject)

    def interest_removed(self, subject: bytes, queue: bytes) -> None:
        self._interest.remove(subject, queue)
        self.interest_version += 1
        self._change.removed.add(subject)

    def message(self, subject: bytes) -> None:
        if subject.startswith(FLOW_PREFIX.encode()):
            self.on_flow(subject)

    def pinged(self) -> None:
        if self._writer is not None:
            self._writer.write(b"PONG\r\n")

    def ponged(self) -> None:
        # The server has reported all existing interests before this message.
        if not self.connected:
            logger.info("nats-leaf-connected server=%s", self.address)
            self.problem = ""
            self._told.clear()
            self._ready.set()
            self._change = self._change._replace(is_connection=True)

    def _tell_changed(self, change: InterestChange) -> None:
        self._change = InterestChange(set(), set())
        self._changed.set()
        self._changed.clear()
        self.on_interest(change)

    async def _ping(self) -> None:
        """End a connection on which the server has been silent."""
        while True:
            await asyncio.sleep(_PING_SECONDS)
            writer = self._writer
            if writer is None or not self.connected:
                continue
            self._heard = False
            writer.write(b"PING\r\n")
            await asyncio.sleep(_PING_SECONDS)
            if not self._heard and writer is self._writer:
                writer.transport.abort()


async def _read_info(reader: asyncio.StreamReader) -> dict[str, Any]:
    line = await reader.readline()
    info = json.loads(line[5:]) if line.startswith(b"INFO ") else None
    if not isinstance(info, dict):
        raise NatsUnavailable("no leaf node listener answers there")
    return info


def _json(document: dict[str, object]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def leaf_link_of(settings: NatsSettings, name: str) -> LeafLink | None:
    """Return the link of a daemon of this name; None if the settings name no leaf listener."""
    if not settings.leafnode:
        return None
    return LeafLink(settings.leafnode, LeafLogin(settings), name=name)
