"""Places that are not made yet."""

from __future__ import annotations

import os
from pathlib import Path


def existing_part(path: Path) -> Path:
    """The path, or the nearest directory above it that is there. What may not be looked into, or
    has a name that no file can have, is not there."""
    found = path.absolute()
    return next(one for one in (found, *found.parents) if _exists(one))


def _exists(path: Path) -> bool:
    """`Path.exists` raises for those two."""
    return os.path.exists(path)  # noqa: PTH110
