"""How long other nodes were silent, and who is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from liftlog.server.replication.hearing import LOOK_SECONDS, Hearing


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Room:
    """A hearing that looks as often as it should, and those that one of its watches was told."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.hearing = Hearing(self.clock)
        self.told: list[str] = []
        self.hearing.watch(self.told.append, silent=3.0, gone=1.0)

    def live(self, seconds: float, *heard: str) -> None:
        """So much time passes, and these nodes are heard all the time."""
        for _ in range(round(seconds / LOOK_SECONDS)):
            self.clock.now += LOOK_SECONDS
            for node in heard:
                self.hearing.heard(node)
            self.hearing.look()


@pytest.fixture
def room() -> Iterator[Room]:
    room = Room()
    room.hearing.connected("b")
    room.hearing.connected("c")
    return room


def test_a_node_that_is_silent_is_told_once(room: Room) -> None:
    room.live(2.9, "c")
    assert room.told == []
    room.live(0.3, "c")
    assert room.told == ["b"]
    assert room.hearing.silent_seconds("b") == pytest.approx(3.2, abs=LOOK_SECONDS)
    assert room.hearing.silent_seconds("c") < 2 * LOOK_SECONDS
    room.live(20, "c")
    assert room.told == ["b"]


def test_after_it_was_heard_it_is_told_again(room: Room) -> None:
    room.live(4)
    room.live(1, "b", "c")
    assert sorted(room.told) == ["b", "c"]
    room.live(4, "b")
    assert room.told[2:] == ["c"]


def test_each_watch_has_its_own_patience(room: Room) -> None:
    early: list[str] = []
    room.hearing.watch(early.append, silent=1.0)
    room.live(2, "c")
    assert (early, room.told) == (["b"], [])


def test_a_node_without_a_connection_is_told_earlier(room: Room) -> None:
    room.live(0.5, "b", "c")
    room.hearing.connected("b")  # the other way round
    room.hearing.disconnected("b")
    room.live(1.5, "c")
    assert room.told == []
    assert room.hearing.gone_seconds("b") == 0.0
    room.hearing.disconnected("b")
    room.live(0.9, "c")
    assert room.told == []
    room.live(0.3, "c")
    assert room.told == ["b"]
    assert room.hearing.gone_seconds("b") == pytest.approx(1.2, abs=LOOK_SECONDS)
    room.hearing.connected("b")
    assert (room.hearing.gone_seconds("b"), room.hearing.silent_seconds("b")) == (0.0, 0.0)


def test_a_node_refuses_until_it_has_a_connection(room: Room) -> None:
    room.hearing.expect("d")
    room.hearing.refused("d")
    assert not room.hearing.is_refusing("d"), "it may be starting"
    room.hearing.connected("d")
    room.hearing.refused("d")  # it does not listen yet, and has connected by itself
    assert not room.hearing.is_refusing("d")
    room.hearing.disconnected("d")
    assert not room.hearing.is_refusing("d")
    room.hearing.refused("d")
    assert room.hearing.is_refusing("d")
    room.hearing.connected("d")
    assert not room.hearing.is_refusing("d")


def test_a_node_whose_process_has_ended_is_told_earlier_still(room: Room) -> None:
    early: list[str] = []
    room.hearing.watch(early.append, silent=3.0, gone=1.0, refusing=0.3)
    room.hearing.disconnected("b")
    room.hearing.disconnected("c")
    room.hearing.refused("b")
    room.live(0.2)
    assert (early, room.told) == ([], [])
    room.live(0.2)
    assert (early, room.told) == (["b"], [])
    room.live(0.8)
    assert (early, sorted(room.told)) == (["b", "c"], ["b", "c"])


def test_a_node_that_was_never_there_is_silent_since_it_is_known(room: Room) -> None:
    assert room.hearing.silent_seconds("d") == 0.0
    room.hearing.expect("d")
    room.live(0.8, "b", "c")
    room.hearing.expect("d")
    room.live(0.4, "b", "c")
    assert room.told == ["d"]
    assert room.hearing.silent_seconds("d") == pytest.approx(1.2, abs=LOOK_SECONDS)


def test_the_time_that_this_process_did_not_run_is_no_silence(room: Room) -> None:
    room.live(0.5, "b", "c")
    room.clock.now += 60
    assert room.hearing.silent_seconds("b") < 0.5, "also for those who ask before the next look"
    room.hearing.look()
    assert room.hearing.silent_seconds("b") < 0.5
    assert room.told == []
    room.live(2.9, "c")
    assert room.told == ["b"], "what counted before still counts"


async def test_it_looks_by_itself() -> None:
    hearing = Hearing(asyncio.get_running_loop().time)
    told = asyncio.Event()
    hearing.watch(lambda node: told.set(), silent=0.05)
    hearing.expect("b")
    running = asyncio.create_task(hearing.run())
    async with asyncio.timeout(30):
        await told.wait()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
