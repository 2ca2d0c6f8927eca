"""A consumer with acks, compared with a dict of its messages: random schedules of pulls, acks,
time, retention, updates, truncation and crashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rounds import examples
from support.worlds.delivery_world import SECOND, DeliveryWorld

from liftlog.deliveries import acks as acks_module
from liftlog.deliveries import pending
from liftlog.deliveries.acks import AckKind
from liftlog.deliveries.settings import AckPolicy, Settings


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    """Use small blocks, so that few messages make many blocks, and few acks are many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pending, "BLOCK_SIZE", 8)
        patch.setattr(pending, "MERGED_SIZE", 6)
        patch.setattr(pending, "FEW", 4)
        patch.setattr(acks_module, "FEW", 3)
        yield


KINDS = [AckKind.ACK] * 3 + [AckKind.NAK] * 2 + [AckKind.PROGRESS, AckKind.TERM]
SETTINGS = st.builds(
    Settings,
    st.sampled_from([AckPolicy.EXPLICIT] * 5 + [AckPolicy.ALL, AckPolicy.NONE]),
    max_deliver=st.sampled_from([-1, 2, 3]),
    max_ack_pending=st.sampled_from([3, 10, 1000]),
    max_waiting=st.sampled_from([2, 512]),
    max_request_batch=st.sampled_from([0, 8]),
    backoff_ns=st.sampled_from([(), (SECOND, 20 * SECOND)]),
    ack_prefix_bytes=st.just(20),
)


Step = Callable[[DeliveryWorld, Random], object]


def pull(world: DeliveryWorld, chance: Random) -> None:
    max_bytes = chance.choice([0, 0, 0, 150, 600])
    expires = chance.choice([0, 2, 30])
    world.pull(chance.randint(1, 12), max_bytes, chance.random() < 0.2, expires, expires > 0)


def acks(world: DeliveryWorld, chance: Random) -> None:
    """Make acks of known deliveries, of older deliveries of the same messages, of records of
    another stream, and of messages that were never delivered."""
    if not world.known:
        return
    found = []
    are_plain = chance.random() < 0.3
    for offset, count in chance.choices(world.known[-25:], k=chance.randint(1, 12)):
        kind = AckKind.ACK if are_plain else chance.choice(KINDS)
        delay = chance.choice([0, 0, 5, 40]) if kind == AckKind.NAK else 0
        odd = chance.random()
        if odd < 0.04:
            count += 1
        elif odd < 0.08:
            offset += 30
        stamp = -5 if odd > 0.96 else world.stamps.get(offset, world.now)
        found.append((offset, count, stamp, kind, delay))
    world.acknowledge(found)


def update(world: DeliveryWorld, chance: Random) -> None:
    old = world.model.settings
    pause = chance.choice([0, 0, 0, 15])
    world.update(
        Settings(
            old.ack_policy,
            max_deliver=chance.choice([-1, 5, 3, 2, 1]),
            max_ack_pending=chance.choice([2, 5, 1000]),
            max_waiting=old.max_waiting,
            backoff_ns=chance.choice([(), (2 * SECOND,), (SECOND, 20 * SECOND)]),
            pause_until_ns=pause and world.now + pause * SECOND,
            ack_prefix_bytes=20,
        )
    )


def remove(world: DeliveryWorld, chance: Random) -> None:
    if world.log:
        world.remove(chance.choices(list(world.log), k=3), chance.random() < 0.5)


def coins(chance: Random) -> list[bool]:
    return [chance.random() < 0.7 for _ in range(chance.randint(1, 15))]


STEPS: dict[Step, int] = {
    lambda world, chance: world.publish(coins(chance), chance.randint(0, 60)): 6,
    pull: 8,
    lambda world, chance: world.serve(chance.randint(1, 20)): 20,
    acks: 12,
    lambda world, chance: world.advance(chance.choice([0, 0.5, 0.5, 3, 10, 31])): 10,
    lambda world, chance: world.end_turn(): 12,
    lambda world, chance: world.crash(chance.random() < 0.5, chance.random() < 0.5): 1,
    update: 1,
    remove: 1,
    lambda world, chance: world.move_start(world.log_start + chance.randint(0, 5)): 1,
    lambda world, chance: world.truncate(world.log_end - chance.randint(0, 5)): 1,
    lambda world, chance: world.drop(chance.randint(0, 99)): 1,
}
USUAL = {
    *("first", "again", "crashes", "COUNTED ACK", "COUNTED NAK", "COUNTED PROGRESS"),
    *("COUNTED TERM", "AGAIN ACK", "OUTDATED NAK", "IGNORED ACK"),
    *("408 Request Timeout", "409 Batch Completed"),
}


def test_every_schedule_does_as_the_model_and_loses_nothing() -> None:
    seen: Counter[str] = Counter()

    @given(SETTINGS, st.integers(0, 2**32), st.integers(20, 250))
    @settings(max_examples=examples(0.4))
    def run(chosen: Settings, seed: int, steps: int) -> None:
        world = DeliveryWorld(chosen)
        chance = Random(seed)
        for step in chance.choices(list(STEPS), list(STEPS.values()), k=steps):
            step(world, chance)
        world.end_turn()
        world.drain()
        seen.update(world.stats)

    run()
    # A schedule under which nothing happens would pass, too.
    assert set() == USUAL - seen.keys(), dict(seen)
