"""Consumers with acks in a cluster: every replica has their states, and the next leader goes on."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.errors import Error
from support.clients.ingesting import until
from support.daemons.cluster import NAME, Cluster
from support.daemons.nats_server import NatsServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PATIENCE = 60


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer(leafnodes={"listen": "127.0.0.1:-1"}) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(server: NatsServer) -> Iterator[Cluster]:
    leafnode = re.search(r"Listening for leafnode connections on (\S+:\d+)", server.log)
    assert leafnode is not None, server.log
    settings = {"nats": {"jetstream_api": True, "leafnode": leafnode[1]}}
    with Cluster(server.url, settings=settings) as cluster:
        for node in cluster.nodes.values():
            until(lambda node=node: "jetstream-api-answers" in node.log)
        yield cluster
        cluster.assert_sound()


@pytest.fixture
async def client(server: NatsServer) -> AsyncIterator[Client]:
    client = await nats.connect(server.url)
    yield client
    await client.close()


async def asked(client: Client, method: str, body: object = None) -> dict[str, Any]:
    """As clients do while a leader is replaced: until there is another answer than "temporarily
    unavailable"."""
    payload = b"" if body is None else json.dumps(body).encode()
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                message = await client.request(f"$JS.API.{method}", payload, timeout=2)
            except Error:
                continue
            answer: dict[str, Any] = json.loads(message.data)
            if answer.get("error", {}).get("code") != 503:
                return answer
            await asyncio.sleep(0.05)


async def stream(client: Client, name: str, replicas: int, count: int) -> None:
    config = {"name": name, "subjects": [f"{name}.>"], "num_replicas": replicas}
    assert "error" not in await asked(client, f"STREAM.CREATE.{name}", config)
    for number in range(count):
        await publish(client, name, number)


