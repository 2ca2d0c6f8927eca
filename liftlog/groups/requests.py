"""Requests of members and operators to the coordinator, and its answers to members."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from liftlog.errors import LiftlogError
from liftlog.groups.state import GroupKey, GroupState


class OwnedSlot(NamedTuple):
    """A slot of a member. `since`: the generation in which it was assigned. `offset`: the next one
    to read."""

    slot: int
    since: int
    offset: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """The slots that a member should own from now on. It must give up any other slot that it has:
    finish and commit it, and then leave it out of its heartbeats."""

    joined: int
    generation: int
    slot_count: int
    slots: tuple[OwnedSlot, ...]
    incarnation: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Join:
    """A request to join a group.

    `slots` None stands for those of the group, or for the default of a new one, which begins at
    `start`. A repeated join with the same token is the same join. `joined` is that of the client's
    former membership, None for a client that begins: only such a client replaces another member.
    `start_error` says why no group may begin at `start`. It matters only if the request creates a
    group, which is known when it is judged.
    """

    key: GroupKey
    member: str
    token: str
    session_ms: int
    slots: int | None = None
    start: int = 0
    principal: str = ""
    joined: int | None = None
    start_error: LiftlogError | None = None


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat.

    `generation` is the newest that the member has received, `owned` the slots that it reads. If
    nothing has changed, the answer may come `wait` seconds later.
    """

    key: GroupKey
    member: str
    joined: int
    generation: int
    owned: frozenset[int]
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class Commit:
    """Everything below its offset is processed, for each of these slots."""

    key: GroupKey
    member: str
    joined: int
    generation: int
    offsets: Mapping[int, int]
    incarnation: str = ""
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Leave:
    key: GroupKey
    member: str
    joined: int


@dataclass(frozen=True, slots=True)
class Seek:
    """Continue all slots at `offset` of the stream with that incarnation."""

    key: GroupKey
    offset: int
    incarnation: str = ""
    epoch: int = 0
    principal: str = ""


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove the group. `only_if`: only if the state is still exactly this one."""

    key: GroupKey
    only_if: GroupState | None = None


Asked = Join | Beat | Commit | Leave | Seek | Remove
Told = Callable[[Assignment | None, LiftlogError | None], None]
"""Called once: with an assignment for a join or a heartbeat, with None for other requests, or with
an error."""
