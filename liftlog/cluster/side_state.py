"""The side state of a stream: what its followers copy although it is not in the log.

The leader changes it, and a lease or another change is answered when all whom the high watermark
waits for have stored it: so it outlives the leader as records do. It is small and copied whole.

A version is one number: the leader epoch of the change, and how many there were in that epoch. Two
leaders that changed the same state each in their way gave it different versions. Version 0 is the
empty state, which most streams have: there is nothing to copy, and nothing to store.

A replica may have a version of a higher epoch than its leader's: an operator has restored the
metadata without the nodes that knew of that epoch. What it has was given up with that epoch.
"""

from __future__ import annotations

_CHANGES_BITS = 32

EMPTY = 0
"""The version of the side state that has nothing."""


def begin(epoch: int, version: int) -> int:
    """The version of what a leader of `epoch` begins with, if it has stored it as `version`.

    Another replica may have something else, which the former leader told it alone: in the new epoch
    all followers get what this one has.
    """
    if version == EMPTY or version >> _CHANGES_BITS == epoch:
        return version
    return epoch << _CHANGES_BITS


def is_outdated(epoch: int, stored: int, told: int | None) -> bool:
    """Whether the leader of `epoch` has told a follower more already than `told`, if it has stored
    the version `stored`. What a former leader told it alone, it gives up."""
    return told is not None and stored >> _CHANGES_BITS == epoch and told < stored


def confirmed(epoch: int, stored: int) -> int:
    """What a follower that has stored the version `stored` has of the leader of `epoch` or of one
    before it: nothing, if the version is of an epoch that was given up."""
    return EMPTY if stored >> _CHANGES_BITS > epoch else stored


def following(epoch: int, version: int) -> int:
    """The version of a change of `version` by the leader of `epoch`."""
    return (begin(epoch, version) or epoch << _CHANGES_BITS) + 1
