"""Decides from the clocks of all nodes whether this node may delete records by age.

A leader with a clock that is ahead deletes records too early, and its followers delete the same
records. Therefore a node deletes no records by age while its clock differs from the clocks of most
nodes. If no majority agrees (for example two nodes with different clocks), the nodes cannot
determine which clock is wrong. In that case only the node that is ahead stops deleting, because a
node with a clock that is behind deletes late, never early.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MAX_SKEW_SECONDS = 60.0
"""Largest difference that counts as agreement. Clocks that a time service sets differ by
milliseconds, so a larger difference is a fault. Age limits are much longer than this, and
compaction accepts timestamps that are ahead by less than this (`compaction.ages.TOLERANCE_NS`)."""


@dataclass(frozen=True, slots=True)
class Offset:
    """The clock of another node minus this node's clock, exact to `error` seconds.

    `is_doubted` is True if that node has detected that its own clock jumped ahead.
    """

    seconds: float
    error: float
    is_doubted: bool = False

    def differs(self, other: Offset) -> bool:
        return abs(self.seconds - other.seconds) > MAX_SKEW_SECONDS + self.error + other.error


OWN = Offset(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of the comparison of this node's clock with the other clocks.

    `reason` says why this node must delete no records by age; empty if the node may delete records
    by age. The clock is `confirmed` if it agrees with the clocks of most nodes. Nodes that doubt
    their own clock do not count.
    """

    reason: str = ""
    confirmed: bool = False
    is_measured: bool = True
    """False while too few clocks are known to determine the time of the majority."""


def judge_clock(others: Mapping[str, Offset | None]) -> Verdict:
    """Compare this node's clock with the clocks of all `others`; None stands for an unknown
    clock."""
    known = {name: offset for name, offset in others.items() if offset is not None}
    needed = (len(others) + 1) // 2 + 1
    alike = [offset for offset in known.values() if not offset.differs(OWN)]
    if 1 + len(alike) >= needed:
        certain = sum(not offset.is_doubted for offset in alike)
        return Verdict(confirmed=bool(alike) and 1 + certain >= needed)
    for offset in known.values():
        if sum(not offset.differs(other) for other in known.values()) >= needed:
            return Verdict("most of the nodes have another time; set the clock of this node")
    behind = sorted(
        name for name, offset in known.items() if offset.differs(OWN) and offset.seconds < 0
    )
    if behind:
        return Verdict(
            f"it is ahead of that of {', '.join(behind)}, and no majority of nodes agrees on the "
            "time; set the clock of the node where it is wrong, this one or the other"
        )
    return Verdict(is_measured=1 + len(known) >= needed)
