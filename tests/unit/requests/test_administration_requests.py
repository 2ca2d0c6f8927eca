"""The same over a socket: both clients, and what each request needs of the ACL."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.daemons.local_broker import Running
from support.daemons.pull_broker import pull_server

from acl.policy import Policy
from acl.tokens import hash_token
from liftlog.client import StreamUpdate, connect, connect_sync
from liftlog.client.aio.calls import Calls
from liftlog.client.blocking.calls import SyncCalls
from liftlog.errors import (
    Conflict,
    Forbidden,
    InvalidArgument,
    LeaseGone,
    OffsetOutOfRange,
    StaleIncarnation,
    StreamNotFound,
    StreamUnavailable,
)
from liftlog.log import erasing
from liftlog.log.files.erasures import read_erasures
from liftlog.protocol import administration as messages
from liftlog.protocol import workers
from liftlog.protocol.consumer_states import FetchConsumers
from liftlog.protocol.groups import BeatGroup, CommitGroup, JoinGroup, LeaveGroup
from liftlog.protocol.messages import REQUESTS, Cancel, Fetch
from liftlog.protocol.replication import (
    Copies,
    Ends,
    Forward,
    HandOver,
    LookAgain,
    Peer,
    Replicate,
    Resign,
    Suspect,
)
from liftlog.server.requests.rights import HANDLERS


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    made = Running(tmp_path)
    await made.start()
    await made.broker.create_stream("s", {"subject": "in", "dedupe_window": "0s"})
    await made.publish("s", *[b"%d" % number for number in range(10)])
    yield made
    await made.broker.close()


class Caller:
    """One of the two clients, called alike."""

    def __init__(self, client: Any, *, blocking: bool) -> None:
        self._client, self._blocking = client, blocking

    async def __call__(self, method: str, *arguments: Any, **options: Any) -> Any:
        call = getattr(self._client, method)
        if self._blocking:
            return await asyncio.to_thread(call, *arguments, **options)
        return await call(*arguments, **options)


@pytest.fixture(params=["async", "sync"])
async def call(request: pytest.FixtureRequest, running: Running) -> AsyncIterator[Caller]:
    async with pull_server(running.broker) as (_, address):  # type: ignore[arg-type]
        if request.param == "async":
            async with connect(address) as client:
                yield Caller(client, blocking=False)
        else:
            blocking = await asyncio.to_thread(connect_sync, address)
            yield Caller(blocking, blocking=True)
            blocking.close()


async def test_update(call: Caller) -> None:
    update = await call("update_stream", "s", {"retention": {"max_messages": 4}}, dry_run=True)
    assert isinstance(update, StreamUpdate)
    assert update.dry_run
    assert update.removal is not None
    assert (update.removal.records, update.removal.log_start_offset) == (6, 7)
    with pytest.raises(Conflict) as raised:
        await call("update_stream", "s", retention={"max_messages": 4})
    assert raised.value.details["removal"] == update.removal.to_wire()
    done = await call(
        "update_stream", "s", retention={"max_messages": 4}, allow_deletion=True, acks="off"
    )
    assert [one["setting"] for one in done.differences] == ["acks", "retention.max_messages"]
    assert (done.dry_run, done.info.acks) == (False, "off")
    assert (await call("update_stream", "s", acks="off")).differences == []
    with pytest.raises(InvalidArgument, match="queue_group"):
        await call("update_stream", "s", queue_group="other")
    changed = (await call("update_stream", "s", subject=["other", "another"])).info
    assert changed.recorded_subjects == ["other", "another"]
    with pytest.raises(InvalidArgument, match="strings"):
        await call("update_stream", "s", {1: 2})


async def test_pause_resume_read_only(call: Caller) -> None:
    assert (await call("pause_stream", "s")).settings["paused"] is True
    assert (await call("resume_stream", "s")).settings["paused"] is False
    assert (await call("set_read_only", "s")).settings["read_only"] is True
    assert (await call("set_read_only", "s", False)).settings["read_only"] is False


async def test_truncate(call: Caller) -> None:
    assert (await call("truncate_prefix", "s", 5)).log_start_offset == 5
    with pytest.raises(OffsetOutOfRange):
        await call("truncate_prefix", "s", 12)
    for bad in (-1, "5", None, 1.0):
        with pytest.raises(InvalidArgument):
            await call("truncate_prefix", "s", bad)


async def test_erase(call: Caller, running: Running, caplog: pytest.LogCaptureFixture) -> None:
    log = running.broker.hosts["s"].log
    tried = await call("erase", "s", [(2, 4), (9, 99)], dry_run=True)
    assert (tried.count, tried.dry_run, tried.erasure_id) == (4, True, "")
    assert log.view.erased is None
    with caplog.at_level(logging.INFO, "liftlog.server"):
        done = await call("erase", "s", [(2, 4), (9, 99)], reason="request 17")
    assert (done.count, done.dry_run, done.unreadable_ranges) == (4, False, [])
    assert "records-erased stream=s" in caplog.text
    assert "request 17" in caplog.text
    assert log.view.record_count == 6
    assert (await call("describe_stream", "s")).record_count == 6
    again = await call("erase", "s", [(2, 4)])
    assert (again.count, again.erasure_id) == (0, "")
    (listed,) = read_erasures(log.environment.fs, log.directory)
    assert (listed.erasure_id, listed.count, listed.reason) == (done.erasure_id, 4, "request 17")
    assert listed.ranges == ((2, 4), (9, 99))
    for bad in ([], [(4, 4)], [(5, 3)], [(-1, 3)], [("1", 3)]):
        with pytest.raises(InvalidArgument):
            await call("erase", "s", bad)
    with pytest.raises(StaleIncarnation):
        await call("erase", "s", [(5, 6)], incarnation="another")
    with pytest.raises(StreamNotFound):
        await call("erase", "t", [(5, 6)])


async def test_what_cannot_erase_says_so(call: Caller, running: Running) -> None:
    host = running.broker.hosts["s"]
    host.log.config = replace(host.log.config, replicated=True)
    with pytest.raises(Conflict, match="replicas"):
        await call("erase", "s", [(2, 4)])
    host.log.config = replace(host.log.config, replicated=False)
    assert (await call("erase", "s", [(2, 4)])).count == 2


async def test_an_erasure_that_fails_hides_nothing(
    call: Caller, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = running.broker.hosts["s"].log

    def fail(*about: Any) -> None:
        raise OSError(errno.EIO, "injected")

    with monkeypatch.context() as patch:
        patch.setattr(erasing, "write_erased_file", fail)
        with pytest.raises(StreamUnavailable):
            await call("erase", "s", [(2, 4)])
    assert log.view.erased is None
    assert (await call("erase", "s", [(2, 4)])).count == 2


async def test_leases(call: Caller) -> None:
    lease = await call("acquire_lease", "s", ttl=30, holder="me")
    assert (lease.low, lease.high, lease.holder) == (1, 11, "me")
    assert lease.remaining_ms <= 30_000
    raised = await call("renew_lease", "s", lease.lease_id, ttl=90.5, low=4)
    assert raised.low == 4
    assert 30_000 < raised.remaining_ms <= 90_500
    assert [one.lease_id for one in await call("list_leases", "s")] == [lease.lease_id]
    with pytest.raises(Conflict):
        await call("truncate_prefix", "s", 5)
    await call("release_lease", "s", lease.lease_id)
    await call("release_lease", "s", lease.lease_id)
    with pytest.raises(LeaseGone, match="no lease"):
        await call("renew_lease", "s", lease.lease_id)
    for ttl in (0, -1, float("nan"), 3601):
        with pytest.raises(InvalidArgument):
            await call("acquire_lease", "s", ttl=ttl)


async def test_questions(call: Caller, running: Running) -> None:
    assert [info.name for info in await call("streams_for", "in")] == ["s"]
    assert await call("streams_for", "out") == []
    info = await call("metadata")
    assert (info.server_id, info.stream_count) == (running.broker.server_id, 1)


def test_both_clients_have_the_same_methods() -> None:
    def methods(cls: type) -> list[str]:
        return [
            name
            for name in vars(cls)
            if not name.startswith("_") and name not in ("server", "addresses")
        ]

    assert methods(Calls) == methods(SyncCalls)
    # `fetch` is beside the reads, and requests for consumers with acks are calls of their own; what
    # cancels a request, what nodes ask each other, and what the members of a group ask, has none.
    nodes = (Copies, Peer, Replicate, FetchConsumers, Suspect, Resign, Ends, Forward, HandOver)
    nodes += (LookAgain,)
    members = (JoinGroup, BeatGroup, CommitGroup, LeaveGroup)
    kinds = (*nodes, *members, *workers.REQUESTS)
    elsewhere = {
        Fetch.KIND,
        Cancel.KIND,
        "erase",
        "erasures",
        "prove",
        "erasedoffsets",
        "eraseremove",
        *[kind.KIND for kind in kinds],
    }
    assert len(methods(Calls)) == len(REQUESTS.keys() - elsewhere)


# --- the ACL ---

SECRET = "a-secret-that-is-long-enough"
ACL_FILE = f"""
principals:
  reader: {{token_hash: "{hash_token(SECRET)}"}}
  owner: {{token_hash: "{hash_token(SECRET[::-1])}"}}
