"""What is remembered of text that publishers choose: 16 bytes, however long it is."""

from __future__ import annotations

import secrets
from hashlib import blake2b

MARK_BYTES = 16


class Marks:
    """A hash with a secret key.

    Publishers cannot search for two texts with one mark, since they do not know the key; by
    chance, among a million texts, the next one meets a mark with a probability of 3e-33.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self.key = secrets.token_bytes(MARK_BYTES) if key is None else key
        self._keyed = blake2b(digest_size=MARK_BYTES, key=self.key)

    def of(self, text: bytes) -> bytes:
        hashed = self._keyed.copy()
        hashed.update(text)
        return hashed.digest()
