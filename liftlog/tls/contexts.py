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
"""What clients take: a context of their own making, a file of CA certificates, or None for the
CAs that the system trusts."""

MIN_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def server_context(
    cert: FileName, key: FileName, *, client_ca: FileName | None = None, min_version: str = "1.2"
) -> ssl.SSLContext:
    """With `client_ca` clients need a certificate that one of these CAs has signed.

    Reads the files, so call it again when they have changed. Raises ConfigError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = MIN_VERSIONS[min_version]
    # Renegotiation would let a client make us work again and again, and a read wait for a write.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0  # connections last; nobody resumes one
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
    """The certificate that this context shows to clients, in DER: found by shaking hands with
    itself, since a file may have changed since it was read. Raises ConfigError.
    """
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False
    asking.verify_mode = ssl.CERT_NONE
    try:
        found = _shaken_hands(asking, context).peer_certificate
    except ssl.SSLError as error:
        raise ConfigError(f"pull.tls: the certificate is of no use: {problem(error)}") from error
    assert found is not None
    return found


class Prospect(NamedTuple):
    """What clients will make of a certificate, whoever signed it and whatever names it has."""

    refused: str
    """Why they refuse it, such as that it has expired; empty: they do not."""
    expires_at: float | None
    """Seconds since 1970; None when it is refused."""


def prospect_of(context: ssl.SSLContext, certificate: bytes) -> Prospect:
    """Of the certificate (DER) that this context shows to clients."""
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False
    asking.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN  # it vouches for itself
    asking.load_verify_locations(cadata=certificate)
    try:
        return Prospect("", _shaken_hands(asking, context).peer_expires_at)
    except ssl.SSLError as error:
        return Prospect(getattr(error, "verify_message", "") or problem(error), None)


def _shaken_hands(asking: ssl.SSLContext, answering: ssl.SSLContext) -> TlsSession:
    """The asking end of a connection between the two, in memory. Raises ssl.SSLError."""
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
    """`cert` and `key` are the client's own, for a daemon that asks for them.

    Raises InvalidArgument for files that are not what they should be.
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
        raise InvalidArgument(f"{fspath(key)}: a key needs its certificate beside it")
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
    """What went wrong, for people; without the file and line of OpenSSL's source."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


def _check_readable(setting: str, path: FileName) -> None:
    """Name the file that cannot be read: OpenSSL's errors do not."""
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read {fspath(path)}: {error.strerror}") from error


def _no_password() -> str:
    """Else OpenSSL would ask on the terminal."""
    return ""
