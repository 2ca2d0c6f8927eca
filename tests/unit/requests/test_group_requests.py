"""What the members of a group need of the ACL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.clients.opened_client import router_of
from support.daemons.local_broker import Running
from support.daemons.pull_broker import pull_server

from acl.policy import Policy
from acl.tokens import hash_token
from liftlog.client import connect
from liftlog.errors import Forbidden
from liftlog.groups.requests import Join
from liftlog.protocol.groups import MAX_SLOTS, BeatGroup
from liftlog.server.checkpoints.opening import open_checkpoints

SECRET = "a-secret-that-is-long-enough-for-"
NAMES = ("worker", "blind", "looker")
ACL_FILE = f"""
principals:
  worker: {{token_hash: "{hash_token(SECRET + "worker")}"}}
  blind: {{token_hash: "{hash_token(SECRET + "blind")}"}}
  looker: {{token_hash: "{hash_token(SECRET + "looker")}"}}
roles:
  work: [{{allow: [read, commit], streams: ["s"]}}]
  store: [{{allow: [commit], streams: ["s"]}}]
  look: [{{allow: [read], streams: ["s"]}}]
bindings:
  worker: [work]
  blind: [store]
  looker: [look]
"""


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    made = Running(tmp_path)
    await made.start()
    await made.broker.create_stream("s", {"subject": "in", "dedupe_window": "0s"})
    await made.publish("s", *[b"%d" % number for number in range(10)])
    made.broker.serve_checkpoints(await open_checkpoints(made.broker, made.clock.now_ns))
    yield made
    await made.broker.close()


async def test_a_member_reads_and_commits(running: Running) -> None:
    policy = Policy.load(ACL_FILE)
    async with pull_server(running.broker, policy=policy) as (_, address):  # type: ignore[arg-type]
        clients = {name: await connect(address, token=f"{name}.{SECRET}{name}") for name in NAMES}
        for name, missing in (("blind", "read"), ("looker", "commit checkpoints of")):
            group = clients[name].group("billing", "s")
            with pytest.raises(Forbidden, match=f"'{name}' may not {missing}"):
                await anext(group)
            beat = BeatGroup("s", "billing", "w1", 1, 1, [])
            exchange = await router_of(clients[name]).ask(beat, 5)
            assert isinstance(exchange.error, Forbidden)
        assert await clients["looker"].list_groups() == []
        async with clients["worker"].group("billing", "s") as records:
            assert [(await anext(records)).offset for _ in range(10)] == list(range(1, 11))
            await records.commit()
            found = await clients["looker"].describe_group("billing", "s")
            assert found is not None
            assert found.principal == found.members[0]["principal"] == "worker"
            assert await clients["blind"].list_groups() == []
            with pytest.raises(Forbidden):
                await clients["blind"].describe_group("billing", "s")
        for client in clients.values():
            await client.close()


async def test_a_page_of_large_groups_is_short(running: Running) -> None:
    """Its cost lies in slots and members: a page of a thousand groups could have a million."""
    groups = running.broker.checkpoints.groups
    for number in range(10):
        await groups.asked(Join((f"g{number}", "s"), "m", "t", 60_000, MAX_SLOTS, 0, "", 0))
    pages: list[list[str]] = []
    after = None
    while after is not None or not pages:
        found, after = groups.page(lambda _: True, after=after)
        pages.append([one.group for one in found])
    assert [len(page) for page in pages] == [8, 2]
    assert [name for page in pages for name in page] == [f"g{number}" for number in range(10)]
    found, after = groups.page(lambda name: name != "s")
    assert (found, after) == ([], None)
    async with pull_server(running.broker) as (_, address):  # type: ignore[arg-type]
        async with connect(address) as client:
            assert len(await client.list_groups()) == 10
