"""Catalogs that replace the streams or the node of a daemon in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from liftlog.errors import StreamNotFound
from liftlog.server.node.cluster_catalog import ClusterCatalog
from liftlog.server.streams.hosted import Names
from liftlog.server.streams.own_catalog import OwnCatalog


def _find(name: str) -> None:
    raise StreamNotFound(f"there is no stream {name!r}")


def lone_catalog(streams: Mapping[str, Any]) -> OwnCatalog:
    """Return the catalog of a daemon without a cluster. It answers questions about `streams`, and
    cannot change them."""
    hosted: Any = SimpleNamespace(
        hosts=streams, broken={}, find=_find, names=Names(), changes=asyncio.Lock(), closing=False
    )
    nothing: Any = None
    return OwnCatalog(hosted, nothing, nothing, nothing)


def cluster_catalog(node: Any) -> ClusterCatalog:
    """Return the catalog of a daemon with this node."""
    return ClusterCatalog(node, lone_catalog({}))
