"""Runs the periodic work of a node when a test requests it, and returns internal state of the
node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from liftlog.cluster.record import StreamMetadata
from liftlog.server.node.replica import Replica
from liftlog.server.node.replicated import ReplicatedStreams
from liftlog.server.node.successors import Successors
from liftlog.server.replication.succession import Succession


def replica_of(streams: ReplicatedStreams, name: str) -> Replica:
    return streams.replicas.by_name[name]


def give_up(streams: ReplicatedStreams, record: StreamMetadata) -> None:
    """Give up the copy, as if it had another history than this record."""
    streams.replicas.give_up(record.name, record)


def succession_of(streams: ReplicatedStreams) -> Succession:
    """Return the state of a node that stands for election."""
    succession = streams.candidacy.succession
    assert succession is not None
    return succession


def link_by(streams: ReplicatedStreams, link_to: Callable[[str], Any]) -> None:
    """Reach the other nodes in this way from now on."""
    object.__setattr__(streams._node, "link_to", link_to)


def is_asking(successors: Successors) -> bool:
    """Return True if a request for a leader's successor to the metadata store is running."""
    return bool(successors._asking)


def forget_gone(successors: Successors) -> None:
    """Drop the streams and epochs that the node has recorded as ended."""
    successors._gone.clear()
