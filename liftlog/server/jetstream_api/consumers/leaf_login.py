"""The daemon's login as a leaf node: uses the settings of its other connection to NATS.

The server's two listeners can have different requirements. So the daemon also uses TLS if only the
leafnodes listener requires TLS. A login is never sent unencrypted if the settings require TLS.
"""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from acl.nkeys import NotAnNkey, SigningKey
from liftlog.errors import NatsUnavailable
from liftlog.server.ingest.servers import tls_context
from liftlog.settings import NatsSettings

_CREDENTIALS = re.compile(
    r"-+BEGIN NATS USER JWT-+\s*(\S+)\s*-+END NATS USER JWT-+.*?"
    r"-+BEGIN USER NKEY SEED-+\s*(\S+)\s*-+END USER NKEY SEED-+",
    re.DOTALL,
)


class LeafLogin:
    """Reads the files named in the settings at each login, since they can change."""

    def __init__(self, settings: NatsSettings) -> None:
        self._settings = settings
        self.first = settings.tls.handshake_first
        """True if TLS begins before the server sends its first message."""

    def tls(self, info: Mapping[str, Any]) -> ssl.SSLContext | None:
        """Return the TLS context; None for a connection without TLS. Raises NatsUnavailable,
        OSError, ssl.SSLError."""
        context = tls_context(self._settings, self._settings.servers)
        demanded, offered = info.get("tls_required"), info.get("tls_available")
        if context is None and demanded:
            return ssl.create_default_context()
        if context is not None and not (demanded or offered or self.first):
            raise NatsUnavailable(
                "nats.tls or a tls:// URL asks for TLS, and the leafnodes listener has none: the "
                "login would be readable; give the listener a tls section"
            )
        return context

    def server_name(self, host: str) -> str:
        """The name expected in the server's certificate."""
        return self._settings.tls.hostname or host

    def fields(self, nonce: str, host: str = "") -> dict[str, str]:
        """Return the login in the CONNECT for this host. Raises NatsUnavailable, OSError."""
        settings = self._settings
        if settings.credentials is not None:
            found = _CREDENTIALS.search(settings.credentials.read_text())
            if found is None:
                raise NatsUnavailable(f"{settings.credentials} does not hold a JWT and a seed")
            return {"jwt": found[1], "sig": _signature(settings.credentials, found[2], nonce)[1]}
        if settings.nkey is not None:
            seed = settings.nkey.read_text().strip()
            public_key, signature = _signature(settings.nkey, seed, nonce)
            return {"nkey": public_key, "sig": signature}
        fields = {}
        if settings.user is not None:
            fields["user"] = settings.user
        if settings.password is not None:
            fields["pass"] = settings.password.get_secret_value()
        if settings.token is not None:
            fields["auth_token"] = settings.token.get_secret_value()
        return fields or self._of_url(host)

    def _of_url(self, host: str) -> dict[str, str]:
        """Return the login in the URL with this host. The listener may have a different address: if
        no URL has this host, return the first login in any URL. As in nats-py, a name without a
        password is a token."""
        found = [parts for parts in map(urlsplit, self._settings.servers) if parts.username]
        here = [parts for parts in found if parts.hostname == host.lower()] or found
        if not here:
            return {}
        name, password = here[0].username or "", here[0].password
        return {"auth_token": name} if password is None else {"user": name, "pass": password}


def _signature(path: Path, seed: str, nonce: str) -> tuple[str, str]:
    """Return the public key, and the signature of `nonce`."""
    try:
        key = SigningKey(seed)
    except NotAnNkey as error:
        raise NatsUnavailable(f"{path} does not hold the seed of an nkey: {error}") from None
    signed = base64.urlsafe_b64encode(key.sign(nonce.encode())).decode().rstrip("=")
    return key.public_key, signed
