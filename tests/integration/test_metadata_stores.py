"""What every metadata store promises, on a file and on a bucket of a real JetStream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from support.clients.raw_nats import RawNats
from support.clients.store_campaign import eventually
from support.daemons.nats_server import NatsServer

from liftlog.cluster.store import MAX_VALUE_BYTES, CasLost, Entry, MetaStore, StoreUnavailable
from liftlog.errors import ConfigError, InvalidArgument
from liftlog.server.ingest import servers
from liftlog.server.metadata import kv_link, kv_store
from liftlog.server.metadata.file_store import FileMetaStore
from liftlog.server.metadata.kv_bucket import Bucket, Notice, check_created
from liftlog.server.metadata.kv_link import KvLink
from liftlog.server.metadata.kv_reads import BucketMissing
from liftlog.server.metadata.kv_store import NatsKvMetaStore, make_store
from liftlog.server.metadata.kv_view import Changes
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
    return await make_store(NatsSettings(servers=[server.url]), cluster, 1)


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
        with pytest.raises(CasLost):
            await other.session("live.a", b'{"start":2}', 1)
        found = await other.get("live.a")
        assert found is not None
        new = await other.session("live.a", b'{"start":2}', 1, found.revision)
        while time.monotonic() < old.deadline + 0.3:
            await asyncio.sleep(0.05)
        assert new.deadline > old.deadline
        await old.taken_over()
        await old.close()  # does not delete the other's key
        entry = await store.get("live.a")
        assert entry is not None
        assert entry.value == b'{"start":2}'
        await new.close()


# --- only in JetStream ---


async def opening_fails(settings: NatsSettings, match: str) -> ConfigError:
    store = NatsKvMetaStore(settings, settings.servers, "prod", "a")
    try:
        with pytest.raises(ConfigError, match=match) as raised:
            async with asyncio.timeout(PATIENCE):
                await store.open()
        return raised.value
    finally:
        await store.close()


async def ask(server: NatsServer, subject: str, question: bytes = b"") -> None:
    """Ask JetStream what no part of liftlog asks."""
    link = KvLink(NatsSettings(), [server.url], "unused")
    link.start()
    await link.wait_connected(PATIENCE)
    assert await link.ask(subject, question, check_created, seconds=PATIENCE)
    await link.close()


async def test_a_start_without_a_bucket_says_how_to_make_it(jetstream: NatsServer) -> None:
    error = await opening_fails(NatsSettings(servers=[jetstream.url]), "no bucket liftlog_prod")
    assert "liftlog cluster init" in error.hint
    settings = NatsSettings(servers=[jetstream.url])
    with pytest.raises(ConfigError, match="cannot keep the bucket on 3 servers") as raised:
        await make_store(settings, "prod", 3)
    assert "--replicas 1" in raised.value.hint


async def test_a_start_without_jetstream_says_so(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_store, "_NO_SERVICE_SECONDS", 0.3)
    error = await opening_fails(NatsSettings(servers=[server.url]), "do not run JetStream")
    assert "sync_interval" in error.hint


async def test_a_server_that_reaches_no_leader_is_left_for_another(
    server: NatsServer, jetstream: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers as one does whose lines to the others are cut: no one listens there."""
    monkeypatch.setattr(kv_link, "_LEADERLESS_SECONDS", 0.3)
    monkeypatch.setattr(kv_store, "_NO_SERVICE_SECONDS", PATIENCE)
    await make_store(NatsSettings(servers=[jetstream.url]), "far", 1)
    monkeypatch.setattr(servers.random, "shuffle", lambda _: None)  # the first is asked first
    addresses = [server.url, jetstream.url]
    store = NatsKvMetaStore(NatsSettings(servers=addresses), addresses, "far", "a")
    try:
        async with asyncio.timeout(PATIENCE):
            await store.open()
            await store.cas("stream.a", b"{}", 0)
    finally:
        await store.close()
    await ask(jetstream, "$JS.API.STREAM.DELETE.KV_liftlog_far")


async def test_a_bucket_that_others_made_differently_is_refused(jetstream: NatsServer) -> None:
    config = Bucket("prod").configuration(1) | {"allow_direct": True}
    await ask(jetstream, "$JS.API.STREAM.CREATE.KV_liftlog_prod", json.dumps(config).encode())
    settings = NatsSettings(servers=[jetstream.url])
    error = await opening_fails(settings, "allow_direct is on")
    assert "nats stream edit" in error.hint
    with pytest.raises(ConfigError, match="allow_direct is on"):
        await make_store(settings, "prod", 1)
    await ask(jetstream, "$JS.API.STREAM.DELETE.KV_liftlog_prod")


