"""The records of a daemon on its own: they follow the manifests, whatever was stopped or lost."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support.daemons.local_broker import Running
from support.rounds import one_in

from liftlog.cluster.record import StreamMetadata
from liftlog.cluster.transitions import delete
from liftlog.errors import Conflict, StorageError
from liftlog.log import OsFileSystem
from liftlog.log.files.filesystem import OsFile
from liftlog.log.files.manifest import Manifest, read_manifest
from liftlog.server.metadata.file_store import FileMetaStore
from liftlog.server.metadata.records import LOCAL, ManifestFacts, following
from liftlog.server.metadata.records_file import parse_records
from liftlog.settings import parse_stream_settings

SETTINGS = {"subject": "in"}
FACTS = ManifestFacts(
    "orders", "ab" * 16, 3, 17, parse_stream_settings({"subject": "in"}).to_yaml_dict()
)


# --- the rule ---


def test_a_stream_without_record_is_adopted_from_its_manifest() -> None:
    record = following(None, FACTS, closed=False)
    assert record.incarnation == FACTS.incarnation
    assert record.leader_epoch == 3
    assert record.leader == LOCAL
    assert record.replicas == record.isr == (LOCAL,)
    assert record.settings == FACTS.settings
    assert record.version == 1
    assert following(record, FACTS, closed=True) is record


def test_a_start_after_an_unclean_stop_begins_a_new_epoch_and_life() -> None:
    record = following(None, FACTS, closed=True)
    opened = FACTS._replace(leader_epoch=4)  # opening the log has raised it
    after = following(record, opened, closed=False)
    assert (after.leader_epoch, after.version) == (4, 2)
    assert after.starts[LOCAL] > record.starts[LOCAL]


def test_a_manifest_of_an_older_version_of_liftlog_that_ran_meanwhile_counts() -> None:
    record = following(None, FACTS, closed=True)
    newer = FACTS._replace(leader_epoch=9, settings={**FACTS.settings, "acks": "off"})
    after = following(record, newer, closed=False)
    assert after.leader_epoch == 9
    assert after.settings["acks"] == "off"
    assert after.version == 2


@pytest.mark.parametrize("closed", [True, False])
def test_a_directory_that_was_set_back_continues_above_both_epochs(closed: bool) -> None:
    record = replace(following(None, FACTS, closed=True), leader_epoch=12, log_start=90)
    after = following(record, FACTS, closed=closed)
    assert after.leader_epoch == 13
    assert after.log_start == FACTS.log_start_offset
    assert following(after, FACTS._replace(leader_epoch=13), closed=True) is after


def test_another_stream_of_the_name_and_a_deleted_one_get_a_record_again() -> None:
    record = following(None, FACTS, closed=True)
    other = FACTS._replace(incarnation="cd" * 16, leader_epoch=1)
    after = following(record, other, closed=True)
    assert (after.incarnation, after.leader_epoch, after.version) == ("cd" * 16, 1, 2)
    gone = delete(record)
    assert gone is not None
    back = following(gone, FACTS, closed=True)
    assert not back.deleted
    assert back.leader == LOCAL
    assert back.leader_epoch > gone.leader_epoch


# --- a broker's records ---


def stored(directory: Path) -> dict[str, StreamMetadata]:
    content = parse_records((directory / "records").read_bytes(), "records")
    return {
        key.removeprefix("stream."): StreamMetadata.from_json(one.entry.value)
        for key, one in content.entries.items()
        if key.startswith("stream.")
    }


def manifests(directory: Path) -> dict[str, Manifest]:
    found = {}
    for path in (directory / "streams").iterdir():
        manifest = None if path.name.startswith(".") else read_manifest(OsFileSystem(), path)
        if manifest is not None:
            found[path.name] = manifest
    return found


def check_follow(directory: Path) -> None:
    """Whether the records say what the manifests do."""
    records = stored(directory)
    known = manifests(directory)
    assert records.keys() == known.keys()
    for name, manifest in known.items():
        record = records[name]
        assert record.incarnation == manifest.incarnation
        assert record.leader_epoch == manifest.leader_epoch
        assert record.settings == manifest.metadata["settings"]
        assert record.log_start <= manifest.log_start_offset
        assert record.leader == LOCAL
        assert not record.deleted


@asynccontextmanager
async def opened(directory: Path, **streams: Any) -> AsyncIterator[Running]:
    running = Running(directory, **streams)
    await running.start()
    try:
        yield running
    finally:
        await running.broker.close()


async def create(running: Running, name: str, **settings: Any) -> None:
    """Create a stream and write its record, which a daemon does a little later."""
    await running.broker.create_stream(name, {"subject": name, **settings})
    await running.broker.records.flush()


async def test_creating_changing_truncating_and_deleting_a_stream_is_recorded(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, configured=SETTINGS) as running:
        admin = running.broker.administration
        await create(running, "orders")
        await create(running, "other")
        check_follow(tmp_path)
        created = stored(tmp_path)
        assert created["orders"].incarnation != created["other"].incarnation
        await running.publish("orders", *[b"x"] * 20)
        await admin.update_stream("orders", {"retention": {"max_messages": 1000}})
        await admin.truncate_prefix("orders", 7)
        check_follow(tmp_path)
        record = stored(tmp_path)["orders"]
        assert record.settings["retention"]["max_messages"] == 1000
        assert record.log_start == 7
        assert record.version == created["orders"].version + 2
        await admin.pause("configured")
        assert stored(tmp_path)["configured"].settings["paused"] is True
        await running.broker.delete_stream("other")
        check_follow(tmp_path)
        assert stored(tmp_path).keys() == {"configured", "orders"}
    before = (tmp_path / "records").read_bytes()
    async with opened(tmp_path, configured=SETTINGS) as running:
        assert (tmp_path / "records").read_bytes() == before, "a clean start changes nothing"
        assert running.broker.hosts["orders"].log.log_start_offset == 7


async def test_streams_are_adopted_at_every_start_without_the_file(tmp_path: Path) -> None:
    async with opened(tmp_path, configured=SETTINGS) as running:
        await create(running, "orders")
        await running.publish("orders", b"x")
    (tmp_path / "records").unlink()  # also what an upgrade finds
    known = manifests(tmp_path)
    async with opened(tmp_path, configured=SETTINGS) as running:
        check_follow(tmp_path)
        assert running.broker.hosts["orders"].log.log_end_offset == 2
    for name, manifest in manifests(tmp_path).items():
        before = known[name]
        assert (manifest.incarnation, manifest.epochs) == (before.incarnation, before.epochs)


async def test_a_damaged_record_is_written_again(tmp_path: Path) -> None:
    async with opened(tmp_path, configured=SETTINGS) as running:
        await create(running, "orders")
    running = Running(tmp_path)
    store = FileMetaStore(tmp_path / "records", shared=False, fs=running.fs)
    entry = await store.get("stream.orders")
    assert entry is not None
    await store.cas("stream.orders", b'{"v":1}', entry.revision)
    store.close()
    running.data_dir.close(None)
    async with opened(tmp_path, configured=SETTINGS):
        check_follow(tmp_path)


@pytest.mark.parametrize("damage", ["rot", "empty", "newer"])
async def test_a_damaged_file_is_left_and_no_stream_is_created(tmp_path: Path, damage: str) -> None:
    """Only the file knows which streams the directory has had. Those that are there are served."""
    streams = {"configured": SETTINGS, "lost": {"subject": "lost"}}
    async with opened(tmp_path, **streams) as running:
        await create(running, "orders")
        await running.publish("orders", b"x")
    shutil.rmtree(tmp_path / "streams" / "lost")
    path = tmp_path / "records"
    raw = path.read_bytes()
    damaged = {
        "rot": raw[:-9] + b"#" + raw[-8:],
        "empty": b"",
        "newer": raw.replace(b"records 1", b"records 2"),
    }[damage]
    path.write_bytes(damaged)
    for _ in range(2):
        async with opened(tmp_path, **streams) as running:
            broker = running.broker
            assert broker.hosts.keys() == {"configured", "orders"}
            await running.publish("orders", b"x")
            assert "take records away and restart" in broker.broken["lost"]
            [condition] = [
                one for one in await broker.conditions.now() if one.kind.name == "records"
            ]
            assert str(path) in condition.text
            with pytest.raises(StorageError, match=f"{path} cannot be read"):
                await create(running, "new")
            await broker.administration.update_stream("orders", {"acks": "off"})
            await broker.administration.update_stream("orders", {"acks": "on"})
            with pytest.raises(Conflict, match="comes from the configuration file"):
                await broker.delete_stream("lost")
        assert path.read_bytes() == damaged
        assert not (tmp_path / "streams" / "new").exists()
    path.write_bytes(raw)  # put back
    async with opened(tmp_path, **streams) as running:
        assert "is missing" in running.broker.broken["lost"]
    path.rename(tmp_path / "aside")  # or given up
    async with opened(tmp_path, **streams) as running:
        assert not running.broker.broken
        assert "lost" in running.broker.hosts
        check_follow(tmp_path)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO, errno.EACCES])
async def test_a_file_that_cannot_be_read_now_is_not_replaced(tmp_path: Path, error: int) -> None:
    async with opened(tmp_path, configured=SETTINGS):
        pass
    raw = (tmp_path / "records").read_bytes()
    running = Running(tmp_path, configured=SETTINGS, new={"subject": "new"})
    running.fs.failing["open"] = "/records"
    running.fs.error_number = error
    await running.start()
    assert running.broker.hosts.keys() == {"configured"}
    # It is not known whether there was a journal of consumers.
    assert running.broker.broken.keys() == {"new", "_deliveries"}
    running.fs.failing.clear()
    await running.broker.close()
    assert (tmp_path / "records").read_bytes() == raw
    async with opened(tmp_path, configured=SETTINGS, new={"subject": "new"}) as running:
        assert running.broker.hosts.keys() == {"configured", "new"}


async def test_a_disk_that_takes_no_records_keeps_no_stream_from_its_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as running:
        await create(running, "orders")
        await running.publish("orders", *[b"x"] * 9)
    (tmp_path / "records").unlink()
    running = Running(tmp_path)
    running.fs.failing["rename"] = "records"
    await running.start()
    admin = running.broker.administration
    assert "records-not-stored" in caplog.text
    await running.publish("orders", b"x")
    await admin.update_stream("orders", {"acks": "off"})
    await admin.truncate_prefix("orders", 5)
    assert caplog.text.count("record-not-stored") == 2
    await create(running, "new")
    assert caplog.text.count("records-not-stored") == 2
    running.fs.failing.clear()
    await admin.update_stream("orders", {"acks": "on"})
    await running.broker.records.flush()
    check_follow(tmp_path)
    running.fs.failing["rename"] = "records"
    await running.broker.delete_stream("orders")
    running.fs.failing.clear()
    await running.broker.close()
    assert stored(tmp_path).keys() == {"orders", "new"}
    async with opened(tmp_path):
        check_follow(tmp_path)
        assert stored(tmp_path).keys() == {"new"}


async def test_an_older_version_that_ran_meanwhile_has_the_last_word(tmp_path: Path) -> None:
    """It knows nothing of the file: it creates, changes and deletes streams, and raises epochs. A
    stream that it deleted looks like one whose directory was lost."""
    async with opened(tmp_path) as running:
        for name in ("changed", "deleted", "made-again"):
            await create(running, name)
    kept = (tmp_path / "records").read_bytes()
    async with opened(tmp_path) as running:
        admin = running.broker.administration
        await admin.update_stream("changed", {"acks": "off"})
        await running.broker.delete_stream("deleted")
        await running.broker.delete_stream("made-again")
        await create(running, "made-again")
        await create(running, "new")
    (tmp_path / "records").write_bytes(kept)
    (tmp_path / "clean").unlink()
    async with opened(tmp_path) as running:
        assert "is missing" in running.broker.broken["deleted"]
        await running.broker.delete_stream("deleted")
        assert not running.broker.broken
        check_follow(tmp_path)
        assert running.broker.hosts.keys() == {"changed", "made-again", "new"}
        assert running.broker.hosts["changed"].settings.acks == "off"


async def test_epochs_rise_with_unclean_starts_and_when_a_directory_is_set_back(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as running:
        await create(running, "orders")
        await running.publish("orders", b"1")
    shutil.copytree(tmp_path / "streams", tmp_path / "older")
    for epoch in (2, 3):
        (tmp_path / "clean").unlink()
        async with opened(tmp_path) as running:
            assert running.broker.hosts["orders"].log.leader_epoch == epoch
            await running.publish("orders", b"x")
            check_follow(tmp_path)
    shutil.rmtree(tmp_path / "streams")
    (tmp_path / "older").rename(tmp_path / "streams")
    async with opened(tmp_path) as running:
        log = running.broker.hosts["orders"].log
        assert log.leader_epoch > 3
        end = log.log_end_offset
        await running.publish("orders", b"other")
        assert log.view.manifest.epochs[-1] == (log.leader_epoch, end)
        check_follow(tmp_path)


async def test_many_streams_are_recorded_with_one_write(tmp_path: Path) -> None:
    """And with another one it is noted that the directory has them."""

    class Counting(OsFileSystem):
        renames = 0

        def rename(self, source: Path, target: Path) -> None:
            type(self).renames += target.name == "records"
            super().rename(source, target)

    streams = {f"s{i}": {"subject": f"s{i}"} for i in range(40)}
    for renames in (2, 0):
        Counting.renames = 0
        running = Running(tmp_path, fs=Counting(), **streams)
        await running.start()
        await running.broker.close()
        assert Counting.renames == renames
    for lost, renames in (("records", 2), ("clean", 1)):  # all are adopted; all epochs are raised
        (tmp_path / lost).unlink()
        Counting.renames = 0
        running = Running(tmp_path, fs=Counting(), **streams)
        await running.start()
        await running.broker.close()
        assert Counting.renames == renames
        check_follow(tmp_path)


# --- stops at any point ---


@dataclass
class Picture:
    """A data directory before one operation."""

    directory: Path
    answered: Mapping[str, Any]
    """What was answered by then."""


class Photographer(OsFileSystem):
    """Copies the directory before each operation that changes which files there are: what a
    process that is killed there leaves."""

    def __init__(self, directory: Path, album: Path) -> None:
        self.directory = directory
        self.album = album
        self.pictures: list[Picture] = []
        self.answered: dict[str, Any] = {}
        self.is_on = False

    def take(self) -> None:
        if not self.is_on:
            return
        target = self.album / str(len(self.pictures))
        shutil.copytree(self.directory, target)
        self.pictures.append(Picture(target, dict(self.answered)))

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> OsFile:
        if create:
            self.take()
        return super().open(path, create=create, writable=writable)

    def rename(self, source: Path, target: Path) -> None:
        self.take()
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self.take()
        super().unlink(path)

    def make_directory(self, path: Path) -> None:
        self.take()
        super().make_directory(path)

    def remove_directory(self, path: Path) -> None:
        self.take()
        super().remove_directory(path)


async def photographed(tmp_path: Path) -> list[Picture]:
    """A stream's whole life; `answered` has what its users were told."""
    directory = tmp_path / "data"
    camera = Photographer(directory, tmp_path / "album")
    async with opened(directory, fs=camera) as running:
        await create(running, "orders")
        await running.publish("orders", *[b"x"] * 9)
        camera.is_on = True
        admin = running.broker.administration
        told = camera.answered
        told["orders"] = {"acks": "on", "start": 1}
        await create(running, "made")
        told["made"] = {"acks": "on", "start": 1}
        await admin.update_stream("made", {"acks": "off"})
        told["made"] = {"acks": "off", "start": 1}
        await admin.truncate_prefix("orders", 5)
        told["orders"] = {"acks": "on", "start": 5}
        told["made"] = None  # from here on it may be gone
        await running.broker.delete_stream("made")
        camera.take()
        camera.is_on = False
    return camera.pictures


