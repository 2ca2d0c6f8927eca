"""Requests of members and operators to the coordinator, and its answers to members."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from liftlog.errors import LiftlogError
from liftlog.groups.state import GroupKey, GroupState


class OwnedSlot(NamedTuple):
    """A slot of a member. `since` is the generation in which it was assigned. `offset` is the next
    offset to read."""

    slot: int
    since: int
    offset: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """The slots that a member should own from now on. The member must release every other slot:
    finish the records of the slot, commit them, and then omit the slot from its heartbeats."""

    joined: int
    generation: int
    slot_count: int
    slots: tuple[OwnedSlot, ...]
    incarnation: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Join:
    """A request to join a group.

    If `slots` is None, the group keeps its number of slots; a new group, which begins at `start`,
    gets the default. A second request with the same token repeats the same join. `joined` is the
    number of the client's former membership, or None for a client that has just started. Only a
    client that has just started replaces another member. `start_error` is the reason why no group
    may begin at `start`; it applies only if the request creates a group.
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

    `generation` is the newest generation that the member has received. `owned` are the slots that
    it reads. If the assignment has not changed, the answer may be delayed by up to `wait` seconds.
    """

    key: GroupKey
    member: str
    joined: int
    generation: int
    owned: frozenset[int]
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit: for each given slot, all records below the given offset are processed."""

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
    """A request to continue all slots at `offset` of the stream with the given incarnation."""

    key: GroupKey
    offset: int
    incarnation: str = ""
    epoch: int = 0
    principal: str = ""


@dataclass(frozen=True, slots=True)
class Remove:
    """A request to remove the group; with `only_if`, only if the state of the group is still the
    same."""

    key: GroupKey
    only_if: GroupState | None = None


@dataclass(frozen=True, slots=True)
class Restamp:
    """A request to store the group again with the present time, if its state is still the same."""

    key: GroupKey
    only_if: GroupState


Asked = Join | Beat | Commit | Leave | Seek | Remove | Restamp
Told = Callable[[Assignment | None, LiftlogError | None], None]
"""A callback that receives the answer once: an assignment for a join or a heartbeat, None for other
requests, or an error."""
