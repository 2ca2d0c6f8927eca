"""Several streams commit in rounds and alone, and every operation may fail."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from collections.abc import Callable
from typing import Any

import pytest
from support.disks.logs import read_all
from support.disks.simfs import Keep
from support.rounds import seeds
from support.worlds.round_streams import RoundStreams, fault

from liftlog.server.commits import rounds

STEPS = 120
KEEPS: list[Keep] = ["none", "some", "all"]


class Driver:
    """Makes random steps on a few streams. During a sync, the event loop continues."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rng = rng = random.Random(seed)
        monkeypatch.setattr(rounds, "STALLED_SECONDS", rng.choice([0.0, 0.05]))
        self.world = RoundStreams(
            rng.randint(2, 6),
            followers=["s1", "s3"] if seed % 2 else [],
            segment={"max_bytes": rng.choice([1024, 8192, 1 << 20])},
            compression=rng.choice(["none", "lz4"]),
        )
        self.world.intake.rounds.pause_seconds = rng.choice([0.0, 0.003, 60.0])
        self.world.intake.rounds.most_parts = rng.choice([2, 64])
        self.names = [*self.world.hosts]
        self.gone: set[str] = set()
        """Streams that have failed or no longer lead."""
        self.exclusive: list[asyncio.Future[object]] = []
        self.ran: list[int] = []
        self.told: list[list[object]] = []
        self.loop_errors: list[dict[str, Any]] = []
        self.depth = 0
        for host in self.world.hosts.values():
            self._watch(host.log, monkeypatch)

    def _watch(self, log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Check that each log has one writer at a time. While it syncs, the loop does other
        work."""
        busy: list[str] = []

        def alone(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def watched(*arguments: Any) -> Any:
                assert not busy, f"{name} during {busy}"
                busy.append(name)
                try:
                    if name == "sync":
                        self._meanwhile()
                    return call(*arguments)
                finally:
                    busy.pop()

            return watched

        for name in ("append", "sync"):
            monkeypatch.setattr(log, name, alone(name, getattr(log, name)))

    def _meanwhile(self) -> None:
        if self.depth or not self.world.pool.is_working:
            return  # the event loop itself syncs
        self.depth += 1
        for _ in range(self.rng.randint(0, 2)):
            steps = [self.publish, self.confirm, self.exclusively, self.own, self.chunk, self.look]
            self.rng.choice(steps)()
        self.depth -= 1

    # --- steps ---

    def some(self) -> list[str]:
        return self.rng.sample(self.names, self.rng.randint(1, len(self.names)))

    def publish(self) -> None:
        for name in self.some():
            size = self.rng.choice([0, 10, 300])
            self.world.publish(name, count=self.rng.randint(1, 5), size=size, chunk=False)
        if self.rng.random() < 0.7:
            self.chunk()

    def chunk(self) -> None:
        self.world.intake.chunk_ended()

    def own(self) -> None:
        told: list[object] = []
        self.told.append(told)
        host = self.world.hosts[self.rng.choice(self.names)]
        host.store([b"in"], [None], [b"own %d" % len(self.told)], told.append)

    def look(self) -> None:
        """Look as the timer does, at any moment."""
        for timed in self._out():
            self.world.intake.rounds.look(timed)

    def _out(self) -> list[rounds.Round]:
        found = {
            id(call.__self__): call.__self__
            for call in self.world.pool.work
            if isinstance(getattr(call, "__self__", None), rounds.Round)
        }
        return [*found.values()]

    def work(self) -> None:
        self.world.pool.step()

    def confirm(self, at_least: int = 0) -> None:
        for name, gate in self.world.gates.items():
            if not gate.lead_ended:
                offset = self.rng.randint(gate.high_watermark, gate.durable_end)
                self.world.hosts[name].commit_up_to(gate.confirm(max(offset, at_least)))

    def exclusively(self) -> None:
        host = self.world.hosts[self.rng.choice(self.names)]
        number = len(self.exclusive)

        def call() -> None:
            self.ran.append(number)
            if self.rng.random() < 0.5:
                host.log.writer.roll()

        future = host.run_exclusive(call)
        self.exclusive.append(future)
        if self.rng.random() < 0.2:
            future.cancel()

    def break_something(self) -> None:
        name = self.rng.choice(self.names)
        operation = self.rng.choice(["write", "fsync", "truncate"])
        error = self.rng.choice([errno.EIO, errno.ENOSPC])
        self.world.sim.faults.append(fault(name, operation, error))

    def end_lead(self) -> None:
        name = self.rng.choice(self.names)
        if name in self.world.gates and name not in self.gone:
            self.world.hosts[name].step_down("the test said so")

    def change_pace(self) -> None:
        self.world.intake.inline.max_messages = self.rng.choice([0, 64, 64, 64])

    async def tick(self) -> None:
        await asyncio.sleep(self.rng.choice([0, 0, 0.001]))

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.loop_errors.append(context))
        self.world.publish()
        assert self.world.intake.rounds.begun > 0
        steps: list[tuple[Any, int]] = [
            (self.publish, 30),
            (self.chunk, 10),
            (self.work, 30),
            (self.tick, 40),
            (self.confirm, 15),
            (self.own, 4),
            (self.exclusively, 4),
            (self.break_something, 2),
            (self.end_lead, 1),
            (self.change_pace, 3),
            (self.look, 10),
        ]
        calls, weights = [step for step, _ in steps], [weight for _, weight in steps]
        for step in self.rng.choices(calls, weights, k=STEPS):
            found = step()
            if found is not None:
                await found
            self.check()

    # --- what must hold ---

    def check(self) -> None:
        world = self.world
        for name, host in world.hosts.items():
            if host.failure or (name in world.gates and world.gates[name].lead_ended):
                self.gone.add(name)
            acked = max(world.acked(name), default=0)
            assert acked < host.log.durable_end_offset, "an ack means synced"
            assert acked < host.log.high_watermark

    async def finish(self, how: str, seed: int) -> None:
        world = self.world
        if how == "close":
            for host in world.hosts.values():
                host.close()
        for _ in range(60):
            await world.work()
            await asyncio.sleep(0.001)
            self.confirm(at_least=1 << 62)
            if how != "close":
                for host in world.hosts.values():
                    host.kick()
        self.check()
        for name, host in world.hosts.items():
            assert not host.turns.is_taken
            if how == "close" or name in self.gone:
                continue
            assert host.sequencer.unanswered_messages == 0, name
            own = [number for number, (one, _) in enumerate(world.payloads) if one == name]
            assert -1 not in world.codes(own), f"{name} is left without an answer"
        if how == "power cut":
            image = world.sim.power_cut(self.rng.choice(KEEPS), seed)
            for name, log in world.recovered(image, "boot-2").items():
                assert world.acked(name).items() <= read_all(log).items(), name
        for name, host in world.hosts.items():
            host.log.commit_up_to(host.log.durable_end_offset)
            found = read_all(host.log)
            assert world.acked(name).items() <= found.items()
            if name not in self.gone:
                assert world.nacked(name).isdisjoint(found.values())
        world.close()
        assert all(len(told) == 1 for told in self.told), "each is told once"
        for future in self.exclusive:
            assert future.done()
            if not future.cancelled():
                future.exception()
        assert self.loop_errors == []


@pytest.mark.parametrize("how", ["settle", "close", "power cut"])
@pytest.mark.parametrize("seed", seeds(25))
async def test_each_stream_of_a_round_keeps_what_it_has_acked(
    seed: int, how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "liftlog")
    driver = Driver(seed, monkeypatch)
    await driver.run()
    await driver.finish(how, seed)
