"""Checks the network: ports, NATS, the use of JetStream there, and the running daemon."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import click
import nats
from nats.errors import Error

from acl.subjects import overlap_any
from liftlog import __version__
from liftlog.cli.doctor import FAILED, OK, SKIPPED, WARNING, Checkup
from liftlog.cli.lib.conditions import UNREADY, conditions_of
from liftlog.cli.lib.options import connect_to_server
from liftlog.cli.lib.text import plural, show_size
from liftlog.client import connect_sync
from liftlog.client.publishing.publisher_link import why_not_connected
from liftlog.errors import LiftlogError, Unauthenticated, UnsupportedVersion
from liftlog.server.checkpoints.opening import is_open_to_nats, offsets_settings
from liftlog.server.ingest.servers import login_options
from liftlog.settings import Settings, parse_host_port, parse_listen

_SECONDS = 3
_MAX_ANSWER_BYTES = 1_000_000


def check_daemon(settings: Settings) -> Iterator[Checkup]:
    """Check the daemon that --server names, or else the one at the first address of `pull.listen`.
    An address without a daemon is no problem."""
    try:
        with connect_to_server(
            default=_pull_address(settings),
            connect_timeout=_SECONDS,
            request_timeout=_SECONDS,
            reconnect_for=0,
        ) as client:
            found, streams = client.metadata(), client.list_streams()
    except (LiftlogError, OSError, click.ClickException) as error:
        yield Checkup("daemon", SKIPPED, f"not asked: {getattr(error, 'message', error)}")
        return
    detail = f"{found.name} {found.version}, {plural(len(streams), 'stream')}"
    if found.version != __version__:
        yield Checkup(
            "daemon", WARNING, f"{detail}; this command is {__version__}", "restart the daemon"
        )
    else:
        yield Checkup("daemon", OK, detail)
    for one in conditions_of(found):
        status = FAILED if one.severity == UNREADY else WARNING
        yield Checkup("daemon", status, f"{one.name}: {one.text}", one.next_step)


def _pull_address(settings: Settings) -> str:
    """Return the address at which a client on this machine reaches the daemon of these settings."""
    return _dialled(settings.pull.listen[0])


def _dialled(url: str) -> str:
    """Return the address at which a client on this machine reaches a listener at `url`."""
    address = parse_listen(url)
    if address.path is not None or address.host not in ("", "0.0.0.0", "::"):
        return url
    host = "[::1]" if address.host == "::" else "127.0.0.1"
    return f"{url.partition('://')[0]}://{host}:{address.port}"


def check_ports(settings: Settings) -> Iterator[Checkup]:
    """Check whether a daemon can listen on the addresses in the settings."""
    for url in settings.pull.listen:
        address = parse_listen(url)
        if address.path is not None:
            yield _socket_file(address.path)
        else:
            yield _port(address.host, address.port, partial(_serves_streams, _dialled(url)))
    if settings.http.listen:
        address = parse_host_port(settings.http.listen)
        yield _port(address.host, address.port, partial(_serves_health, address.host, address.port))


def _serves_streams(url: str) -> bool:
    """Return True if a daemon of liftlog listens at this address. The check does not log in: it
    sends no token and verifies no certificate."""
    tls = None
    if url.startswith("tls://"):
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    try:
        connect_sync(
            url, tls=tls, connect_timeout=_SECONDS, request_timeout=_SECONDS, reconnect_for=0
        ).close()
    except (Unauthenticated, UnsupportedVersion):
        return True
    except (LiftlogError, OSError):
        return False
    return True


def _serves_health(host: str, port: int) -> bool:
    """Return True if /livez at this address answers like a daemon of liftlog."""
    connection = HTTPConnection(
        {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host),
        port,
        timeout=_SECONDS,
    )
    try:
        connection.request("GET", "/livez", headers={"Accept": "application/json"})
        found = json.loads(connection.getresponse().read(_MAX_ANSWER_BYTES))
    except (OSError, HTTPException, ValueError):
        return False
    finally:
        connection.close()
    return isinstance(found, dict) and "uptime_seconds" in found


def _socket_file(path: str) -> Checkup:
    above = Path(path).parent
    if os.access(above, os.W_OK | os.X_OK):
        return Checkup("port", OK, f"unix://{path}")
    return Checkup("port", FAILED, f"{above} cannot be written", "choose another directory")


def _port(host: str, port: int, is_liftlog: Callable[[], bool]) -> Checkup:
    shown = f"{host or '*'}:{port}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            if is_liftlog():
                return Checkup("port", OK, f"{shown} is in use by a liftlog daemon")
            advice = "end what listens there (ss -ltnp), or choose another address"
            return Checkup("port", WARNING, f"{shown} is in use", advice)
        advice = "choose another address, or a port above 1023"
        return Checkup("port", FAILED, f"{shown}: {error.strerror or error}", advice)
    return Checkup("port", OK, f"{shown} is free")


def check_nats(settings: Settings) -> Iterator[Checkup]:
    """Log in as the daemon does, and check the permissions and streams."""
    if settings.nats.embedded:
        yield Checkup("nats", SKIPPED, "the daemon starts a server of its own")
        return

    try:
        found = asyncio.run(_ask_nats(settings))
    except Exception as error:  # noqa: BLE001  # nats-py raises many kinds; all mean the same here
        yield Checkup(
            "nats",
            FAILED,
            f"{', '.join(_shown(settings))}: {why_not_connected(error)}",
            "check nats.servers (the port of NATS is usually 4222), the login, and that it runs",
        )
        return
    yield Checkup("nats", OK, f"{found['url']}, server {found['version']}, {found['rtt']:.1f} ms")
    yield from _permissions(settings, found["refused"])
    yield _payload(settings, found["max_payload"])
    yield _jetstream(settings, found["jetstream"])


def _shown(settings: Settings) -> list[str]:
    """Return the servers without passwords."""
    return list(settings.to_yaml_dict()["nats"]["servers"])


async def _ask_nats(settings: Settings) -> dict[str, Any]:
    errors: list[str] = []

    async def keep(error: Exception) -> None:
        errors.append(str(error))

    servers = [str(url) for url in settings.nats.servers]
    client = await nats.connect(
        servers=servers,
        name=f"{settings.nats.name}-doctor",
        connect_timeout=_SECONDS,
        max_reconnect_attempts=1,
        allow_reconnect=False,
        error_cb=keep,
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
            "version": client._server_info.get("version", "unknown"),
            "max_payload": client.max_payload,
            "rtt": rtt,
            "refused": await _refused(settings, client, errors),
            "jetstream": await _jetstream_subjects(client),
        }
    finally:
        await client.close()


async def _refused(settings: Settings, client: Any, errors: list[str]) -> dict[str, str]:
    """Return the subscriptions and publications of the daemon that NATS refuses, each with the
    message of NATS. Keys are stream names, `checkpoints` and `acks`. The check joins no queue
    group, so it takes no message from a group's members."""
    wanted = {f"stream {name}": stream.subjects for name, stream in settings.streams.items()}
    if is_open_to_nats(settings):
        wanted["checkpoints"] = offsets_settings(settings).subjects
    found: dict[str, str] = {}

    async def ignore(message: Any) -> None:
        pass

    async def confirm() -> None:
        # Done twice, because the first PING may overtake data that still waits in nats-py's own
        # buffer.
        await client.flush(timeout=_SECONDS)
        await client.flush(timeout=_SECONDS)

    for name, subject in ((name, one) for name, subjects in wanted.items() for one in subjects):
        errors.clear()
        subscription = await client.subscribe(subject, cb=ignore)
        await confirm()
        if errors:
            found[name] = f"{subject}: {errors[0].removeprefix('nats: ')}"
        else:
            await subscription.unsubscribe()
    if any(stream.acks != "off" for stream in settings.streams.values()) or not settings.streams:
        errors.clear()
        await client.publish(client.new_inbox(), b"")
        await confirm()
        if errors:
            found["acks"] = errors[0].removeprefix("nats: ")
    return found


