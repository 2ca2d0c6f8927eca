"""Pages in the wrong place of the files of the real daemon, read in Python and JavaScript.

A page of 4 KiB of a segment (sixteen whole batches) or a batch is copied over another one, of the
same stream or of another. No reader gets a record at a wrong offset or twice, each reader gets an
error for lost offsets, and no checkpoint moves back without a report.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from support.clients.ingesting import assert_no_traceback, describe, publish, until
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.disks.stored_logs import batch_positions
from support.repository import REPOSITORY
from support.rounds import rounds

from liftlog.client import Filter, SyncClient, connect_sync
from liftlog.errors import CorruptRange, StreamUnavailable
from liftlog.log import OsFileSystem
from liftlog.log.files.manifest import QuarantinedRange, read_manifest
from liftlog.records import encode_batch

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600)]

NODE = shutil.which("node")
READER = REPOSITORY / "docs" / "examples" / "reader.js"
PAGE, BATCH = 4096, 256
SETTINGS = {
    "streams": {
        name: {"subject": f"misplaced.{name}", "segment": {"max_bytes": "16KiB"}}
        for name in ("a", "b")
    },
    "log": {"recovery_checkpoint_interval": "50ms"},
}
COUNTS = {"a": 200, "b": 90}
CONSUMERS = 30


class Reading(NamedTuple):
    found: dict[int, str]
    told: set[int]


def value_of(stream: str, number: int) -> bytes:
    """Return a value of such a length that a batch of this one record takes 256 bytes. Its last
    bytes are zeros."""
    value = b"%s %d " % (stream.encode(), number)
    empty = encode_batch(
        base_offset=1,
        leader_epoch=1,
        commit_group=1,
        stamps=[(1, 1)],
        subjects=[f"misplaced.{stream}".encode()],
        values=[b""],
    )
    return value.ljust(BATCH - len(empty) - 16, b"x") + bytes(16)


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


# --- readers ---


def in_python(daemon: Daemon, stream: str, wanted: Filter | None = None) -> Reading:
    found: dict[int, str] = {}
    told: list[CorruptRange] = []
    with connect_sync(daemon.pull_address) as client:
        for one in client.read(stream, "earliest", "end", on_corrupt=told.append, filter=wanted):
            assert one.offset not in found, f"{one.offset} came twice"
            found[one.offset] = (one.value or b"").decode()
    return Reading(found, {o for one in told for o in range(one.first_offset, one.next_offset)})


def in_python_filtered(daemon: Daemon, stream: str) -> Reading:
    return in_python(daemon, stream, Filter(subject="misplaced.>"))


def in_javascript(daemon: Daemon, stream: str) -> Reading:
    done = subprocess.run(
        [str(NODE), str(READER), "--address", daemon.pull_address, stream, "--skip-corrupt"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: dict[int, str] = {}
    for line in map(json.loads, done.stdout.splitlines()):
        assert int(line["offset"]) not in found, f"{line['offset']} came twice"
        found[int(line["offset"])] = line["value"]
    ranges = re.findall(r"\[(\d+), (\d+)\)", done.stderr)
    assert len(ranges) == len(done.stderr.splitlines()), done.stderr
    return Reading(found, {o for first, end in ranges for o in range(int(first), int(end))})


READERS = [in_python, in_python_filtered, *([in_javascript] if NODE else [])]


# --- what is put where ---


def fill(daemon: Daemon, server: NatsServer) -> dict[str, dict[int, str]]:
    """Publish each message as a batch of its own. Returns the messages by stream and offset."""
    books: dict[str, dict[int, str]] = {}
    with RawNats(server.port) as raw:
        for stream, count in COUNTS.items():
            values = [value_of(stream, number) for number in range(count)]
            acks = [publish(raw, f"misplaced.{stream}", value)["seq"] for value in values]
            books[stream] = {o: v.decode() for o, v in zip(acks, values, strict=True)}
    with connect_sync(daemon.pull_address) as client:
        for offset in (3, 4, 5):
            for consumer in range(CONSUMERS):
                client.commit_checkpoint(f"consumer-{consumer:02}", "a", offset + consumer)
    return books


def places(data_dir: Path, stream: str) -> list[tuple[Path, int, int]]:
    """Return pages of whole batches, and batches: file, position, size."""
    found = []
    for path in sorted((data_dir / "streams" / stream).glob("*.log")):
        batches = batch_positions(path)
        found += [(path, position, header.length) for position, header in batches]
        end = sum(header.length for _, header in batches)
        found += [(path, page, PAGE) for page in range(0, end - PAGE + 1, PAGE)]
    return found


def misplace(data_dir: Path, stream: str, chance: random.Random) -> tuple[str, set[int]]:
    """Copy a page or batch over another one of the same size with other offsets. Returns a
    description and the affected offsets."""
    sources = [one for name in (stream, "a") for one in places(data_dir, name)]
    path, position, size = chance.choice(places(data_dir, stream))
    raw = bytearray(path.read_bytes())
    hit = raw[position : position + size]
    from_path, at, content = chance.choice(
        [
            (one, start, content)
            for one, start, length in sources
            if length == size
            and (content := one.read_bytes()[start : start + length])
            and header_of(content) != header_of(hit)
        ]
    )
    gone = {
        header.base_offset
        for start, header in batch_positions(path)
        if position <= start < position + size
    }
    raw[position : position + size] = content
    path.write_bytes(raw)
    return f"{from_path.name}@{at} over {path.name}@{position}, {size} bytes", gone


def header_of(batch: bytes | bytearray) -> bytes:
    """Return the base offset, which distinguishes these batches."""
    return bytes(batch[8:16])


def check_checkpoints(client: SyncClient, what: str) -> None:
    """Check that each consumer has its last checkpoint, or is told that the checkpoint may be
    older."""
    found = {one.consumer: one for one in client.list_checkpoints()}
    for number in range(CONSUMERS):
        one = found.get(f"consumer-{number:02}")
        if one is None or not one.uncertain:
            assert one is not None, what
            assert one.offset == 5 + number, f"{what}: {one}"


@pytest.mark.parametrize("stop", ["stop", "kill"])
def test_misplaced_pages(stop: str, server: NatsServer, tmp_path: Path) -> None:
    chance = random.Random(f"misplaced {stop}")
    with Daemon(server.url, SETTINGS, directory=tmp_path / "daemon") as daemon:
        books = fill(daemon, server)
        assert describe(daemon, "a").segment_count >= 3
        getattr(daemon, stop)()
        positions = batch_positions(places(daemon.data_dir, "a")[0][0])
        assert {header.length for _, header in positions} == {BATCH}
        shutil.copytree(daemon.data_dir, tmp_path / "kept")
        for _ in range(rounds(1)):
            stream = chance.choice(["a", "a", "b", "_offsets"])
            what, gone = misplace(daemon.data_dir, stream, chance)
            daemon.start()
            for name in ("a", "b"):
                expected = gone if name == stream else set()
                known = {
                    offset
                    for one in describe(daemon, name).quarantined
                    for offset in range(one["first_offset"], min(one["next_offset"], 10_000))
                }
                for reader in chance.sample(READERS, len(READERS)):
                    found, told = reader(daemon, name)
                    for offset, value in found.items():
                        assert books[name].get(offset) == value, f"{what}: {offset}"
                    missing = set(books[name]) - set(found)
                    assert missing == expected, f"{what}: {reader.__name__}"
                    assert missing <= told | known, f"{what}: {reader.__name__} was not told"
            with connect_sync(daemon.pull_address) as client:
                check_checkpoints(client, what)
            assert_no_traceback(daemon)
            daemon.kill()
            shutil.rmtree(daemon.data_dir)
            shutil.copytree(tmp_path / "kept", daemon.data_dir)


@pytest.mark.parametrize("stop", ["stop", "kill"])
def test_indexes_of_neighbours(stop: str, server: NatsServer, tmp_path: Path) -> None:
    """Each segment gets the index of the next one, and then a directory of this name. All acked
    records are read, and nothing is quarantined."""
    with Daemon(server.url, SETTINGS, directory=tmp_path / "daemon") as daemon:
        books = fill(daemon, server)
        for harm in (swap_indexes, put_directories):
            getattr(daemon, stop)()
            harm(daemon.data_dir / "streams" / "a")
            daemon.start()
            for reader in READERS:
                assert reader(daemon, "a") == Reading(books["a"], set()), harm.__name__
            with connect_sync(daemon.pull_address) as client:
                for offset in books["a"]:  # beside each batch
                    (record,) = client.read("a", offset, offset + 1)
                    assert (record.value or b"").decode() == books["a"][offset]
            assert describe(daemon, "a").quarantined == []
            assert_no_traceback(daemon)


def swap_indexes(directory: Path) -> None:
    paths = sorted(directory.glob("*.index"))
    assert len(paths) >= 3
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)


def put_directories(directory: Path) -> None:
    for path in directory.glob("*.log"):
        for suffix in (".index", ".sketch", ".subjects"):
            path.with_suffix(suffix).unlink(missing_ok=True)
            path.with_suffix(suffix).mkdir()


def test_a_false_quarantine_is_lifted(server: NatsServer, tmp_path: Path) -> None:
    """The index of a neighbour once caused such a quarantine. A restart lifts it."""
    settings = SETTINGS | {"cleaner": {"interval": "100ms"}}
    with Daemon(server.url, settings, directory=tmp_path / "daemon") as daemon:
        books = fill(daemon, server)
        daemon.stop()
        claimed = quarantine_a_segment(daemon.data_dir)
        assert len(claimed) > 10
        daemon.start()
        until(lambda: not describe(daemon, "a").quarantined)
        assert in_python(daemon, "a") == Reading(books["a"], set())
        assert "quarantine-lifted" in daemon.log


def quarantine_a_segment(data_dir: Path) -> range:
    fs = OsFileSystem()
    directory = data_dir / "streams" / "a"
    manifest = read_manifest(fs, directory)
    assert manifest is not None
    one = manifest.segments[1]
    bad = QuarantinedRange(
        one.base_offset, one.next_offset, one.file_name, 0, one.size_bytes, "a claim"
    )
    manifest.with_changes(quarantined=(bad,)).write(fs, directory)
    return range(one.base_offset, one.next_offset)


def test_a_segment_that_cannot_be_opened(server: NatsServer, tmp_path: Path) -> None:
    """This is an error, not damage. The reader gets it, and continues when the error has ended."""
    streams = {  # without message ids nothing is read at a start
        name: {**one, "dedupe_window": "0s"} for name, one in SETTINGS["streams"].items()
    }
    settings = {**SETTINGS, "streams": streams}
    with Daemon(server.url, settings, directory=tmp_path / "daemon") as daemon:
        books = fill(daemon, server)
        daemon.stop()
        daemon.start()
        path = sorted((daemon.data_dir / "streams" / "a").glob("*.log"))[1]
        aside = path.rename(tmp_path / "aside")
        path.mkdir()
        with pytest.raises(StreamUnavailable, match="cannot use the stream's files"):
            in_python(daemon, "a")
        path.rmdir()
        aside.rename(path)
        assert in_python(daemon, "a") == Reading(books["a"], set())
        assert describe(daemon, "a").quarantined == []
        assert "storage-failed" in daemon.log