roles:
  look: [{{allow: [read], streams: ["s"]}}]
  own: [{{allow: [read, admin, erase], streams: ["s"]}}]
bindings:
  reader: [look]
  owner: [own]
"""

NEEDS_ADMIN: list[tuple[str, tuple[Any, ...]]] = [
    ("update_stream", ({"acks": "off"},)),
    ("pause_stream", ()),
    ("resume_stream", ()),
    ("set_read_only", ()),
    ("truncate_prefix", (5,)),
    ("erase", ([(1, 3)],)),
]


def test_every_request_is_answered_behind_the_gate() -> None:
    operations = {kind.KIND: HANDLERS[kind].operation for kind in messages.REQUESTS}
    admin = ("update", "pause", "resume", "readonly", "truncate")
    read = ("lease", "renew", "release", "leases", "extents", "erasedoffsets")
    assert operations == {
        **dict.fromkeys(admin, "admin"),
        **dict.fromkeys(read, "read"),
        **dict.fromkeys(("erase", "erasures", "prove", "eraseremove"), "erase"),
        "streamsfor": None,
        "metadata": None,
    }
    assert set(operations) <= set(REQUESTS)


async def test_who_may_read_may_hold_and_who_may_administer_may_change(running: Running) -> None:
    await running.broker.create_stream("secret", {"subject": "in"})
    policy = Policy.load(ACL_FILE)
    async with (
        pull_server(running.broker, policy=policy) as (_, address),  # type: ignore[arg-type]
        connect(address, token=f"reader.{SECRET}") as reader,
        connect(address, token=f"owner.{SECRET[::-1]}") as owner,
    ):
        for method, arguments in NEEDS_ADMIN:
            with pytest.raises(Forbidden):
                await getattr(reader, method)("s", *arguments)
        assert running.broker.hosts["s"].log.log_start_offset == 1
        lease = await reader.acquire_lease("s", holder="job 7")
        assert lease.holder == "reader: job 7"
        for call in (
            reader.acquire_lease("secret"),
            reader.renew_lease("secret", "x"),
            reader.release_lease("secret", "x"),
            reader.list_leases("secret"),
        ):
            with pytest.raises(Forbidden):
                await call
        assert [one.lease_id for one in await reader.list_leases("s")] == [""]
        assert [one.lease_id for one in await owner.list_leases("s")] == [lease.lease_id]
        for client in (reader, owner):
            assert [one.name for one in await client.streams_for("in")] == ["s"]
            assert (await client.metadata()).stream_count == 1
        await owner.release_lease("s", lease.lease_id)
        for method, arguments in NEEDS_ADMIN:
            await getattr(owner, method)("s", *arguments)