async def _jetstream_subjects(client: Any) -> dict[str, list[str]] | None:
    """Return the subjects of each JetStream stream; None if there is no JetStream, or if it may not
    be queried."""
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


def _permissions(settings: Settings, refused: dict[str, str]) -> Iterator[Checkup]:
    """Check whether NATS allows the daemon to subscribe and to ack."""
    advice = "give the daemon's NATS user the permission: `liftlog docs how-to/nats`"
    for name, problem in refused.items():
        stream = settings.streams.get(name.removeprefix("stream "))
        if name == "acks":
            yield Checkup("nats permissions", FAILED, f"acks are refused: {problem}", advice)
        elif name == "checkpoints" and settings.checkpoints.over_nats is not True:
            shown = f"consumers cannot store checkpoints over NATS: {problem}"
            yield Checkup(
                "nats permissions", WARNING, shown, f"{advice}, or set checkpoints.over_nats: false"
            )
        elif stream is not None and stream.queue_group:
            # A member of the group would receive messages that are meant for the daemon.
            shown = f"{name}: {problem}; this was tested without its queue group"
            yield Checkup("nats permissions", WARNING, shown, advice)
        else:
            yield Checkup("nats permissions", FAILED, f"{name}: {problem}", advice)
    if not refused:
        count = len(settings.streams)
        shown = f"may subscribe for {plural(count, 'configured stream')}, and send acks to inboxes"
        yield Checkup("nats permissions", OK, shown)


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
        return Checkup(
            "jetstream", SKIPPED, "not enabled for this account, or no permission to ask"
        )
    clashes = [
        f"{name} ({stream.shown_subjects}) and JetStream's {other} ({subject})"
        for name, stream in settings.streams.items()
        if stream.acks == "on"
        for other, subjects in found.items()
        for subject in subjects
        if overlap_any(stream.subjects, (subject,))
    ]
    if clashes:
        return Checkup(
            "jetstream",
            WARNING,
            f"both ack the same messages: {'; '.join(clashes)}",
            "set acks: off for the stream, or remove the JetStream stream",
        )
    if not settings.streams:
        return Checkup(
            "jetstream", OK, f"{plural(len(found), 'stream')}; no stream is configured here"
        )
    shared = [
        name
        for name, stream in settings.streams.items()
        if any(overlap_any(stream.subjects, subjects) for subjects in found.values())
    ]
    if shared:
        detail = (
            f"{plural(len(found), 'stream')}; the same messages, without acks: {', '.join(shared)}"
        )
        return Checkup("jetstream", OK, detail)
    return Checkup("jetstream", OK, f"{plural(len(found), 'stream')}, on other subjects")
