"""Values, keys and header blocks that end in zeros, consist of zeros, or are empty.

A file with space allocated ahead also ends in zeros. So code that searches for the last byte that
is not zero could take the end of such a record for unused space.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, cycle

from hypothesis import strategies as st

ZERO_TAILS = (b"\0", b"", b"\0" * 7, b"\0" * 8, b"\0" * 64, b"\0" * 5000)


def zero_tailed() -> Iterator[bytes]:
    """Yield values without end, in turn: only zeros, empty, and a unique text followed by zeros."""
    tails = cycle(ZERO_TAILS)
    for number in count():
        tail = next(tails)
        yield tail if number % 4 == 3 else b"%d." % number + tail


def binary(max_size: int = 40) -> st.SearchStrategy[bytes]:
    """Return a strategy for any bytes, which often end in zeros."""
    stems = st.binary(max_size=max_size)
    return stems | st.tuples(stems, st.sampled_from(ZERO_TAILS[:-1])).map(b"".join)


headers = st.one_of(
    st.just(b""),
    binary(12).map(lambda raw: b"NATS/1.0\r\nA: " + raw.translate(None, b"\r\n") + b"\r\n\r\n"),
)
"""A strategy for a NATS header block, or no block."""
