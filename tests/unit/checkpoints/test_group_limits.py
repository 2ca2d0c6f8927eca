"""How many consumer groups there may be, and when those without members are deleted."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from support.daemons.local_checkpoints import serve_checkpoints
from support.daemons.pull_broker import LogBroker, orders_broker

from liftlog.errors import (
    InvalidArgument,
    LiftlogError,
    NotReady,
    OffsetOutOfRange,
    RequestTimeout,
    StreamNotFound,
)
from liftlog.groups.coordinator import Coordinator
from liftlog.groups.quota import Limits
from liftlog.groups.requests import Asked, Beat, Commit, Join, Leave, Remove, Seek
from liftlog.sequencing.refusals import MOVING, NOT_LEADING, RefusalReason
from liftlog.server.checkpoints.expiring import expire
from liftlog.server.commits.waiting import OwnRecords

SECOND = 1_000_000_000


def asked(coordinator: Coordinator, *requests: Asked) -> list[str]:
    """What they are answered with when they are judged together."""
    told: list[str] = []
    for one in requests:
        coordinator.ask(one, lambda _, error: told.append(error.name if error else "ok"), 0.0)
    while coordinator.has_requests:
        coordinator.landed(coordinator.begin(0.0), None, 0.0)
    return told


def join(group: str, principal: str = "", slots: int | None = None) -> Join:
    return Join((group, "orders"), "m", "token", 10_000, slots, 0, principal)


def leave(coordinator: Coordinator, group: str, name: str) -> Leave:
    key = (group, "orders")
    return Leave(key, name, coordinator.groups[key].members[name].joined)


def test_there_are_so_many_groups_also_if_they_are_created_at_once() -> None:
    coordinator = Coordinator({}, 0.0, limits=Limits(3))
    refused = "LIMIT_EXCEEDED"
    assert asked(coordinator, *map(join, "abcd")) == ["ok"] * 3 + [refused]
    assert asked(coordinator, join("a"), join("e")) == ["ok", refused]
    assert asked(coordinator, Seek(("e", "orders"), 1)) == [refused]
    gone = [leave(coordinator, "a", "m"), Remove(("a", "orders"))]
    assert asked(coordinator, *gone) == ["ok", "ok"]
    assert asked(coordinator, Seek(("e", "orders"), 1), join("f")) == ["ok", refused]


def test_a_group_with_many_slots_counts_as_several() -> None:
    coordinator = Coordinator({}, 0.0, limits=Limits(3))
    assert asked(coordinator, join("a", slots=129)) == ["ok"]
    assert asked(coordinator, join("b", slots=1)) == ["LIMIT_EXCEEDED"]
    again = Coordinator(coordinator.groups, 0.0, limits=Limits(4))  # as after a start
    assert asked(again, join("b", slots=65)) == ["LIMIT_EXCEEDED"]
    assert asked(again, join("b", slots=64)) == ["ok"]


def test_a_principal_does_not_take_the_groups_of_others() -> None:
    coordinator = Coordinator({}, 0.0, limits=Limits(10, 2))
    requests = [join("a", "ann"), join("b", "ann"), join("c", "ann"), join("d", "bob")]
    assert asked(coordinator, *requests) == ["ok", "ok", "LIMIT_EXCEEDED", "ok"]
    # A member of a group that another one has created costs nothing.
    assert asked(coordinator, Join(("d", "orders"), "n", "other", 10_000, None, 0, "ann")) == ["ok"]
    assert asked(coordinator, Seek(("e", "orders"), 1, principal="ann")) == ["LIMIT_EXCEEDED"]
    assert asked(coordinator, *map(join, "efghijk")).count("ok") == 7  # without ACL: no quota


def member(group: str, name: str, principal: str, token: str = "t") -> Join:
    return Join((group, "orders"), name, token, 10_000, None, 0, principal)


def test_a_principal_does_not_take_the_memberships_of_others() -> None:
    coordinator = Coordinator({}, 0.0, limits=Limits(members=5, members_per_principal=2))
    refused = "LIMIT_EXCEEDED"
    joins = [member("a", "1", "ann"), member("b", "1", "ann"), member("a", "2", "ann")]
    assert asked(coordinator, *joins) == ["ok", "ok", refused]
    # The same join again is no other member; bob has his own share.
    assert asked(coordinator, joins[0], member("a", "3", "bob")) == ["ok", "ok"]
    assert asked(coordinator, leave(coordinator, "a", "1")) == ["ok"]
    again = Coordinator(coordinator.groups, 0.0, limits=Limits(members=5, members_per_principal=2))
    for one in (coordinator, again):  # also after a start
        assert asked(one, member("a", "4", "ann"), member("a", "5", "ann")) == ["ok", refused]
    many = [member("c", str(number), "") for number in range(4)]
    assert asked(coordinator, *many) == ["ok", "ok", refused, refused]  # for all, without ACL, too


def test_a_member_that_begins_again_under_its_name_is_not_one_more() -> None:
    """It has stopped without leaving, and its session has not ended."""
    coordinator = Coordinator({}, 0.0, limits=Limits(members=3, members_per_principal=2))
    joins = [member("a", name, who) for name, who in (("1", "ann"), ("2", "ann"), ("3", "bob"))]
    assert asked(coordinator, *joins) == ["ok"] * 3
    again = [member("a", "1", "ann", token) for token in ("second", "third")]
    assert asked(coordinator, *again) == ["GROUP_FENCED", "ok"]
    # bob's member may become another one's, who has to have a share left for it.
    refused = "LIMIT_EXCEEDED"
    assert asked(coordinator, member("a", "3", "ann", "second")) == [refused]
    assert asked(coordinator, member("a", "3", "eve", "second")) == ["ok"]
    assert asked(coordinator, member("a", "4", "bob")) == [refused]


def test_members_that_are_gone_do_not_count() -> None:
    coordinator = Coordinator({}, 0.0, limits=Limits(members=1))
    for number in range(3):
        assert asked(coordinator, member("a", str(number), "ann")) == ["ok"]
        assert asked(coordinator, leave(coordinator, "a", str(number))) == ["ok"]
    assert asked(coordinator, member("a", "x", "ann")) == ["ok"]
    assert asked(coordinator, Remove(("a", "orders"))) == ["CONFLICT"]
    coordinator.landed(coordinator.begin(11.0), None, 11.0)  # its session has ended
    assert asked(coordinator, Remove(("a", "orders")), member("b", "x", "ann")) == ["ok", "ok"]


def test_many_members_do_not_keep_the_daemon_looking_at_their_sessions() -> None:
    """Each look is at all of them, and each member's beat is due at a time of its own."""
    coordinator = Coordinator({}, 0.0)
    names = [str(number) for number in range(1000)]
    joins = [member(group, name, "") for group in "abcd" for name in names]
    assert set(asked(coordinator, *joins)) == {"ok"}
    answered: list[str] = []
    for place, one in enumerate(joins):
        state = coordinator.groups[one.key]
        joined = state.members[one.member].joined
        beat = Beat(one.key, one.member, joined, state.generation, frozenset(range(64)), 1.0)
        coordinator.ask(beat, lambda *_: answered.append("told"), place / 4000)
        coordinator.wants_flight(place / 4000)
        coordinator.landed(coordinator.begin(place / 4000), None, place / 4000)
    answered.clear()
    looks = 0
    while (now := coordinator.quiet_until) < 2.5:
        looks += 1
        coordinator.wants_flight(now)
    assert len(answered) == 4000  # each one once, and not much later than it wanted
    assert looks < 250


