"""Workers on the pull socket: deliveries, acks, goodbyes, restarts, and NATS beside them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clients.ingesting import assert_no_traceback, until
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.daemons.ports import lasting_ports

from acl.tokens import hash_token
from liftlog.client import ConsumerInfo, WorkBatch, connect, connect_sync
from liftlog.errors import Conflict, ConsumerNotFound, Forbidden, InvalidArgument, StreamNotFound

pytestmark = pytest.mark.integration

PATIENCE = 60
STREAMS = {"jobs": {"subject": "jobs.>"}}


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer(leafnodes={"listen": "127.0.0.1:-1"}) as server:
        yield server


def alone(server: NatsServer, **more: Any) -> Daemon:
    """A daemon without JetStream's API."""
    return Daemon(server.url, {"streams": STREAMS, **more})


def with_nats(server: NatsServer, **more: Any) -> Daemon:
    found = re.search(r"Listening for leafnode connections on (\S+:\d+)", server.log)
    assert found is not None, server.log
    nats = {"jetstream_api": True, "leafnode": found[1]}
    return Daemon(server.url, {"nats": nats, "streams": STREAMS, **more})


def publish(server: NatsServer, count: int, first: int = 0, subject: str = "jobs.a") -> None:
    with RawNats(server.port, timeout=PATIENCE) as raw:
        for number in range(first, first + count - 1):
            raw.pub(subject, b"%d" % number)
        assert "seq" in raw.request(subject, b"%d" % (first + count - 1)).json()


def numbers(batch: WorkBatch) -> list[int]:
    return [int(one.value or b"") for one in batch]


def deliveries(batch: WorkBatch) -> list[int]:
    return [one.deliveries for one in batch]


def info(daemon: Daemon, consumer: str = "c") -> ConsumerInfo:
    with connect_sync(daemon.pull_address) as client:
        return client.describe_consumer("jobs", consumer)


async def test_messages_are_delivered_and_acked_in_batches(server: NatsServer) -> None:
    with alone(server) as daemon:
        publish(server, 1200)
        found: list[int] = []
        async with (
            connect(daemon.pull_address) as client,
            client.worker("jobs", "c", batch=500) as worker,
        ):
            async for batch in worker:
                assert set(deliveries(batch)) == {1}
                assert sum(map(len, batch.record_batches())) == len(batch) <= 500
                found += numbers(batch)
                await worker.ack(batch)
                if len(found) == 1200:
                    break
            assert found == list(range(1200))
            there = await client.describe_consumer("jobs", "c")
            assert (there.num_ack_pending, there.num_pending) == (0, 0)
            assert there.ack_floor == there.next_offset
            publish(server, 1, first=1200)
            assert numbers(await anext(worker)) == [1200]
        assert info(daemon).num_ack_pending == 1
        assert_no_traceback(daemon)


def test_the_blocking_worker_acks_single_messages(server: NatsServer) -> None:
    with alone(server) as daemon, connect_sync(daemon.pull_address) as client:
        publish(server, 4)
        with client.worker("jobs", "c", max_deliver=5) as worker:
            messages = worker.messages()
            zero, one, two, three = (next(messages) for _ in range(4))
            worker.ack(zero)
            worker.nak(one)
            worker.term(two, reason="it is not a job")
            worker.in_progress(three)
            again = next(messages)
            assert (again.value, again.deliveries) == (b"1", 2)
            worker.ack(again, [three])
            there = client.describe_consumer("jobs", "c")
            assert (there.num_ack_pending, there.deliveries) == (0, 5)
        assert_no_traceback(daemon)


async def test_a_goodbye_returns_what_is_pending(server: NatsServer) -> None:
    with alone(server) as daemon:
        publish(server, 20)
        async with connect(daemon.pull_address) as client:
            async with client.worker("jobs", "c", batch=5) as worker:
                first = await anext(worker)
                await worker.ack(first.messages()[0])
            assert (await client.describe_consumer("jobs", "c")).num_waiting == 0
            # Four messages of the first batch and all prefetched ones are delivered again at once.
            found: dict[int, int] = {}
            async with client.worker("jobs", "c", batch=20, prefetch=False) as worker:
                while len(found) < 19:
                    batch = await anext(worker)
                    found |= zip(numbers(batch), deliveries(batch), strict=True)
        assert 0 not in found
        assert [found[number] for number in (1, 4, 19)] == [2, 2, 1]
        assert_no_traceback(daemon)


