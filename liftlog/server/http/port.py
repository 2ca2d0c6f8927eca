"""The address of the HTTP port, bound before the server is imported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from liftlog.errors import ConfigError


class HttpPort:
    """A bound address. The kernel refuses connections to it until `open`."""

    def __init__(self) -> None:
        self.address = ""
        """`HOST:PORT`, with the real port."""
        self._server: asyncio.Server | None = None
        self._make_protocol: Callable[[], asyncio.BaseProtocol] = asyncio.Protocol

    @classmethod
    async def bind(cls, listen: str) -> HttpPort:
        """Bind `HOST:PORT`. Raises ConfigError."""
        host, _, port = listen.rpartition(":")
        bound = cls()
        try:
            bound._server = await asyncio.get_running_loop().create_server(
                lambda: bound._make_protocol(),
                host.strip("[]") or None,
                int(port),
                start_serving=False,
            )
        except OSError as error:
            raise ConfigError(
                f"http.listen: cannot listen on {listen}: {error.strerror or error}",
                hint="stop what uses the port, or set http.listen to another or to null",
            ) from error
        bound.address = f"{host}:{bound._server.sockets[0].getsockname()[1]}"
        return bound

    async def open(self, make_protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        """Accept connections; `make_protocol` makes the protocol of each."""
        assert self._server is not None, "the address is bound"
        self._make_protocol = make_protocol
        await self._server.start_serving()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