async def publish(client: Client, name: str, number: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                headers = {"Nats-Msg-Id": str(number)}
                subject = f"{name}.a"
                answer = await client.request(subject, b"%d" % number, timeout=1, headers=headers)
            except Error:
                await asyncio.sleep(0.05)
                continue
            if b'"seq"' in answer.data:
                return


async def consumer(client: Client, name: str, **config: Any) -> dict[str, Any]:
    body = {
        "stream_name": name,
        "config": {"durable_name": "w", "ack_policy": "explicit", **config},
    }
    return await asked(client, f"CONSUMER.DURABLE.CREATE.{name}.w", body)


async def fetch(client: Client, name: str, count: int) -> list[Any]:
    """Messages, until there are so many."""
    sub = await client.jetstream().pull_subscribe_bind("w", name)
    found: list[Any] = []
    async with asyncio.timeout(PATIENCE):
        while len(found) < count:
            try:
                found += await sub.fetch(count - len(found), timeout=1)
            except (Error, TimeoutError):
                await asyncio.sleep(0.02)
    await sub.unsubscribe()
    return found


def shown(messages: list[Any]) -> list[tuple[int, int]]:
    return [(one.metadata.sequence.stream, one.metadata.num_delivered) for one in messages]


@pytest.mark.parametrize("way", ["kill", "elect", "stop"])
async def test_the_next_leader_goes_on(cluster: Cluster, client: Client, way: str) -> None:
    name = f"on-{way}"
    await stream(client, name, 3, 20)
    assert "error" not in await consumer(client, name, ack_wait=8 * 10**9)
    first = await fetch(client, name, 10)
    for message in first[:5]:
        await message.ack_sync(timeout=5)
    leader = cluster.leader(name)
    waiting = await client.subscribe("taken.over")
    body = json.dumps({"batch": 50, "expires": 60 * 10**9}).encode()
    await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{name}.w", body, reply="taken.over")
    rest = [await waiting.next_msg(timeout=5) for _ in range(10)]
    assert shown(rest) == [(offset, 1) for offset in range(11, 21)]
    if way == "elect":
        to = cluster.followers(name)[0]
        await asyncio.to_thread(cluster.command, "cluster", "elect", name, "--node", to)
    else:
        await asyncio.to_thread(cluster.kill if way == "kill" else cluster.stop, leader)
    ended = await waiting.next_msg(timeout=30)
    while not ended.headers or "Status" not in ended.headers:
        ended = await waiting.next_msg(timeout=30)
    assert ended.headers["Status"] == "408"
    assert ended.headers["Nats-Pending-Messages"] == "40"
    await waiting.unsubscribe()
    again = await fetch(client, name, 15)
    assert sorted(shown(again)) == [(offset, 2) for offset in range(6, 21)]
    info = await asked(client, f"CONSUMER.INFO.{name}.w")
    assert info["ack_floor"]["stream_seq"] == 5
    assert info["cluster"]["name"] == "tests"
    assert info["cluster"]["leader"] == cluster.leader(name) != leader
    assert len(info["cluster"]["replicas"]) == 2
    for message in again:
        await message.ack_sync(timeout=5)
    await asyncio.to_thread(cluster.start)
    await asyncio.to_thread(cluster.wait_isr, name)
    info = await asked(client, f"CONSUMER.INFO.{name}.w")
    assert (info["num_ack_pending"], info["num_pending"]) == (0, 0)


async def test_the_next_leader_ends_pulls_that_no_leader_has_read(
    cluster: Cluster, client: Client
) -> None:
    """A client that still counts on such pulls does not pull again when the known one ends."""
    name = "unread"
    await stream(client, name, 3, 0)
    assert "error" not in await consumer(client, name)
    waiting = await client.subscribe("un.read")
    body = {"batch": 9, "expires": 600 * 10**9, "idle_heartbeat": 300 * 10**9}
    for number, batch in enumerate((9, 4)):
        pull = json.dumps({**body, "batch": batch}).encode()
        await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{name}.w", pull, reply="un.read")
        await publish(client, name, number)
        await (await waiting.next_msg(timeout=5)).ack_sync(timeout=5)
    await asyncio.to_thread(cluster.kill, cluster.leader(name))
    left = []
    for _ in range(3):
        ended = await waiting.next_msg(timeout=30)
        assert ended.headers["Status"] == "408"
        left.append(int(ended.headers["Nats-Pending-Messages"]))
    assert sorted(left[:2]) == [4, 7] or sorted(left[:2]) == [3, 8], "as the state has it"
    assert left[2] == 9, "all that the client may expect"
    await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{name}.w", pull, reply="un.read")
    await publish(client, name, 2)
    message = await waiting.next_msg(timeout=5)
    assert message.data == b"2"
    await waiting.unsubscribe()
    await asyncio.to_thread(cluster.start)
    await asyncio.to_thread(cluster.wait_isr, name)


async def test_push_goes_on(cluster: Cluster, client: Client) -> None:
    await stream(client, "pushed", 3, 5)
    got: list[Any] = []

    async def take(message: Any) -> None:
        if message.reply.startswith("$JS.ACK"):
            got.append(message)
            await message.ack()

    await client.subscribe("to.me", "workers", cb=take)
    config = {"deliver_subject": "to.me", "deliver_group": "workers", "ack_wait": 2 * 10**9}
    assert "error" not in await consumer(client, "pushed", **config)
    async with asyncio.timeout(PATIENCE):
        while len(got) < 5:
            await asyncio.sleep(0.02)
    await asyncio.to_thread(cluster.kill, cluster.leader("pushed"))
    for number in range(5, 10):
        await publish(client, "pushed", number)
    async with asyncio.timeout(PATIENCE):
        while {offset for offset, _ in shown(got)} != set(range(1, 11)):
            await asyncio.sleep(0.02)
        while (await asked(client, "CONSUMER.INFO.pushed.w"))["num_ack_pending"]:
            await asyncio.sleep(0.1)
    await asyncio.to_thread(cluster.start)
    await asyncio.to_thread(cluster.wait_isr, "pushed")


@pytest.mark.parametrize("replicas", [1, 3])
async def test_a_restart_of_all_forgets_nothing(
    cluster: Cluster, client: Client, replicas: int
) -> None:
    name = f"all-{replicas}"
    await stream(client, name, replicas, 10)
    assert "error" not in await consumer(client, name, ack_wait=2 * 10**9)
    for message in (await fetch(client, name, 6))[:3]:
        await message.ack_sync(timeout=5)
    await asyncio.to_thread(cluster.kill)
    await asyncio.to_thread(cluster.start)
    again = await fetch(client, name, 7)
    assert sorted(shown(again)) == [(4, 2), (5, 2), (6, 2), (7, 1), (8, 1), (9, 1), (10, 1)]
    names = await asked(client, f"CONSUMER.NAMES.{name}")
    assert names["consumers"] == ["w"]


async def test_a_follower_that_was_away_gets_all_states(cluster: Cluster, client: Client) -> None:
    """It has missed the creation of one consumer, and the deletion of another."""
    await stream(client, "away", 3, 10)
    for name in ("old", "w"):
        body = {"stream_name": "away", "config": {"durable_name": name, "ack_policy": "explicit"}}
        assert "error" not in await asked(client, f"CONSUMER.DURABLE.CREATE.away.{name}", body)
    away = cluster.followers("away")[0]
    await asyncio.to_thread(cluster.stop, away)
    assert (await asked(client, "CONSUMER.DELETE.away.old"))["success"] is True
    body = {"stream_name": "away", "config": {"durable_name": "new", "ack_policy": "explicit"}}
    assert "error" not in await asked(client, "CONSUMER.DURABLE.CREATE.away.new", body)
    for message in await fetch(client, "away", 4):
        await message.ack_sync(timeout=5)
    await asyncio.to_thread(cluster.start)
    await asyncio.to_thread(cluster.wait_isr, "away")
    await asyncio.to_thread(cluster.command, "cluster", "elect", "away", "--node", away)
    until(lambda: cluster.leader("away") == away)
    names = await asked(client, "CONSUMER.NAMES.away")
    assert names["consumers"] == ["new", "w"]
    info = await asked(client, "CONSUMER.INFO.away.w")
    assert info["ack_floor"]["stream_seq"] == 4


def listings(cluster: Cluster) -> list[Any]:
    return [cluster.command("stream", "ls", "--json", through=node) for node in cluster.up()]


async def test_a_stream_that_is_created_again_has_no_consumers(
    cluster: Cluster, client: Client
) -> None:
    for _ in range(2):
        await stream(client, "again", 3, 3)
        names = await asked(client, "CONSUMER.NAMES.again")
        assert names.get("consumers") == [], names
        assert "error" not in await consumer(client, "again")
        assert shown(await fetch(client, "again", 3)) == [(1, 1), (2, 1), (3, 1)]
        assert (await asked(client, "STREAM.DELETE.again"))["success"] is True
        until(lambda: all('"again"' not in one.stdout for one in listings(cluster)))


async def test_pulls_that_arrive_while_no_node_leads_are_served_by_the_next_leader(
    cluster: Cluster, client: Client
) -> None:
    """No client would repeat them before they expire."""
    await stream(client, "between", 3, 40)
    assert "error" not in await consumer(client, "between")
    await asyncio.to_thread(cluster.kill, cluster.leader("between"))
    subs = []
    body = json.dumps({"batch": 1, "expires": 60 * 10**9}).encode()
    for _ in range(30):
        subs.append(await client.subscribe(client.new_inbox()))
        subject = "$JS.API.CONSUMER.MSG.NEXT.between.w"
        await client.publish(subject, body, reply=subs[-1].subject)
        await asyncio.sleep(0.1)
    found = [await one.next_msg(timeout=30) for one in subs]
    assert sorted(shown(found)) == [(offset, 1) for offset in range(1, 31)]
    assert not any(one.pending_msgs for one in subs), "each was served once"
    await asyncio.to_thread(cluster.start)
    await asyncio.to_thread(cluster.wait_isr, "between")


async def test_pulls_that_were_passed_on_to_a_frozen_leader_are_served_by_the_next_one(
    cluster: Cluster, client: Client
) -> None:
    """Except those that NATS gave to the frozen node itself. None is served twice."""
    await stream(client, "frozen", 3, 60)
    assert "error" not in await consumer(client, "frozen")
    frozen = cluster.leader("frozen")
    cluster.pause(frozen)
    body = json.dumps({"batch": 1, "expires": 60 * 10**9}).encode()
    subs = []
    try:
        for _ in range(40):  # before the others know that it is frozen
            subs.append(await client.subscribe(client.new_inbox()))
            subject = "$JS.API.CONSUMER.MSG.NEXT.frozen.w"
            await client.publish(subject, body, reply=subs[-1].subject)
        await client.flush()
        async with asyncio.timeout(PATIENCE):
            while not any(one.pending_msgs for one in subs):
                await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        served = sum(one.pending_msgs for one in subs)
        assert served >= 10
    finally:
        cluster.resume(frozen)
    await asyncio.to_thread(cluster.wait_isr, "frozen")
    await asyncio.sleep(1)
    assert sum(one.pending_msgs for one in subs) == served
    assert max(one.pending_msgs for one in subs) == 1, "none was served twice"
    for one in subs:
        await one.unsubscribe()


async def test_waiting_pulls_end_when_their_stream_is_deleted(
    cluster: Cluster, client: Client
) -> None:
    """With the same status as in JetStream."""
    await stream(client, "ending", 3, 1)
    assert "error" not in await consumer(client, "ending")
    waiting = await client.subscribe(client.new_inbox())
    body = json.dumps({"batch": 5, "expires": 60 * 10**9}).encode()
    await client.publish("$JS.API.CONSUMER.MSG.NEXT.ending.w", body, reply=waiting.subject)
    assert shown([await waiting.next_msg(timeout=10)]) == [(1, 1)]
    assert (await asked(client, "STREAM.DELETE.ending"))["success"] is True
    ended = await waiting.next_msg(timeout=10)
    assert ended.headers is not None
    assert (ended.headers["Status"], ended.headers["Description"]) == ("409", "Consumer Deleted")


async def test_the_next_leader_pins_a_client_again(cluster: Cluster, client: Client) -> None:
    """A pin is not stored: the next leader gives it to the client whose pull arrives first."""
    await stream(client, "pinned", 3, 3)
    groups = {"priority_policy": "pinned_client", "priority_groups": ["g"]}
    assert "error" not in await consumer(client, "pinned", **groups, priority_timeout=60 * 10**9)

    async def pull(**more: Any) -> Any:
        sub = await client.subscribe(client.new_inbox())
        body = json.dumps({"batch": 1, "expires": 60 * 10**9, "group": "g", **more})
        await client.publish("$JS.API.CONSUMER.MSG.NEXT.pinned.w", body.encode(), reply=sub.subject)
        return sub

    first = await (await pull()).next_msg(timeout=PATIENCE)
    pin = first.headers["Nats-Pin-Id"]
    other = await pull()
    again = await (await pull(id=pin)).next_msg(timeout=PATIENCE)
    assert again.headers["Nats-Pin-Id"] == pin
    assert shown([first, again]) == [(1, 1), (2, 1)]
    assert not other.pending_msgs, "only the pinned client gets messages"
    await asyncio.to_thread(cluster.kill, cluster.leader("pinned"))
    ended = await other.next_msg(timeout=PATIENCE)
    assert ended.headers["Status"] == "408"
    last = await (await pull()).next_msg(timeout=PATIENCE)
    assert shown([last]) == [(3, 1)]
    assert last.headers["Nats-Pin-Id"] not in ("", pin)
    stale = await (await pull(id=pin)).next_msg(timeout=PATIENCE)
    assert stale.headers["Status"] == "423"
    await asyncio.to_thread(cluster.start)
    await asyncio.to_thread(cluster.wait_isr, "pinned")


async def test_the_places_of_consumers_are_free_when_their_stream_is_deleted(
    client: Client, cluster: Cluster
) -> None:
    config = {"name": "limited", "subjects": ["limited.>"], "num_replicas": 3, "max_consumers": 20}
    for _ in range(5):
        assert "error" not in await asked(client, "STREAM.CREATE.limited", config)
        for number in range(20):
            found = await asked(client, f"CONSUMER.CREATE.limited.c{number}", durable(f"c{number}"))
            assert "error" not in found, found
        found = await asked(client, "CONSUMER.CREATE.limited.more", durable("more"))
        assert found["error"]["err_code"] == 10026
        assert (await asked(client, "STREAM.DELETE.limited"))["success"]


def durable(name: object) -> dict[str, Any]:
    config = {"durable_name": str(name), "name": str(name), "ack_policy": "explicit"}
    return {"stream_name": "limited", "config": config}


async def test_a_forged_pull_between_nodes_does_no_harm(client: Client, cluster: Cluster) -> None:
    """Its client may publish on subjects of the nodes."""
    config = {"name": "limited", "subjects": ["limited.>"], "num_replicas": 3}
    assert "error" not in await asked(client, "STREAM.CREATE.limited", config)
    assert "error" not in await asked(client, "CONSUMER.CREATE.limited.c", durable("c"))
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    for held in (b"9" * 400, b"9" * 9, "\u0663".encode(), b"-1", b"x"):
        for node in cluster.nodes:
            subject = f"liftlog.{NAME}.jsapi.{node}.CONSUMER.MSG.NEXT.limited.c.{held.decode()}"
            await client.publish(subject, b'{"batch":1,"expires":1000000}', reply=inbox)
    await asyncio.sleep(1.0)
    assert not answers.pending_msgs, "the leader gets pulls from their clients"
    assert (await asked(client, "CONSUMER.INFO.limited.c"))["num_waiting"] == 0
    cluster.assert_sound()
    assert (await asked(client, "STREAM.DELETE.limited"))["success"]
