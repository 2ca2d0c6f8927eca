"""What every metadata store promises, on a file and on a bucket of a real JetStream."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from support.nats_server import NatsServer

from liftlog.cluster.store import MAX_VALUE_BYTES, CasLost, Entry, MetaStore, StoreUnavailable
from liftlog.errors import InvalidArgument
from liftlog.server.replication.file_store import FileMetaStore
from liftlog.server.replication.kv_store import NatsKvMetaStore
from liftlog.settings import NatsSettings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

Opened = Callable[[], AbstractAsyncContextManager[Any]]
"""One more store on the same records, as another process has it."""

PATIENCE = 60.0


@pytest.fixture(scope="module")
def jetstream() -> Iterator[NatsServer]:
    with NatsServer(jetstream=True) as server:
        yield server


@contextlib.asynccontextmanager
async def opened_bucket(server: NatsServer, cluster: str) -> AsyncIterator[NatsKvMetaStore]:
    store = NatsKvMetaStore(NatsSettings(), [server.url], cluster, "a")
    try:
        await store.open()
        yield store
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def opened_file(path: Path) -> AsyncIterator[FileMetaStore]:
    store = FileMetaStore(path, shared=True)
    try:
        yield store
    finally:
        store.close()


async def make_bucket(server: NatsServer, cluster: str) -> bool:
    store = NatsKvMetaStore(NatsSettings(), [server.url], cluster, "init")
    try:
        return await store.create(1)
    finally:
        await store.close()


@pytest.fixture(params=["file", "nats"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path, jetstream: NatsServer) -> Opened:
    if request.param == "file":
        return lambda: opened_file(tmp_path / "records")
    cluster = f"c{secrets.token_hex(4)}"
    assert await make_bucket(jetstream, cluster)
    return lambda: opened_bucket(jetstream, cluster)


@pytest.fixture
async def store(opened: Opened) -> AsyncIterator[Any]:
    async with opened() as store:
        yield store


async def test_calls(store: MetaStore) -> None:
    assert await store.get("stream.a") is None
    assert await store.get_newest("stream.a") is None
    first = await store.cas("stream.a", b"{}", 0)
    assert await store.get("stream.a") == await store.get_newest("stream.a") == Entry(first, b"{}")
    assert await store.get("stream") is None
    with pytest.raises(CasLost):
        await store.cas("stream.a", b"{}", 0)
    second = await store.cas("stream.a", b'{"n":"\xc3\xa9"}', first)
    assert second > first
    with pytest.raises(CasLost):
        await store.cas("stream.a", b"{}", first)
    with pytest.raises(CasLost):
        await store.cas("stream.b", b"{}", first)
    await store.cas("node.x", b"{}", 0)
    assert await store.scan("stream.") == {"stream.a": Entry(second, b'{"n":"\xc3\xa9"}')}
    assert set(await store.scan("st")) == {"stream.a"}
    with pytest.raises(CasLost):
        await store.delete("stream.a", first)
    await store.delete("stream.a", second)
    assert await store.get("stream.a") is None
    assert await store.get_newest("stream.a") is None
    assert await store.scan("stream.") == {}
    assert "node.x" in await store.scan("")
    third = await store.cas("stream.a", b"again", 0)
    assert third > second
    with pytest.raises(CasLost):
        await store.cas("stream.a", b"{}", 0)
    with pytest.raises(CasLost):
        await store.cas("stream.a", b"{}", second)


async def test_values_have_a_limit(store: MetaStore) -> None:
    large = b'"' + b"x" * (MAX_VALUE_BYTES - 2) + b'"'
    revision = await store.cas("stream.a", large, 0)
    assert await store.get("stream.a") == Entry(revision, large)
    with pytest.raises(InvalidArgument, match=r"stream\.a"):
        await store.cas("stream.a", large + b" ", revision)
    assert await store.get("stream.a") == Entry(revision, large)


async def test_one_of_many_changes_at_the_same_revision_is_made(opened: Opened) -> None:
    async with opened() as one, opened() as other:
        revision = 0
        for round_number in range(5):
            values = [b"%d.%d" % (round_number, number) for number in range(8)]
            done = await asyncio.gather(
                *(
                    store.cas("stream.a", value, revision)
                    for store, value in zip([one, other] * 4, values, strict=True)
                ),
                return_exceptions=True,
            )
            made = [(number, value) for number, value in zip(done, values, strict=True)
                    if isinstance(number, int)]  # fmt: skip
            assert len(made) == 1
            assert sum(isinstance(result, CasLost) for result in done) == 7
            revision = made[0][0]
            assert await other.get_newest("stream.a") == Entry(*made[0])


async def test_a_scan_of_many_keys(store: MetaStore) -> None:
    made = await asyncio.gather(*(store.cas(f"stream.s{n}", b"%d" % n, 0) for n in range(300)))
    found = await store.scan("stream.")
    assert found == {f"stream.s{n}": Entry(made[n], b"%d" % n) for n in range(300)}
    assert await store.scan("live.") == {}


async def test_a_closed_store_is_unavailable(opened: Opened) -> None:
    async with opened() as store:
        await store.cas("k", b"{}", 0)
    with pytest.raises(StoreUnavailable):
        await store.get("k")
    with pytest.raises(StoreUnavailable):
        await store.cas("k", b"{}", 0)
    async with opened() as store:
        assert (await store.get("k")).value == b"{}"


# --- watches ---


async def test_a_watch_reports_what_is_there_and_what_another_store_changes(
    opened: Opened,
) -> None:
    seen: asyncio.Queue[tuple[str, bytes | None]] = asyncio.Queue()

    def note(key: str, entry: Entry | None) -> None:
        seen.put_nowait((key, None if entry is None else entry.value))

    async with opened() as store, opened() as other, asyncio.timeout(PATIENCE):
        await store.cas("stream.a", b"1", 0)
        await store.cas("node.x", b"0", 0)
        watch = asyncio.ensure_future(store.watch("stream.", note))
        assert await seen.get() == ("stream.a", b"1")
        await other.cas("stream.b", b"2", 0)
        assert await seen.get() == ("stream.b", b"2")
        entry = await other.get("stream.a")
        await other.cas("stream.a", b"3", entry.revision)
        await other.cas("node.y", b"0", 0)
        assert await seen.get() == ("stream.a", b"3")
        entry = await other.get("stream.a")
        await other.delete("stream.a", entry.revision)
        assert await seen.get() == ("stream.a", None)
        late: asyncio.Queue[str] = asyncio.Queue()
        second = asyncio.ensure_future(store.watch("", lambda key, entry: late.put_nowait(key)))
        assert {await late.get() for _ in range(3)} >= {"stream.b", "node.x"}
        for one in (watch, second):
            one.cancel()
            await asyncio.wait({one})
        await other.cas("stream.c", b"4", 0)
        assert seen.empty()


# --- sessions ---


async def test_a_session_is_renewed_and_ends_with_its_holder(opened: Opened) -> None:
    async with opened() as store, opened() as other, asyncio.timeout(PATIENCE):
        before = time.monotonic()
        session = await store.session("live.a", b'{"start":4}', 5)
        began = session.deadline
        assert before + 4 <= began <= time.monotonic() + 4
        while session.deadline < began + 2:
            entry = await other.get("live.a")
            assert entry is not None, "the session ended while it was renewed"
            assert entry.value == b'{"start":4}'
            await asyncio.sleep(0.05)
        await session.close()
        assert await other.get("live.a") is None


async def test_a_session_that_is_not_renewed_expires_after_its_deadline(opened: Opened) -> None:
    async with opened() as other, asyncio.timeout(PATIENCE):
        async with opened() as store:
            session = await store.session("live.a", b"{}", 1)
            await store.cas("stream.a", b"{}", 0)
        # The store is closed as in a process that is killed: nothing is deleted.
        deadline = session.deadline
        while await other.get("live.a") is not None:
            await asyncio.sleep(0.02)
        assert time.monotonic() > session.deadline == deadline
        # The next holder need not know the revision of what has expired, and other keys stay.
        mine = await other.session("live.a", b'{"start":5}', 1)
        assert (await other.get("live.a")).value == b'{"start":5}'
        assert (await other.get("stream.a")).value == b"{}"
        await mine.close()
        assert await other.get("live.a") is None
        await session.close()


async def test_the_end_of_a_session_is_reported_to_watches(opened: Opened) -> None:
    seen: asyncio.Queue[tuple[str, bool]] = asyncio.Queue()
    async with opened() as other, asyncio.timeout(PATIENCE):
        watch = asyncio.ensure_future(
            other.watch("live.", lambda key, entry: seen.put_nowait((key, entry is not None)))
        )
        async with opened() as store:
            session = await store.session("live.a", b"{}", 1)
            assert await seen.get() == ("live.a", True)
        while (told := await seen.get()) == ("live.a", True):
            pass
        assert told == ("live.a", False)
        watch.cancel()
        await asyncio.wait({watch})
        await session.close()


async def test_a_session_whose_key_is_taken_over_stops(opened: Opened) -> None:
    async with opened() as store, opened() as other, asyncio.timeout(PATIENCE):
        old = await store.session("live.a", b'{"start":1}', 1)
        new = await other.session("live.a", b'{"start":2}', 1)
        while time.monotonic() < old.deadline + 0.3:
            await asyncio.sleep(0.05)
        assert new.deadline > old.deadline
        await old.close()  # does not delete the other's key
        entry = await store.get("live.a")
        assert entry is not None
        assert entry.value == b'{"start":2}'
        await new.close()
