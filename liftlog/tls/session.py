"""TLS over memory: ciphertext in and out, plaintext in and out, no socket."""

from __future__ import annotations

import ssl
from typing import Any, cast

_NAMING = ("DNS", "URI", "email")


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
