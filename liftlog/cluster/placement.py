"""Which nodes get the replicas of a stream."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from liftlog.errors import Conflict


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that could hold a replica, as far as the one that asks knows."""

    node: str
    zone: str = ""
    """Nodes of one zone may fail together; "" is a zone of the node's own."""
    replicas: int = 0
    """How many it has."""
    leads: int = 0
    """How many streams prefer it as leader: those whose first replica it is."""
    available: bool = True
    """Whether it lives and is not being drained."""


def place(
    candidates: Collection[Candidate], count: int, *, keep: Sequence[str] = ()
) -> tuple[str, ...]:
    """`count` nodes, the preferred leader first.

    Spread over as many zones as there are, and within that on the nodes with the fewest replicas.
    `keep`: nodes that have a replica already; they stay, in this order and before all others, as
    far as they are available and not more than `count`. The same arguments give the same answer,
    whichever node asks. Raises Conflict if too few nodes are available.
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
    # The lead goes to the new replica that leads least, unless a replica that stays has it.
    added = chosen[stay:]
    if not stay:
        added.sort(key=lambda node: (available[node].leads, available[node].replicas, node))
    return (*chosen[:stay], *added)


def replace_nodes(
    candidates: Collection[Candidate], present: Sequence[str], leaving: Collection[str]
) -> tuple[str, ...]:
    """As many nodes as `present`, with others in the place of those that are `leaving`. The rest
    stays, whether it is available or not. Raises as `place`."""
    keep = [node for node in present if node not in leaving]
    usable = [
        replace(one, available=one.node in keep or (one.available and one.node not in leaving))
        for one in candidates
    ]
    return place(usable, len(present), keep=keep)


def _zone(one: Candidate) -> tuple[str, str]:
    return (one.zone, "") if one.zone else ("", one.node)