def test_requests_of_large_groups_are_judged_by_and_by_in_their_order() -> None:
    """Each is a look at all slots and members, and the event loop waits for all that are judged at
    once. Whoever asks less of another group is not held up for longer than that."""
    coordinator = Coordinator({}, 0.0)
    assert asked(coordinator, join("large", slots=1024), join("small")) == ["ok", "ok"]
    order: list[int] = []
    for number in range(200):
        joined = coordinator.groups["large", "orders"].members["m"].joined
        beat = Beat(("large", "orders"), "m", joined, 1, frozenset())
        coordinator.ask(beat, lambda *_, number=number: order.append(number), 0.0)
    flights = []
    while coordinator.has_requests:
        flight = coordinator.begin(0.0)
        flights.append(len(flight.verdicts))
        coordinator.landed(flight, None, 0.0)
    assert order == [*range(200)]
    assert len(flights) > 3
    assert max(flights[:-1]) - min(flights[:-1]) <= 1
    flights.clear()
    for number in range(200):
        commit = Commit(("small", "orders"), "m", 0, 1, {0: number})
        coordinator.ask(commit, lambda *_: None, 0.0)
    coordinator.begin(0.0)
    assert not coordinator.has_requests


STORE_SECONDS = 0.02


def landed_times(coordinator: Coordinator, now: float) -> list[float]:
    """Judge and store all that waits. When each flight was durable."""
    times = []
    while coordinator.has_requests:
        flight = coordinator.begin(now)
        now += STORE_SECONDS
        coordinator.landed(flight, None, now)
        times.append(now)
    return times


