"""Tokens: `<principal>.<secret>` at the client, only a hash of the secret in the ACL file.

`sha256:<hex>` is enough for a secret that was drawn at random (`new_secret`): there is nothing
to guess, so a slow hash adds no safety. For a secret that a person chose use `$argon2id$...`,
which needs the argon2-cffi package and takes tens of milliseconds: verify it off the event loop.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import re
import secrets
from typing import Any

MIN_SECRET_CHARACTERS = 20
MAX_TOKEN_CHARACTERS = 512

_SHA256 = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_ARGON2 = re.compile(
    r"\$argon2id\$v=\d+\$m=\d+,t=\d+,p=\d+\$[A-Za-z0-9+/]+\$[A-Za-z0-9+/]+", re.ASCII
)

# Compared with when there is no such principal, so that the answer takes as long. Nothing
# hashes to it that anybody knows.
_NOBODY = "sha256:" + "0" * 64


def new_secret() -> str:
    """A random secret of 256 bits."""
    return secrets.token_urlsafe(32)


def hash_token(secret: str) -> str:
    """What to write as `token_hash`. Raises ValueError for a secret short enough to be guessed."""
    if len(secret) < MIN_SECRET_CHARACTERS:
        raise ValueError(
            f"a secret needs at least {MIN_SECRET_CHARACTERS} random characters "
            "(acl.tokens.new_secret() makes one)"
        )
    return "sha256:" + hashlib.sha256(secret.encode()).hexdigest()


def wrong_hash(token_hash: object) -> str | None:
    """What is wrong with a `token_hash`, or None. Never shows it."""
    if isinstance(token_hash, str):
        if _SHA256.fullmatch(token_hash):
            return None
        if _ARGON2.fullmatch(token_hash):
            if _argon2() is None:
                return "an argon2 hash needs the package argon2-cffi, which is not installed"
            return None
    return "expected sha256:<64 lower-case hex digits> or an $argon2id$ hash"


def verify_secret(token_hash: str | None, secret: str) -> bool:
    """Whether `secret` belongs to `token_hash`; takes as long for None, and says no."""
    expected = _NOBODY if token_hash is None else token_hash
    raw = secret.encode("utf-8", "surrogatepass")
    if expected.startswith("$argon2id$"):
        return _verify_argon2(expected, raw)
    given = "sha256:" + hashlib.sha256(raw).hexdigest()
    return hmac.compare_digest(given, expected) and token_hash is not None


def _verify_argon2(expected: str, raw: bytes) -> bool:
    argon2 = _argon2()
    if argon2 is None:
        return False
    try:
        return bool(argon2.PasswordHasher().verify(expected, raw))
    except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
        return False


def _argon2() -> Any:
    try:
        return importlib.import_module("argon2")
    except ImportError:
        return None
