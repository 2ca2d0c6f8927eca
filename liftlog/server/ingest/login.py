"""How to log in to NATS, as options of nats-py: the same for every connection of the daemon."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any

from liftlog.settings import NatsSettings


def login_options(settings: NatsSettings, servers: Sequence[str]) -> dict[str, Any]:
    """Credentials and TLS. Reads the certificate files. Raises OSError, ssl.SSLError."""
    options: dict[str, Any] = {}
    if settings.user is not None:
        options["user"] = settings.user
    if settings.password is not None:
        options["password"] = settings.password.get_secret_value()
    if settings.token is not None:
        options["token"] = settings.token.get_secret_value()
    if settings.credentials is not None:
        options["user_credentials"] = str(settings.credentials)
    if settings.nkey is not None:
        options["nkeys_seed"] = str(settings.nkey)
    return options | _tls_options(settings, servers)


def _tls_options(settings: NatsSettings, servers: Sequence[str]) -> dict[str, Any]:
    tls = settings.tls
    wanted = any((tls.ca, tls.cert, tls.hostname, tls.handshake_first))
    if not wanted and not any(url.startswith(("tls://", "wss://")) for url in servers):
        return {}
    context = ssl.create_default_context(cafile=str(tls.ca) if tls.ca else None)
    if tls.cert is not None:
        context.load_cert_chain(str(tls.cert), str(tls.key) if tls.key else None)
    options: dict[str, Any] = {"tls": context, "tls_handshake_first": tls.handshake_first}
    if tls.hostname:
        options["tls_hostname"] = tls.hostname
    return options
