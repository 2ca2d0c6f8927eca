"""Optional packages, as if they were not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from liftlog.records import codecs


@contextmanager
def uninstalled(package: str) -> Iterator[None]:
    """A compression package. Codecs that were made before are forgotten."""
    forget = codecs._codec.cache_clear
    forget()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            yield
    finally:
        forget()
