"""What a client shows for who it is, and the text that it signs with an nkey.

Nobody can be made to sign a login to something else, nor this text for another purpose:

    FF                          no text in UTF-8 begins so; a NATS client signs only what is one
    "liftlog-auth-v1"
    client nonce                each of these as u16 (little-endian) length, then the bytes
    server nonce
    server id                   UTF-8
    SHA-256 of the certificate  (DER) that the daemon showed; empty without TLS

Both sides put in a nonce of their own, so no signature is of use twice. With TLS the certificate
binds it to this one connection: whoever passes frames on has another one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Protocol

_PURPOSE = b"\xffliftlog-auth-v1"


class Signer(Protocol):
    """An nkey with its seed; `acl.nkeys.SigningKey` is one."""

    @property
    def public_key(self) -> str: ...
    def sign(self, text: bytes) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client has; what of it is sent depends on what the daemon offers."""

    token: str | None = field(default=None, repr=False)
    nkey: Signer | None = None


def text_to_sign(
    client_nonce: bytes, server_nonce: bytes, server_id: str, certificate: bytes | None
) -> bytes:
    """`certificate` is the daemon's, in DER; None without TLS."""
    fingerprint = b"" if certificate is None else hashlib.sha256(certificate).digest()
    parts = (client_nonce, server_nonce, server_id.encode(), fingerprint)
    return _PURPOSE + b"".join([len(part).to_bytes(2, "little") + part for part in parts])
