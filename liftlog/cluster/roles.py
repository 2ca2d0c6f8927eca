"""What a node does for a stream, by the record and by its own past."""

from __future__ import annotations

from dataclasses import dataclass

from liftlog.cluster.record import StreamRecord


@dataclass(frozen=True, slots=True)
class Lead:
    """Append in this epoch, and serve followers."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Follow:
    """Copy from `leader`, which leads in this epoch."""

    leader: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Register:
    """The record does not have this start yet: it must, before the node fetches or serves."""


@dataclass(frozen=True, slots=True)
class Wait:
    """No leader is known that this node could copy from. Keep the copy."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The stream is deleted, or its copy here is not wanted: delete it."""


Role = Lead | Follow | Register | Wait | Leave


def role_of(record: StreamRecord, node: str, start: int, *, resigned_epoch: int = 0) -> Role:
    """What `record` makes of `node` in the life that began with `start`.

    `resigned_epoch`: the newest epoch in which this life has given up leading. It does not lead
    again in that epoch, although the record may take a while to tell.
    """
    if record.deleted or node not in record.members:
        return Leave()
    if record.starts.get(node) != start:
        return Register()
    if record.leader is None:
        return Wait()
    if record.leader != node:
        return Follow(record.leader, record.leader_epoch)
    return Wait() if resigned_epoch >= record.leader_epoch else Lead(record.leader_epoch)
