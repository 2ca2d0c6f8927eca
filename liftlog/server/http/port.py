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
            raise _in_use(listen, error.strerror or str(error)) from error
        bound.address = f"{host}:{bound._server.sockets[0].getsockname()[1]}"
        return bound

    async def open(self, make_protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        """Accept connections. `make_protocol` creates the protocol of each connection. Raises
        ConfigError if another process listens on the address. The bind does not detect this,
        because the kernel lets several processes bind an address as long as none of them
        listens."""
        assert self._server is not None, "the address is bound"
        self._make_protocol = make_protocol
        try:
            await self._server.start_serving()
        except OSError as error:
            raise _in_use(self.address, error.strerror or str(error)) from error
        if any(one.fileno() < 0 for one in self._server.sockets):
            # uvloop raises no error here; it closes the socket.
            raise _in_use(self.address, "another process listens there")

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


def _in_use(listen: str, why: str) -> ConfigError:
    return ConfigError(
        f"http.listen: cannot listen on {listen}: {why}",
        hint="stop what uses the port, or set http.listen to another or to null",
    )
