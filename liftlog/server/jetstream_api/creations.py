"""The subjects of streams that JetStream's clients are creating or changing at the moment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from acl.subjects import overlap_any
from liftlog.errors import LiftlogError
from liftlog.server.checkpoints import OFFSETS_STREAM
from liftlog.server.streams.broker import Broker

CREATE = "STREAM.CREATE"


class Creations:
    """Finds overlaps with the subjects of streams that are being created or changed. A stream does
    not have these subjects yet. Belongs to the event loop."""

    def __init__(self) -> None:
        self._open: list[tuple[str, Sequence[str]]] = []

    def overlap(self, stream: str, subjects: Sequence[str]) -> bool:
        """Return True if a stream of another name is about to get one of these patterns."""
        return any(name != stream and overlap_any(used, subjects) for name, used in self._open)

    @contextlib.contextmanager
    def of(self, stream: str, config: Mapping[str, Any]) -> Iterator[None]:
        """Mark the subjects of this configuration as taken while the stream is created or changed.
        Call `overlap` first, and do not await anything between the two calls."""
        one = (stream, () if config.get("no_ack") else config["subjects"])
        self._open.append(one)
        try:
            yield
        finally:
            self._open.remove(one)


def creating_node(broker: Broker, method: str, arguments: Sequence[str]) -> str | None:
    """Return the other node that answers a request to create a stream. Return None if this node
    answers the request, and for all other methods.

    In a cluster, the leader of the checkpoints creates the streams of JetStream's clients. If
    several nodes created streams at the same moment, none of them would find an overlap. If there
    is no such leader, or this node cannot reach it, any node creates streams.
    """
    catalog = broker.catalog
    if method != CREATE or catalog.knows(arguments[0]):
        return None
    try:
        node = catalog.answerer(OFFSETS_STREAM)
    except LiftlogError:
        return None
    return node if node is not None and catalog.reaches(node) else None
