"""A batch that ends in zeros looks, from behind, like a file that is allocated ahead.

Code that walks files must still find every record, in the active segment and in sealed ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from support.clients.values import ZERO_TAILS, zero_tailed
from support.disks.logs import read_all
from support.disks.stored_logs import STREAM, StoredLog

from liftlog.log import OsFileSystem
from liftlog.log.backup import create_backup, restore_backup
from liftlog.log.data_dir import read_known_states
from liftlog.log.files.manifest import read_manifest
from liftlog.log.offline.dump import DumpedBatch, dump_stream
from liftlog.log.offline.files import StreamFiles, find_streams
from liftlog.log.offline.rebuild import find_stale_indexes, rebuild_index
from liftlog.log.offline.repair import Repair
from liftlog.log.offline.verify import verify_stream
from liftlog.log.rewrite import ScrubJob, scrub
from liftlog.spark.file_transport import FileTransport
from liftlog.spark.options import parse_options
from liftlog.spark.transport import Losses, ScanRange

FS = OsFileSystem()
HEADER = b"NATS/1.0\r\nA: \0\0\0\0\0\0\0\0\r\n\r\n"
Rows = dict[int, bytes | None]


def fill(stored: StoredLog, codec: str, last: bytes) -> Rows:
    """Append batches of one and of three records with keys and headers that end in zeros, too. The
    last batch is `last`."""
    values = list(islice(zero_tailed(), 40))
    for first in range(0, 40, 4):
        for some in (values[first : first + 1], values[first + 1 : first + 4]):
            tails = [(b"k", b"\0" * 9, b"")[(first + i) % 3] for i in range(len(some))]
            stored.append(some, keys=tails, headers=[HEADER] * len(some), compression=codec)
    stored.append([last], compression=codec)
    return dict(enumerate([*values, last], 1))


@pytest.fixture(params=["none", "lz4", "zstd"])
def codec(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=ZERO_TAILS, ids=len)
def stored(request: pytest.FixtureRequest, codec: str, tmp_path: Path) -> Iterator[StoredLog]:
    """Yield a log that a daemon uses. `expected` is its content."""
    log = StoredLog(tmp_path / "data")
    log.expected = fill(log, codec, request.param)  # type: ignore[attr-defined]
    yield log
    log.log.close_files()


def expected(stored: StoredLog) -> Rows:
    return stored.expected  # type: ignore[attr-defined,no-any-return]


def directory(stored: StoredLog) -> StreamFiles:
    (found,) = find_streams(stored.directory)
    return found


END = {
    "in use": lambda stored: None,
    "stopped": StoredLog.close,
    "killed": StoredLog.crash,
    "killed amid a write": lambda stored: (stored.append([b"tail\0\0"], commit=False),
                                           stored.crash()),
}  # fmt: skip


@pytest.fixture(params=END)
def ended(request: pytest.FixtureRequest, stored: StoredLog) -> StoredLog:
    END[request.param](stored)
    return stored


def test_backup_and_restore(ended: StoredLog, tmp_path: Path) -> None:
    found = create_backup(ended.data_dir, tmp_path / "backup", created_ns=1)
    assert [(one.end_offset, one.damaged) for one in found.streams] == [(42, ())]
    restore_backup(tmp_path / "backup", tmp_path / "new", now_seconds=1_800_000_000)
    copy = StoredLog(tmp_path / "new")
    assert copy.report.clean
    assert read_all(copy.log) == expected(ended)
    assert not copy.log.view.manifest.quarantined
    copy.close()


def test_verify_and_dump(ended: StoredLog) -> None:
    report = verify_stream(directory(ended))
    assert report.of_kind("damage") == []
    dumped: Rows = {}
    for item in dump_stream(directory(ended)):
        if isinstance(item, DumpedBatch):
            dumped |= {one.offset: one.value for one in item.batch.records()}
    assert {offset: dumped[offset] for offset in dumped if offset < 42} == expected(ended)
    assert report.record_count == len(dumped)
    assert report.size_bytes == sum(
        item.batch.header.length
        for item in dump_stream(directory(ended))
        if isinstance(item, DumpedBatch)
    )


def test_recovery(stored: StoredLog) -> None:
    stored.crash()
    again = StoredLog(stored.data_dir)
    assert read_all(again.log) == expected(stored)
    assert (again.log.log_end_offset, again.log.view.manifest.quarantined) == (42, ())
    again.close()


def test_repair_makes_the_manifest_again(stored: StoredLog) -> None:
    stored.crash()
    (stored.directory / "manifest").unlink()
    states = read_known_states(FS, stored.data_dir, STREAM)
    Repair(stored.directory, states, {"settings": {"subject": "orders.>"}}).run(FS)
    again = StoredLog(stored.data_dir)
    assert read_all(again.log) == expected(stored)
    again.close()


def test_sealed(stored: StoredLog) -> None:
    """Scrubbing, a new index, and Spark's reader of files."""
    stored.log.writer.roll()
    log = stored.log
    entry = log.segments[0].entry()
    assert scrub(ScrubJob(str(log.directory), entry, ()), FS).damaged == ()

    manifest = read_manifest(FS, log.directory)
    assert manifest is not None
    (log.directory / f"{entry.file_name.removesuffix('.log')}.index").unlink()
    (stale,) = find_stale_indexes(FS, log.directory, manifest)
    assert rebuild_index(FS, stale.segment, manifest) >= 1
    assert find_stale_indexes(FS, log.directory, manifest) == []

    transport = FileTransport(parse_options({"path": str(log.directory)}))
    wanted = ScanRange(STREAM, manifest.lineage, 1, 1, 42)
    found: Rows = {}
    for batch in transport.batches(wanted, Losses(STREAM, fail=True)):
        found |= {one.offset: one.value for one in batch.records()}
    assert found == expected(stored)