async def test_a_lost_connection_returns_nothing(server: NatsServer) -> None:
    with alone(server) as daemon:
        publish(server, 10)
        async with connect(daemon.pull_address) as client:
            async with connect(daemon.pull_address) as lost:
                worker = lost.worker("jobs", "c", batch=6, prefetch=False, ack_wait=3600)
                kept = await anext(worker)
            async with client.worker("jobs", "c", batch=10, prefetch=False) as other:
                assert numbers(await anext(other)) == [6, 7, 8, 9]
                assert (await client.describe_consumer("jobs", "c")).num_ack_pending == 10
                # Messages that were received before can still be acked.
                await other.ack(kept)
                assert (await client.describe_consumer("jobs", "c")).num_ack_pending == 4
        assert_no_traceback(daemon)


def test_confirmed_acks_survive_kill_9_under_the_worker(server: NatsServer) -> None:
    pull = {"listen": [f"tcp://127.0.0.1:{lasting_ports(1)[0]}"]}
    with alone(server, pull=pull) as daemon, connect_sync(daemon.pull_address) as client:
        publish(server, 1000)
        with client.worker("jobs", "c", batch=100, prefetch=False, ack_wait=3600) as worker:
            acked = next(worker)
            worker.ack(acked)
            open_ = next(worker)
            daemon.kill()
            daemon.restart()
            daemon.wait_ready()
            worker.ack(open_.messages()[:10])
            found = next(worker)
            assert numbers(found) == list(range(200, 300))
            worker.nak(open_)
            again = next(worker)
            assert numbers(again)[:90] == list(range(110, 200))
            assert set(deliveries(again)[:90]) == {2}
        there = info(daemon)
        assert there.ack_floor == 111  # the first offset is 1
        assert_no_traceback(daemon)


async def test_two_doors_share_a_consumer(server: NatsServer) -> None:
    with with_nats(server) as daemon, RawNats(server.port, timeout=PATIENCE) as raw:
        until(lambda: "jetstream-api-answers" in daemon.log and "leaf-connected" in daemon.log)
        body = {"stream_name": "jobs", "config": {"durable_name": "c", "ack_policy": "explicit"}}
        made = raw.request("$JS.API.CONSUMER.DURABLE.CREATE.jobs.c", json.dumps(body).encode())
        assert "error" not in made.json()
        publish(server, 10)
        raw.pub("$JS.API.CONSUMER.MSG.NEXT.jobs.c", b"4", reply=raw.new_reply())
        over_nats = [raw.next_message() for _ in range(4)]
        assert [int(one.payload) for one in over_nats] == [0, 1, 2, 3]
        async with (
            connect(daemon.pull_address) as client,
            client.worker("jobs", "c", batch=4, prefetch=False) as worker,
        ):
            batch = await anext(worker)
            assert numbers(batch) == [4, 5, 6, 7]
            assert raw.request(over_nats[1].reply, b"-NAK").payload == b""
            again = await anext(worker)
            assert (numbers(again)[0], deliveries(again)[0]) == (1, 2)
            await worker.ack(batch, again)
            for one in over_nats:
                assert raw.request(one.reply, b"+ACK").payload == b""
            found = raw.request("$JS.API.CONSUMER.INFO.jobs.c", b"").json()
            there = await client.describe_consumer("jobs", "c")
            assert found["num_ack_pending"] == there.num_ack_pending
            assert found["config"].pop("metadata").keys() >= {"_nats.level", "_nats.ver"}
            assert found["config"] == there.config
        # A consumer that was made on the socket has workers over NATS, too.
        with connect_sync(daemon.pull_address) as blocking:
            blocking.create_consumer("jobs", "d", filters=["jobs.b"])
        publish(server, 2, first=50, subject="jobs.b")
        raw.pub("$JS.API.CONSUMER.MSG.NEXT.jobs.d", b"2", reply=raw.new_reply())
        found = [raw.next_message() for _ in range(2)]
        assert [int(one.payload) for one in found] == [50, 51]
        assert_no_traceback(daemon)


async def test_filters_select_what_a_worker_gets(server: NatsServer) -> None:
    with alone(server) as daemon:
        for number in range(10):
            publish(server, 1, first=number, subject=f"jobs.{'ab'[number % 2]}")
        async with (
            connect(daemon.pull_address) as client,
            client.worker("jobs", "c", filters=["jobs.b"], prefetch=False) as worker,
        ):
            found: list[int] = []
            while len(found) < 5:
                batch = await anext(worker)
                found += numbers(batch)
                assert {one.subject for one in batch} == {"jobs.b"}
                assert sum(map(len, batch.record_batches())) == len(batch)
                await worker.ack(batch)
            assert found == [1, 3, 5, 7, 9]
        assert_no_traceback(daemon)


