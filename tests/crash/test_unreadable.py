"""Unreadable pages in the files of the real daemon: they count as damage, in every file.

The forgetful file system answers like a disk with bad sectors: a read that reaches one is short,
and a read that begins on one fails. For each file and each time of the read, only the records on
the page are lost, they are reported, no offset is assigned twice, and the daemon continues.
"""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner
from support.clients.ingesting import assert_no_traceback, describe, publish, records_of, until
from support.clients.ledger import PATIENCE
from support.clients.raw_nats import RawNats
from support.clients.readback import read_back
from support.daemons.daemon import Daemon
from support.daemons.fleet import STREAMS, Fleet
from support.daemons.machine import Machine
from support.daemons.nats_server import NatsServer
from support.disks.losefs import LoseFsHandle, losefs
from support.rounds import modes, rounds

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.root import cli
from liftlog.client import connect_sync
from liftlog.errors import CorruptRange, LiftlogError
from liftlog.log.files.filesystem import OsFileSystem
from liftlog.log.files.manifest import read_manifest
from liftlog.records.format import HEADER_SIZE
from liftlog.records.header import parse_header

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600)]

PAGE = 4096


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


class StoredBatch(NamedTuple):
    position: int
    end: int
    offsets: range


def batches_in(path: Path) -> list[StoredBatch]:
    """Return the complete batches of a segment, from its start on."""
    raw, position, found = path.read_bytes(), 0, []
    while position + HEADER_SIZE <= len(raw) and any(raw[position : position + 4]):
        try:
            header = parse_header(raw, position)
        except LiftlogError:  # the end of a torn tail
            break
        end = position + header.length
        found.append(StoredBatch(position, end, range(header.base_offset, header.next_offset)))
        position = end
    return found


def lose_pages(disk: LoseFsHandle, path: Path, *pages: int) -> set[int]:
    """Make pages unreadable. Returns the offsets of the batches on them."""
    batches = batches_in(path)
    assert max(pages) * PAGE < path.stat().st_size
    disk.lose_pages(path, *pages)
    return {
        offset
        for one in batches
        for page in pages
        if one.position < (page + 1) * PAGE and page * PAGE < one.end
        for offset in one.offsets
    }


def listed(stream: Path) -> list[Path]:
    """The segment files that the manifest lists, oldest first."""
    manifest = read_manifest(OsFileSystem(), stream)
    assert manifest is not None
    return [stream / entry.file_name for entry in manifest.segments]


