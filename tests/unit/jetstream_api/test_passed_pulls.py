"""Pulls that were passed on to a leader that does not read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from liftlog.errors import NotLeader
from liftlog.server.jetstream_api.passed_pulls import PassedPulls
from liftlog.server.jetstream_api.waiting import Message


class Site:
    """The nodes a, b and c. Messages between them arrive at once, unless they are frozen."""

    def __init__(self) -> None:
        self.leader: tuple[str, int] | None = ("b", 1)
        self.frozen: set[str] = set()
        self.older: set[str] = set()
        self.sent: list[bytes] = []
        self.again: list[Message] = []
        self.nodes = {name: self._node(name) for name in "abc"}

    def _node(self, name: str) -> PassedPulls:
        def may_answer(stream: str) -> bool:
            return stream == "s" and self.leader is not None and self.leader[0] == name

        return PassedPulls(
            name,
            self._prefix_of,
            self._leader_of,
            may_answer,
            lambda node: node not in self.older,
            self._send,
            self.again.append,
        )

    def _prefix_of(self, node: str) -> bytes:
        if node not in ("a", "b", "c"):
            raise NotLeader("no such node")
        return f"x.{node}.".encode()

    def _leader_of(self, stream: str) -> tuple[str, int]:
        if self.leader is None:
            raise NotLeader("no node leads it")
        return self.leader

    def _send(self, subject: bytes) -> None:
        self.sent.append(subject)
        node = subject.split(b".")[1].decode()
        if node not in self.frozen:
            asyncio.get_running_loop().call_soon(self.nodes[node].takes, subject)

    async def close(self) -> None:
        for node in self.nodes.values():
            await node.close()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    yield site
    await site.close()


def pull(reply: bytes, age: float = 0.0) -> Message:
    return b"$JS.API.CONSUMER.MSG.NEXT.s.c", reply, b"", time.monotonic() - age


async def until_again(site: Site, count: int) -> None:
    async with asyncio.timeout(20):
        while len(site.again) < count:
            await asyncio.sleep(0.01)


async def test_pulls_of_a_frozen_leader_are_passed_on_to_the_next_one(site: Site) -> None:
    site.frozen.add("b")
    pulls = [pull(b"1"), pull(b"2")]
    site.nodes["a"].note("s", pulls[0])
    await asyncio.sleep(0.6)
    site.nodes["a"].note("s", pulls[1])
    site.leader = None
    await asyncio.sleep(0.2)
    assert not site.again, "no node leads"
    site.leader = ("c", 2)
    await until_again(site, 2)
    assert site.again == pulls
    assert site.nodes["a"].was_repeated(pulls[0])
    assert not site.nodes["a"].was_repeated(pulls[0])


async def test_pulls_that_a_leader_has_read_stay_there(site: Site) -> None:
    """It may have served them."""
    for number in range(3):
        site.nodes["a"].note("s", pull(b"%d" % number))
        await asyncio.sleep(0.05)
    assert len(site.sent) == 6, "questions and answers"
    await asyncio.sleep(0.6)
    site.leader = ("c", 2)
    await asyncio.sleep(0.3)
    assert not site.again
    assert len(site.sent) == 6, "nothing is asked without pulls"


async def test_a_leader_in_another_epoch_may_have_lost_the_pulls(site: Site) -> None:
    site.frozen.add("b")
    lost = pull(b"1")
    site.nodes["a"].note("s", lost)
    await asyncio.sleep(0.6)
    site.leader = ("b", 2)
    site.nodes["a"].note("s", pull(b"2"))
    await until_again(site, 1)
    assert site.again == [lost]


async def test_a_leader_that_answers_late_or_was_replaced_at_once(site: Site) -> None:
    """It may have read the pulls."""
    site.frozen.add("b")
    site.nodes["a"].note("s", pull(b"1"))
    await asyncio.sleep(0.05)
    site.leader = ("c", 2)
    await asyncio.sleep(0.3)
    assert not site.again
    site.frozen.add("c")
    site.nodes["a"].note("s", pull(b"2"))
    await asyncio.sleep(0.7)
    for subject in [one for one in site.sent if one.startswith(b"x.c.PULLS")]:
        site.nodes["c"].takes(subject)  # it is not frozen any more
    await asyncio.sleep(0.1)
    site.leader = ("b", 3)
    await asyncio.sleep(0.3)
    assert not site.again


async def test_only_so_many_pulls_are_kept_and_no_old_ones(site: Site) -> None:
    site.frozen.add("b")
    site.nodes["a"].note("s", pull(b"old", age=40.0))
    for number in range(2000):
        site.nodes["a"].note("s", pull(b"%d" % number))
    await asyncio.sleep(0.6)
    site.leader = ("c", 2)
    await until_again(site, 999)
    await asyncio.sleep(0.2)
    assert len(site.again) == 999


async def test_subjects_of_others_are_left_alone(site: Site) -> None:
    node = site.nodes["b"]
    assert not node.takes(b"$JS.API.INFO")
    assert not node.takes(b"x.b.STREAM.INFO.s")
    assert node.takes(b"x.b.PULLS.1.somebody.s")
    assert node.takes(b"x.b.PULLS.1")
    assert node.takes(b"x.b.PULLS.1.a.other")
    assert node.takes(b"x.b.TAKEN.1")
    assert site.sent == []


async def test_a_leader_of_an_older_version_is_not_asked(site: Site) -> None:
    """It would never answer, and may have served the pulls."""
    site.frozen.add("b")
    site.older.add("b")
    site.nodes["a"].note("s", pull(b"1"))
    await asyncio.sleep(0.4)
    assert not site.sent
    site.leader = ("c", 2)
    site.nodes["a"].note("s", pull(b"2"))
    await asyncio.sleep(0.3)
    assert not site.again
