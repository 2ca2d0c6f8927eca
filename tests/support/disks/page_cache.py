"""Requirements of tests on the page cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def need_nowait(directory: Path) -> None:
    """Skip the test if a file cannot be read without waiting for the disk, as on tmpfs. Tails need
    such reads."""
    path = directory / "nowait"
    path.write_bytes(b"x")
    fd = os.open(path, os.O_RDONLY)
    try:
        os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT)
    except OSError as error:
        pytest.skip(f"the file system of {directory} cannot: {error}")
    finally:
        os.close(fd)
