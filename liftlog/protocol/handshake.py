"""The handshake: the states of a connection, and how a client proves its identity.

    client: NEW -hello-> GREETING -challenge-> CHALLENGED -auth-> PROVING -welcome-> READY
    server: NEW <-hello- GREETING -challenge-> CHALLENGED <-auth- PROVING -welcome-> READY

A connection can become CLOSED in any state. There are two kinds of errors: `LocalProtocolError` is
a mistake of the code on this side, and all other errors are mistakes of the peer.

A client signs a text with its nkey. The signature is valid for no other purpose, and a signature
made for another purpose is not valid as a login:

    FF                          not UTF-8, so no NATS client signs a text with it
    "liftlog-auth-v1"
    client nonce                each of these as u16 (little-endian) length, then the bytes
    server nonce
    server id                   UTF-8
    SHA-256 of the certificate  (DER) that the daemon showed; empty without TLS

Both sides contribute a nonce, so a signature cannot be used twice. With TLS the certificate binds
the signature to this daemon: an attacker that forwards frames has another certificate.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Protocol

from liftlog.errors import ProtocolViolation

_PURPOSE = b"\xffliftlog-auth-v1"


class LocalProtocolError(ProtocolViolation):
    """The caller asked for an action that the state of the connection does not allow."""


class State(enum.Enum):
    NEW = "new"
    GREETING = "greeting"
    CHALLENGED = "challenged"
    PROVING = "proving"
    READY = "ready"
    CLOSED = "closed"


CLIENT_TRANSITIONS: dict[tuple[State, str], State] = {
    (State.NEW, "send hello"): State.GREETING,
    (State.GREETING, "receive challenge"): State.CHALLENGED,
    (State.CHALLENGED, "send auth"): State.PROVING,
    (State.PROVING, "receive welcome"): State.READY,
}

SERVER_TRANSITIONS: dict[tuple[State, str], State] = {
    (State.NEW, "receive hello"): State.GREETING,
    (State.GREETING, "send challenge"): State.CHALLENGED,
    (State.CHALLENGED, "receive auth"): State.PROVING,
    (State.PROVING, "send welcome"): State.READY,
}


class Signer(Protocol):
    """An nkey with its seed, such as `acl.nkeys.SigningKey`."""

    @property
    def public_key(self) -> str: ...
    def sign(self, text: bytes) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a client. The daemon's offer decides which of them are used."""

    token: str | None = field(default=None, repr=False)
    nkey: Signer | None = None


def text_to_sign(
    client_nonce: bytes, server_nonce: bytes, server_id: str, certificate: bytes | None
) -> bytes:
    """Return the text to sign. `certificate` is the daemon's, in DER; None without TLS."""
    import hashlib

    fingerprint = b"" if certificate is None else hashlib.sha256(certificate).digest()
    parts = (client_nonce, server_nonce, server_id.encode(), fingerprint)
    return _PURPOSE + b"".join([len(part).to_bytes(2, "little") + part for part in parts])