@pytest.mark.parametrize(
    "missing",
    ["$JS.API.STREAM.INFO.KV_liftlog_prod", "$KV.liftlog_prod.>", "liftlog.prod.meta.>"],
)
async def test_a_permission_that_lacks_is_named(missing: str) -> None:
    every = {
        "publish": [
            "$KV.liftlog_prod.>",
            "$JS.API.STREAM.INFO.KV_liftlog_prod",
            "$JS.API.STREAM.MSG.GET.KV_liftlog_prod",
        ],
        "subscribe": ["liftlog.prod.meta.>", "_INBOX.>"],
    }
    fewer = {what: [one for one in all_ if one != missing] for what, all_ in every.items()}
    users = [
        {"user": name, "password": name, "permissions": permissions}
        for name, permissions in (("init", {}), ("every", every), ("fewer", fewer))
    ]
    with NatsServer(jetstream=True, authorization={"users": users}) as server:

        def login(name: str) -> NatsSettings:
            return NatsSettings(servers=[server.url], user=name, password=SecretStr(name))

        assert await make_store(login("init"), "prod", 1)
        store = NatsKvMetaStore(login("every"), [server.url], "prod", "a")
        await store.open()
        await store.cas("stream.a", b"{}", 0)
        assert len(await store.scan("stream.")) == 1
        await store.close()
        error = await opening_fails(login("fewer"), "the NATS user may not")
        assert all(one in error.hint for one in every["publish"] + every["subscribe"])