def flood(coordinator: Coordinator, now: float) -> None:
    """A member of a group with the most slots commits each of them four times."""
    key = ("large", "orders")
    state = coordinator.groups[key]
    for number in range(4096):
        offsets = {number % 1024: number + 1}
        commit = Commit(key, "m", state.members["m"].joined, state.generation, offsets)
        coordinator.ask(commit, lambda *_: None, now)


def test_a_member_of_another_group_is_answered_while_one_asks_for_much() -> None:
    coordinator = Coordinator({}, 0.0)
    small = replace(join("small"), session_ms=200)
    assert asked(coordinator, join("large", slots=1024), small) == ["ok"] * 2
    flood(coordinator, 0.1)
    key = ("small", "orders")
    joined = coordinator.groups[key].members["m"].joined
    told: list[LiftlogError | None] = []
    beat = Beat(key, "m", joined, 1, frozenset(range(64)))
    coordinator.ask(beat, lambda _, error: told.append(error), 0.1)
    coordinator.landed(coordinator.begin(0.1), None, 0.1 + STORE_SECONDS)
    assert told == [None]
    assert len(landed_times(coordinator, 0.1 + STORE_SECONDS)) > 50


def test_a_member_whose_beat_waits_does_not_expire() -> None:
    """It came in time, and others of its group keep it waiting for longer than its session."""
    coordinator = Coordinator({}, 0.0)
    large = join("large", slots=1024)
    waits, silent, former = (
        replace(join("large"), session_ms=200, member=name)
        for name in ("waits", "silent", "former")
    )
    assert asked(coordinator, large, waits, silent, former) == ["ok"] * 4
    key = ("large", "orders")
    flood(coordinator, 0.1)
    state = coordinator.groups[key]
    told: list[str | None] = []
    for name, life in (("waits", 0), ("former", 1)):
        owned = frozenset(state.owned_by(name))
        beat = Beat(key, name, state.members[name].joined - life, state.generation, owned)
        coordinator.ask(beat, lambda _, error: told.append(error.name if error else None), 0.1)
    flight = coordinator.begin(0.25)
    coordinator.landed(flight, None, 0.25 + STORE_SECONDS)
    assert coordinator.groups[key].members.keys() == {"m", "waits"}, "the others were not heard"
    landed = landed_times(coordinator, 0.25 + STORE_SECONDS)[-1]
    assert landed > 1.0
    assert told == [None, "GROUP_FENCED"]
    assert coordinator.wants_flight(landed)
    coordinator.landed(coordinator.begin(landed), None, landed)
    assert coordinator.groups[key].members.keys() == {"m"}, "and it was not heard since"


def test_a_group_that_begins_counts_as_one_that_is_there() -> None:
    """The slots are those of the first request, and the others have to look at them, too."""
    counts = []
    for first in ([], [join("large", slots=1024)]):
        coordinator = Coordinator({}, 0.0)
        asked(coordinator, *first)
        joins = [replace(join("large"), member=f"m{number}") for number in range(200)]
        joins[0] = replace(joins[0], slots=1024)
        for one in joins:
            coordinator.ask(one, lambda *_: None, 0.0)
        flights = []
        while coordinator.has_requests:
            flight = coordinator.begin(0.0)
            flights.append(len(flight.verdicts))
            coordinator.landed(flight, None, 0.0)
        counts.append(flights)
    begins, is_there = counts
    assert len(begins) == len(is_there) > 3
    assert abs(begins[0] - is_there[0]) <= 1


@pytest.fixture
def broker(tmp_path: Any) -> Any:
    with orders_broker(tmp_path) as broker:
        serve_checkpoints(broker)
        yield broker


async def left_group(broker: LogBroker, name: str, offset: int) -> None:
    """A group that has read so far, and whose member has left."""
    groups = broker.checkpoints.groups
    joined = await groups.asked(join(name))
    assert joined is not None
    log = broker.stream("orders").log
    offsets = dict.fromkeys(range(64), offset)
    key = (name, "orders")
    await groups.asked(
        Commit(
            key, "m", joined.joined, joined.generation, offsets, log.incarnation, log.leader_epoch
        )
        if offset
        else Commit(key, "m", joined.joined, joined.generation, {})
    )
    await groups.asked(Leave(key, "m", joined.joined))


