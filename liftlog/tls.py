"""TLS for the pull socket, the same for the daemon and the clients.

Certificates and keys are loaded into contexts, from which connections are made. A session is TLS
over memory (ciphertext in and out, plaintext in and out, no socket); `TlsSocket` is a session on a
connected socket that never blocks.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple, cast

from liftlog.errors import ConfigError, InvalidArgument

FileName = str | PathLike[str]
ClientTls = ssl.SSLContext | FileName | None
"""TLS of a client: a context, a file of CA certificates, or None for the CAs of the system."""

MIN_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def server_context(
    cert: FileName, key: FileName, *, client_ca: FileName | None = None, min_version: str = "1.2"
) -> ssl.SSLContext:
    """Return the daemon's context. With `client_ca` clients need a certificate signed by one of
    these CAs.

    The files are read once; call the function again when they have changed. Raises ConfigError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = MIN_VERSIONS[min_version]
    # With renegotiation a client could cause endless work, and a read could wait for a write.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0  # connections last long, and no client resumes a session
    _check_readable("pull.tls.cert", cert)
    _check_readable("pull.tls.key", key)
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigError(
            f"pull.tls: {fspath(cert)} and {fspath(key)} are not a certificate and its key: "
            f"{problem(error)}",
            hint="use PEM for both: the certificate, followed by the certificates that signed it, "
            "and the key without a password",
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
    """Return the certificate that this context sends to clients, in DER. Raises ConfigError.

    The certificate comes from a handshake of the context with itself, because the file may have
    changed after it was read.
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
    """The verdict on a certificate that is expected from clients. Its issuer and its names are not
    considered."""

    refused: str
    """The reason why clients refuse the certificate, for example that it has expired; empty if they
    accept it."""
    expires_at: float | None
    """End of the validity of the certificate, in seconds since 1970; None if clients refuse it."""


def prospect_of(context: ssl.SSLContext, certificate: bytes) -> Prospect:
    """Check whether clients will accept `certificate` (DER), the certificate that this context
    sends."""
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False
    asking.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN  # it acts as its own CA
    asking.load_verify_locations(cadata=certificate)
    try:
        return Prospect("", _shaken_hands(asking, context).peer_expires_at)
    except ssl.SSLError as error:
        return Prospect(getattr(error, "verify_message", "") or problem(error), None)


def _shaken_hands(asking: ssl.SSLContext, answering: ssl.SSLContext) -> TlsSession:
    """Connect the two contexts in memory, and return the client's end of the connection. Raises
    ssl.SSLError."""
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
    """Return a client's context. `cert` and `key` are the client's own, for a daemon that requests
    them.

    Raises InvalidArgument for files that cannot be read, or that have other content.
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


@contextmanager
def system_certificates_unread() -> Iterator[None]:
    """Let contexts that this thread creates in the block trust no certificate of the system.

    Used for imports of modules that create contexts which liftlog does not need, such as aiohttp's
    for its client. Reading all certificates that the system trusts would take 20 ms for each
    context.
    """
    here, load = threading.get_ident(), ssl.SSLContext.load_default_certs

    def load_elsewhere(
        context: ssl.SSLContext, purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH
    ) -> None:
        if threading.get_ident() != here:
            load(context, purpose)

    ssl.SSLContext.load_default_certs = load_elsewhere  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        ssl.SSLContext.load_default_certs = load  # type: ignore[method-assign]


def problem(error: Exception) -> str:
    """Return the error as text, without the file and line of OpenSSL's source."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


def _check_readable(setting: str, path: FileName) -> None:
    """Raise an error with the name of the file if a file cannot be read, because OpenSSL's errors
    do not contain the name."""
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read {fspath(path)}: {error.strerror}") from error


def _no_password() -> str:
    """Return no password; without this function, OpenSSL would ask on the terminal."""
    return ""


_NAMING = ("DNS", "URI", "email")

CHUNK_BYTES = 256 * 1024
"""Number of bytes that are encrypted at once. Ciphertext that the socket does not accept waits in
memory."""

_HANDSHAKE_BYTES = 16 * 1024
_RECEIVE_BYTES = 256 * 1024


_UNEXPECTED_MESSAGE = bytes((21, 3, 3, 0, 2, 2, 10))
"""A fatal TLS alert (RFC 8446, section 6), sent to a client without TLS to show that the port
expects TLS."""


class TlsSession:
    """One end of a TLS connection. Raises ssl.SSLError when the peer breaks the protocol.

    `outgoing` collects the bytes to send. The owner sends these bytes even after an error, because
    they then contain the alert for the peer.
    """

    __slots__ = ("_incoming", "_tls", "established", "outgoing")

    def __init__(
        self, context: ssl.SSLContext, *, server_side: bool = False, hostname: str | None = None
    ) -> None:
        self._incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self.outgoing, server_side=server_side, server_hostname=hostname
        )
        self.established = False

    @property
    def peer_certificate(self) -> bytes | None:
        """The other end's certificate in DER; None if the other end has sent no certificate, and
        before the handshake."""
        return self._tls.getpeercert(binary_form=True) if self.established else None

    @property
    def peer_names(self) -> tuple[str, ...]:
        """The names in the other end's certificate, if it was verified: the common names of its
        subject, then its alternative names that are DNS names, URIs or mail addresses."""
        found: Any = self._tls.getpeercert() if self.established else None
        if not found:
            return ()  # an unverified certificate proves nothing
        subject = [value for part in found["subject"] for key, value in part if key == "commonName"]
        others = found.get("subjectAltName", ())
        return tuple(dict.fromkeys([*subject, *(value for key, value in others if key in _NAMING)]))

    @property
    def peer_expires_at(self) -> float | None:
        """Time at which the other end's certificate expires, if it was verified: seconds since
        1970."""
        found: Any = self._tls.getpeercert() if self.established else None
        return ssl.cert_time_to_seconds(found["notAfter"]) if found else None

    def feed(self, ciphertext: bytes | memoryview) -> None:
        self._incoming.write(ciphertext)

    def handshake(self) -> bool:
        """Continue the handshake; return True when it is complete."""
        if not self.established:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                return False
            except ssl.SSLError:
                # If the first bytes are not TLS, OpenSSL itself sends no alert.
                if self._tls.server_side and not self.outgoing.pending:
                    self.outgoing.write(_UNEXPECTED_MESSAGE)
                raise
            self.established = True
        return True

    def read_into(self, view: memoryview) -> int | None:
        """Decrypt into `view`. Return the number of bytes, or None if the peer has closed its side.

        If `view` is not full, no further bytes can be decrypted yet.
        """
        filled = 0
        try:
            while filled < len(view):
                # Reads one TLS record, at most 16 KiB; the result is 0 if the peer has ended TLS.
                count = cast(int, self._tls.read(len(view) - filled, view[filled:]))
                if not count:
                    return filled or None
                filled += count
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:  # the same, if this side has ended TLS as well
            return filled or None
        return filled

    def write(self, plaintext: bytes | memoryview) -> int:
        """Encrypt all of `data` into `outgoing`. Call this only after the handshake."""
        return self._tls.write(plaintext)

    def end(self) -> None:
        """Put the TLS close message into `outgoing`."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # OpenSSL would wait for the peer, or the handshake is not complete


class TlsSocket:
    """A TLS connection with the methods of a non-blocking socket. The methods raise BlockingIOError
    if they would block, and another OSError if they fail.

    After BlockingIOError from `send` or `sendfile`, the next call must pass the same bytes again,
    as with `SSL_write`. These bytes are already encrypted, and the call returns their number when
    they have been sent. So the returned number only includes bytes that the socket has accepted.
    """

    def __init__(self, sock: socket.socket, session: TlsSession) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        self._session = session
        self._unsent = memoryview(b"")  # ciphertext
        self._owed = 0  # number of plaintext bytes in the unsent ciphertext
        self._ended = False
        self.has_input = False
        """True if `recv_into` can return data even if the socket is not readable."""

    @property
    def established(self) -> bool:
        """True if the handshake is complete; before that, no data can be sent."""
        return self._session.established

    @property
    def peer_certificate(self) -> bytes | None:
        """The other end's certificate in DER."""
        return self._session.peer_certificate

    @property
    def peer_names(self) -> tuple[str, ...]:
        """The names in the other end's certificate, if it was verified."""
        return self._session.peer_names

    def fileno(self) -> int:
        return self._fd

    def wake_at(self, count: int) -> None:
        """This method does nothing, because ciphertext is longer than its plaintext by an unknown
        number of bytes."""

    def recv_into(self, view: memoryview) -> int:
        """Receive bytes and return their number; 0 if the peer has closed its side. Completes the
        handshake first."""
        self.has_input = False
        if self._ended:
            return self._sock.recv_into(view)  # the caller drops it
        if not self._session.established:
            self._go_on_with_handshake()
        received = self._session.read_into(view)
        while received == 0:
            # At most the bytes of one incomplete record wait inside.
            ciphertext = self._sock.recv(_RECEIVE_BYTES)
            if not ciphertext:
                # The peer closed without ending TLS. Frames and batches contain their lengths, so
                # the reader detects a truncation.
                return 0
            self._session.feed(ciphertext)
            received = self._session.read_into(view)
        self.has_input = received == len(view)
        return received or 0

    def send(self, data: bytes | bytearray | memoryview) -> int:
        if not self._owed:
            self._encrypt(memoryview(data)[:CHUNK_BYTES])
        return self._send_owed()

    def sendfile(self, fd: int, position: int, length: int) -> int:
        """Read from the file, encrypt and send. Return the number of bytes; 0 at the end of the
        file."""
        if not self._owed:
            data = os.pread(fd, min(length, CHUNK_BYTES), position)
            if not data:
                return 0
            self._encrypt(data)
        return self._send_owed()

    def end_sending(self) -> None:
        """End TLS towards the peer. Bytes that arrive after this call are not decrypted."""
        self._ended = True
        self._session.end()
        try:
            self._push()
        except BlockingIOError:
            pass
        self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._sock.close()

    def _go_on_with_handshake(self) -> None:
        ciphertext = self._sock.recv(_HANDSHAKE_BYTES)
        if not ciphertext:
            raise ConnectionResetError("it ended during the TLS handshake")
        self._session.feed(ciphertext)
        try:
            complete = self._session.handshake()
        finally:
            self._push()  # always less than a socket buffer
        if not complete:
            raise BlockingIOError

    def _encrypt(self, data: bytes | memoryview) -> None:
        if not self._session.established:
            raise BlockingIOError
        self._owed = self._session.write(data)

    def _send_owed(self) -> int:
        """Send the ciphertext; return the number of plaintext bytes in it."""
        self._push()
        owed, self._owed = self._owed, 0
        return owed

    def _push(self) -> None:
        """Send all ciphertext. Raises BlockingIOError while the socket does not accept it."""
        while True:
            if not self._unsent:
                if not self._session.outgoing.pending:
                    return
                self._unsent = memoryview(self._session.outgoing.read())
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
