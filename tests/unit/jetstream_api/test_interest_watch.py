"""A pull is served when its inbox is reported, however soon that follows another report; a change
of interest wakes only those whom it affects."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterable

from liftlog.server.jetstream_api.consumers.leaf import InterestChange
from liftlog.server.jetstream_api.workers.interest_watch import InterestWatch

CONNECTION = InterestChange(set(), set(), is_connection=True)


class Someone:
    is_closed = False

    def __init__(self, *subjects: bytes) -> None:
        self.woken = self.lost = 0
        self._subjects = subjects

    def subjects(self) -> tuple[bytes, ...]:
        return self._subjects

    def wake(self) -> None:
        self.woken += 1

    def subscriber_lost(self) -> None:
        self.lost += 1


class World:
    """Subjects with subscribers, and the consumers of the watch."""

    def __init__(self, *consumers: Someone) -> None:
        self._subjects: set[bytes] = set()
        self.looks = 0
        self._consumers = consumers
        self.watch = InterestWatch(self._all, self._subjects.__contains__, lambda: 1)

    def _all(self) -> Iterable[Someone]:
        self.looks += 1
        return self._consumers

    def add(self, *subjects: bytes, pattern: bytes = b"") -> None:
        self._subjects.update(subjects)
        self.watch.changed(InterestChange({pattern} if pattern else set(subjects), set()))

    def remove(self, *subjects: bytes, pattern: bytes = b"") -> None:
        self._subjects.difference_update(subjects)
        self.watch.changed(InterestChange(set(), {pattern} if pattern else set(subjects)))

    async def look(self, looks: int = 1) -> None:
        """Return after this number of looks in all, of fewer than 500 consumers each."""
        async with asyncio.timeout(20):
            while self.looks < looks:
                await asyncio.sleep(0.005)


async def test_an_expected_inbox_wakes_its_consumers_at_once() -> None:
    one, other, third = Someone(), Someone(), Someone()
    world = World()
    world.add(b"_INBOX.client")  # another client has just connected
    assert not world.watch.has_now(b"_INBOX.one", one)
    assert not world.watch.has_now(b"_INBOX.one", third), "two pulls of one inbox"
    assert not world.watch.has_now(b"_INBOX.other", other)
    world.add(b"_INBOX.one")
    assert (one.woken, other.woken, third.woken) == (1, 0, 1)
    world.add(b"_INBOX.one")
    assert one.woken == 1, "only once"
    assert world.watch.has_now(b"_INBOX.one", one)
    world.add(b"_INBOX.other", pattern=b"_INBOX.*")
    assert (one.woken, other.woken) == (1, 1)
    world.watch.close()


async def test_only_those_without_a_subscriber_are_woken() -> None:
    pull, push, bystander = Someone(b"_INBOX.a.1", b"_INBOX.b.1"), Someone(b"out"), Someone(b"c")
    world = World(pull, push, bystander)
    world.add(b"_INBOX.a.1", b"_INBOX.b.1", b"out")
    world.remove(b"_INBOX.b.1", b"x", pattern=b"_INBOX.b.*")
    await world.look()
    assert (pull.lost, push.lost, bystander.lost) == (1, 0, 0)
    world.remove(b"out")
    world.add(b"out")
    await world.look(2)
    assert (pull.lost, push.lost, bystander.lost) == (1, 0, 0), "it has a subscriber again"
    world.remove(b"out")
    world.remove(b"_INBOX.a.1", pattern=b">")
    await world.look(3)
    assert (pull.lost, push.lost, bystander.lost) == (2, 1, 1), "one look for both"
    world.watch.close()


async def test_many_lost_subjects_are_not_mistaken() -> None:
    pull, bystander = Someone(b"_INBOX.a"), Someone(b"_INBOX.c")
    world = World(bystander, pull)
    world.add(b"_INBOX.a", b"_INBOX.c")
    world.remove(b"_INBOX.a", *[b"_INBOX.x%d" % number for number in range(1000)])
    await world.look()
    assert (pull.lost, bystander.lost) == (1, 0)
    world.watch.close()


async def test_a_change_during_a_look_is_not_missed() -> None:
    some = [Someone(b"_INBOX.%d" % number) for number in range(1200)]
    world = World(*some)
    inboxes = [one.subjects()[0] for one in some]
    world.add(*inboxes)
    world.remove(inboxes[1199], inboxes[0])
    await world.look()
    assert (some[0].lost, some[1199].lost) == (1, 0), "the first part"
    world.remove(inboxes[1])
    async with asyncio.timeout(20):
        while not (some[1].lost and some[1199].lost):
            await asyncio.sleep(0.005)
    assert (some[0].lost, some[2].lost) == (1, 0)
    world.watch.close()


async def test_more_expected_inboxes_than_are_kept() -> None:
    late = Someone(b"_INBOX.late")
    world = World(late)
    for number in range(5000):
        assert not world.watch.has_now(b"_INBOX.%d" % number, Someone())
    assert not world.watch.has_now(b"_INBOX.late", late)
    world.add(b"_INBOX.late")
    await world.look()
    assert late.woken + late.lost == 1
    world.watch.close()


async def test_all_consumers_are_woken_in_parts_with_a_connection() -> None:
    some = [Someone(b"a") for _ in range(500)]
    parts: list[int] = []

    def count() -> int:
        woken = sum(one.lost for one in some)
        if woken != sum(parts):
            parts.append(woken - sum(parts))
        return woken

    world = World(*some)
    world.add(b"a")
    world.watch.changed(CONNECTION)
    async with asyncio.timeout(20):
        while count() < 250:
            await asyncio.sleep(0)
        world.watch.changed(CONNECTION)
        while count() < 1000:
            await asyncio.sleep(0)
    assert max(parts) <= 20, parts
    assert [one.lost for one in some] == [2] * 500, "those woken before the change once more"
    world.watch.close()


async def test_consumers_that_have_ended_are_not_kept() -> None:
    ended, other = Someone(), Someone()
    world = World()
    for one in (ended, other):
        assert not world.watch.has_now(b"out", one)
        assert not world.watch.has_now(b"out.%d" % id(one), one)
    ended.is_closed = True
    gone = weakref.ref(ended)
    world.watch.forget_closed()
    del ended, one
    assert gone() is None
    world.add(b"out")
    assert other.woken == 1
    world.watch.close()