class BadDisk:
    """Makes pages of dispensable files, or of files with records, unreadable, and records which."""

    FILES: tuple[str, ...] = (
        "sealed", "active", "active", "index", "acked", "leases", "dedupe", "recovery-points",
        "clean", "scrub", "records",
    )  # fmt: skip

    def __init__(self, disk: LoseFsHandle, data_dir: Path, chance: random.Random) -> None:
        self.disk = disk
        self.data_dir = data_dir
        self.chance = chance
        self.gone: dict[str, set[int]] = {name: set() for name in STREAMS}
        self._ill: set[Path] = set()

    def lose(self, kind: str) -> bool:
        """Make a page of a file of this kind unreadable. Returns True if there was one."""
        name = self.chance.choice(list(STREAMS))
        try:
            return self._lose(kind, name)
        except FileNotFoundError:
            return False  # the daemon was quicker

    def _lose(self, kind: str, name: str) -> bool:
        stream = self.data_dir / "streams" / name
        if kind in ("sealed", "active"):
            segments = listed(stream)
            well = [one for one in segments[:-1] if one not in self._ill]
            path = segments[-1] if kind == "active" else self.chance.choice(well or [stream / "-"])
            if path in self._ill:
                return False
            batches = batches_in(path)
            if not batches:
                return False
            self._ill.add(path)
            page = self.chance.randrange(-(-batches[-1].end // PAGE))
            self.gone[name] |= lose_pages(self.disk, path, page)
            return True
        if kind == "index":
            found = sorted(stream.glob("*.index"))
            path = self.chance.choice(found or [stream / "-"])
        else:
            inside = kind in ("acked", "leases", "dedupe")
            path = stream / kind if inside else self.data_dir / kind
        if not path.exists() or not path.stat().st_size:
            return False
        self.disk.lose_pages(path, 0)
        return True


@pytest.mark.long
@pytest.mark.parametrize("seed", modes("a", "b", "c"))
def test_pages_are_lost_under_load(seed: str, server: NatsServer, tmp_path: Path) -> None:
    """The pages are read by readers, the cleaner and the scrubber while the daemon runs, and by the
    start after a stop, a kill and a power cut."""
    chance = random.Random(f"unreadable {seed}")
    fleet = Fleet(server.port, f"bad.{seed}")
    fleet.settings["cleaner"] |= {"scrub_interval": "1s"}
    with losefs(tmp_path / "disk") as disk:
        machine = Machine(server, disk, fleet.settings)
        daemon = machine.daemon.start()
        bad = BadDisk(disk, daemon.data_dir, chance)
        fleet.start()
        for _ in range(rounds(2)):
            fleet.wait_acked(chance.randint(200, 800))
            event = chance.choice(["nothing", "stop", "kill", "power cut"])
            if event == "stop":
                daemon.stop()
            elif event == "kill":
                daemon.kill()
            elif event == "power cut":
                machine.lose_power(chance.randrange(1 << 30))
            for kind in chance.sample(BadDisk.FILES, chance.randint(1, 4)):
                bad.lose(kind)
            if event != "nothing":
                fleet.wait_settled()
                daemon.start()
            fleet.wait_acked(50)
            acked = fleet.acked()
            fleet.check(daemon, acked, disk_died=True, unreadable=bad.gone)
        assert disk.status["unreadable"] > 0
        fleet.finish(daemon)
        fleet.check(daemon, disk_died=True, unreadable=bad.gone)
        assert_no_traceback(daemon)
        daemon.stop()


# --- one page, one reader ---

COUNT = 40
SMALL = {
    "subject": "in.>",
    "segment": {"max_bytes": "64KiB"},
    "dedupe_window": "0s",
    "rebatch": {"enabled": False},
}


def settings(**streams: object) -> dict[str, object]:
    return {
        "streams": {"in": SMALL, "other": {"subject": "other.>"}, **streams},
        "nats": {"reconnect_wait": "50ms"},
        "log": {"recovery_checkpoint_interval": "1h"},
        "http": {"log_api": True},
    }


class Loaded(NamedTuple):
    port: int
    disk: LoseFsHandle
    machine: Machine
    daemon: Daemon

    @property
    def stream(self) -> Path:
        return self.daemon.data_dir / "streams" / "in"

    def published(self, raw: RawNats, count: int = COUNT) -> None:
        """Publish each message as a batch of 3 KB."""
        for i in range(count):
            publish(raw, "in.x", b"%04d" % i + b"x" * 3000)
            publish(raw, "other.x", b"%04d" % i, Nats_Msg_Id=f"{i}")


@pytest.fixture
def loaded(server: NatsServer, tmp_path: Path) -> Iterator[Loaded]:
    """Yield two streams of forty records. `in` has sealed segments."""
    with losefs(tmp_path / "disk") as disk:
        machine = Machine(server, disk, settings())
        one = Loaded(server.port, disk, machine, machine.daemon.start())
        with RawNats(server.port) as raw:
            one.published(raw)
        assert len(listed(one.stream)) > 1
        yield one
        if one.daemon.running:
            assert_no_traceback(one.daemon)
            one.daemon.stop()


def plain(daemon: Daemon, **more: object) -> tuple[list[int], list[range]]:
    """Read over one connection. Returns the offsets and the reported ranges."""
    told: list[CorruptRange] = []
    with connect_sync(daemon.pull_address, reconnect_for=0) as client:
        read = client.read("in", "earliest", "end", on_corrupt=told.append, **more)  # type: ignore[arg-type]
        found = [record.offset for record in read]
    return found, [range(one.first_offset, one.next_offset) for one in told]


def selected(daemon: Daemon) -> tuple[list[int], list[range]]:
    return plain(daemon, columns=["value"])


@pytest.mark.parametrize("segment", [0, -1], ids=["sealed", "active"])
@pytest.mark.parametrize("read", [plain, selected])
def test_a_consumer_reads_around_a_page(
    read: Callable[[Daemon], tuple[list[int], list[range]]], segment: int, loaded: Loaded
) -> None:
    """On one connection, which stays open."""
    path, daemon = listed(loaded.stream)[segment], loaded.daemon
    batches = batches_in(path)
    gone = lose_pages(loaded.disk, path, 1, batches[-1].position // PAGE)
    assert 0 < len(gone) < len(batches)
    everything = set(range(1, COUNT + 1))
    for _ in range(2):
        found, told = read(daemon)
        assert found == sorted(everything - gone)
        assert {offset for one in told for offset in one} == gone
    assert daemon.metric("liftlog_quarantined_ranges", stream="in") >= 1
    assert daemon.metric("liftlog_quarantined_offsets", stream="in") == len(gone)
    assert "the disk cannot read the 4,096 bytes at 4096" in daemon.log
    assert len(records_of(daemon, "other")) == COUNT
    assert daemon.metric("liftlog_quarantined_ranges", stream="other") == 0


def test_one_record_over_http(loaded: Loaded) -> None:
    path = listed(loaded.stream)[0]
    gone = lose_pages(loaded.disk, path, 1)
    for offset in range(1, 8):
        status, text = loaded.daemon.get(f"/api/v1/streams/in/records/{offset}")
        assert status == (410 if offset in gone else 200), text


@pytest.mark.parametrize("way", ["power cut", "kill"])
@pytest.mark.parametrize("where", [0.5, 1.0, 0.1] if rounds(0) else [0.5])
def test_a_page_above_the_recovery_point(way: str, where: float, loaded: Loaded) -> None:
    """No record after the page is cut or lost, and no offset is acked twice."""
    daemon = loaded.daemon
    if way == "kill":
        daemon.kill()
    else:
        loaded.machine.lose_power(4)
    path = listed(loaded.stream)[-1]
    batches = batches_in(path)
    size = path.stat().st_size
    gone = lose_pages(loaded.disk, path, int(where * (batches[-1].end - 1) / PAGE))
    daemon.start()
    found, told = plain(daemon)
    assert set(found) == set(range(1, COUNT + 1)) - gone
    assert gone <= {offset for one in told for offset in one}
    assert path.stat().st_size >= min(batches[-1].end, size)
    with RawNats(loaded.port) as raw:
        assert publish(raw, "in.x", b"next")["seq"] > COUNT


EXPECTED = {"stop": ["acked", "clean", "dedupe"], "kill": ["acked"], "power cut": []}
SMALL_FILES = (
    "clean", "recovery-points", "records", "scrub", "acked", "leases", "dedupe", "index",
)  # fmt: skip


@pytest.mark.parametrize("way", ["stop", "kill", "power cut"])
@pytest.mark.parametrize(
    "names", [SMALL_FILES, *((name,) for name in SMALL_FILES)] if rounds(0) else [SMALL_FILES]
)
def test_small_files_that_can_be_done_without(
    names: tuple[str, ...], way: str, loaded: Loaded
) -> None:
    daemon = loaded.daemon
    with connect_sync(daemon.pull_address) as client:
        client.acquire_lease("in", "earliest", ttl=60)
    if way == "stop":
        daemon.stop()
    elif way == "kill":
        daemon.kill()
    else:
        loaded.machine.lose_power(4)
    lost = small_files(daemon.data_dir, names)
    for path in lost:
        loaded.disk.lose_pages(path, 0)
    if len(names) > 1:
        seen = {path.name if path.suffix != ".index" else "index" for path in lost}
        assert seen >= {"leases", "index", "records", *EXPECTED[way]}
    daemon.start()
    for _ in range(2):
        assert plain(daemon) == (list(range(1, COUNT + 1)), [])
        assert len(records_of(daemon, "other")) == COUNT
        with connect_sync(daemon.pull_address) as client:
            list(client.read("in", datetime.now(UTC), "end"))  # by the index
        assert daemon.stop().exit_code == 0
        daemon.start()
    with RawNats(loaded.port) as raw:
        assert publish(raw, "in.x", b"next")["seq"] == COUNT + 1
        again = publish(raw, "other.x", b"again", Nats_Msg_Id="3")
        assert (again["seq"], again["duplicate"]) == (4, True)


def small_files(data_dir: Path, names: Collection[str]) -> list[Path]:
    found = [path for path in data_dir.rglob("*") if path.is_file() and path.stat().st_size]
    return [one for one in found if one.name in names or one.suffix.removeprefix(".") in names]


def test_a_manifest_that_cannot_be_read_concerns_its_stream_alone(loaded: Loaded) -> None:
    daemon = loaded.daemon
    daemon.stop()
    loaded.disk.lose_pages(loaded.stream / "manifest", 0)
    daemon.spawn()
    daemon.wait_listening()
    until(lambda: describe(daemon, "other").state == "attached", PATIENCE)
    assert len(records_of(daemon, "other")) == COUNT
    with RawNats(loaded.port) as raw:
        assert publish(raw, "other.x", b"next")["seq"] == COUNT + 1
    daemon.kill()
    loaded.disk.find_pages()
    daemon.start()
    assert plain(daemon) == (list(range(1, COUNT + 1)), [])


def test_pages_of_the_checkpoints(server: NatsServer, tmp_path: Path) -> None:
    """Only the checkpoints on these pages are lost."""
    with losefs(tmp_path / "disk") as disk:
        machine = Machine(server, disk, settings())
        daemon = machine.daemon.start()
        with RawNats(server.port) as raw:
            for i in range(3):
                publish(raw, "in.x", b"%d" % i)
        names = [f"consumer-{i:03}" for i in range(120)]
        with connect_sync(daemon.pull_address) as client:
            for name in names:
                client.commit_checkpoint(name, "in", 2, metadata="m" * 100)
        daemon.kill()
        offsets = daemon.data_dir / "streams" / "_offsets"
        gone = lose_pages(disk, listed(offsets)[-1], 2)
        assert 0 < len(gone) < 60
        daemon.start()
        with connect_sync(daemon.pull_address) as client:
            left = {one.consumer for one in client.list_checkpoints(stream="in")}
        lost = {names[offset - 1] for offset in gone}
        assert left == set(names) - lost
        assert "checkpoints-lost" in daemon.log
        assert_no_traceback(daemon)
        daemon.stop()


# --- the commands ---


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, list(arguments))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_the_commands_say_which_page_of_which_file(loaded: Loaded) -> None:
    loaded.daemon.stop()
    data_dir, stream = str(loaded.daemon.data_dir), loaded.stream
    sealed, active = listed(stream)[0], listed(stream)[-1]
    gone = lose_pages(loaded.disk, sealed, 1) | lose_pages(loaded.disk, active, 1)
    index = sealed.with_suffix(".index")
    loaded.disk.lose_pages(index, 0)
    code, text = run("log", "verify", data_dir, "-o", "json")
    assert code == ExitCode.DAMAGED, text
    [report] = [one for one in json.loads(text) if one["name"] == "in"]
    damage = [one for one in report["findings"] if one["kind"] == "damage"]
    assert {one["segment"] for one in damage} == {sealed.name, active.name}
    told = {o for one in damage for o in range(one["first_offset"], one["next_offset"])}
    assert told == gone
    assert all("the disk cannot read the 4,096 bytes at 4096" in one["text"] for one in damage)
    code, text = run("log", "dump", str(stream))
    assert code == ExitCode.DAMAGED
    assert text.count("  batch at") == COUNT - len(gone)
    code, text = run("log", "reindex", data_dir, "--yes")
    assert (code, index.name in text) == (ExitCode.OK, True), text
    code, text = run("log", "repair", data_dir, "--yes")
    assert code == ExitCode.OK, text
    assert "the disk cannot read the 4,096 bytes at 4096" in text
    code, text = run("log", "verify", data_dir, "--allow-known")
    assert code == ExitCode.OK, text
    loaded.daemon.start()
    found, told_ranges = plain(loaded.daemon)
    assert set(found) == set(range(1, COUNT + 1)) - gone
    assert {offset for one in told_ranges for offset in one} == gone
    assert read_back(loaded.daemon, "other").damaged == []


def test_repair_of_a_stream_whose_manifest_cannot_be_read(loaded: Loaded) -> None:
    loaded.daemon.stop()
    loaded.disk.lose_pages(loaded.stream / "manifest", 0)
    code, text = run("log", "verify", str(loaded.stream))
    assert code == ExitCode.DAMAGED
    assert "manifest cannot be read from the disk" in text
    code, text = run("log", "repair", str(loaded.stream), "--subject", "in.>", "--yes")
    assert code == ExitCode.OK, text
    code, text = run("log", "verify", str(loaded.stream))
    assert code == ExitCode.OK, text
    loaded.daemon.start()
    assert plain(loaded.daemon) == (list(range(1, COUNT + 1)), [])


# --- a real file system ---


@contextmanager
def ext4_on(disk: LoseFsHandle, directory: Path) -> Iterator[tuple[Path, Path]]:
    """Yield (image, mount point) of an ext4 on a loop device, whose blocks can be made
    unreadable."""
    for program in ("mkfs.ext4", "filefrag"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    image, mounted = disk.path / "image", directory / "ext4"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-b", "4096", str(image)], check=True)
    mounted.mkdir()
    command = ["mount", "-o", "loop", str(image), str(mounted)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("loop devices cannot be mounted here")
    try:
        yield image, mounted
    finally:
        subprocess.run(["umount", "-l", str(mounted)], check=True)


def block_of(path: Path, page: int) -> int:
    """Return the place of a page of a file on its file system."""
    command = ["filefrag", "-v", "-b4096", str(path)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for line in said.splitlines():
        found = re.match(r"\s*\d+:\s*(\d+)\.\.\s*(\d+):\s*(\d+)\.\.", line)
        if found is not None and int(found[1]) <= page <= int(found[2]):
            return int(found[3]) + page - int(found[1])
    raise AssertionError(said)


def test_bad_blocks_of_ext4(server: NatsServer, tmp_path: Path) -> None:
    """The behaviour of Linux itself for an unreadable block, for a reader and for the next
    start."""
    with losefs(tmp_path / "disk") as disk, ext4_on(disk, tmp_path) as (image, mounted):
        directory = {"data_dir": str(mounted / "data")}
        daemon = Daemon(server.url, {**settings(), **directory}, directory=tmp_path)
        daemon.data_dir = mounted / "data"
        one = Loaded(server.port, disk, Machine(server, disk, {}), daemon.start())
        with RawNats(server.port) as raw:
            one.published(raw)
        os.sync()
        sealed, active = listed(one.stream)[0], listed(one.stream)[-1]
        batches = {path: batches_in(path) for path in (sealed, active)}
        gone: set[int] = set()

        def lose(path: Path, page: int) -> None:
            disk.lose_pages(image, block_of(path, page))
            fd = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                assert len(os.pread(fd, 1 << 20, (page - 1) * PAGE)) == PAGE, "a short read"
                with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                    os.pread(fd, 1, page * PAGE)
            finally:
                os.close(fd)
            for one in batches[path]:
                if one.position < (page + 1) * PAGE and page * PAGE < one.end:
                    gone.update(one.offsets)

        def compare() -> None:
            found, told = plain(daemon)
            assert found == sorted(set(range(1, COUNT + 1)) - gone)
            assert {offset for one in told for offset in one} == gone

        lose(sealed, 2)
        lose(active, 3)
        compare()
        daemon.kill()
        lose(active, 7)
        size = active.stat().st_size
        daemon.start()
        compare()
        assert active.stat().st_size == size
        with RawNats(server.port) as raw:
            assert publish(raw, "in.x", b"next")["seq"] == COUNT + 1
        assert_no_traceback(daemon)
        assert daemon.stop().exit_code == 0
