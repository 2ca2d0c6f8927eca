"""Seeds of nkeys, made from bytes that a test chooses."""

from __future__ import annotations

import nkeys


def seed_of(key: bytes) -> str:
    """Return the seed in the form of `nsc generate nkey --user`. `key` has 32 bytes."""
    return bytes(nkeys.encode_seed(key, nkeys.PREFIX_BYTE_USER)).decode()
