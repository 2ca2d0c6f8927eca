"""The network: ports, NATS and what JetStream does there, the daemon that runs."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from acl.subjects import overlaps
from liftlog import __version__
from liftlog.cli.doctor.findings import FAILED, OK, SKIPPED, WARNING, Checkup
from liftlog.cli.options import connect_to_server
from liftlog.cli.text import show_size
from liftlog.errors import LiftlogError

if TYPE_CHECKING:
    from liftlog.settings import Settings

_SECONDS = 3


def check_daemon() -> Iterator[Checkup]:
    """The one that --server names; none needs to run."""
    try:
        with connect_to_server(
            connect_timeout=_SECONDS, request_timeout=_SECONDS, reconnect_for=0
        ) as client:
            found, streams = client.metadata(), client.list_streams()
    except (LiftlogError, OSError, click.ClickException) as error:
        yield Checkup("daemon", SKIPPED, f"not asked: {getattr(error, 'message', error)}")
        return
    detail = f"{found.name} {found.version}, {len(streams)} streams"
    troubled = [one.name for one in streams if one.quarantined or one.state == "failed"]
    if found.version != __version__:
        yield Checkup(
            "daemon", WARNING, f"{detail}; this command is {__version__}", "restart the daemon"
        )
    elif troubled:
        yield Checkup(
            "daemon",
            WARNING,
            f"damaged or failed: {', '.join(troubled)}",
            "liftlog stream info NAME",
        )
    else:
        yield Checkup("daemon", OK, detail)


def check_ports(settings: Settings) -> Iterator[Checkup]:
    """Whether a daemon could listen where the settings say."""
    from liftlog.settings import parse_host_port, parse_listen

    addresses = [parse_listen(url) for url in settings.pull.listen]
    if settings.http.listen:
        addresses.append(parse_host_port(settings.http.listen))
    for address in addresses:
        if address.path is not None:
            yield _socket_file(address.path)
        else:
            yield _port(address.host, address.port)


def _socket_file(path: str) -> Checkup:
    above = Path(path).parent
    if os.access(above, os.W_OK | os.X_OK):
        return Checkup("port", OK, f"unix://{path}")
    return Checkup("port", FAILED, f"{above} cannot be written", "choose another directory")


def _port(host: str, port: int) -> Checkup:
    shown = f"{host or '*'}:{port}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return Checkup(
                "port",
                WARNING,
                f"{shown} is in use",
                "well if this daemon runs; else end what listens there (ss -ltnp)",
            )
        advice = "choose another address, or a port above 1023"
        return Checkup("port", FAILED, f"{shown}: {error.strerror or error}", advice)
    return Checkup("port", OK, f"{shown} is free")


def check_nats(settings: Settings) -> Iterator[Checkup]:
    """Log in as the daemon would, and look what is there."""
    if settings.nats.embedded:
        yield Checkup("nats", SKIPPED, "the daemon starts a server of its own")
        return
    try:
        found = asyncio.run(_ask_nats(settings))
    except Exception as error:  # noqa: BLE001  # nats-py raises many kinds; all mean the same here
        yield Checkup(
            "nats",
            FAILED,
            f"{', '.join(_shown(settings))}: {str(error) or type(error).__name__}",
            "check nats.servers, the login, and that the server runs",
        )
        return
    yield Checkup("nats", OK, f"{found['url']}, server {found['version']}, {found['rtt']:.1f} ms")
    yield _payload(settings, found["max_payload"])
    yield _jetstream(settings, found["jetstream"])


def _shown(settings: Settings) -> list[str]:
    """Without passwords."""
    return list(settings.to_yaml_dict()["nats"]["servers"])


async def _ask_nats(settings: Settings) -> dict[str, Any]:
    import nats

    from liftlog.server.ingest.login import login_options

    async def silent(error: Exception) -> None:
        pass  # it comes back from connect()

    servers = [str(url) for url in settings.nats.servers]
    client = await nats.connect(
        servers=servers,
        name=f"{settings.nats.name}-doctor",
        connect_timeout=_SECONDS,
        max_reconnect_attempts=1,
        allow_reconnect=False,
        error_cb=silent,
        **login_options(settings.nats, servers),
    )
    try:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await client.flush(timeout=_SECONDS)
        rtt = (loop.time() - began) * 1000
        url = client.connected_url
        return {
            "url": f"{url.hostname}:{url.port}" if url else "?",
            "version": client.connected_server_version,
            "max_payload": client.max_payload,
            "rtt": rtt,
            "jetstream": await _jetstream_subjects(client),
        }
    finally:
        await client.close()


async def _jetstream_subjects(client: Any) -> dict[str, list[str]] | None:
    """Subjects by JetStream stream; None when there is none, or it may not be asked."""
    from nats.errors import Error

    found: dict[str, list[str]] = {}
    try:
        js = client.jetstream(timeout=_SECONDS)
        while True:
            page = await js.streams_info(offset=len(found))
            found |= {one.config.name: list(one.config.subjects or ()) for one in page}
            if not page:
                return found
    except Error:
        return None


def _payload(settings: Settings, max_payload: int) -> Checkup:
    small = [
        name for name, stream in settings.streams.items() if stream.max_message_bytes < max_payload
    ]
    detail = f"NATS takes messages up to {show_size(max_payload)}"
    if small:
        return Checkup(
            "max_payload",
            WARNING,
            f"{detail}, which is more than {', '.join(small)} store",
            "raise max_message_bytes of the stream: larger messages are refused",
        )
    return Checkup("max_payload", OK, detail)


def _jetstream(settings: Settings, found: dict[str, list[str]] | None) -> Checkup:
    if found is None:
        return Checkup("jetstream", SKIPPED, "not enabled for this account, or not to be asked")
    clashes = [
        f"{name} ({stream.subject}) and JetStream's {other} ({subject})"
        for name, stream in settings.streams.items()
        if stream.acks == "on"
        for other, subjects in found.items()
        for subject in subjects
        if overlaps(stream.subject, subject)
    ]
    if clashes:
        return Checkup(
            "jetstream",
            WARNING,
            f"both ack the same messages: {'; '.join(clashes)}",
            "set acks: off for the stream, or remove the one of JetStream",
        )
    return Checkup("jetstream", OK, f"{len(found)} streams, on other subjects")
