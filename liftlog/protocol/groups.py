"""Requests about consumer groups, and their answers. Registered in `messages.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from liftlog.protocol.described import Described
from liftlog.protocol.wire import LABEL, MAP, NAME, Message, array_of, uint
from liftlog.protocol.wire import wire as key

MAX_SLOTS = 1024

UNNAMED = "unnamed-"
"""Prefix of the names of members that did not choose a name. Metrics count them together."""

PAGE_GROUPS = 1000
"""Maximum number of groups in one answer."""

_SLOTS = array_of(uint(MAX_SLOTS - 1), MAX_SLOTS)
_NUMBERS = array_of(uint(), MAX_SLOTS)


@dataclass(frozen=True, slots=True)
class GroupInfo(Described):
    """A consumer group.

    Each entry of `members` has `name`, `slots` (the number of slots that the member owns),
    `session_ms`, `principal` and `lag`.

    `owners` and `offsets` have one entry for each slot: the name of the member that owns the slot
    ("" if no member owns it), and the next offset to read (0 is the log start). In the results of
    `list_groups` both are empty.

    `lag` is the largest lag of a slot: the number of offsets from its committed offset to the high
    watermark. It is None if the answering node cannot read the stream.
    """

    group: str = ""
    stream: str = ""
    generation: int = 0
    slot_count: int = 0
    members: list[dict[str, Any]] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    lag: int | None = None
    incarnation: str = ""
    epoch: int = 0
    time_ns: int = 0
    principal: str = ""


# --- requests -------------------------------------------------------------------


class JoinGroup(Message):
    """Asks to become a member of a group. If the group does not exist, it is created and begins at
    `start` (0: at the log start).

    A join with the token of an earlier join only repeats that join. `joined` identifies the
    client's former membership; with it, the join does not replace another member of the same name.
    """

    KIND: ClassVar[str] = "groupjoin"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    group: str = key("g", NAME)
    member: str = key("m", NAME)
    token: str = key("t", LABEL)
    session_ms: int = key("z", uint())
    slot_count: int | None = key("p", uint(), default=None)
    start: int = key("o", uint(), default=0)
    joined: int | None = key("j", uint(), default=None)


class BeatGroup(Message):
    """A heartbeat of a member. `owned` are the slots that the member reads or has not finished
    yet."""

    KIND: ClassVar[str] = "groupbeat"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    group: str = key("g", NAME)
    member: str = key("m", NAME)
    joined: int = key("j", uint())
    generation: int = key("n", uint())
    owned: list[int] = key("a", _SLOTS)
    max_wait_ms: int = key("w", uint(), default=0)


class CommitGroup(Message):
    """Reports, for each slot, that all records below the slot's entry in `offsets` have been
    processed. The commit is durable when the answer arrives."""

    KIND: ClassVar[str] = "groupcommit"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    group: str = key("g", NAME)
    member: str = key("m", NAME)
    joined: int = key("j", uint())
    generation: int = key("n", uint())
    slots: list[int] = key("a", _SLOTS)
    offsets: list[int] = key("o", _NUMBERS)
    incarnation: str = key("x", LABEL)
    epoch: int = key("e", uint(2**32 - 1))


class LeaveGroup(Message):
    """Ends a membership. Other members get the slots at once."""

    KIND: ClassVar[str] = "groupleave"
    stream: str = key("s", NAME)
    group: str = key("g", NAME)
    member: str = key("m", NAME)
    joined: int = key("j", uint())


class DescribeGroup(Message):
    KIND: ClassVar[str] = "group"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    group: str = key("g", NAME)


class ListGroups(Message):
    """Asks for one page of groups. `after` comes from the answer with the previous page."""

    KIND: ClassVar[str] = "groups"
    REPEATABLE: ClassVar[bool] = True
    stream: str | None = key("s", NAME, default=None)
    after: str | None = key("a", NAME, default=None)


class SeekGroup(Message):
    """Moves a group without members: all its slots continue at `offset` (0 is the log start)."""

    KIND: ClassVar[str] = "groupseek"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    group: str = key("g", NAME)
    offset: int = key("o", uint())


class RemoveGroup(Message):
    """Deletes a group without members. If the group does not exist, the request succeeds."""

    KIND: ClassVar[str] = "groupremove"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    group: str = key("g", NAME)


# --- answers --------------------------------------------------------------------


class AssignmentAnswer(Message):
    """Answer to groupjoin and groupbeat: the slots that the member should own from now on."""

    KIND: ClassVar[str] = "assignment"
    joined: int = key("j", uint())
    generation: int = key("n", uint())
    slot_count: int = key("p", uint(MAX_SLOTS))
    slots: list[int] = key("a", _SLOTS)
    since: list[int] = key("v", _NUMBERS)
    offsets: list[int] = key("o", _NUMBERS)
    incarnation: str = key("x", LABEL, default="")
    epoch: int = key("e", uint(), default=0)


class GroupAnswer(Message):
    """Answer to group; empty if there is no such group."""

    KIND: ClassVar[str] = "groupdata"
    group: dict[str, Any] = key("d", MAP, default_factory=dict)

    @property
    def info(self) -> GroupInfo | None:
        return GroupInfo.from_wire(self.group) if self.group else None


class GroupsAnswer(Message):
    """Answer to groups. `after` is set if there may be more groups."""

    KIND: ClassVar[str] = "grouplist"
    groups: list[dict[str, Any]] = key("d", array_of(MAP, PAGE_GROUPS))
    after: str | None = key("n", NAME, default=None)

    @property
    def infos(self) -> list[GroupInfo]:
        return [GroupInfo.from_wire(one) for one in self.groups]


REQUESTS: tuple[type[Message], ...] = (
    JoinGroup,
    BeatGroup,
    CommitGroup,
    LeaveGroup,
    DescribeGroup,
    ListGroups,
    SeekGroup,
    RemoveGroup,
)

ANSWERS: tuple[type[Message], ...] = (AssignmentAnswer, GroupAnswer, GroupsAnswer)
