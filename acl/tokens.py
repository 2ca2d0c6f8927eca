"""Tokens: the client has `<principal>.<secret>`; the ACL file contains only a hash of the secret.

`$argon2id$...` is safe for every secret, even one that a person chose. Each check takes tens of
milliseconds and some MiB, so it runs outside the event loop and behind a rate limit. `sha256:<hex>`
is safe for a random secret (`new_secret`): nobody can guess a random secret, so a slow hash adds no
safety. A check takes microseconds.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from typing import Literal

Algorithm = Literal["argon2id", "sha256"]

MIN_SECRET_CHARACTERS = 20
MAX_TOKEN_CHARACTERS = 512

_SHA256 = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_ARGON2 = re.compile(
    r"\$argon2id\$v=19\$m=(\d{1,10}),t=(\d{1,4}),p=(\d{1,4})\$[A-Za-z0-9+/]{11,128}"
    r"\$[A-Za-z0-9+/]{22,128}",
    re.ASCII,
)
_MAX_MEMORY_KIB = 1024 * 1024
_MAX_WORK_KIB = 16 * _MAX_MEMORY_KIB  # memory times passes; this limit takes some seconds
_MAX_LANES = 64

# An unknown principal is checked against this hash, so that the answer takes as long. No text with
# this hash is known.
_NO_SECRET = "sha256:" + "0" * 64


def new_secret() -> str:
    """Return a random secret of 256 bits."""
    return secrets.token_urlsafe(32)


def hash_token(secret: str, algorithm: Algorithm = "sha256") -> str:
    """Return the `token_hash` of a secret. Raises ValueError for a secret that is short enough to
    be guessed."""
    if len(secret) < MIN_SECRET_CHARACTERS:
        raise ValueError(
            f"a secret needs at least {MIN_SECRET_CHARACTERS} random characters "
            "(`liftlog acl hash-token` makes one)"
        )
    if algorithm == "argon2id":
        import argon2

        return argon2.PasswordHasher().hash(secret)
    return "sha256:" + hashlib.sha256(secret.encode()).hexdigest()


def wrong_hash(token_hash: object) -> str | None:
    """Return the problem of a `token_hash`; None if it is valid. The text never shows the hash."""
    if isinstance(token_hash, str):
        if _SHA256.fullmatch(token_hash):
            return None
        if _ARGON2.fullmatch(token_hash):
            memory_kib, passes, lanes = _cost(token_hash)
            if not (memory_kib >= 8 * lanes and passes and lanes):
                return "an argon2 hash with impossible parameters"
            if memory_kib > _MAX_MEMORY_KIB or memory_kib * passes > _MAX_WORK_KIB:
                return "an argon2 hash that takes more than 1 GiB or several seconds to check"
            return None if lanes <= _MAX_LANES else "an argon2 hash with more than 64 lanes"
    return "expected sha256:<64 lower-case hex digits> or an $argon2id$v=19$ hash"


def slowest_hash(hashes: Iterable[str | None]) -> str | None:
    """Return the hash that takes longest to check; None if there are no hashes."""
    return max(
        (one for one in hashes if one is not None),
        key=lambda one: _cost(one)[0] * _cost(one)[1],
        default=None,
    )


def verify_secret(token_hash: str | None, secret: str, *, decoy: str | None = None) -> bool:
    """Return True if `secret` has this hash. If the hash is None, returns False after the time of a
    check against `decoy`."""
    expected = token_hash or decoy or _NO_SECRET
    raw = secret.encode("utf-8", "surrogatepass")
    if expected.startswith("$argon2id$"):
        return _verify_argon2(expected, raw) and token_hash is not None
    given = "sha256:" + hashlib.sha256(raw).hexdigest()
    return hmac.compare_digest(given, expected) and token_hash is not None


def _verify_argon2(expected: str, raw: bytes) -> bool:
    import argon2

    try:
        return bool(argon2.PasswordHasher().verify(expected, raw))
    except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
        return False


def _cost(token_hash: str) -> tuple[int, int, int]:
    """Return memory in KiB, passes, lanes; zeros for a fast hash."""
    found = _ARGON2.fullmatch(token_hash)
    return (0, 0, 0) if found is None else (int(found[1]), int(found[2]), int(found[3]))
