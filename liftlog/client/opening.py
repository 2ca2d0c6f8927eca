"""`connect` and `connect_sync`: make a client for the address of a daemon.

Each imports only the client that it makes.
"""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from liftlog.client.connecting.target import (
    CONNECT_TIMEOUT_SECONDS,
    DEFAULT_ADDRESS,
    RECONNECT_FOR_SECONDS,
    REQUEST_TIMEOUT_SECONDS,
    NkeyFile,
    Target,
)

if TYPE_CHECKING:
    from liftlog.client.aio.client import Client
    from liftlog.client.blocking.client import SyncClient
    from liftlog.tls import ClientTls


def connect(
    address: str = DEFAULT_ADDRESS,
    *,
    token: str | None = None,
    nkey: NkeyFile | None = None,
    tls: ClientTls = None,
    connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
    request_timeout: float = REQUEST_TIMEOUT_SECONDS,
    reconnect_for: float | None = RECONNECT_FOR_SECONDS,
) -> Connecting:
    """Connect to a daemon: `client = await connect(...)` or `async with connect(...) as client`.

    `address` may contain the addresses of several nodes of a cluster, separated by commas. One
    reachable node is enough. From this node the client receives the address of each stream's
    leader. The client connects to the leader, also after a change of the leader.

    The client sends `token` only if the daemon requests a token. Without TLS, anyone on the network
    path can read the token. In this case the client logs a warning, unless the address is on this
    machine. `nkey` is a file with the seed of a user's nkey: the seed alone, or a `.creds` file.
    The client signs a challenge of the daemon with the seed, and never sends the seed. For an
    address `tls://host:port`, `tls` is a file of CA certificates or an `ssl.SSLContext`; by default
    the client trusts the system's CAs.

    Timeouts are in seconds. After a lost connection, reads and calls try to reconnect for
    `reconnect_for` seconds, but a call ends at its `request_timeout`. If `reconnect_for` is None,
    reads try to reconnect without a limit. If it is 0, reads and calls do not reconnect.

    Raises ConnectionLost if the daemon cannot be reached, Unauthenticated, UnsupportedVersion,
    LimitExceeded (too many connections), and InvalidArgument if an argument is invalid.
    """
    return Connecting(
        Target.of_all(address, token, nkey, tls, connect_timeout, request_timeout, reconnect_for)
    )


class Connecting:
    """The result of `connect`. Await it to get a client, or use it in `async with`."""

    def __init__(self, targets: list[Target]) -> None:
        self._targets = targets
        self._client: Client | None = None

    def __await__(self) -> Generator[Any, Any, Client]:
        return self._connect().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._connect()
        return self._client

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._client is not None:
            await self._client.close()

    async def _connect(self) -> Client:
        from liftlog.client.aio.client import Client
        from liftlog.client.aio.routing import Router

        router = Router(self._targets)
        await router.open()
        return Client(router)


def connect_sync(
    address: str = DEFAULT_ADDRESS,
    *,
    token: str | None = None,
    nkey: NkeyFile | None = None,
    tls: ClientTls = None,
    connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
    request_timeout: float = REQUEST_TIMEOUT_SECONDS,
    reconnect_for: float | None = RECONNECT_FOR_SECONDS,
) -> SyncClient:
    """Return a connected blocking client: `client = connect_sync(...)` or `with connect_sync(...)
    as client`. It has the same arguments and errors as `connect`."""
    from liftlog.client.blocking.client import SyncClient
    from liftlog.client.blocking.routing import SyncRouter

    router = SyncRouter(
        Target.of_all(address, token, nkey, tls, connect_timeout, request_timeout, reconnect_for)
    )
    router.open()
    return SyncClient(router)
