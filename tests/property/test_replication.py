"""Replication under a random scheduler: all rules hold, and each rule is necessary.

`make simulate` runs more of the same for longer: SIMULATE_RUNS runs of SIMULATE_STEPS steps in each
setting, and a fifth of that on real logs. A failure names its seed; the same seed gives the same
run.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import pytest
from support.rounds import fewer
from support.worlds.broken_rules import BROKEN, STEADY
from support.worlds.replica_disks import LogDisk
from support.worlds.replica_progress import ELECTS, LEADS, MENDED, WAITS
from support.worlds.replica_world import Faults, Violation, World

RUNS = int(os.environ.get("SIMULATE_RUNS", "30"))
ENOUGH = RUNS if "SIMULATE_RUNS" in os.environ else fewer(RUNS)
"""Number of runs after which a test may end if all expected events have occurred."""
STEPS = int(os.environ.get("SIMULATE_STEPS", "2000"))
FIRST_SEED = int(os.environ.get("SIMULATE_SEED", "0"))

STATIC_LEADER = Faults(
    elections=0,
    planned=0,
    crashes=0,
    power_cuts=0,
    blackouts=0,
    lost_disks=0,
    failing_syncs=0,
)
NOTHING_BREAKS = Faults(
    crashes=0,
    power_cuts=0,
    blackouts=0,
    lost_disks=0,
    failing_syncs=0,
    lost_frames=0,
    late_copies=0,
    reordered=0,
    unknown_outcomes=0,
)
SETTINGS: dict[str, tuple[int, int, Faults, tuple[str, ...]]] = {
    "static leader": (3, 2, STATIC_LEADER, ("committed", "isr", "gaps", "unknown outcomes")),
    "elections only": (3, 2, NOTHING_BREAKS, ("committed", "failover", "transfer", "leave")),
    "2 of 3": (
        3,
        2,
        Faults(),
        (
            *("committed", "failover", "truncations", "lost tails", "lost disks", "resyncs"),
            *("failed syncs", "register unclean", "resign", "blackouts", "fenced epoch"),
            *("consumers acked", "consumers delivered", "consumers deleted"),
        ),
    ),
    "1 of 3": (3, 1, Faults(), ("committed", "failover", "truncations", "lost tails")),
    "1 of 2": (2, 1, Faults(), ("committed", "failover", "truncations", "lost tails")),
    "3 of 5": (5, 3, Faults(), ("committed", "failover", "truncations", "lost disks")),
    "moves": (
        3,
        2,
        Faults(moves=1),
        ("committed", "failover", "move", "cancel", "update", "not leader", "register unclean"),
    ),
    "moves that end": (
        2,
        1,
        replace(
            NOTHING_BREAKS,
            elections=0.3,
            planned=0.3,
            crashes=0.1,
            unknown_outcomes=0.1,
            moves=1.0,
            cancels=0.1,
        ),
        ("committed", "failover", "move", "handed over", "left", "crashes"),
    ),
    "store set back": (
        3,
        2,
        Faults(set_backs=1, lost_disks=0),
        (
            *("committed", "set backs", "stood aside", "restored", "failover", "resign"),
            *("gave up", "decided"),
        ),
    ),
    "store cut off": (
        3,
        2,
        Faults(store_cuts=1, lost_disks=0),
        ("committed", "store cut off", "told", "failover", LEADS, ELECTS, MENDED),
    ),
    "store cut off, 3 of 5": (
        5,
        3,
        Faults(store_cuts=1, lost_disks=0),
        ("committed", "store cut off", "told", "failover", LEADS, ELECTS, MENDED),
    ),
    "store cut off and nothing else": (
        3,
        2,
        replace(NOTHING_BREAKS, store_cuts=1),
        ("committed", "store cut off", "failover", "transfer", LEADS, WAITS, MENDED),
    ),
    "store cut off and set back": (
        3,
        2,
        Faults(store_cuts=1, set_backs=1, lost_disks=0, consumers=0),
        ("committed", "store cut off", "set backs", "restored", "gave up"),
    ),
    "damaged copies are dropped": (
        3,
        2,
        Faults(discards=1, set_backs=0.3, lost_disks=0),
        ("committed", "discard", "kept", "failover", "isr", "restored"),
    ),
    "beyond promises": (
        3,
        2,
        Faults(beyond_promises=True, lost_disks=3),
        ("committed", "recover", "given up", "truncations", "resyncs"),
    ),
    "all of 3": (3, 3, Faults(), ("committed", "failover", "truncations", "lost disks")),
}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "liftlog.log")


def simulate(
    name: str, world: Callable[[int], World], expected: Iterable[str], part: int = 1
) -> None:
    """Run one part in `part` of the runs, fewer if that is enough. Each expected event must come
    up: a schedule under which nothing happens would break no rule."""
    seen: Counter[str] = Counter()
    began = time.perf_counter()
    runs, enough = max(RUNS // part, 1), max(ENOUGH // part, 1)
    for number in range(runs):
        if number >= enough and all(seen[what] for what in expected):
            runs = number
            break
        seed = FIRST_SEED + number
        one = world(seed)
        try:
            one.run(STEPS)
        except AssertionError as violation:
            raise AssertionError(f"{name}, seed {seed}, {STEPS} steps: {violation}") from violation
        seen += one.stats
    took = time.perf_counter() - began
    print(f"\n{name}: {runs} runs of {STEPS} steps in {took:.0f} s: {dict(seen)}")
    assert {what for what in expected if not seen[what]} == set()


@pytest.mark.parametrize("name", SETTINGS)
def test_nothing_acked_is_lost_and_no_offset_has_two_records(name: str) -> None:
    replicas, min_isr, faults, expected = SETTINGS[name]
    simulate(
        name,
        lambda seed: World(
            seed,
            replicas=replicas,
            min_isr=min_isr,
            spares=0 if not faults.moves else 2 if replicas > 2 else 1,
            faults=faults,
        ),
        expected,
    )


@pytest.mark.parametrize("compacted", [False, True], ids=["plain", "compacted"])
def test_the_same_holds_on_real_logs(compacted: bool) -> None:
    """With retention, joined small batches, and compaction, each node by itself."""
    faults = replace(STEADY, discards=0.5) if compacted else Faults()
    expected = {"committed", "leases", "failover", "crashes", "lost tails", "gaps", "truncations"}
    if compacted:
        expected |= {"discard"}
    simulate(
        "compacted logs" if compacted else "logs",
        lambda seed: World(
            seed,
            faults=faults,
            new_disk=partial(LogDisk, compacted=compacted),
            compacted=compacted,
        ),
        expected,
        part=5,
    )


@pytest.mark.parametrize("name", BROKEN)
def test_without_any_one_rule_the_scheduler_finds_a_violation(name: str) -> None:
    broken = BROKEN[name]
    for seed in (broken.first_seed, *range(3000)):
        try:
            broken.world(seed).run(1500 if broken.compacted else 1000)
        except Violation:
            return
    pytest.fail(f"{name}: not found in 3,000 runs")
