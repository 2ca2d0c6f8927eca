"""Columns of keys, and keys as rows of 32-bit words, so that many are handled at a time.

A key becomes its bytes, then 01, then zeros up to a multiple of four. So two keys are equal
exactly if their words are, and numpy can compare and hash them without looking at lengths.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

WORD_BYTES = 4
_FEW_LENGTHS = 16
_FEW_WORDS = 8

Words = NDArray[np.uint32]
"""One key per row, all of the same number of words."""

HashWords = Callable[[Words], NDArray[np.uint64]]
"""Equal rows give equal hashes. All else is only a matter of speed."""


class KeyColumn(NamedTuple):
    """The keys of n records: record i has `data[ends[i]:ends[i + 1]]`, or none if not `valid[i]`.

    `ends` ascends and has n + 1 entries; it need not begin with 0.
    """

    ends: NDArray[np.integer[Any]]
    data: NDArray[np.uint8]
    valid: NDArray[np.bool_]

    def rows(self, first: int, end: int) -> KeyColumn:
        return KeyColumn(self.ends[first : end + 1], self.data, self.valid[first:end])


def key_words(column: KeyColumn) -> Iterator[tuple[NDArray[np.intp], Words]]:
    """The keys as words, with the numbers of their records, grouped by length in bytes.

    In a group records keep their order; records without a key are in none.
    """
    ends = column.ends.astype(np.intp)
    lengths = np.diff(ends)
    rows = np.flatnonzero(column.valid)
    if not len(rows):
        return
    first = int(lengths[rows[0]])
    if len(rows) == len(lengths) and bool((lengths == first).all()):
        packed = np.ndarray((len(rows),), _raw(first), column.data[ends[0] :]) if first else None
        yield rows, _words(packed, first, len(rows))
        return
    for length, members in _by_value(lengths[rows], rows):
        yield members, _words(_gather(column.data, ends[members], length), length, len(members))


def groups_of(
    values: NDArray[np.intp], rows: NDArray[np.intp]
) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """`rows` split by their value, each part in its old order."""
    return _by_value(values, rows)


def _by_value(
    values: NDArray[np.intp], rows: NDArray[np.intp]
) -> Iterator[tuple[int, NDArray[np.intp]]]:
    distinct = np.unique(values)
    if len(distinct) <= _FEW_LENGTHS:
        for value in distinct.tolist():
            yield value, rows[values == value]
        return
    order = np.argsort(values, kind="stable")
    borders = np.searchsorted(values[order], distinct).tolist()
    for value, first, end in zip(
        distinct.tolist(), borders, [*borders[1:], len(order)], strict=True
    ):
        yield value, rows[order[first:end]]


def _raw(length: int) -> np.dtype[np.void]:
    return np.dtype((np.void, length))


def _gather(
    data: NDArray[np.uint8], starts: NDArray[np.intp], length: int
) -> NDArray[np.void] | None:
    """`length` bytes from each start on. Overlapping items of raw bytes: one copy per key."""
    if not length:
        return None
    return np.ndarray((len(data) - length + 1,), _raw(length), data, strides=(1,))[starts]


def _words(packed: NDArray[np.void] | None, length: int, count: int) -> Words:
    words = length // WORD_BYTES + 1
    padded = np.zeros((count, words * WORD_BYTES), np.uint8)
    if packed is not None:
        np.ndarray((count,), _raw(length), padded, strides=(words * WORD_BYTES,))[:] = packed
    padded[:, length] = 1
    return padded.view(np.uint32)


class KeyedHash:
    """A 64-bit hash of keys under a secret: publishers choose keys, and must not be able to choose
    ones that collide.

    The sum of each word times a secret 64-bit number of its place (multilinear hashing after
    Lemire and Kaser: any two keys agree in the upper half with probability 2^-32), then mixed, so
    that every bit of it can be used.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secrets.token_bytes(32) if secret is None else secret
        self._factors = self._make_factors(64)

    def _make_factors(self, count: int) -> NDArray[np.uint64]:
        stream = hashlib.shake_256(self._secret).digest(8 * count)
        return np.frombuffer(stream, np.uint64)

    def __call__(self, words: Words) -> NDArray[np.uint64]:
        count = words.shape[1]
        if count > len(self._factors):
            self._factors = self._make_factors(2 * count)  # begins with the ones before
        if count <= _FEW_WORDS:
            total = np.zeros(len(words), np.uint64)
            for i in range(count):
                total += words[:, i] * self._factors[i]
        else:
            total = words.astype(np.uint64) @ self._factors[:count]
        total ^= total >> np.uint64(32)
        total *= np.uint64(0xD6E8FEB86659FD93)
        total ^= total >> np.uint64(32)
        return total