async def test_workers_share_the_messages(server: NatsServer) -> None:
    with alone(server) as daemon:
        publish(server, 3000)
        found: list[int] = []

        async def work() -> None:
            async with (
                connect(daemon.pull_address) as client,
                client.worker("jobs", "c", batch=70, max_ack_pending=-1) as worker,
            ):
                async for batch in worker:
                    found.extend(numbers(batch))
                    await worker.ack(batch)

        async with asyncio.timeout(PATIENCE):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(work()) for _ in range(4)]
                while len(found) < 3000:
                    await asyncio.sleep(0.01)
                for task in tasks:
                    task.cancel()
        assert sorted(found) == list(range(3000))
        assert info(daemon).num_ack_pending == 0
        assert_no_traceback(daemon)


async def test_a_cancelled_iteration_goes_on(server: NatsServer) -> None:
    with alone(server) as daemon:
        async with (
            connect(daemon.pull_address) as client,
            client.worker("jobs", "c") as worker,
        ):
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await anext(worker)
            publish(server, 3)
            found: list[int] = []
            while len(found) < 3:
                batch = await anext(worker)
                found += numbers(batch)
                assert set(deliveries(batch)) == {1}
                await worker.ack(batch)
            assert found == [0, 1, 2]
        assert_no_traceback(daemon)


async def test_wrong_arguments_and_missing_consumers(server: NatsServer) -> None:
    with alone(server) as daemon:
        async with connect(daemon.pull_address) as client:
            for wrong in (
                {"batch": 0},
                {"batch": 10_001},
                {"ack_wait": -1.0},
                {"backoff": 5},
                {"deliver": "never"},
                {"filters": "jobs.a"},
                {"create": False, "ack_wait": 1.0},
            ):
                with pytest.raises(InvalidArgument):
                    client.worker("jobs", "c", **wrong)  # type: ignore[arg-type]
            with pytest.raises(StreamNotFound):
                await anext(client.worker("other", "c"))
            with pytest.raises(ConsumerNotFound):
                await anext(client.worker("jobs", "c", create=False))
            with pytest.raises(InvalidArgument):
                await client.create_consumer("jobs", "c.d")
            with pytest.raises(InvalidArgument):
                await client.create_consumer("jobs", "c", filters=["jobs..a"])
            with pytest.raises(InvalidArgument):
                await client.create_consumer("jobs", "c", max_deliver=1, backoff=[1, 2])
            await client.create_consumer("jobs", "c", ack_wait=5)
            await client.create_consumer("jobs", "c", ack_wait=5)
            with pytest.raises(Conflict) as raised:
                await client.create_consumer("jobs", "c", ack_wait=6)
            assert "ack_wait is 5 s, not 6 s" in raised.value.message
            changed = await client.update_consumer("jobs", "c", ack_wait=6, max_deliver=3)
            assert changed.config["ack_wait"] == 6 * 10**9
            with pytest.raises(InvalidArgument):
                await client.update_consumer("jobs", "c", deliver="new")
            assert [one.name for one in await client.list_consumers("jobs")] == ["c"]
            worker = client.worker("jobs", "c")
            waiting = asyncio.ensure_future(anext(worker))
            until_ = asyncio.get_running_loop().time() + PATIENCE
            while not (await client.describe_consumer("jobs", "c")).num_waiting:
                assert asyncio.get_running_loop().time() < until_
            await client.delete_consumer("jobs", "c")
            with pytest.raises(ConsumerNotFound):
                await waiting
            with pytest.raises(ConsumerNotFound):
                await client.delete_consumer("jobs", "c")
        assert_no_traceback(daemon)


async def test_an_ack_of_another_consumer_of_the_name_does_nothing(server: NatsServer) -> None:
    with alone(server) as daemon:
        publish(server, 2)
        async with connect(daemon.pull_address) as client:
            worker = client.worker("jobs", "c", prefetch=False)
            old = await anext(worker)
            await client.delete_consumer("jobs", "c")
            await client.create_consumer("jobs", "c")
            new = await anext(client.worker("jobs", "c", prefetch=False))
            assert numbers(new) == numbers(old) == [0, 1]
            with pytest.raises(ConsumerNotFound):
                await worker.ack(old)
            assert (await client.describe_consumer("jobs", "c")).num_ack_pending == 2
            # A reset begins again, too.
            await client.reset_consumer("jobs", "c", 2)
            assert numbers(await anext(worker)) == [1]
        assert_no_traceback(daemon)


