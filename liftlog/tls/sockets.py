"""TLS on a connected socket that never blocks."""

from __future__ import annotations

import os
import socket

from liftlog.tls.session import TlsSession

CHUNK_BYTES = 256 * 1024
"""Encrypted at once; ciphertext that the socket does not accept waits in memory."""

_HANDSHAKE_BYTES = 16 * 1024
_RECEIVE_BYTES = 256 * 1024


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