async def test_what_others_write_into_the_bucket_is_handed_on_or_left(
    jetstream: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert await make_bucket(jetstream, "junk")
    subject = "$KV.liftlog_junk."
    async with opened_bucket(jetstream, "junk") as store:
        await store.cas("stream.a", b"{}", 0)
        for junk in ("stream.b", "stream.c.d", "stream.e", "not?a#key"):
            await ask(jetstream, subject + junk, b"\x00" * (1000 if junk == "stream.e" else 1))
        found = await store.scan("")
        assert {"stream.a", "stream.b", "stream.c.d", "stream.e"} <= set(found)
        assert found["stream.e"].value == bytes(1000)
        assert "metadata-key-ignored" in caplog.text
        entry = found["stream.b"]
        assert await store.cas("stream.b", b"{}", entry.revision) > entry.revision


@pytest.mark.parametrize("missed", ["one", "all"])
async def test_a_change_without_a_notice_is_heard_of_all_the_same(
    jetstream: NatsServer, monkeypatch: pytest.MonkeyPatch, missed: str
) -> None:
    """A notice that comes later shows at once that one was missed; without any, a look does."""
    monkeypatch.setattr(kv_store, "_LOOK_SECONDS", 3600.0 if missed == "one" else 0.5)
    cluster = f"deaf-{missed}"
    assert await make_bucket(jetstream, cluster)
    seen: dict[str, Entry | None] = {}
    async with (
        opened_bucket(jetstream, cluster) as store,
        opened_bucket(jetstream, cluster) as other,
        asyncio.timeout(PATIENCE),
    ):
        view, lost = store._view, []
        note = view.note

        def lose(notice: Notice) -> Changes:
            if missed == "one" and notice.key != "stream.a":
                return note(notice)
            lost.append(notice.key)
            return {}

        watch = asyncio.ensure_future(store.watch("stream.", seen.__setitem__))
        while view.has_missed:
            await asyncio.sleep(0.01)
        monkeypatch.setattr(view, "note", lose)
        for key in ("stream.a", "stream.b"):
            await other.cas(key, b"{}", 0)
        while {"stream.a", "stream.b"} - seen.keys():
            await asyncio.sleep(0.01)
        assert "stream.a" in lost
        watch.cancel()
        await asyncio.wait({watch})


async def test_notices_that_others_forge_change_nothing_for_long(
    jetstream: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_store, "_LOOK_SECONDS", 1.0)
    assert await make_bucket(jetstream, "forged")
    told: list[Entry | None] = [None]
    async with opened_bucket(jetstream, "forged") as store, asyncio.timeout(PATIENCE):
        watch = asyncio.ensure_future(store.watch("stream.", lambda key, entry: told.append(entry)))
        revision = await store.cas("stream.a", b"{}", 0)
        truth = Entry(revision, b"{}")
        while told[-1] != truth:
            await asyncio.sleep(0.01)
        with RawNats(jetstream.port) as client:
            for block in (b"", b"Nats-Sequence: x\r\n", b"Nats-Sequence: 10000000000\r\n"):
                head = b"NATS/1.0\r\nNats-Stream: KV_liftlog_forged\r\n"
                head += b"Nats-Subject: $KV.liftlog_forged.stream.a\r\n" + block + b"\r\n"
                sizes = b"%d %d" % (len(head), len(head) + 4)
                client.send(b"HPUB liftlog.forged.meta.stream.a " + sizes + b"\r\n")
                client.send(head + b"junk\r\n")
            client.ping()
        # The next look for missed changes writes, which tells that this was a lie.
        while told[-1] != truth or Entry(10_000_000_000, b"junk") not in told:
            await asyncio.sleep(0.01)
        revision = await store.cas("stream.a", b"[]", revision)
        while told[-1] != Entry(revision, b"[]"):
            await asyncio.sleep(0.01)
        watch.cancel()
        await asyncio.wait({watch})


async def test_a_bucket_that_is_deleted_is_missed_and_a_new_one_is_another(
    jetstream: NatsServer,
) -> None:
    assert await make_bucket(jetstream, "lost")
    seen: dict[str, Entry | None] = {}
    async with opened_bucket(jetstream, "lost") as store, asyncio.timeout(PATIENCE):
        watch = asyncio.ensure_future(store.watch("", seen.__setitem__))
        for number in range(20):
            await store.cas(f"stream.s{number}", b"{}", 0)
        session = await store.session("live.a", b'{"start":1}', 2)
        was = await store.get("cluster")
        while len(seen) < 22:
            await asyncio.sleep(0.01)
        await ask(jetstream, "$JS.API.STREAM.DELETE.KV_liftlog_lost")
        with pytest.raises(BucketMissing):
            await store.get("stream.s1")
        with pytest.raises(BucketMissing):
            await store.scan("")
        with pytest.raises(StoreUnavailable):
            await store.get_newest("stream.s1")
        with pytest.raises(StoreUnavailable):
            await store.cas("stream.s1", b"{}", 2)
        assert await make_bucket(jetstream, "lost")
        assert (await store.get("cluster")) != was
        while seen["stream.s1"] is not None or seen.get("live.a") is None:
            await asyncio.sleep(0.01)
        assert store.times_set_back >= 1  # a write that was on its way may show it again
        assert await store.get_newest("stream.s1") is None
        while session.deadline < time.monotonic() + 1:
            await asyncio.sleep(0.01)
        watch.cancel()
        await asyncio.wait({watch})
        await session.close()


async def test_an_older_copy_of_the_bucket_is_believed_once_a_write_shows_it(
    tmp_path: Path,
) -> None:
    server = NatsServer(tmp_path / "nats", jetstream=True)
    copy = tmp_path / "copy"
    seen: dict[str, Entry | None] = {}
    with server:
        assert await make_bucket(server, "back")
        async with opened_bucket(server, "back") as store, asyncio.timeout(PATIENCE):
            old = await store.cas("stream.a", b"old", 0)
            await asyncio.to_thread(server.stop)
            shutil.copytree(server.directory / "jetstream", copy)
            await asyncio.to_thread(server.start)
            watch = asyncio.ensure_future(store.watch("stream.", seen.__setitem__))
            new = await eventually(lambda: store.cas("stream.a", b"new", old))
            for _ in range(20):
                new = await store.cas("stream.a", b"new", new)
            await store.cas("stream.b", b"new", 0)
            while seen.get("stream.a") != Entry(new, b"new") or "stream.b" not in seen:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(server.kill)
            shutil.rmtree(server.directory / "jetstream")
            shutil.copytree(copy, server.directory / "jetstream")
            await asyncio.to_thread(server.start)
            assert await eventually(lambda: store.get_newest("stream.a")) == Entry(old, b"old")
            while seen != {"stream.a": Entry(old, b"old"), "stream.b": None}:
                await asyncio.sleep(0.01)
            assert store.times_set_back >= 1  # a write that was on its way may show it again
            with pytest.raises(CasLost):
                await store.cas("stream.a", b"x", new)
            revision = await store.cas("stream.a", b"again", old)
            while seen["stream.a"] != Entry(revision, b"again"):
                await asyncio.sleep(0.01)
            watch.cancel()
            await asyncio.wait({watch})