def names(broker: LogBroker) -> set[str]:
    return {group for group, _ in broker.checkpoints.groups.coordinator.groups}


async def test_a_group_begins_where_the_stream_has_been(broker: LogBroker) -> None:
    """A lag of nothing would hide that it skips all that is to come."""
    groups = broker.checkpoints.groups
    for start in (102, 2**62):
        with pytest.raises(OffsetOutOfRange, match=f"{start} is outside"):
            await groups.asked(replace(join("g"), start=start))
    assert names(broker) == set()
    assert await groups.asked(replace(join("g"), start=101)) is not None
    # A member of a group that exists begins where that is, whatever it asks for.
    await groups.asked(replace(join("g"), start=102))


async def test_a_group_that_is_removed_meanwhile_begins_where_the_stream_has_been(
    broker: LogBroker,
) -> None:
    """When the join arrives the group is still there, and when it is judged no more."""
    groups, key = broker.checkpoints.groups, ("g", "orders")
    first = await groups.asked(join("g"))
    assert first is not None
    *gone, again = await asyncio.gather(
        groups.asked(Leave(key, "m", first.joined)),
        groups.asked(Remove(key)),
        groups.asked(replace(join("g"), start=2**62)),
        return_exceptions=True,
    )
    assert gone == [None, None]
    assert isinstance(again, OffsetOutOfRange)
    assert names(broker) == set()


async def test_a_group_without_slots_is_none(broker: LogBroker) -> None:
    with pytest.raises(InvalidArgument, match="1 to 1024 slots, not 0"):
        await broker.checkpoints.groups.asked(join("g", slots=0))


async def test_groups_without_members_expire_if_there_was_something_to_read(
    broker: LogBroker,
) -> None:
    stream = broker.stream("orders")  # with 100 records
    await left_group(broker, "behind", 50)
    await left_group(broker, "new", 0)
    await left_group(broker, "done", 101)
    await broker.checkpoints.groups.asked(join("busy"))
    now = time.time_ns()
    assert await expire(broker.checkpoints, broker.stream, now - 3600 * SECOND) == 0
    later = now + 3600 * SECOND
    stream.append([b"late"], timestamp_ns=later + SECOND)
    assert await expire(broker.checkpoints, broker.stream, later) == 2
    assert names(broker) == {"done", "busy"}


async def test_groups_of_a_stream_that_is_gone_expire_by_age(broker: LogBroker) -> None:
    await left_group(broker, "done", 101)
    await left_group(broker, "new", 0)

    def gone(name: str) -> Any:
        raise StreamNotFound(name)

    assert await expire(broker.checkpoints, gone, time.time_ns() - 3600 * SECOND) == 0
    assert await expire(broker.checkpoints, gone, time.time_ns() + SECOND) == 2
    assert names(broker) == set()


async def test_a_group_that_is_used_again_meanwhile_stays(broker: LogBroker) -> None:
    await left_group(broker, "g", 50)
    groups = broker.checkpoints.groups
    state = groups.coordinator.groups["g", "orders"]
    await groups.asked(join("g"))
    await groups.asked(Remove(("g", "orders"), state))
    assert names(broker) == {"g"}
    with pytest.raises(LiftlogError, match="has members"):
        await groups.asked(Remove(("g", "orders")))


async def test_what_a_deposed_leader_cannot_say_is_to_be_asked_again(broker: LogBroker) -> None:
    """Whether it was stored is undecided, and each request of a member may be repeated: clients do
    that by themselves."""
    offsets = serve_checkpoints(broker)
    offsets.error = RequestTimeout("another node begins to lead")
    with pytest.raises(NotReady, match="another node"):
        await broker.checkpoints.groups.asked(join("g"))
    offsets.error = None
    assert await broker.checkpoints.groups.asked(join("g")) is not None


@pytest.mark.parametrize("refusal", [NOT_LEADING, MOVING])
def test_records_for_a_stream_that_moves_are_to_be_stored_again(refusal: RefusalReason) -> None:
    told: list[LiftlogError | None] = []
    OwnRecords("_offsets").refused(refusal, told.append)
    (error,) = told
    assert isinstance(error, NotReady)
    assert error.retriable
