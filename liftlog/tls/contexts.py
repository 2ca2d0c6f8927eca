"""Certificates and keys -> the contexts that TLS connections are made from."""

from __future__ import annotations

import ssl
from os import PathLike, fspath
from pathlib import Path
from typing import NamedTuple

from liftlog.errors import ConfigError, InvalidArgument
from liftlog.tls.session import TlsSession

FileName = str | PathLike[str]
ClientTls = ssl.SSLContext | FileName | None
"""What clients accept: a context, a file of CA certificates, or None for the CAs of the system."""

MIN_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def server_context(
    cert: FileName, key: FileName, *, client_ca: FileName | None = None, min_version: str = "1.2"
) -> ssl.SSLContext:
    """The daemon's context. With `client_ca` clients need a certificate signed by one of these CAs.

    Reads the files: call it again when they have changed. Raises ConfigError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = MIN_VERSIONS[min_version]
    # With renegotiation a client could cause work without end, and a read could wait for a write.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0  # connections last long; no client resumes one
    _check_readable("pull.tls.cert", cert)
    _check_readable("pull.tls.key", key)
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigError(
            f"pull.tls: {fspath(cert)} and {fspath(key)} are not a certificate and its key: "
            f"{problem(error)}",
            hint="both as PEM, the certificate first and then those that signed it, the key "
            "without a password",
        ) from error
    if client_ca is not None:
        _check_readable("pull.tls.client_ca", client_ca)
        try:
            context.load_verify_locations(client_ca)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(
                f"pull.tls.client_ca: {fspath(client_ca)} holds no CA certificate as PEM: "
                f"{problem(error)}"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def own_certificate(context: ssl.SSLContext) -> bytes:
    """The certificate that this context shows to clients, in DER. Raises ConfigError.

    It is found by a handshake of the context with itself: the file may have changed since it was
    read.
    """
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False
    asking.verify_mode = ssl.CERT_NONE
    try:
        found = _shaken_hands(asking, context).peer_certificate
    except ssl.SSLError as error:
        raise ConfigError(f"pull.tls: the certificate cannot be used: {problem(error)}") from error
    assert found is not None
    return found


class Prospect(NamedTuple):
    """Whether clients accept a certificate, leaving aside its issuer and its names."""

    refused: str
    """Why they refuse it, such as that it has expired; empty if they accept it."""
    expires_at: float | None
    """In seconds since 1970; None if it is refused."""


def prospect_of(context: ssl.SSLContext, certificate: bytes) -> Prospect:
    """Whether clients accept `certificate` (DER), which this context shows to them."""
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False
    asking.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN  # it vouches for itself
    asking.load_verify_locations(cadata=certificate)
    try:
        return Prospect("", _shaken_hands(asking, context).peer_expires_at)
    except ssl.SSLError as error:
        return Prospect(getattr(error, "verify_message", "") or problem(error), None)


def _shaken_hands(asking: ssl.SSLContext, answering: ssl.SSLContext) -> TlsSession:
    """The client's end of a connection between the two, in memory. Raises ssl.SSLError."""
    client = TlsSession(asking)
    server = TlsSession(answering, server_side=True)
    while not client.handshake():
        server.feed(client.outgoing.read())
        server.handshake()
        client.feed(server.outgoing.read())
    return client


def client_context(
    tls: ClientTls = None, *, cert: FileName | None = None, key: FileName | None = None
) -> ssl.SSLContext:
    """A client's context. `cert` and `key` are its own, for a daemon that asks for them.

    Raises InvalidArgument for files that cannot be read or hold something else.
    """
    if isinstance(tls, ssl.SSLContext):
        return tls
    try:
        context = ssl.create_default_context(cafile=tls)
    except (ssl.SSLError, OSError) as error:
        raise InvalidArgument(
            f"{fspath(tls or '')} holds no CA certificate as PEM: {problem(error)}"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if key is not None and cert is None:
        raise InvalidArgument(f"{fspath(key)}: a key needs its certificate, too")
    if cert is not None:
        try:
            context.load_cert_chain(cert, key, password=_no_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise InvalidArgument(
                f"{fspath(cert)} and {fspath(key or cert)} are not a certificate and its key: "
                f"{problem(error)}"
            ) from error
    return context


def problem(error: Exception) -> str:
    """The error in words, without the file and line of OpenSSL's source."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


def _check_readable(setting: str, path: FileName) -> None:
    """Name a file that cannot be read, since OpenSSL's errors do not."""
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read {fspath(path)}: {error.strerror}") from error


def _no_password() -> str:
    """Without this, OpenSSL would ask on the terminal."""
    return ""
