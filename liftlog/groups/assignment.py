"""Decides how many slots each member gets, which slots move, and to which members. Pure.

The shares of two members differ by at most one slot. A slot moves only if its owner has more than
its share. The decisions depend only on the stored state, so another coordinator makes the same
decisions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from zlib import crc32

from liftlog.groups.state import FREE, GroupState, Member


def shares(state: GroupState) -> dict[str, int]:
    """Return the share of each member: the number of slots that it should have.

    If the slots cannot be divided equally, members that already have more slots get the larger
    shares. The size of their surplus does not matter, because shares must not change while such
    members release their surplus slot by slot.
    """
    if not state.members:
        return {}
    least, more = divmod(state.slots, len(state.members))
    has = Counter(state.owners)
    ranked = sorted(state.members, key=lambda name: (-min(has[name], least + 1), name))
    return {name: least + (rank < more) for rank, name in enumerate(ranked)}


def excess(state: GroupState) -> set[int]:
    """Return the slots that their owners must release: the most recently assigned slots of members
    with too many slots."""
    found: set[int] = set()
    by_owner: dict[str, list[int]] = {}
    for slot, owner in enumerate(state.owners):
        by_owner.setdefault(owner, []).append(slot)
    for member, share in shares(state).items():
        owned = by_owner.get(member, [])
        if len(owned) > share:
            owned.sort(key=lambda slot: (-state.since[slot], -slot))
            found.update(owned[: len(owned) - share])
    return found


def staying(state: GroupState) -> dict[str, list[int]]:
    """Return, for each owner, the slots that it may keep."""
    moving = excess(state)
    found: dict[str, list[int]] = {}
    for slot, owner in enumerate(state.owners):
        if owner != FREE and slot not in moving:
            found.setdefault(owner, []).append(slot)
    return found


def settled(state: GroupState, before: GroupState | None) -> GroupState:
    """Assign the free slots to members with too few slots. Begins a new generation if members or
    owners differ from `before`."""
    if before is not None and FREE not in state.owners and keeps_owners(state, before):
        return state  # a commit
    generation = state.generation + 1
    wanted = shares(state)
    free = [slot for slot, owner in enumerate(state.owners) if owner == FREE]
    if free and wanted:
        has = Counter(state.owners)
        takers = [name for name in sorted(wanted) for _ in range(wanted[name] - has[name])]
        state = assigned(state, dict(zip(free, takers, strict=False)), generation)
    if before is not None and _who(state) == _who(before):
        return state
    return replace(state, generation=generation)


def keeps_owners(state: GroupState, before: GroupState) -> bool:
    """Return True if `state` was made from `before` without changing members or owners."""
    return (
        state.owners is before.owners
        and state.since is before.since
        and state.members is before.members
    )


def _who(state: GroupState) -> tuple[object, ...]:
    # `since` is compared, too: a released slot may be assigned to the same member again.
    return state.owners, state.since, state.members


def assigned(state: GroupState, owners: dict[int, str], generation: int) -> GroupState:
    """Return the state with the new `owners` of some slots, from `generation` on."""
    all_owners, since = list(state.owners), list(state.since)
    for slot, owner in owners.items():
        all_owners[slot], since[slot] = owner, generation
    return replace(state, owners=tuple(all_owners), since=tuple(since))


def released(state: GroupState, slots: Collection[int]) -> GroupState:
    """Return the state after its owners have released these slots."""
    if not slots:
        return state
    owners = [FREE if slot in slots else owner for slot, owner in enumerate(state.owners)]
    return replace(state, owners=tuple(owners))


def without(state: GroupState, members: Iterable[str]) -> GroupState:
    """Return the state without these members; their slots become free."""
    gone = set(members)
    left = {name: one for name, one in state.members.items() if name not in gone}
    owners = tuple([FREE if owner in gone else owner for owner in state.owners])
    return replace(state, owners=owners, members=left)


def joined(state: GroupState, name: str, member: Member) -> GroupState:
    """Return the state with this member added in the next generation. The new member replaces a
    member of the same name: it gets the slots of the old member, and requests of the old member are
    fenced.

    A member of a group that was removed and created again is fenced, too. The generations of such a
    group begin again, so the number `joined` of a member also contains a checksum of its token.
    """
    generation = state.generation + 1
    number = generation << 32 | crc32(member.token.encode())
    members = {**state.members, name: replace(member, joined=number)}
    state = replace(state, members=members)
    return assigned(state, dict.fromkeys(state.owned_by(name), name), generation)
