"""Nkeys, the Ed25519 keys of NATS: their text forms, and signatures.

    seed        S, the kind of key, 32 bytes, CRC-16; in base32: 58 characters (SU...)
    public key  the kind of key, 32 bytes, CRC-16; in base32: 56 characters (U...)

https://docs.nats.io/running-a-nats-service/configuration/securing_nats/auth_intro/nkey_auth

PyNaCl (libsodium) does the arithmetic. PyNaCl is imported at the first use, so that the import of
this module is fast.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets

_KEY_BYTES = 32
_SEED_PREFIX = 18 << 3
_USER_PREFIX = 20 << 3
_PUBLIC = re.compile(r"U[A-Z2-7]{55}", re.ASCII)
_SEED = re.compile(r"SU[A-Z2-7]{56}", re.ASCII)
_SEED_IN_TEXT = re.compile(rb"(?<![A-Z2-7])SU[A-Z2-7]{56}(?![A-Z2-7])")


class NotAnNkey(ValueError):
    """The text is not an nkey. The message names the problem and never shows the text."""


def public_key_bytes(text: str) -> bytes:
    """Return the 32 bytes of a user's public key `U...`. Raises NotAnNkey."""
    if _PUBLIC.fullmatch(text) is None:
        raise NotAnNkey("expected the public nkey of a user: U and 55 more letters and digits")
    raw = _checked(text)
    if raw[0] != _USER_PREFIX:
        raise NotAnNkey("expected the nkey of a user, which begins with U")
    return raw[1:]


def public_key_text(key: bytes) -> str:
    raw = bytes((_USER_PREFIX,)) + key
    return base64.b32encode(raw + _crc(raw)).decode().rstrip("=")


def seed_bytes(text: str) -> bytes:
    """Return the 32 bytes of a user's seed `SU...`. Raises NotAnNkey."""
    if _SEED.fullmatch(text) is None:
        raise NotAnNkey("expected the nkey seed of a user: SU and 56 more letters and digits")
    raw = _checked(text)
    kind = (raw[0] & 0b111) << 5 | raw[1] >> 3
    if raw[0] & 0b11111000 != _SEED_PREFIX or kind != _USER_PREFIX:
        raise NotAnNkey("expected the nkey seed of a user, which begins with SU")
    return raw[2:]


def new_seed() -> str:
    """Return the seed of a new user."""
    kind = (_SEED_PREFIX | _USER_PREFIX >> 5, (_USER_PREFIX & 0b11111) << 3)
    raw = bytes(kind) + secrets.token_bytes(_KEY_BYTES)
    return base64.b32encode(raw + _crc(raw)).decode().rstrip("=")


def find_seed(content: bytes) -> str:
    """Return the user's seed in the content of a file: a seed file, or a `.creds` file, which also
    has a JWT. Raises NotAnNkey unless the content has exactly one seed."""
    found = set(_SEED_IN_TEXT.findall(content))
    if len(found) != 1:
        raise NotAnNkey(
            "expected exactly one nkey seed of a user (SU and 56 more letters and digits)"
        )
    seed: bytes = found.pop()
    return seed.decode()


class SigningKey:
    """A user's nkey with its seed. Neither its `repr` nor its errors show the seed."""

    __slots__ = ("_key", "public_key")

    def __init__(self, seed: str) -> None:
        """Read the key from its seed. Raises NotAnNkey."""
        from nacl import signing

        self._key = signing.SigningKey(seed_bytes(seed))
        self.public_key = public_key_text(bytes(self._key.verify_key))

    def __repr__(self) -> str:
        return f"SigningKey({self.public_key})"

    def sign(self, text: bytes) -> bytes:
        return bytes(self._key.sign(text).signature)


def is_signed(public_key: str, text: bytes, signature: bytes) -> bool:
    """Return True if `text` was signed with the seed of `public_key`. Takes about 0.1 ms."""
    from nacl import exceptions, signing

    try:
        key = public_key_bytes(public_key)
        signing.VerifyKey(key).verify(text, signature)
    except (NotAnNkey, exceptions.CryptoError, ValueError):
        return False
    return True


def _checked(text: str) -> bytes:
    """Decode the text, check its checksum, and return the bytes without the checksum."""
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except binascii.Error:
        raise NotAnNkey("it is not base32") from None
    body, crc = raw[:-2], raw[-2:]
    if crc != _crc(body):
        raise NotAnNkey("its checksum is wrong: a character is missing or mistyped")
    return body


def _crc(raw: bytes) -> bytes:
    return binascii.crc_hqx(raw, 0).to_bytes(2, "little")