def _check_start(running: Running, picture: Picture) -> None:
    hosts, answered = running.broker.hosts, picture.answered
    assert not running.broker.broken
    assert hosts.keys() <= {"orders", "made"}
    assert answered.keys() - {"made"} <= hosts.keys()
    if answered.get("made"):
        assert "made" in hosts
        if answered["made"]["acks"] == "off":
            assert hosts["made"].settings.acks == "off"
    assert hosts["orders"].log.log_start_offset >= answered["orders"]["start"]


async def test_a_stop_before_any_operation_is_repaired_by_the_next_start(tmp_path: Path) -> None:
    pictures = await photographed(tmp_path)
    assert len(pictures) > 30
    for picture in pictures:
        epochs = {name: one.leader_epoch for name, one in manifests(picture.directory).items()}
        async with opened(picture.directory) as running:
            _check_start(running, picture)
            check_follow(picture.directory)
            for name, host in running.broker.hosts.items():
                assert host.log.leader_epoch > epochs[name]
            await running.publish("orders", b"after")
            await create(running, "next")
        check_follow(picture.directory)


async def test_a_power_cut_may_keep_any_records_beside_any_manifests(tmp_path: Path) -> None:
    """Each of the two is durable for itself. So each file of records is put beside each state of
    the streams, whatever was written first."""
    pictures = await photographed(tmp_path)
    files = {(one.directory / "records").read_bytes() for one in pictures}
    assert len(files) > 4
    mixed = tmp_path / "mixed"
    for picture in one_in(4, pictures, "records beside manifests"):
        for raw in sorted(files):
            shutil.copytree(picture.directory, mixed)
            (mixed / "records").write_bytes(raw)
            before = manifests(mixed)
            recorded = json.loads(raw.partition(b"\n")[2])["entries"]
            async with opened(mixed) as running:
                # No order of writes leaves this: the note goes before the directory does.
                assert ("made" in running.broker.broken) == (
                    "held.made" in recorded and "made" not in before
                )
                if "made" in running.broker.broken:
                    await running.broker.delete_stream("made")
                _check_start(running, picture)
                check_follow(mixed)
                for name, host in running.broker.hosts.items():
                    assert host.log.incarnation == before[name].incarnation
                    if f"stream.{name}" in recorded:
                        known = json.loads(recorded[f"stream.{name}"]["value"])
                        if known["incarnation"] == host.log.incarnation:
                            assert host.log.leader_epoch > known["leader_epoch"]
            shutil.rmtree(mixed)
