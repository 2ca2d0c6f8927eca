"""Simulates that optional packages are not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from liftlog.records import codecs


@contextmanager
def uninstalled(package: str) -> Iterator[None]:
    """Simulate that a compression package is not installed. Existing codecs are dropped."""
    forget = codecs._codec.cache_clear
    forget()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            yield
    finally:
        forget()
