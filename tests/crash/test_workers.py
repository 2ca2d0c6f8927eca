"""Workers on one consumer while the daemon is killed: what a confirmed ack and a count promise.

An oracle knows every delivery, and every ack that was confirmed:

- Every stored message is delivered until it is acked.
- A message whose ack was confirmed is never delivered again.
- The delivery count of a message never falls, and never stays the same.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error
from nats.js.api import ConsumerConfig
from support.clients.ingesting import assert_no_traceback
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.rounds import chance_of, rounds

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600)]

ROUNDS = rounds(3)
WORKERS = 4
SECOND = 10**9
PATIENCE = 120


@dataclass
class Oracle:
    """By offset: the last count that was seen, and the count whose ack was confirmed."""

    seen: dict[int, int] = field(default_factory=dict)
    confirmed: dict[int, int] = field(default_factory=dict)
    stored: set[int] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    def delivered(self, message: Msg) -> None:
        offset, count = message.metadata.sequence.stream, message.metadata.num_delivered
        if offset in self.confirmed:
            self.wrong.append(f"{offset} was acked, and came again with count {count}")
        if count <= self.seen.get(offset, 0):
            self.wrong.append(f"{offset} came with count {count} after {self.seen[offset]}")
        self.seen[offset] = count

    def acked(self, message: Msg) -> None:
        self.confirmed[message.metadata.sequence.stream] = message.metadata.num_delivered


async def publish(client: Client, oracle: Oracle, stop: asyncio.Event) -> None:
    number = 0
    while not stop.is_set():
        try:
            answer = await client.request(f"jobs.{number % 5}", b"%d" % number, timeout=1)
        except Error:
            await asyncio.sleep(0.05)
            continue
        found = re.search(rb'"seq":(\d+)', answer.data)
        if found is not None:
            oracle.stored.add(int(found[1]))
        number += 1
        await asyncio.sleep(0.002)


async def work(url: str, oracle: Oracle, luck: random.Random, done: asyncio.Event) -> None:
    """Pulls with a client that shows each delivery when it comes, and not at the end of a fetch."""
    client = await nats.connect(url)
    arrived: asyncio.Queue[Msg] = asyncio.Queue()
    inbox = client.new_inbox()

    async def take(message: Msg) -> None:
        if message.reply:
            oracle.delivered(message)
            arrived.put_nowait(message)

    try:
        await client.subscribe(inbox, cb=take)
        while not done.is_set():
            body = json.dumps({"batch": luck.choice([1, 5, 50]), "expires": SECOND // 2})
            await client.publish("$JS.API.CONSUMER.MSG.NEXT.jobs.w", body.encode(), reply=inbox)
            await asyncio.sleep(luck.uniform(0.02, 0.5))
            while not arrived.empty():
                await answer(arrived.get_nowait(), oracle, luck)
    finally:
        await client.close()


async def answer(message: Msg, oracle: Oracle, luck: random.Random) -> None:
    chance = luck.random()
    try:
        if chance < 0.6:
            await message.ack_sync(timeout=1)
            oracle.acked(message)
        elif chance < 0.7:
            await message.ack()
        elif chance < 0.85:
            await message.nak(luck.choice([None, 0.2]))
        elif chance < 0.9:
            await message.in_progress()
    except Error:
        pass  # it may count or not


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer(leafnodes={"listen": "127.0.0.1:-1"}) as server:
        yield server


async def test_killed_while_workers_are_busy(server: NatsServer) -> None:
    found = re.search(r"Listening for leafnode connections on (\S+:\d+)", server.log)
    assert found is not None, server.log
    settings = {
        "nats": {"jetstream_api": True, "leafnode": found[1]},
        "streams": {"jobs": {"subject": "jobs.>"}},
    }
    luck, oracle = chance_of("workers"), Oracle()
    with Daemon(server.url, settings) as daemon:
        client = await nats.connect(server.url)
        config = ConsumerConfig(durable_name="w", ack_wait=3, max_ack_pending=200)
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    await client.jetstream().add_consumer("jobs", config)
                    break
                except Error:
                    await asyncio.sleep(0.1)
        stop, done = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(publish(client, oracle, stop))
            for number in range(WORKERS):
                group.create_task(work(server.url, oracle, chance_of(f"worker {number}"), done))
            for _ in range(ROUNDS):
                await asyncio.sleep(luck.uniform(0.5, 2.5))
                daemon.kill()
                await asyncio.to_thread(daemon.restart)
                await asyncio.to_thread(daemon.wait_ready)
            stop.set()
            async with asyncio.timeout(PATIENCE):
                while left := oracle.stored - oracle.confirmed.keys():
                    info = await _info(client)
                    if info is not None and not info[0] and not info[1]:
                        break  # the others had an ack that was not confirmed
                    await asyncio.sleep(0.2)
            done.set()
        assert not oracle.wrong, oracle.wrong[:10]
        assert left <= oracle.seen.keys(), sorted(left - oracle.seen.keys())[:10]
        assert len(oracle.confirmed) > 5 * ROUNDS
        await client.close()
        assert_no_traceback(daemon)


async def _info(client: Client) -> tuple[int, int] | None:
    try:
        info = await client.jetstream().consumer_info("jobs", "w")
    except Error:
        return None
    return info.num_pending or 0, info.num_ack_pending or 0
