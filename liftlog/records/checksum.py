"""CRC-32C of bytes. The package `crc32c` is imported for the first checksum.

At import, `crc32c` looks up its own version. The look-up loads the parser of e-mails, `zipfile` and
`argparse`, and took a sixth of the time of `import liftlog.client`, which computes no checksum.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

_Buffer = bytes | bytearray | memoryview


@cache
def _function() -> Callable[[_Buffer, int], int]:
    from crc32c import crc32c

    return crc32c


def crc32c(data: _Buffer, value: int = 0) -> int:
    """Return the checksum of `data`; `value` is the checksum of the bytes before it."""
    return _function()(data, value)
