"""Streams are changed, held and cut while they run: what holds, what is refused, what survives."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.local_broker import Running

from liftlog.errors import (
    Conflict,
    DiskFull,
    Forbidden,
    InvalidArgument,
    LeaseGone,
    OffsetOutOfRange,
    ShuttingDown,
    StaleIncarnation,
    StreamNotFound,
    StreamUnavailable,
)
from liftlog.log import Log
from liftlog.server import administration as module
from liftlog.server.administration import Administration
from liftlog.stream import MessageRun

SMALL_SEGMENTS = {"segment": {"max_bytes": 400}, "dedupe_window": "0s"}
MINUTE_MS = 60_000


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    made = Running(tmp_path)
    await made.start()
    yield made
    await made.broker.close()


@pytest.fixture
def admin(running: Running) -> Administration:
    return running.broker.administration


async def restarted(running: Running, **streams: Any) -> Running:
    await running.broker.close()
    again = Running(running.data_dir.path, **streams)
    await again.start()
    return again


async def fill(running: Running, name: str = "s", count: int = 20, **settings: Any) -> Log:
    """A stream of single-record batches, in many small segments."""
    await running.broker.create_stream(name, {"subject": "in", **SMALL_SEGMENTS, **settings})
    for number in range(count):
        await running.publish(name, b"%03d" % number)
    return running.broker.hosts[name].log


# --- update ---


async def test_an_update_changes_what_it_names(running: Running, admin: Administration) -> None:
    await running.broker.create_stream("s", {"subject": "in", "retention": {"max_bytes": "1MiB"}})
    update = await admin.update_stream(
        "s", {"retention": {"max_messages": 7}, "max_pending_bytes": "9MiB"}
    )
    assert update.differences == [
        {"setting": "max_pending_bytes", "existing": "64MiB", "requested": "9MiB"},
        {"setting": "retention.max_messages", "existing": None, "requested": 7},
    ]
    assert (update.dry_run, update.removal) == (False, None)
    assert update.info.settings["retention"]["max_bytes"] == "1MiB", "what is not named stays"
    host = running.broker.hosts["s"]
    assert host.settings.retention.max_messages == 7
    again = await restarted(running)
    assert again.broker.hosts["s"].settings == host.settings
    await again.broker.close()


async def test_nothing_to_change_changes_nothing(running: Running, admin: Administration) -> None:
    await running.broker.create_stream("s", {"subject": "in"})
    manifest = running.data_dir.stream_path("s") / "manifest"
    before = (manifest.stat().st_ino, manifest.stat().st_mtime_ns)
    update = await admin.update_stream("s", {"subject": "in", "acks": "on"})
    assert update.differences == []
    assert (manifest.stat().st_ino, manifest.stat().st_mtime_ns) == before


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"subject": "other"}, "subject"),
        ({"queue_group": "g"}, "queue_group"),
        ({"initial_offset": 7, "acks": "off"}, "initial_offset"),
        ({"retention": {"max_age": "soon"}}, "retention.max_age"),
        ({"retentoin": {}}, "retention"),
        ({"replicas": 2}, "replicas"),
        ({"max_message_bytes": "64MiB", "max_pending_bytes": "1MiB"}, "max_message_bytes"),
    ],
)
async def test_what_cannot_be_changed_is_named_and_nothing_changes(
    running: Running, admin: Administration, changes: dict[str, Any], named: str
) -> None:
    await running.broker.create_stream("s", {"subject": "in"})
    before = running.broker.hosts["s"].settings
    for dry_run in (True, False):
        with pytest.raises(InvalidArgument, match=named):
            await admin.update_stream("s", changes, dry_run=dry_run)
    assert running.broker.hosts["s"].settings is before


async def test_a_section_is_set_back_by_null(running: Running, admin: Administration) -> None:
    await running.broker.create_stream(
        "s", {"subject": "in", "retention": {"max_messages": 5}, "compaction": {}}
    )
    await admin.update_stream("s", {"retention": None, "compaction": None})
    settings = running.broker.hosts["s"].settings
    assert (settings.retention.max_messages, settings.compaction) == (None, None)


async def test_a_dry_run_tells_what_retention_would_delete(
    running: Running, admin: Administration
) -> None:
    log = await fill(running)
    update = await admin.update_stream("s", {"retention": {"max_messages": 5}}, dry_run=True)
    removal = update.removal
    assert removal is not None
    assert (update.dry_run, removal.log_start_offset, removal.records) == (True, 16, 15)
    assert removal.segments > 2
    gone = log.segments[: removal.segments]
    assert removal.size_bytes == sum(one.size_bytes for one in gone) > 0
    assert "max_messages" in removal.reasons[0]
    assert running.broker.hosts["s"].settings.retention.max_messages is None
    assert log.log_start_offset == 1


async def test_limits_that_remove_much_have_to_be_wanted(
    running: Running, admin: Administration
) -> None:
    log = await fill(running)
    with pytest.raises(Conflict) as raised:
        await admin.update_stream("s", {"retention": {"max_messages": 17}})
    assert raised.value.details["removal"]["records"] == 3
    assert running.broker.hosts["s"].settings.retention.max_messages is None
    # A tenth is no reason to ask, nor is a change of something else.
    await admin.update_stream("s", {"retention": {"max_messages": 18}})
    update = await admin.update_stream("s", {"retention": {"max_messages": 5}}, allow_deletion=True)
    assert update.removal is not None
    assert update.removal.records == 15
    await admin.update_stream("s", {"acks": "off"})
    assert log.log_start_offset == 1, "retention itself does it, in its next round"


async def test_what_is_put_off_has_to_be_wanted_as_well(
    running: Running, admin: Administration
) -> None:
    """When the lease has ended, or the clock is believed again, nobody is asked any more."""
    log = await fill(running)
    log.roll()
    lease = await admin.leases.acquire("s", 1, ttl_ms=MINUTE_MS)
    with pytest.raises(Conflict, match="records"):
        await admin.update_stream("s", {"retention": {"max_messages": 5}})
    preview = await admin.update_stream("s", {"retention": {"max_messages": 5}}, dry_run=True)
    assert preview.removal is not None
    assert preview.removal.records == 15
    await admin.leases.release("s", lease.lease_id)
    running.clock.ahead_ns += 2 * 3600 * 10**9
    running.clock.jumped_ns += 3600 * 10**9
    assert not running.broker.clock_guard.wall_clock_is_trusted()
    with pytest.raises(Conflict, match="records"):
        await admin.update_stream("s", {"retention": {"max_age": "1h"}})
    assert running.broker.hosts["s"].settings.retention.max_age_seconds is None


async def test_a_stream_of_the_file_is_changed_there(tmp_path: Path) -> None:
    running = Running(tmp_path, s={"subject": "in"})
    await running.start()
    for dry_run in (True, False):
        with pytest.raises(Conflict, match="configuration file"):
            await running.broker.administration.update_stream("s", {"acks": "off"}, dry_run=dry_run)
    await running.broker.close()


async def test_two_updates_at_once_both_hold(running: Running, admin: Administration) -> None:
    await running.broker.create_stream("s", {"subject": "in"})
    await asyncio.gather(
        admin.update_stream("s", {"retention": {"max_messages": 5}}),
        admin.update_stream("s", {"retention": {"max_bytes": 5}}),
        admin.pause("s"),
    )
    settings = running.broker.hosts["s"].settings
    assert (settings.retention.max_messages, settings.retention.max_bytes) == (5, 5)
    assert settings.paused


@pytest.mark.parametrize("after", ["fsync", "interval", "os"])
@pytest.mark.parametrize("before", ["fsync", "interval", "os"])
async def test_durability_changes_between_two_commits(
    running: Running, admin: Administration, before: str, after: str
) -> None:
    """Nothing that readers may see, or that the new durability promises, is left unsynced."""
    if before == after:
        return
    await running.broker.create_stream(
        "s", {"subject": "in", "durability": before, "flush": {"interval": "1h"}}
    )
    await running.publish("s", b"1", b"2")
    host = running.broker.hosts["s"]
    log = host.log
    assert (log.durable_end_offset == 3) == (before == "fsync")
    await admin.update_stream("s", {"durability": after})
    assert (log.durable_end_offset, log.high_watermark) == (3, 3)
    sent = _acks_of(running)
    host.receive(MessageRun([b"in"], [b"_INBOX.1"], [b"3"], has_cookie=False))
    host.kick()
    await host.drained()
    assert (log.durable_end_offset == 4) == (after == "fsync")
    assert (log.high_watermark == 4) == (after != "interval")
    assert (b'"durability"' in b"".join(sent)) == (after != "fsync")


def _acks_of(running: Running) -> list[bytes]:
    sent: list[bytes] = []
    running.broker.intake.send = sent.append  # type: ignore[method-assign]
    return sent


async def test_a_shorter_flush_interval_holds_for_what_waits(
    running: Running, admin: Administration
) -> None:
    await running.broker.create_stream(
        "s", {"subject": "in", "durability": "interval", "flush": {"interval": "1h"}}
    )
    await running.publish("s", b"1")
    host = running.broker.hosts["s"]
    await admin.update_stream("s", {"flush": {"interval": "10ms"}})
    async with asyncio.timeout(5):
        await host.wait_high_watermark(1)
    assert host.log.durable_end_offset == 2


async def test_the_dedupe_window_is_resized(running: Running, admin: Administration) -> None:
    await running.broker.create_stream("s", {"subject": "in"})
    host = running.broker.hosts["s"]

    async def publish(*ids: bytes) -> int:
        headers = [b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % one for one in ids]
        run = MessageRun([b"in"] * len(ids), [b""] * len(ids), [b"v"] * len(ids), headers)
        host.receive(run)
        host.kick()
        await host.drained()
        return host.log.high_watermark

    assert await publish(b"a", b"b", b"c") == 4
    assert await publish(b"a", b"c") == 4
    await admin.update_stream("s", {"dedupe": {"max_ids": 2}})
    assert await publish(b"c", b"b") == 4
    assert await publish(b"a") == 5, "the oldest is forgotten"
    await admin.update_stream("s", {"dedupe_window": "0s"})
    assert await publish(b"a", b"a") == 7
    await admin.update_stream("s", {"dedupe_window": "1m", "dedupe": {"max_ids": 10}})
    assert await publish(b"a") == 8, "it begins to remember"
    assert await publish(b"a") == 8


async def test_compaction_switched_off_ends_the_pass_under_way(
    running: Running, admin: Administration
) -> None:
    interrupted = []

    class Cleaner:
        def describe(self, host: Any) -> dict[str, Any]:
            return {}

        async def interrupt(self, host: Any) -> None:
            interrupted.append((host.name, host.settings.compaction))

    running.broker.compactor = Cleaner()  # type: ignore[assignment]
    await running.broker.create_stream("s", {"subject": "in", "compaction": {}})
    await admin.update_stream("s", {"acks": "off"})
    assert interrupted == []
    await admin.update_stream("s", {"compaction": None})
    assert interrupted == [("s", None)], "after the new settings hold"


async def test_an_update_that_cannot_be_stored_changes_nothing(
    running: Running, admin: Administration
) -> None:
    await running.broker.create_stream("s", {"subject": "in"})
    host = running.broker.hosts["s"]
    before = host.settings
    host.log.set_metadata = _raise(DiskFull("full"))  # type: ignore[method-assign]
    with pytest.raises(DiskFull):
        await admin.update_stream("s", {"acks": "off"})
    assert host.settings is before
    assert host.sequencer.config.acks == "on"


async def test_a_full_disk_lends_its_reserve(
    running: Running, admin: Administration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lower limits are what makes room."""
    await running.broker.create_stream("s", {"subject": "in"})
    await running.broker.keep_disk_reserve()
    host, path = running.broker.hosts["s"], running.data_dir.path / "reserve"
    original, tried = host.log.set_metadata, []

    def store(metadata: dict[str, Any]) -> None:
        tried.append(path.exists())
        if path.exists():
            raise DiskFull("full")
        original(metadata)

    monkeypatch.setattr(host.log, "set_metadata", store)
    await admin.update_stream("s", {"retention": {"max_messages": 5}})
    assert tried == [True, False]
    assert path.stat().st_size == 2**20, "and takes it back"
    assert host.settings.retention.max_messages == 5


