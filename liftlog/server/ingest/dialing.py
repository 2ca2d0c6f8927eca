"""Reaches NATS servers, one after another, and finds out why one is not available."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import nats.errors

from liftlog.client.publishing.publisher_link import why_not_connected
from liftlog.errors import NatsUnavailable
from liftlog.server.ingest.connection import NatsConnection
from liftlog.server.ingest.endings import Cause, Ending
from liftlog.server.ingest.servers import NatsServerAddress, ServerPool
from liftlog.server.vitals.rare_warnings import RareWarnings
from liftlog.settings import NatsSettings

_CHECK_SECONDS = 0.5


class Dialer:
    """Connects to NATS servers. Belongs to one event loop. `new_connection` returns a connection
    that is not open yet."""

    def __init__(
        self,
        settings: NatsSettings,
        servers: list[str],
        new_connection: Callable[..., NatsConnection],
        warnings: RareWarnings,
    ) -> None:
        self._settings = settings
        self._pool = ServerPool(servers)
        self._new_connection = new_connection
        self._warnings = warnings
        self.problem = "no connection was made yet"
        """The reason why the server of the last attempt is not available, or why the last
        connection ended."""

    @property
    def urls(self) -> list[str]:
        """The configured servers."""
        return self._pool.urls

    def learn(self, connection: NatsConnection) -> None:
        """Store the other servers of the cluster that this server reports."""
        self._pool.learn(connection.address, connection.connect_urls)

    def round(self) -> list[NatsServerAddress]:
        """Return all servers in random order, the configured servers first."""
        return self._pool.round()

    def round_elsewhere(self, old: NatsConnection) -> list[NatsServerAddress]:
        """Return all servers, with the address of `old` last. This address is included, because
        behind a load balancer it may lead to another server."""
        return sorted(self._pool.round(), key=lambda one: one.shown == old.address.shown)

    async def open(self, address: NatsServerAddress) -> NatsConnection | None:
        """Connect to one server. If it is not available, log the reason and return None."""
        tls_name = self._settings.tls.hostname or address.tls_name
        connection = self._new_connection(address, tls_name=tls_name)
        try:
            await connection.log_in(self._settings)
        except (OSError, nats.errors.Error, TimeoutError, NatsUnavailable) as error:
            await connection.close()
            self.failed(address, error)
            return None
        except BaseException:
            await connection.close()
            raise
        self.learn(connection)
        return connection

    async def open_other(
        self, address: NatsServerAddress, old: NatsConnection
    ) -> NatsConnection | None:
        """Connect to one server, like `open`. Also returns None if the address leads to the server
        of `old`, if the server is about to stop, or if `old` has ended."""
        new = None if old.ending is not None else await self.open(address)
        if new is not None and (new.server_id == old.server_id or new.lame_duck):
            await new.close()
            return None
        return new

    def failed(self, address: NatsServerAddress, error: Exception) -> None:
        """Log why a server is not available."""
        text = why_not_connected(error).removeprefix("nats: ")
        self.problem = f"{address.shown}: {text}"
        self._warnings.warn("nats-connect-failed server=%s error=%s", address.shown, text)


async def checked(ending: Ending, address: NatsServerAddress) -> Ending:
    """Return the ending with its real cause. If the server no longer listens, the server has
    stopped, and the daemon was not the cause."""
    if not ending.is_guess:
        return ending
    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            _, writer = await asyncio.open_connection(*address.endpoint)
        writer.transport.abort()
    except ConnectionRefusedError:
        return Ending(Cause.CLOSED, "NATS closed the connection: its server has stopped")
    except (OSError, TimeoutError):
        pass  # a failure here proves nothing
    return ending
