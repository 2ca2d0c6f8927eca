"""How a client proves who it is: its credentials, and the text that it signs with an nkey.

A login at liftlog cannot be used as a signature for another purpose, nor the other way round:

    FF                          UTF-8 never begins so, and a NATS client signs only UTF-8
    "liftlog-auth-v1"
    client nonce                each of these as u16 (little-endian) length, then the bytes
    server nonce
    server id                   UTF-8
    SHA-256 of the certificate  (DER) that the daemon showed; empty without TLS

Both sides contribute a nonce, so a signature cannot be used twice. With TLS the certificate binds
it to this daemon: an attacker that forwards frames has another certificate.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Protocol

_PURPOSE = b"\xffliftlog-auth-v1"


class Signer(Protocol):
    """An nkey with its seed, such as `acl.nkeys.SigningKey`."""

    @property
    def public_key(self) -> str: ...
    def sign(self, text: bytes) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a client. The methods that the daemon offers decide which are used."""

    token: str | None = field(default=None, repr=False)
    nkey: Signer | None = None


def text_to_sign(
    client_nonce: bytes, server_nonce: bytes, server_id: str, certificate: bytes | None
) -> bytes:
    """`certificate` is the daemon's, in DER; None without TLS."""
    fingerprint = b"" if certificate is None else hashlib.sha256(certificate).digest()
    parts = (client_nonce, server_nonce, server_id.encode(), fingerprint)
    return _PURPOSE + b"".join([len(part).to_bytes(2, "little") + part for part in parts])