def _raise(error: Exception) -> Any:
    def call(*arguments: Any, **options: Any) -> Any:
        raise error

    return call


async def test_whoever_is_cancelled_leaves_no_half_change(
    running: Running, admin: Administration, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running.broker.create_stream("s", {"subject": "in"})
    host = running.broker.hosts["s"]
    storing, go_on, original = threading.Event(), threading.Event(), host.log.set_metadata

    def slow(metadata: dict[str, Any]) -> None:
        storing.set()
        assert go_on.wait(10)
        original(metadata)

    monkeypatch.setattr(host.log, "set_metadata", slow)
    first = asyncio.create_task(admin.update_stream("s", {"retention": {"max_messages": 5}}))
    await asyncio.to_thread(storing.wait, 10)
    first.cancel()
    second = asyncio.create_task(admin.update_stream("s", {"retention": {"max_bytes": 6}}))
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    retention = host.settings.retention
    assert (retention.max_messages, retention.max_bytes) == (5, 6)
    assert host.log.metadata["settings"] == host.settings.to_yaml_dict()


async def test_streams_that_are_not_there_or_not_for_changing(
    running: Running, admin: Administration
) -> None:
    with pytest.raises(StreamNotFound):
        await admin.update_stream("s", {})
    await running.broker.create_stream("s", {"subject": "in"})
    running.broker.hosts["_own"] = running.broker.hosts["s"]
    for call in (
        admin.update_stream("_own", {}),
        admin.pause("_own"),
        admin.resume("_own"),
        admin.set_read_only("_own", True),
        admin.truncate_prefix("_own", 1),
    ):
        with pytest.raises(Forbidden):
            await call
    del running.broker.hosts["_own"]
    running.broker.hosts["s"].failure = "its disk is gone"
    with pytest.raises(StreamUnavailable):
        await admin.pause("s")
    running.broker.hosts["s"].failure = ""
    await running.broker.drain()
    with pytest.raises(ShuttingDown):
        await admin.pause("s")


# --- pause, read-only ---


async def nacked(running: Running, name: str = "s") -> bytes:
    """What a publisher is answered now."""
    sent = _acks_of(running)
    host = running.broker.hosts[name]
    host.receive(MessageRun([b"in"], [b"_INBOX.1"], [b"v"], has_cookie=False))
    host.kick()
    await host.drained()
    return b"".join(sent)


async def test_a_paused_stream_nacks_until_it_is_resumed(
    running: Running, admin: Administration
) -> None:
    await running.broker.create_stream("s", {"subject": "in"})
    await running.publish("s", b"1")
    info = await admin.pause("s")
    assert info.settings["paused"] is True
    assert b'"code":503' in await nacked(running)
    host = running.broker.hosts["s"]
    assert host.sequencer.refused == {"paused": 1}, "counted, and nothing is swallowed"
    again = await restarted(running)
    assert b'"code":503' in await nacked(again)
    assert (await again.broker.administration.resume("s")).settings["paused"] is False
    assert b'"seq":2' in await nacked(again)
    await again.broker.administration.set_read_only("s", True)
    assert b"read-only" in await nacked(again)
    await again.broker.administration.set_read_only("s", False)
    assert b'"seq":3' in await nacked(again)
    await again.broker.close()


async def test_what_came_before_a_pause_is_committed_when_it_returns(
    running: Running, admin: Administration
) -> None:
    await running.broker.create_stream("s", {"subject": "in"})
    host = running.broker.hosts["s"]
    sent = _acks_of(running)
    host.receive(MessageRun([b"in"], [b"_INBOX.1"], [b"v"], has_cookie=False))
    info = await admin.pause("s")
    assert info.high_watermark == 2
    assert b'"seq":1' in b"".join(sent)


async def test_a_pause_whose_disk_stalls_says_so(
    running: Running, admin: Administration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_DRAIN_SECONDS", 0.05)
    await running.broker.create_stream("s", {"subject": "in"})
    await admin.pause("s")
    host = running.broker.hosts["s"]
    host._in_flight = True
    with pytest.raises(StreamUnavailable, match="takes no more messages"):
        await admin.pause("s")
    host._in_flight = False


async def test_creating_a_paused_stream_again_is_still_idempotent(
    running: Running, admin: Administration
) -> None:
    """An application that starts creates its streams; that somebody paused one is not its
    business."""
    await running.broker.create_stream("s", {"subject": "in"})
    await admin.pause("s")
    info = await running.broker.create_stream("s", {"subject": "in"})
    assert info.settings["paused"] is True
    await admin.resume("s")
    with pytest.raises(Conflict):
        await running.broker.create_stream("s", {"subject": "in", "paused": True})


async def test_a_stream_of_the_file_is_paused_until_the_file_says_otherwise(
    tmp_path: Path,
) -> None:
    running = Running(tmp_path, s={"subject": "in"})
    await running.start()
    await running.broker.administration.pause("s")
    running = await restarted(running, s={"subject": "in", "acks": "on"})
    assert b'"code":503' in await nacked(running)
    # The file was changed to say the same, and then changed back: that was somebody's decision.
    running = await restarted(running, s={"subject": "in", "paused": True})
    running = await restarted(running, s={"subject": "in"})
    assert b'"seq":1' in await nacked(running)
    await running.broker.administration.pause("s")
    await running.broker.administration.resume("s")
    assert running.broker.hosts["s"].switches == {}
    await running.broker.administration.pause("s")
    running = await restarted(running)  # no longer in the file
    assert b'"code":503' in await nacked(running)
    assert (await running.broker.administration.resume("s")).origin == "api"
    await running.broker.close()


# --- truncate ---


async def test_truncation_moves_the_log_start_and_frees_files(
    running: Running, admin: Administration
) -> None:
    log = await fill(running)
    count, size = log.segment_count, log.size_bytes
    info = await admin.truncate_prefix("s", 12, incarnation=log.incarnation)
    assert (info.log_start_offset, info.high_watermark) == (12, 21)
    assert log.segment_count < count
    assert info.size_bytes < size
    with pytest.raises(OffsetOutOfRange):
        log.read(11, 1)
    assert (await admin.truncate_prefix("s", 5)).log_start_offset == 12
    for offset in (22, 2**62):
        with pytest.raises(OffsetOutOfRange) as raised:
            await admin.truncate_prefix("s", offset)
        assert raised.value.details == {"log_start_offset": 12, "log_end_offset": 21}
    with pytest.raises(StaleIncarnation):
        await admin.truncate_prefix("s", 15, incarnation="another")
    again = await restarted(running)
    assert again.broker.hosts["s"].log.log_start_offset == 12
    await again.broker.close()


async def test_truncation_up_to_the_end_leaves_no_bytes(
    running: Running, admin: Administration
) -> None:
    log = await fill(running)
    info = await admin.truncate_prefix("s", 21)
    assert (info.log_start_offset, info.log_end_offset, info.size_bytes) == (21, 21, 0)
    await running.publish("s", b"next")
    assert log.high_watermark == 22


async def test_truncation_leaves_the_files_of_message_ids(
    running: Running, admin: Administration
) -> None:
    log = await fill(running, dedupe_window="10m")
    count = log.segment_count
    await admin.truncate_prefix("s", 12)
    assert (log.log_start_offset, log.segment_count) == (12, count)


async def test_truncation_leaves_files_to_a_pass_that_reads_them(
    running: Running, admin: Administration
) -> None:
    log = await fill(running)
    count = log.segment_count
    running.broker.hosts["s"].rewriting = True
    await admin.truncate_prefix("s", 12)
    assert (log.log_start_offset, log.segment_count) == (12, count)


async def test_truncation_respects_leases(running: Running, admin: Administration) -> None:
    log = await fill(running)
    lease = await admin.leases.acquire("s", 7, ttl_ms=MINUTE_MS, holder="export")
    with pytest.raises(Conflict, match="export") as raised:
        await admin.truncate_prefix("s", 8)
    assert raised.value.details == {"leases": 1, "low": 7}
    await admin.truncate_prefix("s", 7)
    await admin.leases.release("s", lease.lease_id)
    await admin.truncate_prefix("s", 8)
    assert log.log_start_offset == 8


# --- leases ---


async def test_a_lease_from_beginning_to_end(running: Running, admin: Administration) -> None:
    log = await fill(running)
    await admin.truncate_prefix("s", 4)
    lease = await admin.leases.acquire("s", "earliest", ttl_ms=MINUTE_MS, holder="spark")
    assert (lease.low, lease.high, lease.holder) == (4, 21, "spark")
    assert (lease.stream, lease.incarnation) == ("s", log.incarnation)
    assert MINUTE_MS - 5000 < lease.remaining_ms <= MINUTE_MS
    assert [one.lease_id for one in admin.leases.live("s")] == [lease.lease_id]
    running.clock.ahead_ns += 59 * 10**9
    renewed = await admin.leases.renew("s", lease.lease_id, ttl_ms=MINUTE_MS, low=9)
    assert (renewed.low, renewed.high) == (9, 21)
    again = await restarted(running)
    again.clock.ahead_ns = running.clock.ahead_ns
    live = again.broker.administration
    assert [one.low for one in live.leases.live("s")] == [9]
    again.clock.ahead_ns += 60 * 10**9
    assert live.leases.live("s") == []
    with pytest.raises(LeaseGone):
        await live.leases.renew("s", lease.lease_id, ttl_ms=MINUTE_MS)
    await live.leases.release("s", lease.lease_id)
    await again.broker.close()


async def test_leases_that_make_no_sense(running: Running, admin: Administration) -> None:
    await fill(running, count=3)
    for start in (0, 5):
        with pytest.raises(OffsetOutOfRange):
            await admin.leases.acquire("s", start, ttl_ms=MINUTE_MS)
    for start, ttl_ms in (("latest", 1), (1, 0), (1, 3_600_001), (1, 2**63 - 1)):
        with pytest.raises(InvalidArgument):
            await admin.leases.acquire("s", start, ttl_ms=ttl_ms)
    with pytest.raises(StaleIncarnation):
        await admin.leases.acquire("s", 1, ttl_ms=1, incarnation="another")
    assert admin.leases.live("s") == []


async def test_a_renewal_is_judged_when_it_is_its_turn(
    running: Running, admin: Administration
) -> None:
    """Retention that came first saw it expired, and took what it held."""
    await fill(running, retention={"max_messages": 3})
    host, log = running.broker.hosts["s"], running.broker.hosts["s"].log
    lease = await admin.leases.acquire("s", "earliest", ttl_ms=MINUTE_MS)

    def expire_and_remove() -> None:
        running.clock.ahead_ns += 61 * 10**9
        log.remove_before(18, 0)

    removal = host.run_exclusive(expire_and_remove)
    with pytest.raises(LeaseGone):
        await admin.leases.renew("s", lease.lease_id, ttl_ms=MINUTE_MS)
    await removal


# --- questions ---


async def test_streams_for_a_subject(running: Running, admin: Administration) -> None:
    for name, subject in (("a", "orders.>"), ("b", "orders.*"), ("c", "orders.eu"), ("d", "x")):
        await running.broker.create_stream(name, {"subject": subject})

    def names(subject: str) -> list[str]:
        return [info.name for info in admin.streams_for(subject)]

    assert names("orders.eu") == ["a", "b", "c"]
    assert names("orders.eu.1") == ["a"]
    assert names("orders.us") == ["a", "b"]
    assert names("orders") == []
    assert names("*.eu") == ["a", "b", "c"]
    assert names(">") == ["a", "b", "c", "d"]
    for bad in ("", "a..b", "a b", ">.a", "x" * 2000):
        with pytest.raises(InvalidArgument):
            admin.streams_for(bad)


async def test_the_daemon_tells_what_it_is(running: Running, admin: Administration) -> None:
    await running.broker.create_stream("a", {"subject": "in"})
    await running.broker.create_stream("b", {"subject": "in"})
    info = admin.daemon_info()
    assert (info.name, info.server_id) == ("liftlog", running.broker.server_id)
    assert (info.stream_count, info.nats["connected"]) == (2, False)
    assert admin.daemon_info(lambda name: name == "b").stream_count == 1
    assert {"fetch", "lease", "update"} <= set(info.features)
    assert info.limits["max_in_flight"] == running.broker.settings.pull.max_in_flight
    assert type(info).from_wire(info.to_wire()) == info
