"""Finds the NATS server for publishing: from the options, the environment, the context, or the
daemon."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from liftlog.cli.lib.options import connect_to_server, context_value
from liftlog.errors import LiftlogError

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_ASK_SECONDS = 1.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::")
_DEFAULT_NATS = "nats://127.0.0.1:4222"


def nats_options(command: Decorated) -> Decorated:
    """Add --nats and --creds, as `nats_url` and `creds`."""
    command = click.option(
        "--creds",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="NATS credentials file.",
    )(command)
    return click.option(
        "--nats",
        "nats_url",
        metavar="URL",
        help="NATS server, with user and password if needed. [env: NATS_URL, "
        "LIFTLOG_NATS__SERVERS; default: the server of the context, or else the server "
        f"from which the daemon records, or else {_DEFAULT_NATS}]",
    )(command)


def nats_credentials(given: Path | None) -> Path | None:
    """Return the credentials file from the option or the context."""
    kept = context_value("creds")
    return given if given is not None or kept is None else Path(kept)


def nats_servers(given: str | None) -> list[str]:
    """Return the addresses of the NATS servers to publish to."""
    text = (
        given
        or context_value("nats", explicit=True)
        or os.environ.get("NATS_URL")
        or os.environ.get("LIFTLOG_NATS__SERVERS")
        or context_value("nats")
        or _told_by_the_daemon()
        or _DEFAULT_NATS
    )
    return [url.strip() for url in text.strip("[]").split(",") if url.strip()]


def _told_by_the_daemon() -> str:
    """Return the server to which the daemon is connected; empty if the daemon does not report one.
    A loopback address is replaced by the host of the daemon, because it refers to the daemon's
    machine."""
    try:
        with connect_to_server(
            connect_timeout=_ASK_SECONDS, request_timeout=_ASK_SECONDS, reconnect_for=0
        ) as client:
            where, nats = urlsplit(client.address), client.metadata().nats
    except (LiftlogError, OSError):
        return ""
    url = urlsplit(str(nats.get("url") or ""))
    if not url.hostname or not url.port:
        return ""
    host = url.hostname
    if host in _LOOPBACK and where.hostname and where.scheme != "unix":
        host = where.hostname
    return f"{url.scheme}://{f'[{host}]' if ':' in host else host}:{url.port}"
