"""Erased records of a real daemon: no door shows them, where JetStream deletes the same messages.

After a kill, too.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from support.clients.ingesting import assert_no_traceback, until
from support.clients.raw_nats import RawNats, header_block
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.client import connect, connect_sync
from liftlog.errors import Conflict
from liftlog.log.files.erasures import read_erasures
from liftlog.log.files.filesystem import OsFileSystem

pytestmark = pytest.mark.integration

STREAM = {"name": "s", "subjects": ["s.>"], "allow_direct": True}
SUBJECTS = [f"s.{'abcab'[number % 5]}" for number in range(60)]
ERASED = [2, 7, 8, 9, 10, 11, 30, 58, 59, 60]
WISHES: list[dict[str, Any]] = [
    *({"seq": number} for number in range(1, 62)),
    *({"last_by_subj": subject} for subject in ("s.a", "s.b", "s.c", "s.*", "s.>")),
    *({"next_by_subj": "s.b", "seq": number} for number in (1, 2, 7, 12, 55, 59)),
    {"next_by_subj": "s.*", "seq": 7},
    {"next_by_subj": "s.>", "seq": 58},
]


class World(NamedTuple):
    ours: RawNats
    theirs: RawNats
    nats: NatsServer
    daemon: Daemon


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer(leafnodes={"listen": "127.0.0.1:-1"}) as server:
        yield server


@pytest.fixture
def daemon(server: NatsServer) -> Iterator[Daemon]:
    leafnode = re.search(r"for leafnode connections on (\S+)", server.log)
    assert leafnode is not None, server.log
    settings = {
        "nats": {"jetstream_api": True, "leafnode": leafnode[1]},
        "http": {"log_api": True},
    }
    with Daemon(server.url, settings) as daemon:
        answers(server)
        yield daemon
        assert_no_traceback(daemon)


def answers(server: NatsServer) -> None:
    with RawNats(server.port) as raw:
        until(lambda: raw.request("$JS.API.INFO", b"").payload != b"")


@pytest.fixture
def world(server: NatsServer, daemon: Daemon) -> Iterator[World]:
    with (
        NatsServer(jetstream=True) as jetstream,
        RawNats(server.port) as ours,
        RawNats(jetstream.port) as theirs,
    ):
        for client in (theirs, ours):
            answer = client.request("$JS.API.STREAM.CREATE.s", json.dumps(STREAM))
            assert "error" not in json.loads(answer.payload)
            for number, subject in enumerate(SUBJECTS):
                ack = client.request(subject, b"secret %d" % (number + 1))
                assert json.loads(ack.payload)["seq"] == number + 1
        yield World(ours, theirs, server, daemon)


def erase(daemon: Daemon, offsets: list[int]) -> int:
    with connect_sync(daemon.pull_address) as client:
        return client.erase("s", [(one, one + 1) for one in offsets]).count


def delete(theirs: RawNats, offsets: list[int]) -> None:
    for offset in offsets:
        body = json.dumps({"seq": offset, "no_erase": True}).encode()
        assert json.loads(theirs.request("$JS.API.STREAM.MSG.DELETE.s", body).payload)["success"]


def got(client: RawNats, wish: dict[str, Any]) -> Any:
    answer = client.request("$JS.API.STREAM.MSG.GET.s", json.dumps(wish).encode()).json()
    message = answer.get("message")
    return (message["seq"], message["subject"]) if message else answer["error"]["err_code"]


def test_gets_are_those_of_jetstream(world: World) -> None:
    assert erase(world.daemon, ERASED) == len(ERASED)
    delete(world.theirs, ERASED)
    for _ in range(2):
        for wish in WISHES:
            assert got(world.ours, wish) == got(world.theirs, wish), wish
        states = [
            client.request("$JS.API.STREAM.INFO.s", b"").json()["state"]
            for client in (world.ours, world.theirs)
        ]
        assert states[0]["messages"] == states[1]["messages"] == 50
        assert states[0]["num_deleted"] >= 7  # theirs ends before the deleted end
        world.daemon.kill()
        world.daemon.start()
        answers(world.nats)


def test_conditions_see_what_is_left(world: World) -> None:
    """The last sequence of a subject is that of its last message that is left."""
    erase(world.daemon, ERASED)
    delete(world.theirs, ERASED)

    def expecting(client: RawNats, subject: str, last: int) -> Any:
        headers = header_block({"Nats-Expected-Last-Subject-Sequence": str(last)})
        return client.request(subject, b"new", headers=headers).json()

    for subject, last in (("s.a", 56), ("s.b", 57)):
        assert expecting(world.theirs, subject, 60)["error"]["err_code"] == 10071
        until(lambda: "error" not in expecting(world.ours, subject, last))  # noqa: B023
        assert "error" not in expecting(world.theirs, subject, last)


async def test_consumers_over_nats(world: World) -> None:
    """Those that have read ahead, too: what was read and not delivered is left out."""
    client = await nats.connect(world.nats.url)
    js = client.jetstream(timeout=60)
    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, ack_wait=2)
    acked = await js.pull_subscribe("", "acked", "s", config=config)
    plain = await js.pull_subscribe(
        "", None, "s",
        config=ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL),
    )  # fmt: skip
    first = await acked.fetch(9, timeout=60)  # 1 to 9 are pending, not acked
    assert [one.metadata.sequence.stream for one in first] == list(range(1, 10))
    begun = await plain.fetch(4, timeout=60)
    assert len(begun) == 4
    await asyncio.to_thread(erase, world.daemon, ERASED)
    left = [number for number in range(1, 61) if number not in ERASED]
    found = [one.metadata.sequence.stream for one in begun]
    while len(found) < len(left) + 1:  # 2 was delivered before
        found += [one.metadata.sequence.stream for one in await plain.fetch(20, timeout=60)]
    assert found == [1, 2, *left[1:]]
    again: set[int] = set()
    while len(again) < len(left):
        for one in await acked.fetch(20, timeout=60):
            again.add(one.metadata.sequence.stream)
            await one.ack_sync(timeout=60)
    assert again == set(left)
    ordered = await js.subscribe("s.>", stream="s", ordered_consumer=True)
    assert [(await ordered.next_msg(timeout=60)).metadata.sequence.stream for _ in left] == left
    await client.close()


async def test_workers_on_the_pull_socket(world: World) -> None:
    address = world.daemon.pull_address
    left = [number for number in range(1, 61) if number not in ERASED]
    found: list[set[int]] = []
    async with connect(address) as client, client.worker("s", "w", batch=5) as worker:
        async for batch in worker:
            if not found:
                await asyncio.to_thread(erase, world.daemon, ERASED)
            found.append({one.offset for one in batch})
            await worker.ack(batch)
            if 57 in found[-1]:
                break
    # The worker had asked for its second batch before.
    assert not set().union(*found[2:]) & set(ERASED), "a worker gets an erased record"
    assert set().union(*found) >= set(left)


def test_other_doors(world: World) -> None:
    erase(world.daemon, ERASED)
    for number in range(1, 61):
        status, text = world.daemon.get(f"/api/v1/streams/s/records/{number}")
        assert status == (404 if number in ERASED else 200), (number, text)
    with connect_sync(world.daemon.pull_address) as client:
        assert client.describe_stream("s").record_count == 50
        assert [r.offset for r in client.read("s", 1, 61)] == [
            number for number in range(1, 61) if number not in ERASED
        ]
        bucket = {"subject": "kv.>", "jetstream": {"max_msgs_per_subject": 1}}
        client.create_stream("kv", **bucket)
        with pytest.raises(Conflict, match="messages per subject"):
            client.erase("kv", [(1, 2)])
    directory = world.daemon.data_dir / "streams" / "s"
    (listed,) = read_erasures(OsFileSystem(), directory)
    assert listed.count == len(ERASED)
