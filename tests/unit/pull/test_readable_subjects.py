"""Who may read some subjects of a stream gets the records on these, however it asks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from support.clients.opened_client import Opened, until
from support.clients.raw_pull import RawPull
from support.daemons.http_port import http_port
from support.daemons.pull_broker import LogBroker, pull_server

from acl.policy import Policy
from liftlog.client import connect_sync
from liftlog.client.reading.read_options import Filter
from liftlog.errors import Forbidden

COUNT = 100
REGIONS = (b"orders.eu.a", b"orders.us.a", b"orders.eu", b"orders.eu.b.c", b"payments.eu")
EU = [offset for offset in range(1, COUNT + 1) if REGIONS[offset % 5] in (REGIONS[0], REGIONS[3])]


def policy(subjects: str = '["orders.eu.>"]', roles: str = "[some]") -> Policy:
    return Policy.load(
        f"""
principals: {{anonymous: {{}}}}
roles:
  some: [{{allow: [read, commit], streams: ["orders"], subjects: {subjects}}}]
  more: [{{allow: [read], streams: ["ord*"], subjects: ["payments.*"]}}]
  all: [{{allow: [read], streams: ["orders"]}}]
bindings: {{anonymous: {roles}}}
"""
    )


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[LogBroker]:
    """Record n is on REGIONS[n % 5], all of them in one stream."""
    broker = LogBroker(tmp_path)
    stream = broker.add("orders", subject=">")
    for offset in range(1, COUNT + 1):
        stream.append([b"value %d" % offset], subject=REGIONS[offset % 5], keys=[b"k"])
    yield broker
    assert broker.unreleased == 0
    broker.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_read_gets_these_records_and_ends(mixed: LogBroker, kind: str) -> None:
    async with pull_server(mixed, policy=policy()) as (_, address):
        client = await Opened.to(kind, address)
        assert await client.offsets("orders", until="end") == EU
        assert (await client.call("describe_stream", "orders")).high_watermark == COUNT + 1
        assert [one.name for one in await client.call("list_streams")] == ["orders"]
        await client.close()


@pytest.mark.parametrize(
    "wanted",
    [
        Filter(subject=">"),
        Filter(subject=["orders.us.a", "payments.eu", "orders.eu"]),
        Filter(key=b"k"),
        Filter(subject="*.*.a", key=b"k"),
    ],
)
async def test_a_filter_only_takes_away(mixed: LogBroker, wanted: Filter) -> None:
    async with pull_server(mixed, policy=policy()) as (_, address):
        client = await Opened.to("async", address)
        found = await client.offsets("orders", until="end", filter=wanted)
        assert set(found) <= set(EU)
        if wanted.key and not wanted.subject:
            assert found == EU
        await client.close()


async def test_columns_without_the_subject_change_nothing(mixed: LogBroker) -> None:
    async with pull_server(mixed, policy=policy()) as (_, address):
        client = await Opened.to("async", address)
        assert await client.offsets("orders", until="end", columns=["value"]) == EU
        await client.close()


async def test_rules_add_up(mixed: LogBroker) -> None:
    payments = [n for n in range(1, COUNT + 1) if REGIONS[n % 5] == b"payments.eu"]
    for roles, wanted in (
        ("[some, more]", sorted(EU + payments)),
        ("[more]", payments),
        ("[some, all]", list(range(1, COUNT + 1))),
    ):
        async with pull_server(mixed, policy=policy(roles=roles)) as (_, address):
            client = await Opened.to("async", address)
            assert await client.offsets("orders", until="end") == wanted
            await client.close()


async def test_a_single_offset_cannot_be_picked(mixed: LogBroker) -> None:
    async with pull_server(mixed, policy=policy()) as (_, address):
        async with await RawPull.connect(address) as peer:
            for offset in range(1, COUNT + 1):
                peer.send({"k": "fetch", "i": offset, "s": "orders", "o": offset, "c": 1})
                answer = await peer.receive()
                assert answer["q"] is True
                assert (answer["n"], answer["c"]) == (offset + 1, int(offset in EU))
                assert (b"value" in answer.get("body", b"")) == (offset in EU)


async def test_arrow_batches_hold_these_records(mixed: LogBroker) -> None:
    async with pull_server(mixed, policy=policy()) as (_, address):

        def read() -> list[str]:
            with connect_sync(address) as client:
                found: list[str] = []
                for batch in client.read_batches("orders", until="end"):
                    found += batch.to_arrow(["subject"]).column("subject").to_pylist()
                return found

        subjects = await asyncio.to_thread(read)
        assert set(subjects) == {"orders.eu.a", "orders.eu.b.c"}
        assert len(subjects) == len(EU)


async def test_who_waits_hears_of_these_records_only(mixed: LogBroker) -> None:
    stream = mixed.streams["orders"]
    async with pull_server(mixed, policy=policy()) as (_, address):
        async with await RawPull.connect(address) as peer:
            peer.send({"k": "fetch", "i": 1, "s": "orders", "o": COUNT + 1, "w": 30_000})
            await until(lambda: stream.waiters)
            stream.append([b"not yours"], subject=b"orders.us.a")
            stream.append([b"yours"], subject=b"orders.eu.x")
            answer = await peer.receive()
            while not answer["c"]:
                peer.send({"k": "fetch", "i": 1, "s": "orders", "o": answer["n"], "w": 30_000})
                answer = await peer.receive()
            assert b"yours" in answer["body"]
            assert b"not yours" not in answer["body"]


async def test_whoever_waits_is_judged_again_when_there_is_something(mixed: LogBroker) -> None:
    stream = mixed.streams["orders"]
    async with pull_server(mixed, policy=policy(roles="[all]")) as (server, address):
        async with await RawPull.connect(address) as peer:
            ask = {"k": "fetch", "s": "orders", "o": COUNT + 1, "w": 30_000}
            peer.send({**ask, "i": 1})
            await until(lambda: stream.waiters)
            server.set_policy(policy())
            stream.append([b"hidden", b"hidden"], subject=b"orders.us.a")
            stream.append([b"shown"], subject=b"orders.eu.x")
            answer = await peer.receive()
            while not answer["c"]:
                peer.send({**ask, "i": 1, "o": answer["n"]})
                answer = await peer.receive()
            assert b"hidden" not in answer["body"]
            assert b"shown" in answer["body"]
            peer.send({**ask, "i": 2, "o": COUNT + 4})
            await until(lambda: stream.waiters)
            server.set_policy(Policy.load("principals: {anonymous: {}}"))
            stream.append([b"too late"], subject=b"orders.eu.x")
            assert (await peer.receive())["n"] == "FORBIDDEN"


async def test_other_streams_stay_closed(mixed: LogBroker) -> None:
    mixed.add("other", subject="orders.eu.>")
    async with pull_server(mixed, policy=policy()) as (_, address):
        client = await Opened.to("async", address)
        with pytest.raises(Forbidden):
            await client.offsets("other", until="end")
        await client.close()


async def test_one_record_over_http(mixed: LogBroker) -> None:
    async with pull_server(mixed, policy=policy()) as (pull, _):
        async with http_port(pull) as (_, url, _):
            base = f"{url}/api/v1/streams/orders"
            async with aiohttp.ClientSession() as session:
                for offset in range(1, COUNT + 1):
                    form = {"format": "raw" if offset % 2 else "json"}
                    async with session.get(f"{base}/records/{offset}", params=form) as response:
                        text = await response.text()
                        assert response.status == (200 if offset in EU else 404), offset
                        assert ("value " in text) == (offset in EU)
                        if offset not in EU:
                            told = (await response.json())["error"]
                            assert told["details"] == {"next_offset": offset + 1}
