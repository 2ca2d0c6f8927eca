"""What members and operators ask of the coordinator, and what members are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from liftlog.errors import LiftlogError
from liftlog.groups.state import GroupKey, GroupState


class OwnedSlot(NamedTuple):
    """`since`: the generation in which it was assigned. `offset`: the next one to read."""

    slot: int
    since: int
    offset: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a member is to own from now on. A slot that it has and that is not here is to be given
    up: finished, committed, and then left out of its beats."""

    joined: int
    generation: int
    slot_count: int
    slots: tuple[OwnedSlot, ...]
    incarnation: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Join:
    """`slots` None: those of the group, or the default for a new one, which begins at `start`. A
    join with the same token again is the same join. `joined` is that of the membership that the
    client had before, None for a client that begins: only such a one replaces another member.
    `start_error` is why no group may begin at `start`: it matters only if one begins, which is
    known when this is judged."""

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
    """`generation` is the newest that the member knows, `owned` what it reads. Without news the
    answer may come `wait` seconds later."""

    key: GroupKey
    member: str
    joined: int
    generation: int
    owned: frozenset[int]
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class Commit:
    """Everything below its offset is processed, of each of these slots."""

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
    """All slots continue at `offset`, of the stream with that incarnation."""

    key: GroupKey
    offset: int
    incarnation: str = ""
    epoch: int = 0
    principal: str = ""


@dataclass(frozen=True, slots=True)
class Remove:
    """`only_if`: only a group that is still exactly this."""

    key: GroupKey
    only_if: GroupState | None = None


Asked = Join | Beat | Commit | Leave | Seek | Remove
Told = Callable[[Assignment | None, LiftlogError | None], None]
"""Called once: with an assignment for a join or a beat, with None for the rest, or an error."""
