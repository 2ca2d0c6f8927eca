"""Chooses the nodes that get the replicas of a stream."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from liftlog.errors import Conflict


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that could hold a replica, as the choosing node sees it."""

    node: str
    zone: str = ""
    """Nodes of one zone may fail together. A node with "" counts as a zone of its own."""
    replicas: int = 0
    """Number of replicas that the node holds."""
    leads: int = 0
    """Number of streams whose first replica is on the node, so that it is preferred as their
    leader."""
    available: bool = True
    """True if the node lives and is not being drained."""


def place(
    candidates: Collection[Candidate], count: int, *, keep: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return `count` nodes, the preferred leader first.

    The replicas are spread over as many zones as possible, and within a zone over the nodes with
    the fewest replicas. Nodes of `keep` hold a replica already. The available nodes of `keep` come
    first, in this order, up to `count` nodes. The same arguments give the same result on every
    node. Raises Conflict if too few nodes are available.
    """
    available = {one.node: one for one in candidates if one.available}
    if len(available) < count:
        raise Conflict(
            f"{count} replicas need {count} nodes, and {len(available)} are available",
            hint="start more nodes, or ask for fewer replicas",
        )
    chosen = [node for node in keep if node in available][:count]
    stay = len(chosen)
    while len(chosen) < count:
        used = [_zone(available[node]) for node in chosen]
        left = [one for one in available.values() if one.node not in chosen]
        best = min(left, key=lambda one: (used.count(_zone(one)), one.replicas, one.node))
        chosen.append(best.node)
    # The new replica that leads the fewest streams becomes the leader, unless a kept replica is the
    # leader.
    added = chosen[stay:]
    if not stay:
        added.sort(key=lambda node: (available[node].leads, available[node].replicas, node))
    return (*chosen[:stay], *added)


def replace_nodes(
    candidates: Collection[Candidate], present: Sequence[str], leaving: Collection[str]
) -> tuple[str, ...]:
    """Return the nodes of `present`, with other nodes in place of the nodes that are `leaving`.

    The remaining nodes stay, whether they are available or not. Raises the same errors as `place`.
    """
    keep = [node for node in present if node not in leaving]
    usable = [
        replace(one, available=one.node in keep or (one.available and one.node not in leaving))
        for one in candidates
    ]
    return place(usable, len(present), keep=keep)


def _zone(one: Candidate) -> tuple[str, str]:
    return (one.zone, "") if one.zone else ("", one.node)
