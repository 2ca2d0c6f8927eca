"""Assigns keys to the tasks of a merge. Pure.

The CRC-32C of a key determines its bucket, and the number of buckets is a power of two. So if the
number changes, whole buckets are divided or joined. A bucket of one division is a part of one
bucket of every coarser division, and consists of whole buckets of every finer division. Files that
were written with fewer buckets, when the table was smaller, can still be used.
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
    """One of `total` parts of all keys. The parts are about equally large."""

    number: int
    total: int

    def meets(self, other: Bucket) -> bool:
        """Return True if a key can be in both buckets."""
        common = min(self.total, other.total)
        return self.number % common == other.number % common


ALL_KEYS = Bucket(0, 1)


def buckets_for(size_bytes: int, bucket_bytes: int) -> int:
    """Return the smallest number of buckets with which each has at most `bucket_bytes`.

    The number is at most MOST_BUCKETS, to limit the number of files. In larger tables the buckets
    are larger.
    """
    wanted = -(-size_bytes // bucket_bytes)
    return min(1 << max(wanted - 1, 0).bit_length(), MOST_BUCKETS)


def numbers_of(keys: pa.Array, total: int) -> NDArray[np.uint32]:
    """Return the bucket of each key. Rows without a key are in the bucket of the empty key."""
    if total == 1:
        return np.zeros(len(keys), np.uint32)
    texts = keys.fill_null(b"").to_pylist()
    sums = np.fromiter(map(crc32c, texts), np.uint32, len(texts))
    return sums & np.uint32(total - 1)
