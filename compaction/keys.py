"""Columns of keys, and keys as rows of 32-bit words, so that numpy processes many keys at a time.

The words of a key are its bytes, then 01, then zeros up to a multiple of four bytes. Two keys are
equal if and only if their words are equal, so numpy compares and hashes words without the lengths
of the keys.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

WORD_BYTES = 4
_FEW_LENGTHS = 16
_FEW_WORDS = 8
_SHORT = 4096

_Part = tuple[int, NDArray[np.intp]]

Words = NDArray[np.uint32]
"""One key per row; all rows have the same number of words."""

HashWords = Callable[[Words], NDArray[np.uint64]]
"""A hash function for rows. It must return equal hashes for equal rows; its other properties only
affect speed."""


class KeyColumn(NamedTuple):
    """The keys of n records. Record i has the key `data[ends[i]:ends[i + 1]]`, or no key unless
    `valid[i]`.

    `ends` ascends and has n + 1 entries; it need not start at 0.
    """

    ends: NDArray[np.integer[Any]]
    data: NDArray[np.uint8]
    valid: NDArray[np.bool_]

    def rows(self, first: int, end: int) -> KeyColumn:
        return KeyColumn(self.ends[first : end + 1], self.data, self.valid[first:end])


def key_words(column: KeyColumn) -> Iterator[tuple[NDArray[np.intp], Words]]:
    """Yield the keys as words, with the numbers of their records, grouped by number of words.

    Equal keys keep the order of their records. Records without a key are in no group.
    """
    ends = column.ends.astype(np.intp)
    lengths = np.diff(ends)
    rows = column.valid.nonzero()[0]
    if not len(rows):
        return
    first = int(lengths[rows[0]])
    if len(rows) == len(lengths) and bool((lengths == first).all()):
        padded = np.zeros((len(rows), _words_in(first) * WORD_BYTES), np.uint8)
        if first:
            packed = np.ndarray((len(rows),), _raw(first), column.data[ends[0] :])
            _pad(padded, packed, first)
        padded[:, first] = 1
        yield rows, padded.view(np.uint32)
        return
    by_length = _by_value(lengths.take(rows), rows)
    for words, parts in groupby(by_length, key=lambda part: _words_in(part[0])):
        yield _joined(column.data, ends, words, list(parts))


def _joined(
    data: NDArray[np.uint8],
    ends: NDArray[np.intp],
    words: int,
    parts: list[_Part],
) -> tuple[NDArray[np.intp], Words]:
    """Join the keys of several lengths into one group."""
    rows = np.concatenate([members for _, members in parts])
    padded = np.zeros((len(rows), words * WORD_BYTES), np.uint8)
    done = 0
    for length, members in parts:
        part = padded[done : done + len(members)]
        if length:
            # The items are overlapping ranges of raw bytes, so each key is copied once.
            every = np.ndarray((len(data) - length + 1,), _raw(length), data, strides=(1,))
            _pad(part, every[ends.take(members)], length)
        part[:, length] = 1
        done += len(members)
    return rows, padded.view(np.uint32)


def _by_value(values: NDArray[np.intp], rows: NDArray[np.intp]) -> list[_Part]:
    """Split `rows` by value, ascending; each part keeps its order."""
    if int(values.max()) <= _SHORT:
        distinct = np.bincount(values).nonzero()[0]
    else:
        distinct = np.unique(values)
    if len(distinct) <= _FEW_LENGTHS:
        return [(value, rows.compress(values == value)) for value in distinct.tolist()]
    order = values.argsort(kind="stable")
    borders = values.take(order).searchsorted(distinct).tolist()
    ranges = zip(distinct.tolist(), borders, [*borders[1:], len(order)], strict=True)
    return [(value, rows.take(order[first:end])) for value, first, end in ranges]


def _words_in(length: int) -> int:
    return length // WORD_BYTES + 1


def _raw(length: int) -> np.dtype[np.void]:
    return np.dtype((np.void, length))


def _pad(padded: NDArray[np.uint8], packed: NDArray[np.void], length: int) -> None:
    """Write each key to the beginning of its row."""
    np.ndarray((len(padded),), _raw(length), padded, strides=(padded.shape[1],))[:] = packed


class KeyedHash:
    """A 64-bit hash of keys with a secret, because publishers choose the keys and must not be able
    to make them collide.

    The hash is the sum of all words, each multiplied by a secret 64-bit factor for its position
    (multilinear hashing, Lemire and Kaser: any two keys agree in the upper half with probability
    2^-32). The sum is then mixed, so that every bit can be used.
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
            self._factors = self._make_factors(2 * count)  # begins with the same factors
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
