"""Answers the requests about consumer groups."""

from __future__ import annotations

from functools import partial

from liftlog.errors import InvalidArgument, LiftlogError
from liftlog.groups.requests import Assignment, Beat, Commit, Join, Leave, Remove
from liftlog.protocol.groups import (
    AssignmentAnswer,
    BeatGroup,
    CommitGroup,
    DescribeGroup,
    GroupAnswer,
    GroupsAnswer,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    RemoveGroup,
    SeekGroup,
)
from liftlog.protocol.messages import Done, Message
from liftlog.server.requests.rights import Ask, At, Caller, Told, handles, starts


# Joining requires the right to read. A member without this right would hold slots that no other
# member can read.
@handles(JoinGroup, "commit", at=At.OFFSETS, and_read=True)
async def _join_group(caller: Caller, message: JoinGroup) -> Message:
    join = Join(
        (message.group, message.stream),
        message.member,
        message.token,
        message.session_ms,
        message.slot_count,
        message.start,
        caller.principal or "",
        message.joined,
    )
    return _assignment(await caller.broker.checkpoints.groups.asked(join))


@handles(BeatGroup, "commit", at=At.OFFSETS, and_read=True)
async def _beat_group(caller: Caller, message: BeatGroup) -> Message:
    beat = Beat(
        (message.group, message.stream),
        message.member,
        message.joined,
        message.generation,
        frozenset(message.owned),
        message.max_wait_ms / 1000,
    )
    return _assignment(await caller.broker.checkpoints.groups.asked(beat))


def _assignment(found: Assignment | None) -> AssignmentAnswer:
    assert found is not None  # joins and heartbeats always return an assignment
    return AssignmentAnswer(
        found.joined,
        found.generation,
        found.slot_count,
        [one.slot for one in found.slots],
        [one.since for one in found.slots],
        [one.offset for one in found.slots],
        found.incarnation,
        found.epoch,
    )


@starts(CommitGroup, "commit")
def _commit_group(caller: Caller, message: CommitGroup, told: Told) -> None:
    if len(message.slots) != len(message.offsets):
        raise InvalidArgument("a commit has one offset for each of its slots")
    commit = Commit(
        (message.group, message.stream),
        message.member,
        message.joined,
        message.generation,
        dict(zip(message.slots, message.offsets, strict=True)),
        message.incarnation,
        message.epoch,
    )

    def answered(_: Assignment | None, error: LiftlogError | None) -> None:
        told(error)

    caller.broker.checkpoints.groups.ask(commit, answered)


@handles(LeaveGroup, "commit", at=At.OFFSETS)
async def _leave_group(caller: Caller, message: LeaveGroup) -> Message:
    leave = Leave((message.group, message.stream), message.member, message.joined)
    await caller.broker.checkpoints.groups.asked(leave)
    return Done()


@handles(SeekGroup, "commit", at=At.OFFSETS)
async def _seek_group(caller: Caller, message: SeekGroup) -> Message:
    groups = caller.broker.checkpoints.groups
    key = (message.group, message.stream)
    await groups.asked(groups.seek(key, message.offset, caller.principal or ""))
    return Done()


@handles(RemoveGroup, "commit", at=At.OFFSETS)
async def _remove_group(caller: Caller, message: RemoveGroup) -> Message:
    await caller.broker.checkpoints.groups.asked(Remove((message.group, message.stream)))
    return Done()


@handles(DescribeGroup, "read", at=At.OFFSETS)
async def _describe_group(caller: Caller, message: DescribeGroup) -> Message:
    found = caller.broker.checkpoints.groups.describe((message.group, message.stream))
    return GroupAnswer({} if found is None else found.to_wire())


async def _relay_groups(caller: Caller, message: ListGroups, ask: Ask) -> Message:
    """List the groups that the client may see. The cursor names the last group of the page, so it
    never names a group that the client may not see."""
    after = message.after
    while True:
        answer = await ask(message.replaced(after=after))
        assert isinstance(answer, GroupsAnswer), "the answer to groups"
        seen = [one for one in answer.groups if caller.may("read", str(one.get("stream")))]
        after = answer.after
        if after is None:
            return GroupsAnswer(seen)
        if seen:
            return GroupsAnswer(seen, f"{seen[-1]['group']}/{seen[-1]['stream']}")


@handles(ListGroups, None, at=At.OFFSETS, relay=_relay_groups)
async def _list_groups(caller: Caller, message: ListGroups) -> Message:
    found, after = caller.broker.checkpoints.groups.page(
        partial(caller.may, "read"), stream=message.stream, after=message.after
    )
    return GroupsAnswer([one.to_wire() for one in found], after)
