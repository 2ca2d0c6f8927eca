"""Streams come and go: what fails leaves nothing behind, and nothing that comes back."""

from __future__ import annotations

import asyncio
import shutil
from typing import Any

import pytest
from support.daemons.administered import restarted
from support.daemons.catalogs import cluster_catalog
from support.daemons.local_broker import Running
from support.packages import uninstalled

from liftlog.errors import (
    ConfigError,
    Conflict,
    DiskFull,
    LiftlogError,
    NatsRefused,
    StorageError,
    StreamNotFound,
    StreamUnavailable,
)
from liftlog.log.data_dir import CLEAN_NAME, read_states
from liftlog.log.files.manifest import COPY_NAME, MANIFEST_NAME
from liftlog.protocol.described import StreamInfo
from liftlog.server.commits.host import StreamHost
from liftlog.server.ingest.subscriptions import LinkSubscription
from liftlog.server.streams import broker as broker_module
from liftlog.server.streams import hosted, making
from liftlog.server.vitals import slices

# --- deletion ---


async def test_delete(running: Running) -> None:
    await running.broker.create_stream("s", {"subject": "in"})
    await running.publish("s", b"1")
    await running.broker.delete_stream("s")
    assert not running.data_dir.stream_path("s").exists()
    with pytest.raises(StreamNotFound):
        await running.broker.describe_stream("s")
    with pytest.raises(StreamNotFound):
        await running.broker.delete_stream("s")


async def test_a_reader_that_waits_finds_a_deleted_stream_gone(running: Running) -> None:
    """It has not failed; a client would wait for it instead of giving up."""
    await running.broker.create_stream("s", {"subject": "in"})
    host, found = running.broker.hosts["s"], list[type[Exception]]()

    def look(_: object) -> None:
        try:
            running.broker.stream("s")
        except LiftlogError as error:
            found.append(type(error))

    host.wait_high_watermark(host.log.high_watermark).add_done_callback(look)
    await running.broker.delete_stream("s")
    assert found == [StreamNotFound]


async def test_a_stream_that_cannot_be_opened_can_be_deleted(running: Running) -> None:
    await running.broker.create_stream("s", {"subject": "in"})
    await running.publish("s", b"1")
    for name in (MANIFEST_NAME, COPY_NAME):
        (running.data_dir.stream_path("s") / name).write_bytes(b"broken")
    again = await restarted(running)
    assert (await again.broker.describe_stream("s")).state == "failed"
    with pytest.raises(StreamUnavailable):
        await again.broker.create_stream("s", {"subject": "in"})
    await again.broker.delete_stream("s")
    assert await again.broker.list_streams() == []
    created = await again.broker.create_stream("s", {"subject": "in"})
    assert created.log_end_offset == 1
    await again.broker.close()


async def test_a_broken_stream_of_the_configuration_is_not_deleted(running: Running) -> None:
    await running.broker.create_stream("s", {"subject": "in"})
    for name in (MANIFEST_NAME, COPY_NAME):
        (running.data_dir.stream_path("s") / name).write_bytes(b"broken")
    again = await restarted(running, s={"subject": "in"})
    assert (await again.broker.describe_stream("s")).state == "failed"
    with pytest.raises(Conflict):
        await again.broker.delete_stream("s")
    assert again.data_dir.stream_path("s").exists()
    await again.broker.close()


async def test_a_deletion_that_fails_is_seen_and_can_be_repeated(running: Running) -> None:
    await running.broker.create_stream("s", {"subject": "in"})
    running.fs.failing["rename"] = ".deleted-s"
    with pytest.raises(StorageError):
        await running.broker.delete_stream("s")
    info = await running.broker.describe_stream("s")
    assert (info.state, "deletion failed" in info.warnings[0]) == ("failed", True)
    # Neither created again over the old files, nor missing without a word.
    with pytest.raises(StreamUnavailable):
        await running.broker.create_stream("s", {"subject": "in"})
    running.fs.failing.clear()
    await running.broker.delete_stream("s")
    assert await running.broker.list_streams() == []


