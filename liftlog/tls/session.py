"""TLS over memory (ciphertext in and out, plaintext in and out, no socket), and on a connected
socket that never blocks.
"""

from __future__ import annotations

import os
import socket
import ssl
from typing import Any, cast

_NAMING = ("DNS", "URI", "email")

CHUNK_BYTES = 256 * 1024
"""Encrypted at once; ciphertext that the socket does not accept waits in memory."""

_HANDSHAKE_BYTES = 16 * 1024
_RECEIVE_BYTES = 256 * 1024


class TlsSession:
    """One end of a TLS connection. Raises ssl.SSLError when the peer breaks the protocol.

    `outgoing` collects the bytes to send. The owner sends them, also after an error: they then hold
    the alert for the peer.
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
        """The other end's certificate in DER; None without one, or before the handshake."""
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
        """When the other end's certificate ends, if it was verified: seconds since 1970."""
        found: Any = self._tls.getpeercert() if self.established else None
        return ssl.cert_time_to_seconds(found["notAfter"]) if found else None

    def feed(self, ciphertext: bytes | memoryview) -> None:
        self._incoming.write(ciphertext)

    def handshake(self) -> bool:
        """Continue the handshake; True when it is complete."""
        if not self.established:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                return False
            self.established = True
        return True

    def read_into(self, view: memoryview) -> int | None:
        """Decrypt into `view`; returns the number of bytes, or None when the peer has ended.

        If `view` is not full, no more can be decrypted yet.
        """
        filled = 0
        try:
            while filled < len(view):
                # One TLS record at a time, at most 16 KiB; 0 when the peer has ended.
                count = cast(int, self._tls.read(len(view) - filled, view[filled:]))
                if not count:
                    return filled or None
                filled += count
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:  # the same, when we have ended as well
            return filled or None
        return filled

    def write(self, plaintext: bytes | memoryview) -> int:
        """Encrypt all of it into `outgoing`. Only after the handshake."""
        return self._tls.write(plaintext)

    def end(self) -> None:
        """Put the end of the connection into `outgoing`."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # it would wait for the peer's end, or the handshake is not complete


class TlsSocket:
    """Behaves as a non-blocking socket does: methods raise BlockingIOError, or another OSError.

    As with `SSL_write`, after BlockingIOError from `send` or `sendfile` the next call has to give
    the same bytes again: they are encrypted already, and their number is returned when they have
    been sent. So bytes that the caller counts as sent have always been sent.
    """

    def __init__(self, sock: socket.socket, session: TlsSession) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        self._session = session
        self._unsent = memoryview(b"")  # ciphertext
        self._owed = 0  # plaintext bytes that it stands for
        self._ended = False
        self.has_input = False
        """Whether `recv_into` has more to give though the socket may have nothing to read."""

    @property
    def established(self) -> bool:
        """Whether the handshake is complete; before that nothing can be sent."""
        return self._session.established

    @property
    def peer_certificate(self) -> bytes | None:
        """The other end's certificate in DER."""
        return self._session.peer_certificate

    @property
    def peer_names(self) -> tuple[str, ...]:
        """The names in it, if it was verified."""
        return self._session.peer_names

    def fileno(self) -> int:
        return self._fd

    def wake_at(self, count: int) -> None:
        """Does nothing: ciphertext is longer than its plaintext by an unknown number of bytes."""

    def recv_into(self, view: memoryview) -> int:
        """Bytes received; 0 when the peer has ended. Completes the handshake first."""
        self.has_input = False
        if self._ended:
            return self._sock.recv_into(view)  # the caller drops it
        if not self._session.established:
            self._go_on_with_handshake()
        received = self._session.read_into(view)
        while received == 0:
            # The bytes of one incomplete record, at most, wait inside.
            ciphertext = self._sock.recv(_RECEIVE_BYTES)
            if not ciphertext:
                # The peer closed without ending TLS. Frames and batches state their lengths, so a
                # truncation is noticed where it matters.
                return 0
            self._session.feed(ciphertext)
            received = self._session.read_into(view)
        self.has_input = received == len(view)
        return received or 0

    def send(self, data: bytes | memoryview) -> int:
        if not self._owed:
            self._encrypt(memoryview(data)[:CHUNK_BYTES])
        return self._send_owed()

    def sendfile(self, fd: int, position: int, length: int) -> int:
        """Read from the file, encrypt, send; 0 at the end of the file."""
        if not self._owed:
            data = os.pread(fd, min(length, CHUNK_BYTES), position)
            if not data:
                return 0
            self._encrypt(data)
        return self._send_owed()

    def end_sending(self) -> None:
        """End TLS towards the peer; what it sends from now on is not decrypted."""
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
            self._push()  # our part of it, or the alert: always less than a socket buffer
        if not complete:
            raise BlockingIOError

    def _encrypt(self, data: bytes | memoryview) -> None:
        if not self._session.established:
            raise BlockingIOError
        self._owed = self._session.write(data)

    def _send_owed(self) -> int:
        """Send the ciphertext; returns the number of plaintext bytes that it stands for."""
        self._push()
        owed, self._owed = self._owed, 0
        return owed

    def _push(self) -> None:
        """Send all ciphertext; raises BlockingIOError while the socket does not accept it."""
        while True:
            if not self._unsent:
                if not self._session.outgoing.pending:
                    return
                self._unsent = memoryview(self._session.outgoing.read())
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
