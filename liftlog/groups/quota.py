"""Limits the number of groups and members, in total and per principal. Pure.

A group counts for the principal that created it, a member for the principal that joined. Without an
ACL there are no principals, and only the limits on totals apply.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from liftlog.errors import LimitExceeded
from liftlog.groups.state import DEFAULT_SLOTS, GroupState, Member


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum numbers of groups and members. A group with n times the default number of slots
    counts as n groups, because its state is n times as large."""

    groups: int = 10_000
    groups_per_principal: int = 10_000
    members: int = 10_000
    members_per_principal: int = 10_000


@dataclass(slots=True)
class Use:
    """The numbers of existing groups and members, by principal."""

    groups: Counter[str] = field(default_factory=Counter)
    members: Counter[str] = field(default_factory=Counter)

    def count(self, before: GroupState | None, after: GroupState | None) -> None:
        """Count the change of a group from `before` to `after`; None stands for no group."""
        for sign, state in ((-1, before), (1, after)):
            if state is not None:
                self.groups[state.principal] += sign * weight(state)
                if before is None or after is None or before.members is not after.members:
                    for member in state.members.values():
                        self.members[member.principal] += sign

    @classmethod
    def of(cls, states: Iterable[GroupState]) -> Use:
        found = cls()
        for state in states:
            found.count(None, state)
        return found


class Quota:
    """Checks the creation of groups and members against the limits.

    A new group or member counts as soon as it is allowed, before it is stored. A removed group or
    member counts until its removal is durable.
    """

    def __init__(self, limits: Limits, use: Use) -> None:
        self._limits = limits
        self._use = use
        self._new = Use()

    def create(self, name: str, state: GroupState) -> None:
        """Count a new group. Raises LimitExceeded if it would exceed a limit."""
        limits, principal, more = self._limits, state.principal, weight(state)
        if self._use.groups.total() + self._new.groups.total() + more > limits.groups:
            raise LimitExceeded(
                f"{name} would be one too many: there may be {limits.groups}, of {DEFAULT_SLOTS} "
                "slots",
                hint="delete some (liftlog group rm), or raise checkpoints.max_groups",
            )
        owned = self._use.groups[principal] + self._new.groups[principal]
        if principal and owned + more > limits.groups_per_principal:
            raise LimitExceeded(
                f"{principal} has created as many groups as a principal may: "
                f"{limits.groups_per_principal}, of {DEFAULT_SLOTS} slots",
                hint="delete some (liftlog group rm), or raise "
                "checkpoints.max_groups_per_principal",
            )
        self._new.groups[principal] += more

    def join(self, principal: str, replaced: Member | None) -> None:
        """Count a new member. Raises LimitExceeded if it would exceed a limit.

        `replaced` is the member of the same name that the new one replaces, or None. A member that
        has restarted is not counted twice.
        """
        if replaced is not None and replaced.principal == principal:
            return
        limits = self._limits
        total = self._use.members.total() + self._new.members.total()
        if replaced is None and total >= limits.members:
            raise LimitExceeded(
                f"all groups together have as many members as there may be: {limits.members}",
                hint="stop some, or raise checkpoints.max_members",
            )
        present = self._use.members[principal] + self._new.members[principal]
        if principal and present >= limits.members_per_principal:
            raise LimitExceeded(
                f"{principal} has as many members in all groups as a principal may: "
                f"{limits.members_per_principal}",
                hint="stop some, or raise checkpoints.max_members_per_principal",
            )
        self._new.members[principal] += 1


def weight(state: GroupState) -> int:
    """Return the number of default-sized groups for which this group counts in the limits."""
    return -(-state.slots // DEFAULT_SLOTS)
