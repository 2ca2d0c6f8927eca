"""The side state of a stream: small state, such as leases, that a node stores beside the log, and
that followers also copy.

Only the leader changes the side state. The leader answers a request for a lease or another change
when all nodes for which the high watermark waits have stored the new state. So the state survives
the loss of the leader, as records do. Followers always copy the whole state, because it is small.

A version is one number made of the leader epoch of the change and a counter within that epoch. So
if two leaders change the same state in different ways, the results have different versions. Version
0 is the empty state, which most streams have: there is nothing to copy, and nothing to store.

A replica may have a version of a higher epoch than the leader's epoch, if an operator has restored
the metadata without the nodes that knew that epoch. The side state of that epoch was then
discarded, like the epoch itself.
"""

from __future__ import annotations

_CHANGES_BITS = 32

EMPTY = 0
"""The version of the empty side state."""


def begin(epoch: int, version: int) -> int:
    """Return the version with which a leader of `epoch` begins if it has stored `version`.

    Another replica may have a different state, which the former leader sent only to that replica.
    In the new epoch all followers get the state of this leader.
    """
    if version == EMPTY or version >> _CHANGES_BITS == epoch:
        return version
    return epoch << _CHANGES_BITS


def is_outdated(epoch: int, stored: int, told: int | None) -> bool:
    """Return True if an answer from the leader of `epoch` is outdated: its side version `told` is
    lower than `stored`, a version of the same epoch that the follower has already stored.

    If `stored` is from another epoch, no answer is outdated. A former leader may have sent the
    stored state only to this follower. In this case the follower replaces the stored state by the
    state of the present leader."""
    return told is not None and stored >> _CHANGES_BITS == epoch and told < stored


def confirmed(epoch: int, stored: int) -> int:
    """Return the version that the follower's version `stored` means to the leader of `epoch`: EMPTY
    if `stored` belongs to a discarded epoch, otherwise `stored`."""
    return EMPTY if stored >> _CHANGES_BITS > epoch else stored


def following(epoch: int, version: int) -> int:
    """Return the version that follows `version` for a change by the leader of `epoch`."""
    return (begin(epoch, version) or epoch << _CHANGES_BITS) + 1
