"""Which task of a merge handles a key. Pure.

Keys are divided by their CRC-32C into buckets, whose number is a power of two. So buckets of two
divisions never overlap in part: a bucket lies within one bucket of a coarser division, and consists
of whole buckets of a finer one. Files that were written with another number of buckets, when the
table was smaller, can be used as they are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from numpy.typing import NDArray

BUCKET_BYTES = 32 * 1024 * 1024
MOST_BUCKETS = 1024


class Bucket(NamedTuple):
    """One of `total` equal parts of all keys."""

    number: int
    total: int

    def meets(self, other: Bucket) -> bool:
        """Return True if some key can be in both."""
        common = min(self.total, other.total)
        return self.number % common == other.number % common


ALL_KEYS = Bucket(0, 1)


def buckets_for(size_bytes: int, bucket_bytes: int) -> int:
    """The smallest number of buckets that gives each at most `bucket_bytes`.

    At most MOST_BUCKETS, to limit the number of files; beyond that buckets grow with the table.
    """
    wanted = -(-size_bytes // bucket_bytes)
    return min(1 << max(wanted - 1, 0).bit_length(), MOST_BUCKETS)


def numbers_of(keys: pa.Array, total: int) -> NDArray[np.uint32]:
    """Return the bucket of each key. Rows without a key are in that of the empty key."""
    if total == 1:
        return np.zeros(len(keys), np.uint32)
    texts = keys.fill_null(b"").to_pylist()
    sums = np.fromiter(map(crc32c, texts), np.uint32, len(texts))
    return sums & np.uint32(total - 1)
