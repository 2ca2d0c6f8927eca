"""Opening ten gibibytes at once, and hundreds of streams within configured bounds."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.clients.ingesting import describe, publish, until
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.disks.stored_logs import StoredLog

from liftlog.client import connect_sync
from liftlog.log.files.filesystem import OsFile, OsFileSystem
from liftlog.log.files.manifest import read_manifest

MIB = 1 << 20
SEGMENT_BYTES = 256 * MIB
SEGMENTS = 40


class CountingFile(OsFile):
    __slots__ = ()
    read_bytes = 0

    def pread(self, length: int, position: int) -> bytes:
        raw = super().pread(length, position)
        CountingFile.read_bytes += len(raw)
        return raw


class CountingFileSystem(OsFileSystem):
    """Counts the bytes that are read from segments and indexes."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> OsFile:
        made = super().open(path, create=create, writable=writable)
        if path.suffix not in (".log", ".index"):
            return made
        counting = CountingFile(path, os.dup(made.fileno()))
        made.close()
        return counting


def ten_gibibytes(data_dir: Path) -> StoredLog:
    """Make forty sealed segments, each with a real batch in front of a quarter of a gibibyte of
    zeros (sparse, because opening must not read them), and an active one."""
    stored = StoredLog(data_dir, segment_max_bytes=SEGMENT_BYTES)
    for i in range(SEGMENTS):
        stored.append([b"%d" % i] * 100)
        stored.log.writer.roll()
    stored.append([b"newest"])
    return stored


def inflate(stored: StoredLog) -> None:
    fs = OsFileSystem()
    manifest = read_manifest(fs, stored.directory)
    assert manifest is not None
    segments = []
    for entry in manifest.segments[:-1]:
        os.truncate(stored.directory / entry.file_name, SEGMENT_BYTES)
        segments.append(replace(entry, size_bytes=SEGMENT_BYTES))
    replace(manifest, segments=(*segments, manifest.segments[-1])).write(fs, stored.directory)


def open_counted(data_dir: Path) -> tuple[float, int, StoredLog]:
    """Return the seconds, the bytes read, and the opened log."""
    CountingFile.read_bytes = 0
    started = time.perf_counter()
    again = StoredLog(data_dir, segment_max_bytes=SEGMENT_BYTES, fs=CountingFileSystem())
    return time.perf_counter() - started, CountingFile.read_bytes, again


def test_ten_gibibytes_open_at_once_after_a_clean_stop(tmp_path: Path) -> None:
    stored = ten_gibibytes(tmp_path / "data")
    stored.close()
    inflate(stored)
    seconds, read_bytes, again = open_counted(tmp_path / "data")
    assert again.report.clean
    assert again.log.view.size_bytes > SEGMENTS * SEGMENT_BYTES
    assert seconds < 1
    assert read_bytes < 100_000, "only the end is looked at"
    for offset in (1, 100 * SEGMENTS, 100 * SEGMENTS + 1):
        with again.log.read(offset, 1) as piece:  # type: ignore[union-attr]
            assert piece.first_offset <= offset < piece.next_offset
    again.close()


def test_an_unclean_stop_reads_from_the_recovery_point(tmp_path: Path) -> None:
    """With ten gibibytes and 64 MiB after them, it scans only the last four MiB."""
    stored = ten_gibibytes(tmp_path / "data")
    value = os.urandom(MIB)
    for _ in range(60):
        stored.append([value])
    point = stored.save_recovery_point()
    for _ in range(4):
        stored.append([value])
    end, active = stored.log.log_end_offset, stored.log.segments[-1].path
    stored.crash()
    behind = active.stat().st_size - point.position  # with the zeros that were allocated ahead
    inflate(stored)
    seconds, read_bytes, again = open_counted(tmp_path / "data")
    assert not again.report.clean
    assert again.log.log_end_offset == end
    assert 4 * MIB <= again.report.scanned_bytes <= 4 * MIB + 100_000
    assert read_bytes <= 2 * behind + 100_000 < 50 * MIB
    assert seconds < 1
    again.close()


STREAMS = 120
OPEN_FILES = 32


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.mark.long
@pytest.mark.integration
def test_hundreds_of_streams_with_many_segments(server: NatsServer) -> None:
    """One stream with a dozen segments is made and then copied; all record the same subject."""
    names = [f"s{i:03d}" for i in range(STREAMS)]
    settings = {
        "log": {"max_open_files": OPEN_FILES, "index_cache_segments": 8},
        "streams": {names[0]: stream_settings()},
    }
    with Daemon(server.url, settings) as daemon, RawNats(server.port) as raw:
        for i in range(24):
            assert publish(raw, "many.x", b"%d" % i + b"x" * 2000)["seq"] == i + 1
        segments = describe(daemon, names[0]).segment_count
        assert segments >= 12
        daemon.stop()
        daemon.start()
        one = measure(daemon, names[:1])
        daemon.stop()
        for name in names[1:]:
            shutil.copytree(
                daemon.data_dir / "streams" / names[0], daemon.data_dir / "streams" / name
            )
            daemon.settings["streams"][name] = stream_settings()
        daemon.start(timeout=60)
        all_of_them = measure(daemon, names)
        # Each stream keeps its active segment and its slot open, and no more.
        assert all_of_them[0] - one[0] <= OPEN_FILES + 2 * STREAMS
        assert (all_of_them[1] - one[1]) / STREAMS < 200_000
        publish(raw, "many.x", b"to all of them")
        until(lambda: describe(daemon, names[-1]).high_watermark == 26, 60)
        daemon.stop()


def stream_settings() -> dict[str, object]:
    return {"subject": "many.>", "acks": "on", "segment": {"max_bytes": "4KiB"}}


def measure(daemon: Daemon, names: Sequence[str]) -> tuple[int, int]:
    """Return the number of open files and of resident bytes, after reading every stream from end to
    end."""
    with connect_sync(daemon.pull_address) as client:
        for name in names:
            offsets = [record.offset for record in client.read(name, until="end")]
            assert offsets == list(range(1, 25))
    return len(os.listdir(f"/proc/{daemon.pid}/fd")), daemon.rss_bytes
