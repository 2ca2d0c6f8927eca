"""The coordinator of all groups: decides about the requests of members, several at a time, and
answers them when the result is durable.

Requests wait for the next *flight*. A flight applies the requests to the durable state, one after
the other, and the caller stores one record for each changed group. Requests that arrive meanwhile
wait for the next flight. So no answer and no assignment depends on a write that may still fail. The
commits of all members of a group share a record and an fsync.

Only this coordinator tracks the sessions of members. A session begins again with every heartbeat
and every commit of the member, and for all members when another coordinator takes over. A member
loses its slots if it sends no request for the length of its session. The member measures the
session from the time at which it sent the last answered request. So the member detects the end of
its session by its own clock, no later than the coordinator.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from liftlog.errors import (
    Conflict,
    GroupFenced,
    InvalidArgument,
    LiftlogError,
    LimitExceeded,
    StaleIncarnation,
)
from liftlog.groups.assignment import joined, keeps_owners, released, settled, staying, without
from liftlog.groups.quota import Limits, Quota, Use
from liftlog.groups.requests import (
    Asked,
    Assignment,
    Beat,
    Commit,
    Join,
    Leave,
    OwnedSlot,
    Remove,
    Restamp,
    Seek,
    Told,
)
from liftlog.groups.state import (
    DEFAULT_SLOTS,
    MAX_MEMBERS,
    MAX_SESSION_MS,
    MIN_SESSION_MS,
    GroupKey,
    GroupState,
    Member,
    new_group,
)
from liftlog.groups.waiting import Waiting

logger = logging.getLogger("liftlog.groups")

_MAX_WAITING = 50_000
_LOOK_SECONDS = 2e-6
"""Minimum time between two scans of all sessions, in seconds per member. A scan takes a tenth of
this time. So scans never use more than a tenth of the processor, even with many members."""


@dataclass(slots=True)
class Flight:
    """Requests that are applied and stored together. `drafts` are the new states of groups, one
    record for each group; None deletes the group."""

    quota: Quota
    drafts: dict[GroupKey, GroupState | None] = field(default_factory=dict)
    verdicts: list[tuple[Asked, Told, LiftlogError | None]] = field(default_factory=list)


class Parked(NamedTuple):
    beat: Beat
    told: Told
    until: float


class Coordinator:
    """Decides about all requests of groups. Times are seconds of any monotonic clock."""

    most_work = 65_536
    """Maximum work of one flight, as a number of slots and members to examine; such a flight takes
    roughly 10 ms. Without this limit, a few clients with groups of the largest size could block the
    daemon for a second."""

    def __init__(
        self,
        groups: Mapping[GroupKey, GroupState],
        now: float,
        limits: Limits = Limits(),  # noqa: B008 - frozen
    ) -> None:
        """Take over `groups`, the durable state. All sessions begin now."""
        self.groups = dict(groups)
        self._limits, self._use = limits, Use.of(groups.values())
        self._kept: dict[GroupKey, dict[str, list[int]]] = {}
        """The slots that each member may keep; valid until members or owners change."""
        self.expired_total = self.commits_total = self.generations_total = 0
        self._waiting = Waiting()
        self._parked: dict[GroupKey, dict[str, Parked]] = {}
        self._deadlines: dict[GroupKey, dict[str, float]] = {
            key: {name: now + one.session_ms / 1000 for name, one in state.members.items()}
            for key, state in groups.items()
        }
        self.quiet_until = now
        """Before this time, no session ends and no parked heartbeat is due."""

    # --- requests ---

    def ask(self, asked: Asked, told: Told, now: float) -> None:
        """Queue a request for the next flight; `told` gets the answer. Raises LimitExceeded."""
        if len(self._waiting) >= _MAX_WAITING:
            raise LimitExceeded("too many requests of groups wait for the disk", hint="try again")
        if isinstance(asked, Join | Beat | Commit):
            self._hear(asked, now)
        self._waiting.add(asked, told)

    def _hear(self, asked: Join | Beat | Commit, now: float) -> None:
        """Renew the session of the member that sent the request. The member itself extends its
        session only when it gets the answer."""
        state = self.groups.get(asked.key)
        member = None if state is None else state.members.get(asked.member)
        if member is not None and _is_by(asked, member):
            self._deadlines[asked.key][asked.member] = now + member.session_ms / 1000

    def wants_flight(self, now: float) -> bool:
        """Return True if a flight has work: a waiting request, or the end of a session."""
        if now >= self.quiet_until:
            self._answer_overdue(now)
        return bool(self._waiting) or now >= self.quiet_until

    @property
    def has_requests(self) -> bool:
        return bool(self._waiting)

    def _answer_overdue(self, now: float) -> None:
        """Answer the parked heartbeats that are due, and find the next time at which a heartbeat is
        due or a session ends."""
        quiet_until, members = math.inf, 0
        for parked in self._parked.values():
            for name in [name for name, one in parked.items() if one.until <= now]:
                beat, told, _ = parked.pop(name)
                self._answer(beat, told)
            quiet_until = min([quiet_until, *[one.until for one in parked.values()]])
        for deadlines in self._deadlines.values():
            members += len(deadlines)
            quiet_until = min([quiet_until, *deadlines.values()])
        if quiet_until > now:  # otherwise sessions have ended, and the next flight handles this
            quiet_until = max(quiet_until, now + members * _LOOK_SECONDS)
        self.quiet_until = quiet_until

    # --- flights ---

    def begin(self, now: float) -> Flight:
        """Begin a flight: apply the waiting requests, up to the limit `most_work`.

        The caller stores the drafts of the flight, if it has any, and then calls `landed`. Only one
        flight runs at a time.
        """
        flight = Flight(Quota(self._limits, self._use))
        if now >= self.quiet_until:
            self._expire(flight, now)
        for asked, told in self._waiting.board(self.groups, self.most_work):
            error = None
            try:
                self._judge(flight, asked, now)
            except LiftlogError as refusal:
                error = refusal
            flight.verdicts.append((asked, told, error))
        for key, draft in list(flight.drafts.items()):
            before = self.groups.get(key)
            if draft is not None:
                draft = flight.drafts[key] = settled(draft, before)
            if draft == before:
                del flight.drafts[key]
        return flight

    def landed(self, flight: Flight, error: LiftlogError | None, now: float) -> None:
        """Answer the requests of a flight whose drafts are durable or, with `error`, were not
        stored.

        If the drafts were not stored, all requests get the error, because even a rejection may
        depend on a change that was not stored.
        """
        if error is None:
            for key, draft in flight.drafts.items():
                self._adopt(key, draft, now)
        for asked, told, refusal in flight.verdicts:
            failure = error or refusal
            if failure is not None:
                told(None, failure)
            elif isinstance(asked, Join):
                self._answer(asked, told)  # a later join in this flight may have replaced it
            elif isinstance(asked, Beat):
                self._park_or_answer(asked, told, now)
            else:
                self.commits_total += isinstance(asked, Commit)
                told(None, None)
        if error is None:
            for key in flight.drafts:
                self._wake(key)

    def _adopt(self, key: GroupKey, draft: GroupState | None, now: float) -> None:
        before = self.groups.get(key)
        self._use.count(before, draft)
        # The generations of a group that was removed and created in one flight begin again.
        if before is None or draft is None or not keeps_owners(draft, before):
            self._kept.pop(key, None)
        if draft is None:
            del self.groups[key]
            self._deadlines.pop(key, None)
            return
        self.generations_total += before is None or draft.generation != before.generation
        known = self._deadlines.get(key, {})
        self._deadlines[key] = {}
        for name, member in draft.members.items():
            old = None if before is None else before.members.get(name)
            fresh = now + member.session_ms / 1000
            deadline = known.get(name, fresh) if old == member else fresh
            self._deadlines[key][name] = deadline
            self.quiet_until = min(self.quiet_until, deadline)
        self.groups[key] = draft

    # --- judging ---

    def _expire(self, flight: Flight, now: float) -> None:
        """End the sessions whose deadline has passed, except the sessions of members with waiting
        requests: these requests arrived in time, and were only delayed by other requests."""
        for key, deadlines in self._deadlines.items():
            gone = [name for name, deadline in deadlines.items() if deadline <= now]
            if gone:
                asking = self._asking(key)
                gone = [name for name in gone if name not in asking]
            if gone:
                self.expired_total += len(gone)
                names = ",".join(gone)
                logger.warning("group-members-expired group=%s stream=%s members=%s", *key, names)
                flight.drafts[key] = without(self.groups[key], gone)

    def _asking(self, key: GroupKey) -> set[str]:
        """Return the members with waiting joins, heartbeats or commits."""
        members = self.groups[key].members
        return {
            asked.member
            for asked, _ in self._waiting.of(key)
            if isinstance(asked, Join | Beat | Commit)
            and asked.member in members
            and _is_by(asked, members[asked.member])
        }

    def _judge(self, flight: Flight, asked: Asked, now: float) -> None:
        """Apply one request to the drafts of the flight. Raises the error that the request gets as
        its answer."""
        key = asked.key
        state = flight.drafts[key] if key in flight.drafts else self.groups.get(key)
        draft: GroupState | None
        if isinstance(asked, Join):
            draft = self._join(flight, state, asked)
        elif isinstance(asked, Beat):
            draft = self._beat(_member_of(state, asked), asked)
        elif isinstance(asked, Commit):
            draft = self._commit(_member_of(state, asked), asked)
        elif isinstance(asked, Leave):
            draft = without(_member_of(state, asked), [asked.member])
        elif isinstance(asked, Seek):
            draft = self._seek(flight, state, asked)
        elif isinstance(asked, Restamp):
            # The time is set when the draft is stored.
            draft = replace(asked.only_if, time_ns=0) if state == asked.only_if else state
        else:
            draft = _removed(state, asked)
        if draft is not state:
            flight.drafts[key] = draft

    def _created(
        self, flight: Flight, key: GroupKey, slots: int, start: int, principal: str
    ) -> GroupState:
        """Create the group. Raises InvalidArgument, LimitExceeded."""
        state = new_group(slots, start, principal)
        flight.quota.create(f"group {key[0]} of stream {key[1]}", state)
        return state

    def _join(self, flight: Flight, state: GroupState | None, asked: Join) -> GroupState:
        if not MIN_SESSION_MS <= asked.session_ms <= MAX_SESSION_MS:
            raise InvalidArgument(
                f"a session lasts {MIN_SESSION_MS} to {MAX_SESSION_MS} ms, not {asked.session_ms}"
            )
        group, stream = asked.key
        if state is None:
            if asked.start_error is not None:
                raise asked.start_error
            slots = DEFAULT_SLOTS if asked.slots is None else asked.slots
            state = self._created(flight, asked.key, slots, asked.start, asked.principal)
        if asked.slots not in (None, state.slots):
            raise Conflict(
                f"group {group} of stream {stream} has {state.slots} slots, not {asked.slots}",
                hint="leave the number out, or choose another name for the group",
            )
        if len(state.members) >= MAX_MEMBERS and asked.member not in state.members:
            raise LimitExceeded(f"group {group} has {MAX_MEMBERS} members already")
        present = state.members.get(asked.member)
        if present is not None and present.token == asked.token:
            return state
        if present is not None and asked.joined not in (None, present.joined):
            raise _replaced(asked)  # a newer client took the name while this one was blocked
        flight.quota.join(asked.principal, present)
        member = Member(0, asked.session_ms, asked.token, asked.principal)
        return joined(state, asked.member, member)

    def _seek(self, flight: Flight, state: GroupState | None, asked: Seek) -> GroupState:
        if state is None:
            state = self._created(flight, asked.key, DEFAULT_SLOTS, asked.offset, asked.principal)
        _check_no_members(state, asked.key)
        offsets = (asked.offset,) * state.slots
        return replace(state, offsets=offsets, incarnation=asked.incarnation, epoch=asked.epoch)

    def _beat(self, state: GroupState, asked: Beat) -> GroupState:
        """Free the slots that the member no longer reads, except slots that were assigned after it
        sent this heartbeat."""
        return released(
            state,
            {
                slot
                for slot in state.owned_by(asked.member)
                if slot not in asked.owned and state.since[slot] <= asked.generation
            },
        )

    def _commit(self, state: GroupState, asked: Commit) -> GroupState:
        self._check_owner(state, asked)
        if state.incarnation and asked.incarnation != state.incarnation:
            raise StaleIncarnation(
                f"group {asked.key[0]} has read another stream of the name {asked.key[1]}, which "
                "was deleted since",
                hint="stop its members, and move it: liftlog group seek",
                incarnation=state.incarnation,
            )
        offsets, moved = list(state.offsets), False
        for slot, offset in asked.offsets.items():
            if offset > offsets[slot]:
                offsets[slot], moved = offset, True
        if not moved:
            return state
        epoch = max(state.epoch, asked.epoch)
        return replace(state, offsets=tuple(offsets), incarnation=asked.incarnation, epoch=epoch)

    def _check_owner(self, state: GroupState, asked: Commit) -> None:
        owners, since, count = state.owners, state.since, state.slots
        member, generation = asked.member, asked.generation
        lost = [
            slot
            for slot in asked.offsets
            if not 0 <= slot < count or owners[slot] != member or since[slot] > generation
        ]
        if lost:
            group, stream = asked.key
            raise GroupFenced(
                f"member {asked.member} of group {group} does not own the slots {lost[:16]} of "
                f"stream {stream}",
                slots=lost,
            )

    # --- answers ---

    def assignment(self, key: GroupKey, member: str) -> Assignment:
        state = self.groups[key]
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = staying(state)
        return Assignment(
            state.members[member].joined,
            state.generation,
            state.slots,
            tuple(
                [
                    OwnedSlot(slot, state.since[slot], state.offsets[slot])
                    for slot in kept.get(member, ())
                ]
            ),
            state.incarnation,
            state.epoch,
        )

    def _park_or_answer(self, beat: Beat, told: Told, now: float) -> None:
        state = self.groups.get(beat.key)
        if state is None:
            self._answer(beat, told)
            return
        parked = self._parked.setdefault(beat.key, {})
        older = parked.pop(beat.member, None)
        if older is not None:
            self._answer(older.beat, older.told)
        member = state.members.get(beat.member)
        if member is None or beat.wait <= 0 or beat.generation != state.generation:
            self._answer(beat, told)
            return
        # A third of the session at most, so that the answer arrives before the session ends.
        until = now + min(beat.wait, member.session_ms / 3000)
        parked[beat.member] = Parked(beat, told, until)
        self.quiet_until = min(self.quiet_until, until)

    def _wake(self, key: GroupKey) -> None:
        """Answer the parked heartbeats of a changed group."""
        parked = self._parked.get(key, {})
        state = self.groups.get(key)
        for name, (beat, told, _) in list(parked.items()):
            member = None if state is None else state.members.get(name)
            is_old = state is None or beat.generation != state.generation
            if is_old or member is None or not _is_by(beat, member):
                del parked[name]
                self._answer(beat, told)
        if not parked:
            self._parked.pop(key, None)

    def _answer(self, asked: Join | Beat, told: Told) -> None:
        try:
            _member_of(self.groups.get(asked.key), asked)
        except GroupFenced as error:
            told(None, error)
        else:
            told(self.assignment(asked.key, asked.member), None)

    def close(self, error: LiftlogError) -> None:
        """Fail all waiting requests with `error`, because this coordinator stops."""
        parked, self._parked = self._parked, {}
        for _, told in self._waiting.drain():
            told(None, error)
        for beats in parked.values():
            for _, told, _ in beats.values():
                told(None, error)


def _is_by(asked: Join | Beat | Commit | Leave, member: Member) -> bool:
    if isinstance(asked, Join):
        return asked.token == member.token
    return asked.joined == member.joined


def _member_of(state: GroupState | None, asked: Join | Beat | Commit | Leave) -> GroupState:
    """Return the state if it contains the member that sent the request. Raises GroupFenced.

    A request with a generation that this coordinator has not reached belongs to a state that damage
    has destroyed. Such a request must not be compared with the current state.
    """
    group, stream = asked.key
    member = None if state is None else state.members.get(asked.member)
    if state is None or member is None or not _is_by(asked, member):
        reason = "its session has ended"
        if member is not None and (isinstance(asked, Join) or member.joined > asked.joined):
            raise _replaced(asked)
    elif isinstance(asked, Beat | Commit) and asked.generation > state.generation:
        reason = "the daemon has lost the newest state of the group to damage"
    else:
        return state
    raise GroupFenced(
        f"{asked.member} is no longer a member of group {group} of stream {stream}: {reason}",
        hint="join again: the records since the last commit are read again",
    )


def _replaced(asked: Join | Beat | Commit | Leave) -> GroupFenced:
    group, stream = asked.key
    return GroupFenced(
        f"another client has joined group {group} of stream {stream} as {asked.member}",
        hint="give each member a name of its own",
        replaced=True,
    )


def _removed(state: GroupState | None, asked: Remove) -> GroupState | None:
    if state is None or (asked.only_if is not None and asked.only_if is not state):
        return state
    _check_no_members(state, asked.key)
    return None


def _check_no_members(state: GroupState, key: GroupKey) -> None:
    if state.members:
        group, stream = key
        names: Sequence[str] = sorted(state.members)[:8]
        raise Conflict(
            f"group {group} of stream {stream} has members: {', '.join(names)}",
            hint="stop them, and try again when their sessions have ended",
        )
