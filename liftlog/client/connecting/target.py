"""The data that a client needs to connect: the address of a daemon, the login, TLS settings and
time limits."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from liftlog.errors import InvalidArgument, MissingDependency
from liftlog.protocol.handshake import Credentials, Signer

if TYPE_CHECKING:
    import ssl

    from liftlog.tls import ClientTls

CONNECT_TIMEOUT_SECONDS = 10.0
REQUEST_TIMEOUT_SECONDS = 30.0
RECONNECT_FOR_SECONDS = 60.0

DEFAULT_ADDRESS = "tcp://127.0.0.1:9292"
DEFAULT_PORT = 9292

NkeyFile = str | PathLike[str]
"""A file with the seed of a user's nkey: the seed alone, or a `.creds` file."""

_MAX_FILE_BYTES = 64 * 1024

logger = logging.getLogger("liftlog.client")


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a daemon. `path` is set for a Unix socket, `host` and `port` for TCP; `tls` is
    true for TCP with TLS."""

    text: str
    host: str = ""
    port: int = 0
    path: str = ""
    tls: bool = False

    @property
    def is_exposed(self) -> bool:
        """True if others on the network can read the data sent to this address."""
        if self.path or self.tls or self.host == "localhost":
            return False
        import ipaddress

        try:
            return not ipaddress.ip_address(self.host.partition("%")[0]).is_loopback
        except ValueError:
            return True  # a host name may resolve to any address

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse an address in the form that `connect` accepts. Raises InvalidArgument."""
        try:
            parts = urlsplit(text)
            if "@" in parts.netloc:
                raise InvalidArgument(
                    "the address of a daemon holds no login",  # logs show the address
                    hint="give a token as token=, or in LIFTLOG_TOKEN_FILE",
                )
            if parts.query or parts.fragment or parts.port == 0:
                raise ValueError
            if parts.scheme == "unix" and parts.path and not parts.netloc:
                return cls(text, path=parts.path)
            if parts.scheme in ("tcp", "tls") and parts.hostname and not parts.path.strip("/"):
                port = parts.port or DEFAULT_PORT
                return cls(text, host=parts.hostname, port=port, tls=parts.scheme == "tls")
        except ValueError:
            pass  # an invalid port, or parts that an address must not have
        raise InvalidArgument(
            f"{text!r} is not the address of a liftlog daemon",
            hint="use tcp://host:port, tls://host:port or unix:///path",
        )


@dataclass(frozen=True, slots=True)
class Target:
    """A daemon's address, with login, TLS and time limits. Times are in seconds. With
    `reconnect_for=None` a client tries to reconnect forever, and with 0 never."""

    address: Address
    credentials: Credentials
    context: ssl.SSLContext | None
    connect_timeout: float
    request_timeout: float
    reconnect_for: float | None

    @classmethod
    def of_all(
        cls,
        addresses: str,
        token: str | None,
        nkey: NkeyFile | None,
        tls: ClientTls,
        connect_timeout: float,
        request_timeout: float,
        reconnect_for: float | None,
    ) -> list[Self]:
        """Make one target for each of the comma-separated addresses, as `of` does."""
        times = (connect_timeout, request_timeout, reconnect_for)
        texts = dict.fromkeys(one.strip() for one in addresses.split(","))
        return [cls.of(one, token, nkey, tls, *times) for one in texts]

    @classmethod
    def of(
        cls,
        address: str,
        token: str | None,
        nkey: NkeyFile | None,
        tls: ClientTls,
        connect_timeout: float,
        request_timeout: float,
        reconnect_for: float | None,
    ) -> Self:
        """Make a target from the arguments of `connect`. Reads the files that the arguments name,
        once for all attempts to connect. Raises InvalidArgument."""
        where = Address.parse(address)
        context = context_for(where, tls)
        credentials = credentials_of(token, nkey, where)
        return cls(where, credentials, context, connect_timeout, request_timeout, reconnect_for)


def context_for(address: Address, tls: ClientTls) -> ssl.SSLContext | None:
    """Return the TLS context for connections to `address`; None if the address does not use TLS.

    The function reads certificate files. So call it once, and use the context for every attempt to
    connect. Raises InvalidArgument, also if `tls` is given for an address that does not use TLS.
    """
    if address.tls:
        from liftlog.tls import client_context

        return client_context(tls)
    if tls is not None:
        raise InvalidArgument(
            f"tls is given, but {address.text!r} asks for none", hint="use tls://host:port"
        )
    return None


def credentials_of(token: str | None, nkey: NkeyFile | None, address: Address) -> Credentials:
    """Return the login. Reads the nkey file once. Raises InvalidArgument; its text never contains
    the content of the file."""
    if token is not None and address.is_exposed:
        _warn(address.text)
    return Credentials(token, None if nkey is None else _signer_in(nkey))


@lru_cache(maxsize=64)  # log it once for each address, not for each client
def _warn(address: str) -> None:
    logger.warning("token-unencrypted address=%s", address)


def _signer_in(file: NkeyFile) -> Signer:
    from liftlog.client.companions import nkeys

    try:
        with Path(file).open("rb") as opened:
            content = opened.read(_MAX_FILE_BYTES)
        return nkeys.SigningKey(nkeys.find_seed(content))
    except OSError as error:
        raise InvalidArgument(f"cannot read the nkey {fspath(file)}: {error.strerror}") from error
    except nkeys.NotAnNkey as error:
        raise InvalidArgument(f"{fspath(file)} holds no nkey seed: {error}") from None
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"a login by nkey needs {error.name}, which is not installed",
            hint="pip install pynacl (it is the extra nkey of liftlog-client)",
        ) from error