async def test_files_that_do_not_go_are_no_stream_any_more(running: Running) -> None:
    await running.broker.create_stream("s", {"subject": "in"})
    await running.publish("s", b"1")
    running.fs.failing["unlink"] = ".deleted-s"
    await running.broker.delete_stream("s")
    assert await running.broker.list_streams() == []
    running.fs.failing.clear()
    again = await restarted(running)
    assert await again.broker.list_streams() == []
    assert not list((running.data_dir.path / "streams").iterdir())
    await again.broker.close()


async def test_a_stream_whose_disk_stalls_is_not_half_deleted(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted, "_DRAIN_SECONDS", 0.05)
    await running.broker.create_stream("s", {"subject": "in"})
    host = running.broker.hosts["s"]
    host.turns.is_taken = True
    with pytest.raises(StreamUnavailable, match="disk does not answer"):
        await running.broker.delete_stream("s")
    host.turns.is_taken = False
    assert running.broker.stream("s") is host
    await running.publish("s", b"1")
    assert host.log.high_watermark == 2


async def test_a_long_list_lets_others_have_the_event_loop(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has gone when its turn comes is not in it."""
    broker = running.broker
    for name in "abcd":
        await broker.create_stream(name, {"subject": "in"})
    describe = broker.hosted.describe
    seen: list[str] = []

    def noted(host: StreamHost) -> StreamInfo:
        seen.append(host.name)
        return describe(host)

    async def nothing() -> list[Any]:
        return []

    monkeypatch.setattr(broker.hosted, "describe", noted)
    monkeypatch.setattr(broker.conditions, "now", nothing)
    monkeypatch.setattr(slices, "_SLICE_SECONDS", -1.0)
    listing = asyncio.create_task(broker.list_streams())
    while seen != ["a", "b"]:
        await asyncio.sleep(0)
        assert len(seen) <= 2
        assert not listing.done(), "the event loop was not let go"
    deleted = broker.hosts.pop("d")
    assert [info.name for info in await listing] == ["a", "b", "c"]
    broker.hosts["d"] = deleted


# --- creation and start ---


async def test_a_creation_that_fails_leaves_nothing(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **more: Any) -> None:
        raise DiskFull("full")

    with monkeypatch.context() as patch:
        patch.setattr(making, "make_sequencer", fail)
        with pytest.raises(DiskFull):
            await running.broker.create_stream("s", {"subject": "in"})
    assert not running.data_dir.stream_path("s").exists()
    await running.broker.create_stream("s", {"subject": "in"})


async def test_files_put_there_after_the_start_are_not_overwritten(running: Running) -> None:
    """By hand, while the daemon runs: another daemon's stream, for instance."""
    await running.broker.create_stream("s", {"subject": "in"})
    await running.publish("s", b"1", b"2")
    here = running.data_dir.stream_path("s")
    shutil.copytree(here, here.with_name("copy"))
    with pytest.raises(StreamUnavailable, match="has not opened"):
        await running.broker.create_stream("copy", {"subject": "in", "acks": "off"})
    again = await restarted(running)
    assert again.broker.stream("copy").log.high_watermark == 3
    await again.broker.close()


async def test_a_stream_that_cannot_be_served_does_not_keep_the_daemon_from_starting(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        await running.broker.create_stream(name, {"subject": name})
    await running.broker.close()
    original = making.make_sequencer

    def fail_for_a(name: str, *arguments: Any, **more: Any) -> Any:
        if name == "a":
            raise KeyError("bug")
        return original(name, *arguments, **more)

    again = Running(running.data_dir.path)
    with monkeypatch.context() as patch:
        patch.setattr(making, "make_sequencer", fail_for_a)
        await again.start()
    assert {info.name: info.state for info in await again.broker.list_streams()} == {
        "a": "failed",
        "b": "detached",
    }
    await again.broker.close()


async def test_settings_of_another_version_do_not_keep_the_daemon_from_starting(
    running: Running,
) -> None:
    """Of a stream in the configuration file what the file says holds; another has failed."""
    for name in ("in_file", "not_in_file"):
        await running.broker.create_stream(name, {"subject": name})
        await running.publish(name, *[b"x"] * 20)
        log = running.broker.hosts[name].log
        stored = log.view.manifest.metadata["settings"] | {"of_a_newer_version": True}
        log.structure.set_metadata(log.view.manifest.metadata | {"settings": stored})
    again = await restarted(running, in_file={"subject": "in_file"})
    states = {info.name: info.state for info in await again.broker.list_streams()}
    assert states == {"in_file": "detached", "not_in_file": "failed"}
    (why,) = (await again.broker.describe_stream("not_in_file")).warnings
    assert "of_a_newer_version" in why
    assert (
        "of_a_newer_version"
        not in again.broker.hosts["in_file"].log.view.manifest.metadata["settings"]
    )

    log = again.broker.hosts["in_file"].log
    log.structure.set_metadata(log.view.manifest.metadata | {"settings": {"subject": 1}})
    await again.broker.close()
    limits = {"subject": "in_file", "retention": {"max_messages": 1}}
    refused = Running(running.data_dir.path, in_file=limits)
    with pytest.raises(ConfigError, match="tenth"):  # settings that cannot be parsed are no consent
        await refused.start()
    await refused.broker.close()


@pytest.mark.parametrize("now", ["zstd", "none"])
async def test_a_stream_that_needs_a_package_which_is_gone_is_alone_with_it(
    running: Running, now: str
) -> None:
    """Also one whose older batches alone are compressed: what judging needs cannot be read."""
    broker = running.broker
    await broker.create_stream("small", {"subject": "in", "compression": "zstd"})
    await broker.create_stream("plain", {"subject": "other"})
    for name in ("small", "plain"):
        await running.publish(name, *[b"x" * 1000] * 20)
    await broker.administration.update_stream("small", {"compression": now})
    await broker.close()

    compressed = {"subject": "new", "compression": "zstd"}
    with uninstalled("zstandard"):
        lacking = Running(running.data_dir.path, configured=compressed)
        await lacking.start()
        states = {info.name: info.state for info in await lacking.broker.list_streams()}
        assert states == {"configured": "failed", "plain": "detached", "small": "failed"}
        assert sorted(lacking.broker.failed_streams()) == ["configured", "small"]
        told = await lacking.broker.conditions.now(lambda name: name != "small")
        assert [(one.kind.name, one.subject) for one in told] == [("failed_streams", "configured")]
        for name in ("configured", "small"):
            (why,) = (await lacking.broker.describe_stream(name)).warnings
            assert "zstandard, which is not installed" in why
            assert "liftlog[compression]" in why
            with pytest.raises(StreamUnavailable, match="zstandard"):
                lacking.broker.stream(name)
        await lacking.publish("plain", b"y")
        assert lacking.broker.stream("plain").log.high_watermark == 22
        assert not lacking.data_dir.stream_path("configured").exists()
        await lacking.broker.close()

    again = Running(running.data_dir.path, configured=compressed)
    await again.start()
    assert again.broker.failed_streams() == []
    assert again.broker.stream("small").log.high_watermark == 21
    assert again.broker.stream("small").log.view.manifest.quarantined == ()
    await again.broker.close()


async def test_a_refused_start_stops_cleanly(running: Running) -> None:
    for name in ("a", "b"):
        await running.broker.create_stream(name, {"subject": name})
        await running.publish(name, *[b"x"] * 20)
    await running.broker.close()
    limits = {"subject": "a", "retention": {"max_messages": 1}}
    refused = Running(running.data_dir.path, a=limits)
    with pytest.raises(ConfigError, match="tenth"):
        await refused.start()
    await refused.broker.close()
    # Both were left clean: also the refused one, and the one whose turn never came.
    assert set(read_states(running.fs, running.data_dir.path, CLEAN_NAME)) == {"a", "b"}
    again = Running(running.data_dir.path)
    await again.start()
    await again.broker.close()


# --- the stop of a node of a cluster ---


@pytest.mark.parametrize("ends", ["all is handed over", "hurry", "the time is over"])
async def test_a_stop_hands_over_until_it_is_to_hurry(
    running: Running, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Then it goes on: it leaves the in-sync sets."""
    steps, hurry = [], asyncio.Event()

    class Node:
        view = None

        async def prepare_to_stop(self) -> None:
            try:
                if ends == "hurry":
                    asyncio.get_running_loop().call_later(0.01, hurry.set)
                if ends != "all is handed over":
                    await asyncio.Event().wait()
                steps.append("handed over")
            except asyncio.CancelledError:
                steps.append("left to an election")
                raise

        async def leave(self) -> None:
            steps.append("left")

    if ends == "the time is over":
        monkeypatch.setattr(broker_module, "_HAND_OVER_SHARE", 0.001)
    running.broker.catalog = cluster_catalog(Node())
    async with asyncio.timeout(running.broker.settings.drain_timeout_seconds * 0.5):
        await running.broker.drain(hurry)
    handed = "handed over" if ends == "all is handed over" else "left to an election"
    assert steps == [handed, "left"]


# --- subjects that NATS refuses ---


class Link:
    """NATS delivers a message on one subject, and refuses the other."""

    def __init__(self, running: Running, payloads: list[bytes]) -> None:
        self.running, self.payloads = running, payloads
        self.wanted: list[LinkSubscription] = []

    def send(self, commands: bytes) -> bool:
        return True

    def want(self, *arguments: Any, **options: Any) -> LinkSubscription:
        subjects, queue_group, receive, on_gap = arguments
        self.wanted.append(LinkSubscription(subjects, queue_group, receive, on_gap))
        return self.wanted[-1]

    async def attach(self, wanted: LinkSubscription) -> None:
        if self.payloads:
            await self.running.publish("s", *self.payloads)
        raise NatsRefused("on purpose")

    async def unwant(self, wanted: LinkSubscription) -> bool:
        self.wanted.remove(wanted)
        return True

    def retarget(self, wanted: LinkSubscription, subjects: tuple[str, ...]) -> None:
        assert subjects == wanted.subjects


@pytest.mark.parametrize("payloads", [[], [b"acked"]])
async def test_a_refused_creation_loses_nothing_that_was_acked(
    running: Running, payloads: list[bytes]
) -> None:
    """NATS allows the other subject, so messages on it come before the refusal is known."""
    broker = await running.start()
    link: Any = Link(running, payloads)
    broker.attachments.set_link(link)
    with pytest.raises(NatsRefused):
        await broker.create_stream("s", {"subject": ["granted", "secret"]})
    assert [host.log.high_watermark for host in broker.hosts.values() if host.name == "s"] == (
        [2] if payloads else []
    )
    assert [one.subjects for one in link.wanted] == [("granted", "secret")] * len(payloads)
    await broker.close()


async def test_a_stream_that_cannot_be_served_after_its_log_was_opened_is_closed(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bad", "good"):
        await running.broker.create_stream(name, {"subject": name})
        await running.publish(name, b"1")

    def make_host(name: str, *arguments: Any, **named: Any) -> StreamHost:
        if name == "bad":
            raise RuntimeError("it failed on purpose")
        return StreamHost(name, *arguments, **named)

    monkeypatch.setattr(making, "StreamHost", make_host)
    again = await restarted(running)
    assert [*again.broker.broken] == ["bad"]
    await again.broker.close()
    assert set(read_states(again.fs, again.data_dir.path, CLEAN_NAME)) == {"bad", "good"}
