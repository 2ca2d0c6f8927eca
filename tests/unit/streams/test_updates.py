"""Settings are changed while a stream runs: what holds, what is refused, what survives."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from support.daemons.administered import MINUTE_MS, acks_of, fill, restarted
from support.daemons.local_broker import Running

from liftlog.errors import (
    Conflict,
    DiskFull,
    Forbidden,
    InvalidArgument,
    ShuttingDown,
    StreamNotFound,
    StreamUnavailable,
)
from liftlog.sequencing import MessageRun
from liftlog.server.streams.administration import Administration
from liftlog.settings import StreamSettings
from liftlog.settings.stored import stored_form


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


async def test_a_change_that_depends_on_the_present_settings_waits_for_others(
    running: Running, admin: Administration, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running.broker.create_stream("s", {"subject": "in"})
    decided, may_go_on = asyncio.Event(), asyncio.Event()
    decide = admin._decide

    async def slowly(*arguments: Any) -> Any:
        decided.set()
        await may_go_on.wait()
        return await decide(*arguments)

    monkeypatch.setattr(admin, "_decide", slowly)
    seen: list[int | None] = []

    def one_more(present: StreamSettings) -> dict[str, Any]:
        seen.append(present.retention.max_messages)
        return {"retention": {"max_messages": (present.retention.max_messages or 0) + 1}}

    async with asyncio.TaskGroup() as group:
        group.create_task(admin.update_stream("s", {"retention": {"max_messages": 7}}))
        await decided.wait()
        group.create_task(admin.update_stream("s", one_more))
        await asyncio.sleep(0.05)
        assert seen == []
        may_go_on.set()
    assert seen == [7]
    assert running.broker.hosts["s"].settings.retention.max_messages == 8


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
        ({"subject": ["a", "a.>", "a.b"]}, "subject"),
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


async def test_who_wants_more_replicas_is_told_of_the_move(
    running: Running, admin: Administration
) -> None:
    await running.broker.create_stream("s", {"subject": "in"})
    for changes, hint in (
        ({"queue_group": "g"}, "create another stream"),
        ({"replicas": 3}, "`liftlog cluster move s --replicas a,b,c`"),
    ):
        with pytest.raises(InvalidArgument) as raised:
            await admin.update_stream("s", changes)
        assert hint in raised.value.hint


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
    """When the lease has ended, or the clock is trusted again, the user is not asked again."""
    log = await fill(running)
    log.writer.roll()
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
    sent = acks_of(running)
    host.receive(MessageRun([b"in"], [b"_INBOX.1"], [b"3"], has_cookie=False))
    host.kick()
    await host.drained()
    assert (log.durable_end_offset == 4) == (after == "fsync")
    assert (log.high_watermark == 4) == (after != "interval")
    assert (b'"durability"' in b"".join(sent)) == (after != "fsync")


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

    running.broker.hosted.compactor = Cleaner()  # type: ignore[assignment]
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
    host.log.structure.set_metadata = _raise(DiskFull("full"))  # type: ignore[method-assign]
    with pytest.raises(DiskFull):
        await admin.update_stream("s", {"acks": "off"})
    assert host.settings is before
    assert host.sequencer.config.acks == "on"


async def test_a_full_disk_lends_its_reserve(
    running: Running, admin: Administration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lower limits are what makes room."""
    await running.broker.create_stream("s", {"subject": "in"})
    running.broker.hosted.reserve.keep()
    host, path = running.broker.hosts["s"], running.data_dir.path / "reserve"
    original, tried = host.log.structure.set_metadata, []

    def store(metadata: dict[str, Any]) -> None:
        tried.append(path.exists())
        if path.exists():
            raise DiskFull("full")
        original(metadata)

    monkeypatch.setattr(host.log.structure, "set_metadata", store)
    await admin.update_stream("s", {"retention": {"max_messages": 5}})
    assert tried == [True, False]
    assert path.stat().st_size == 2**20, "and takes it back"
    assert host.settings.retention.max_messages == 5


def _raise(error: Exception) -> Any:
    def call(*arguments: Any, **options: Any) -> Any:
        raise error

    return call


async def test_a_cancelled_caller_leaves_no_half_change(
    running: Running, admin: Administration, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running.broker.create_stream("s", {"subject": "in"})
    host = running.broker.hosts["s"]
    storing, go_on, original = threading.Event(), threading.Event(), host.log.structure.set_metadata

    def slow(metadata: dict[str, Any]) -> None:
        storing.set()
        assert go_on.wait(10)
        original(metadata)

    monkeypatch.setattr(host.log.structure, "set_metadata", slow)
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
    assert host.log.view.manifest.metadata["settings"] == stored_form(host.settings)


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
