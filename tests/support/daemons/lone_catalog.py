"""The catalog of a daemon on its own, for tests that stand in for its streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from liftlog.server.streams.own_catalog import OwnCatalog


def lone_catalog(streams: Mapping[str, Any]) -> OwnCatalog:
    """It answers questions about `streams`, and changes nothing."""
    nothing: Any = None
    return OwnCatalog(streams, nothing)
