"""Requests compute one at a time, and whoever sends many delays only itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from support.clients.raw_pull import RawPull
from support.clients.request_examples import example_of
from support.daemons.pull_broker import LogBroker, pull_server

from liftlog.protocol.consumer_states import FetchConsumers
from liftlog.protocol.messages import REQUESTS
from liftlog.protocol.replication import Copies, Ends, Forward, Peer, Replicate, Resign, Suspect
from liftlog.protocol.workers import AckWork, PullWork, Rest
from liftlog.server.reading.turns import Asker, Turns
from liftlog.server.requests.rights import HANDLERS, STARTERS

COSTLY_SECONDS = 0.0012
"""More than all together may take in one turn of the loop."""


class Bench:
    def __init__(self) -> None:
        self.turns = Turns()
        self.order: list[str] = []
        self.loop_turns: list[int] = []
        self._loop_turn = 0

    async def computes(self, label: str) -> str:
        self.order.append(label)
        self.loop_turns.append(self._loop_turn)
        ends = time.thread_time() + COSTLY_SECONDS
        while time.thread_time() < ends:
            pass
        return label

    def ask(
        self, label: str, party: str, member: int = 0, work: Coroutine[Any, Any, str] | None = None
    ) -> asyncio.Task[str]:
        if work is None:
            work = self.computes(label)
        return asyncio.create_task(self.turns.run(Asker(party, member), work))

    async def all(self, *tasks: asyncio.Task[str]) -> list[str]:
        async with asyncio.timeout(20):
            while not all(task.done() for task in tasks):
                self._loop_turn += 1
                await asyncio.sleep(0)
        return [task.result() for task in tasks]


async def test_one_in_each_turn_of_the_loop() -> None:
    bench = Bench()
    labels = [f"r{n}" for n in range(20)]
    assert await bench.all(*[bench.ask(one, "a") for one in labels]) == labels
    assert len(set(bench.loop_turns)) == len(labels)


async def test_cheap_ones_begin_at_once() -> None:
    turns, begun = Turns(), 0

    async def cheap() -> None:
        nonlocal begun
        begun += 1

    for _ in range(5):
        await turns.run(Asker("a"), cheap())
    tasks = [asyncio.create_task(turns.run(Asker("a"), cheap())) for _ in range(5)]
    await asyncio.sleep(0)
    assert begun == 10
    await asyncio.gather(*tasks)


async def test_parties_take_turns_and_their_members_too() -> None:
    bench = Bench()
    greedy = [bench.ask(f"g{n % 3}", "greedy", n % 3) for n in range(30)]
    modest = [bench.ask("modest", "modest") for _ in range(2)]
    await bench.all(*greedy, *modest)
    # The first one found the turn free.
    assert bench.order[:7] == ["g0", "g1", "modest", "g2", "modest", "g0", "g1"]


async def test_the_party_may_become_known_later() -> None:
    bench, looked_up = Bench(), asyncio.Event()
    asker = Asker("somebody")

    async def logs_in() -> str:
        await bench.computes("login")
        await looked_up.wait()
        asker.party = "shop"
        await asyncio.sleep(0)
        return await bench.computes("request")

    async def answers() -> str:
        looked_up.set()
        return await bench.computes("answer")

    one = asyncio.create_task(bench.turns.run(asker, logs_in()))
    await asyncio.sleep(0)
    others = [bench.ask("other", "somebody", work=answers())]
    others += [bench.ask("other", "somebody") for _ in range(30)]
    await bench.all(one, *others)
    assert bench.order.index("request") < 6


async def test_a_sender_becomes_known_and_waits_among_its_own() -> None:
    """A flood from many connections has many parties until each has shown its token."""
    bench = Bench()

    async def logs_in(asker: Asker) -> str:
        asker.party = "greedy"
        await asyncio.sleep(0)
        return await bench.computes("greedy")

    askers = [Asker(n) for n in range(20)]
    greedy = [asyncio.create_task(bench.turns.run(one, logs_in(one))) for one in askers]
    await asyncio.sleep(0)
    modest = [bench.ask("modest", "modest") for _ in range(3)]
    await bench.all(*greedy, *modest)
    assert bench.order[:7].count("modest") == 3


async def test_after_a_long_step_others_have_the_loop_to_themselves() -> None:
    turns, order = Turns(), []

    async def long() -> None:
        ends = time.thread_time() + 0.05
        while time.thread_time() < ends:
            pass
        order.append("long")

    async def in_many_turns() -> None:
        for _ in range(20):
            await asyncio.sleep(0)
            order.append("short")

    began = time.monotonic()
    greedy = [asyncio.create_task(turns.run(Asker("greedy", n), long())) for n in range(3)]
    await asyncio.sleep(0)
    await turns.run(Asker("modest"), in_many_turns())
    assert order == ["long", *["short"] * 20]
    await asyncio.gather(*greedy)
    assert order[-2:] == ["long"] * 2
    assert time.monotonic() - began > 0.24, "two rests, each as long as the step before it"
    assert not turns._resting or turns._timer is not None


async def test_many_short_steps_leave_time_to_a_scan() -> None:
    """A scan in a thread gets the interpreter lock while the loop sleeps."""
    turns = Turns(scan_runs=lambda: True)

    async def short() -> None:
        ends = time.thread_time() + 0.0005
        while time.thread_time() < ends:
            pass

    began, before = time.monotonic(), time.thread_time()
    await asyncio.gather(*[turns.run(Asker("greedy", n), short()) for n in range(100)])
    slept = time.monotonic() - began - (time.thread_time() - before)
    assert slept > 0.07, "a rest after each 3 ms, twice as long"


async def test_others_do_not_rest_because_a_party_uses_the_loop_beside_a_scan() -> None:
    turns, order = Turns(scan_runs=lambda: True), list[str]()

    async def step(name: str, seconds: float) -> None:
        ends = time.thread_time() + seconds
        while time.thread_time() < ends:
            pass
        order.append(name)

    for number in range(4):
        await turns.run(Asker("greedy", number), step("greedy", 0.001))
    late = asyncio.create_task(turns.run(Asker("greedy"), step("late", 0)))
    await turns.run(Asker("modest"), step("modest", 0))
    await late
    assert order == ["greedy"] * 4 + ["modest", "late"]


@pytest.mark.parametrize(
    ("pause", "order"),
    [
        (lambda: asyncio.sleep(0), ["b", "first", "b again", "second", "a"]),
        (lambda: asyncio.sleep(0.002), ["b", "first", "b again", "a", "second"]),
    ],
    ids=["pauses", "waits"],
)
async def test_who_does_not_compute_gives_the_turn_back(
    pause: Callable[[], Awaitable[None]], order: list[str]
) -> None:
    """Others of the same party begin only if it waits for something."""
    bench = Bench()

    async def in_two_steps() -> str:
        await bench.computes("first")
        await pause()
        return await bench.computes("second")

    tasks = [bench.ask("b", "b"), bench.ask("", "a", work=in_two_steps())]
    tasks += [bench.ask("a", "a"), bench.ask("b again", "b")]
    await bench.all(*tasks)
    assert bench.order == order


async def test_one_long_answer_of_a_party_at_a_time() -> None:
    """A thousand that grow side by side would take as much more memory."""
    bench, growing, most = Bench(), 0, 0

    async def long() -> str:
        nonlocal growing, most
        growing += 1
        most = max(most, growing)
        for _ in range(5):
            await bench.computes("piece")
            await asyncio.sleep(0)
        growing -= 1
        return ""

    await bench.all(*[bench.ask("", "a", n, work=long()) for n in range(10)])
    assert most == 1


async def test_errors_and_timeouts_are_those_of_the_request() -> None:
    turns = Turns()

    async def fails() -> None:
        raise LookupError("no")

    async def gives_up() -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.get_running_loop().create_future()
        except TimeoutError:
            return "too long"
        return "never"

    with pytest.raises(LookupError):
        await turns.run(Asker("a"), fails())
    assert await turns.run(Asker("a"), gives_up()) == "too long"
    assert await turns.run(Asker("a"), Bench().computes("goes on")) == "goes on"


@pytest.mark.parametrize("after", range(1, 6))
async def test_who_is_cancelled_takes_no_turn_from_others(after: int) -> None:
    """At each of its awaits: before its turn, when that was just given, while it waits."""
    bench = Bench()

    async def waits() -> str:
        await bench.computes("cancelled")
        await asyncio.sleep(0)
        await asyncio.get_running_loop().create_future()
        return "never"

    first = bench.ask("first", "a")
    given_up = bench.ask("", "b", work=waits())
    others = [bench.ask("other", "c") for _ in range(3)]
    for _ in range(after):
        await asyncio.sleep(0)
    given_up.cancel()
    assert await bench.all(first, *others) == ["first", *["other"] * 3]
    with pytest.raises(asyncio.CancelledError):
        await given_up
    begun = bench.turns.given
    assert await bench.all(bench.ask("later", "d")) == ["later"]
    assert bench.turns.given == begun + 1, "no other one had waited"


# --- which requests ---

WITHOUT = {
    "ping": "costs nothing",
    "cancel": "likewise",
    "fetch": "answered in pieces, within `read_share` and in the threads of all scans",
    **{
        kind.KIND: "of another node, which is trusted"
        for kind in (Peer, Replicate, FetchConsumers, Suspect, Forward, Copies, Ends, Resign)
    },
    **{kind.KIND: "begun by the input, and judged many at a time" for kind in STARTERS},
    **{
        kind.KIND: "handed to a consumer with acks, and consumers take turns of their own"
        for kind in (PullWork, Rest, AckWork)
    },
}


def test_which_requests_take_no_turn() -> None:
    """A kind that is added later has a handler, and so takes its turn (below)."""
    assert set(WITHOUT) == set(REQUESTS) - {kind.KIND for kind in HANDLERS}


@pytest.mark.parametrize("kind", sorted(kind.KIND for kind in HANDLERS))
async def test_each_other_kind_takes_its_turn(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is begun while another client's request has the turn."""
    begun: list[str] = []
    of_kind = REQUESTS[kind]

    async def notes(*_: object) -> None:
        begun.append(kind)
        raise LookupError

    monkeypatch.setitem(HANDLERS, of_kind, HANDLERS[of_kind]._replace(perform=notes))
    broker = LogBroker(tmp_path)
    try:
        async with pull_server(broker) as (server, address):
            async with await RawPull.connect(address) as peer:
                turns = server.services.turns
                await turns._queue(Asker("another"))
                given = turns.given
                peer.send(example_of(of_kind))
                async with asyncio.timeout(10):
                    while turns.given == given:
                        await asyncio.sleep(0)
                assert begun == []
                turns._give_back()
                assert (await peer.receive())["k"] == "error"
                assert begun == [kind]
    finally:
        broker.close()
