"""Several nats-servers that form a cluster."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from support.clients.raw_nats import RawNats
from support.daemons.nats_server import NatsServer
from support.daemons.ports import lasting_ports

if TYPE_CHECKING:
    from support.daemons.nats_links import NatsLinks
    from support.daemons.networks import Network


class NatsCluster:
    """Use as a context manager. It starts `servers` that know each other. Their files are below
    `directory`, which is kept, or in a temporary one. `links` connect them if given. With a
    `network`, each server runs on one of its machines: on these `machines`, or on all. If the
    servers are `advertised`, a client of one server gets the addresses of the others."""

    def __init__(
        self,
        size: int,
        directory: Path | None = None,
        *,
        links: NatsLinks | None = None,
        network: Network | None = None,
        machines: Sequence[str] = (),
        advertised: bool = True,
        **config: Any,
    ) -> None:
        self._temporary = None
        if directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="nats-cluster-")
            directory = Path(self._temporary.name)
        free = lasting_ports(2 * size)
        ports, monitors = free[:size], free[size:]
        self.route_ports = ports
        hosts = ["127.0.0.1"] * size
        places: list[Path | None] = [None] * size
        if network is not None:
            machines = machines or network.names
            hosts = [network.host(name) for name in machines]
            places = [network.place(name) for name in machines]

        def routes(number: int) -> dict[str, Any]:
            if links is None:
                pairs = zip(hosts, ports, strict=True)
                found = [f"nats://{host}:{port}" for host, port in pairs]
                return {"routes": found, "no_advertise": not advertised}
            others = [other for other in range(size) if other != number]
            through = [f"nats://127.0.0.1:{links.ports[number, other]}" for other in others]
            return {"routes": through, "no_advertise": True}

        self.servers = [
            NatsServer(
                directory / f"n{number}",
                server_name=f"n{number}",
                cluster={"name": "c", "listen": f"{host}:{port}", **routes(number)},
                http=f"{host}:{monitor}",
                host=host,
                network=place,
                **config,
            )
            for number, (host, place, port, monitor) in enumerate(
                zip(hosts, places, ports, monitors, strict=True)
            )
        ]

    def wait_formed(self) -> None:
        """Wait until a message on one server reaches subscribers on each other server."""
        for first in self.servers:
            for second in self.servers:
                if first is not second:
                    _wait_route(first, second)

    def wait_healthy(self, timeout: float = 120.0) -> None:
        """Wait until no server has a stream of JetStream that must catch up. After another fault
        before that, there may be no server that can be elected."""
        deadline = time.monotonic() + timeout
        for server in self.servers:
            while not server.is_healthy():
                assert time.monotonic() < deadline, f"{server.url} catches up"
                time.sleep(0.1)

    def __enter__(self) -> NatsCluster:
        for server in self.servers:
            server.start()
        self.wait_formed()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self.servers:
            server.kill()
        if self._temporary is not None:
            self._temporary.cleanup()


def wait_replicated(servers: Sequence[NatsServer], stream: str, timeout: float = 120.0) -> None:
    """Wait until this stream of JetStream has a leader, and its replicas have all data of the
    leader."""
    deadline = time.monotonic() + timeout
    while True:
        found: dict[str, Any] = {}
        with (
            suppress(OSError, ValueError),
            RawNats(servers[0].port, host=servers[0].host) as client,
        ):
            found = client.request(f"$JS.API.STREAM.INFO.{stream}", timeout=3.0).json()
        group = found.get("cluster", {})
        replicas = group.get("replicas", ())
        if group.get("leader") and all(one["current"] for one in replicas) and replicas:
            return
        assert time.monotonic() < deadline, f"{stream} is replicated? {found}"
        time.sleep(0.1)


def _wait_route(first: NatsServer, second: NatsServer) -> None:
    deadline = time.monotonic() + 20
    with (
        RawNats(first.port, host=first.host) as sender,
        RawNats(second.port, host=second.host) as receiver,
    ):
        receiver.sub("probe.route")
        receiver.ping()
        while True:
            sender.send(b"PUB probe.route 1\r\nx\r\n")
            try:
                receiver.next_message(0.1)
                return
            except TimeoutError:
                assert time.monotonic() < deadline, f"{first.url} does not reach {second.url}"