async def test_a_pause_holds_workers_back(server: NatsServer) -> None:
    with alone(server) as daemon:
        async with connect(daemon.pull_address) as client:
            await client.create_consumer("jobs", "c")
            paused = await client.pause_consumer("jobs", "c", 3600.0)
            assert 3500 < paused.pause_remaining_ns / 10**9 <= 3600
            publish(server, 1)
            worker = client.worker("jobs", "c")
            waiting = asyncio.ensure_future(anext(worker))
            until_ = asyncio.get_running_loop().time() + PATIENCE
            while not (await client.describe_consumer("jobs", "c")).num_waiting:
                assert asyncio.get_running_loop().time() < until_
            assert not waiting.done()
            assert (await client.resume_consumer("jobs", "c")).pause_remaining_ns == 0
            assert numbers(await waiting) == [0]
        assert_no_traceback(daemon)


def acl(file: Path, **rule: Any) -> str:
    rights = {"allow": ["read", "work"], "streams": ["jobs"], **rule}
    content = {
        "principals": {
            "shop": {"token_hash": hash_token("0123456789abcdef0123")},
            "ops": {"token_hash": hash_token("3210fedcba9876543210")},
        },
        "roles": {"worker": [rights], "all": [{"allow": ["read", "work"], "streams": ["*"]}]},
        "bindings": {"shop": ["worker"], "ops": ["all"]},
    }
    file.write_text(json.dumps(content))
    file.chmod(0o600)
    return str(file)


async def test_a_worker_needs_the_right_to_work_and_to_read(
    server: NatsServer, tmp_path: Path
) -> None:
    file = acl(tmp_path / "acl.yaml", consumers=["bill*"], subjects=["jobs.a"])
    with alone(server, acl={"file": file}) as daemon:
        publish(server, 1)
        ops = connect(daemon.pull_address, token="ops.3210fedcba9876543210")
        shop = connect(daemon.pull_address, token="shop.0123456789abcdef0123")
        async with ops as every, shop as some:
            await every.create_consumer("jobs", "mail", filters=["jobs.a"])
            await every.create_consumer("jobs", "billing")
            with pytest.raises(Forbidden) as raised:
                await anext(some.worker("jobs", "mail"))
            assert "only bill*" in raised.value.message
            with pytest.raises(Forbidden) as raised:
                await anext(some.worker("jobs", "billing", create=False))
            assert "delivers records that you may not read" in raised.value.message
            with pytest.raises(Forbidden):
                await some.create_consumer("jobs", "bills")
            with pytest.raises(Forbidden):
                await some.update_consumer("jobs", "billing", ack_wait=1)
            worker = some.worker("jobs", "bills", filters=["jobs.a"])
            batch = await anext(worker)
            assert numbers(batch) == [0]
            await worker.ack(batch)
            await worker.close()
        assert_no_traceback(daemon)


async def test_clients_of_nats_use_the_consumers_that_the_acl_names(
    server: NatsServer, tmp_path: Path
) -> None:
    file = Path(acl(tmp_path / "acl.yaml"))
    content = json.loads(file.read_text())
    content["nats"] = {
        "allow": ["read", "work"],
        "streams": ["jobs"],
        "subjects": ["jobs.a"],
        "consumers": ["ok*"],
    }
    file.write_text(json.dumps(content))
    with (
        with_nats(server, acl={"file": str(file)}) as daemon,
        RawNats(server.port, timeout=PATIENCE) as raw,
    ):
        until(lambda: "jetstream-api-answers" in daemon.log and "leaf-connected" in daemon.log)
        publish(server, 1)
        body = {"stream_name": "jobs", "config": {"ack_policy": "explicit"}}
        for name, refused in (("other", True), ("okay", False)):
            body["config"] = {"durable_name": name, "ack_policy": "explicit"}
            subject = f"$JS.API.CONSUMER.DURABLE.CREATE.jobs.{name}"
            assert ("error" in raw.request(subject, json.dumps(body).encode()).json()) is refused
        for method, asked in (("RESET", b"{}"), ("UNPIN", b'{"group": "g"}')):
            denied = raw.request(f"$JS.API.CONSUMER.{method}.jobs.other", asked).json()["error"]
            assert denied["code"] == 403, denied
        async with connect(daemon.pull_address, token="ops.3210fedcba9876543210") as ops:
            await ops.create_consumer("jobs", "ok-all")
            await ops.create_consumer("jobs", "ok-a", filters=["jobs.a"])
            await ops.create_consumer("jobs", "mine", filters=["jobs.a"])
        for name, payload in (("ok-all", b""), ("ok-a", b"0"), ("mine", b"")):
            raw.pub(f"$JS.API.CONSUMER.MSG.NEXT.jobs.{name}", b"1", reply=raw.new_reply())
            answer = raw.next_message()
            assert answer.payload == payload, name
            assert (b"403" in answer.headers) is (payload == b"")
        assert_no_traceback(daemon)
