"""Consumers that wait at the end of a stream: each gets what it wants, and others cost nothing."""

from __future__ import annotations

import asyncio
import random
import re
from typing import Any

import pytest
from support.worlds.acked_consumers import World, until

from liftlog.sequencing import MessageRun
from liftlog.server.jetstream_api.consumers.pull_body import Pull
from liftlog.server.jetstream_api.workers.acked_consumer import AckedConsumer

HOUR_NS = 3600 * 10**9
_DELIVERED = re.compile(rb"MSG _INBOX\.(\w+) \$JS\.ACK\.jobs\.(\w+)\.\d+\.(\d+)\.")


async def publish(world: World, *subjects: str) -> int:
    """Returns the offset of the first of these messages when they are committed."""
    host, count = world.host, len(subjects)
    first = int(host.log.high_watermark)
    raw = [one.encode() for one in subjects]
    host.receive(MessageRun(raw, [b""] * count, [b"x"] * count, has_cookie=False))
    host.kick()
    await until(lambda: host.log.high_watermark == first + count)
    return first


def delivered(world: World) -> dict[str, list[int]]:
    """The offsets that each consumer has delivered."""
    found: dict[str, list[int]] = {}
    for _, name, offset in _DELIVERED.findall(b"".join(world.leaf.sent)):
        found.setdefault(name.decode(), []).append(int(offset))
    return found


def pull(consumer: AckedConsumer, batch: int = 1000) -> None:
    inbox = b"_INBOX." + consumer.spec.name.encode()
    consumer.pull(inbox, Pull(batch=batch, expires_ns=HOUR_NS))


def steps_of(consumer: AckedConsumer, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    steps: list[int] = []
    real = consumer.step

    def step(now_ns: int) -> None:
        steps.append(now_ns)
        real(now_ns)

    monkeypatch.setattr(consumer, "step", step)
    return steps


async def test_a_consumer_is_not_woken_by_what_it_does_not_want(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await world.create("one", filter_subject="in.a")
    other = await world.create("other", filter_subject="in.b")
    for consumer in (one, other):
        pull(consumer)
    await publish(world, "in.b")
    await until(lambda: "other" in delivered(world))
    await asyncio.sleep(0.05)
    steps = steps_of(one, monkeypatch)
    for _ in range(5):
        await publish(world, "in.b", "in.c")
        await asyncio.sleep(0.02)
    assert not steps
    wanted = await publish(world, "in.a")
    await until(lambda: "one" in delivered(world))
    assert delivered(world)["one"] == [wanted]
    assert one.machine.state.next_offset == wanted + 1


async def test_new_filters_count_for_what_comes_then(world: World) -> None:
    one = await world.create("one", filter_subject="in.a")
    pull(one)
    await publish(world, "in.b")
    await asyncio.sleep(0.05)
    await world.update("one", filter_subject="in.b")
    wanted = await publish(world, "in.b")
    await until(lambda: wanted in delivered(world).get("one", []))


FILTERS: list[dict[str, Any]] = [
    {},
    {"filter_subject": "in.a"},
    {"filter_subject": "in.*"},
    {"filter_subject": "in.b.>"},
    {"filter_subjects": ["in.c", "in.b.*"]},
    {"filter_subject": "in.*.x"},
]
SUBJECTS = ["in.a", "in.c", "in.b.x", "in.b.y", "in.b.x.y", "in.d"]


def matches(config: dict[str, Any], subject: str) -> bool:
    patterns = config.get("filter_subjects") or [config.get("filter_subject", ">")]
    forms = [re.escape(one).replace(r"\*", "[^.]+").replace(">", ".+") for one in patterns]
    return any(re.fullmatch(form, subject) for form in forms)


@pytest.mark.parametrize("seed", range(6))
async def test_every_consumer_gets_all_that_it_wants(world: World, seed: int) -> None:
    chooser = random.Random(seed)
    consumers = {f"c{n}": await world.create(f"c{n}", **one) for n, one in enumerate(FILTERS * 2)}
    stored: list[tuple[int, str]] = []
    for _ in range(60):
        for consumer in consumers.values():
            if chooser.random() < 0.3:
                pull(consumer, chooser.choice((1, 2, 50)))
        if chooser.random() < 0.8:
            some = chooser.choices(SUBJECTS, k=chooser.choice((1, 1, 1, 3, 40)))
            first = await publish(world, *some)
            stored += list(enumerate(some, first))
        if chooser.random() < 0.3:
            await asyncio.sleep(chooser.choice((0, 0.002, 0.02)))
    for consumer in consumers.values():
        pull(consumer, len(stored))
    wanted = {
        f"c{n}": [offset for offset, subject in stored if matches(one, subject)]
        for n, one in enumerate(FILTERS * 2)
    }
    for name, offsets in wanted.items():
        await until(
            lambda name=name, offsets=offsets: sorted(delivered(world).get(name, [])) == offsets
        )
