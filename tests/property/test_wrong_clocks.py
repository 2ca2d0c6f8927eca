"""Limits by age against a wall clock that jumps, and that is wrong when the machine boots.

A world has a true time, which the log cannot see, a wall clock that lies beside it by any amount,
and a monotonic clock that begins at each boot. Random histories of appends, steps of the wall
clock, restarts and boots run against a real log on a simulated disk, with the daemon's own guard,
keeper and decisions. Two promises:

- A clock that is ahead deletes nothing early. Each record that is deleted was too old by the true
  time, but for steps that are too small to be noticed. A clock that was behind when records were
  stored makes them older by as much, unless the process still knows better.
- Nothing blocks for ever. Once the clock is right and the process has run for as long as `max_age`,
  no older segment is left, whatever the stamps in it say.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st
from support.disks.logs import BASE_NS, DIRECTORY, encode, environment
from support.disks.simfs import SimFileSystem
from support.rounds import examples

from compaction.ages import TOLERANCE_NS
from liftlog.log import Log, LogConfig, open_log
from liftlog.log.read.ages import newest_times_of
from liftlog.server.streams.clock_keeping import ClockKeeper
from liftlog.server.streams.retention import decide_retention, remove_decided
from liftlog.server.vitals.clock_guard import STEP_NS, ClockGuard, read_clock_state
from liftlog.settings import parse_stream_settings

SECOND = 1_000_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND
ROLL = 10 * MINUTE
CONFIG = LogConfig(segment_max_bytes=1200, segment_max_age_ns=ROLL)

durations = st.sampled_from([MINUTE, 5 * MINUTE, 20 * MINUTE, HOUR + MINUTE, 5 * HOUR, 3 * DAY])
offsets = st.sampled_from(
    [0, 0, 0, 2 * HOUR, 5 * HOUR, 40 * DAY, 3650 * DAY, -2 * HOUR, -5 * HOUR, -40 * DAY, -BASE_NS]
)
events = st.one_of(
    st.tuples(st.just("pass"), durations),
    st.tuples(st.just("append"), st.integers(1, 12)),
    st.tuples(st.just("append"), st.integers(1, 12)),
    st.tuples(st.just("step"), offsets),
    st.tuples(st.just("restart"), st.sampled_from([0, MINUTE, 2 * HOUR])),
    st.tuples(st.just("boot"), st.tuples(st.sampled_from([MINUTE, 2 * HOUR, 3 * DAY]), offsets)),
)


class World:
    """One stream of one daemon on one machine. The object is also the clock of the log."""

    def __init__(self, max_age: int) -> None:
        self.true = BASE_NS
        self.offset = 0
        self.booted = BASE_NS - DAY
        self.boots = 0
        self.max_age = max_age
        self.limits = parse_stream_settings(
            {"subject": "in", "retention": {"max_age": f"{max_age // SECOND}s"}}
        )
        self.fs = SimFileSystem()
        self.stored: dict[int, int] = {}
        """The true time of each existing record."""
        self.slowest = 0
        """The largest time by which the clock was behind when one of the records was stored."""
        self.slack = 0
        """The sum of all steps that cannot be detected, or were small enough to be accepted
        although they were wrong."""
        made = Log.create(DIRECTORY, environment(self.fs, cast(Any, self)), CONFIG)
        made.close()
        self.start()

    # --- the clock ---

    def now_ns(self) -> int:
        return self.true + self.offset

    def monotonic_ns(self) -> int:
        return self.true - self.booted

    # --- the process ---

    def start(self) -> None:
        env = environment(self.fs, cast(Any, self))
        self.log, _ = open_log(DIRECTORY, env, CONFIG)
        before = read_clock_state(self.fs, DIRECTORY.parent)
        self.guard = ClockGuard(self, before, f"boot {self.boots}")
        env.age_clock_ns = self.guard.now_ns
        host = SimpleNamespace(name="orders", log=self.log, settings=self.limits, failure="")
        place = SimpleNamespace(environment=env, path=DIRECTORY.parent)
        self.host = host
        self.keeper = ClockKeeper(self.guard, cast(Any, {"orders": host}), cast(Any, place))
        self.keep_house()

    def stop(self) -> None:
        self.keeper.store()
        self.log.close()

    def append(self, count: int) -> None:
        for _ in range(count):
            stamp = self.now_ns() - self.now_ns() % 1000
            self.log.append([encode(self.log, [b"x" * 100], stamp=stamp)])
            self.log.commit_up_to(self.log.sync())
            self.stored[self.log.log_end_offset - 1] = self.true
            self.slowest = max(self.slowest, -self.offset)

    def step(self, offset: int) -> None:
        self.guard.now_ns()
        self.offset = offset
        self.guard.now_ns()

    def boot(self, down: int, offset: int) -> None:
        self.stop()
        ahead = offset - self.offset + down
        if 0 < ahead <= HOUR:
            self.slack += max(0, offset - self.offset)
        self.true += down
        self.booted, self.boots, self.offset = self.true - SECOND, self.boots + 1, offset
        self.start()

    def keep_house(self) -> None:
        doubted = self.guard.doubt_seconds
        self.keeper._look([cast(Any, self.host)])
        if doubted and not self.guard.doubt_seconds:
            assert doubted * SECOND <= self.max_age / 10
            self.slack += int(doubted * SECOND)
        self.log.writer.roll_if_due()
        now = self.guard.now_ns()
        self.check_ages(now)
        if not self.guard.wall_clock_is_trusted():
            return
        decision = decide_retention(self.log, self.limits, now)
        if decision is None:
            return
        remove_decided(self.log, decision, now)
        start = self.log.log_start_offset
        allowed = self.max_age - self.slack - self.slowest - STEP_NS - TOLERANCE_NS
        for offset in [one for one in self.stored if one < start]:
            age = self.true - self.stored.pop(offset)
            assert age >= allowed, f"{offset} was {age / HOUR:.2f} h old"

    def check_ages(self, now: int) -> None:
        """Check that no segment counts as younger than the time for which this process has had
        it."""
        mono = self.monotonic_ns()
        times = newest_times_of(self.log.environment, self.log.segments, now)
        for segment, newest in zip(self.log.segments, times, strict=True):
            if segment.record_count:
                assert now - newest >= mono - segment.held_since_ns


def happen(world: World, history: list[tuple[str, Any]]) -> None:
    for what, value in history:
        if what == "pass":
            for _ in range(4):
                world.true += value // 4
                world.keep_house()
        elif what == "append":
            world.append(value)
        elif what == "step":
            world.step(value)
        elif what == "restart":
            world.stop()
            world.true += value
            world.start()
        else:
            world.boot(*value)
        world.keep_house()


@given(
    max_age=st.sampled_from([HOUR, DAY, 30 * DAY]),
    history=st.lists(events, min_size=1, max_size=25),
)
@settings(max_examples=examples(), deadline=None)
def test_a_wrong_clock_neither_deletes_early_nor_blocks_for_ever(
    max_age: int, history: list[tuple[str, Any]]
) -> None:
    world = World(max_age)
    happen(world, history)
    world.step(0)
    old = dict(world.stored)
    for _ in range(24):
        world.true += (max_age + 3 * HOUR) // 20
        world.append(1)
        world.keep_house()
    kept = [offset for offset in old if offset in world.stored]
    assert not kept, (
        f"{len(kept)} records stay, the clock is right since {max_age / HOUR + 3:.0f} h"
    )
    world.stop()
