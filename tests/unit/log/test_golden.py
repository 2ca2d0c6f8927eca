"""The golden files: files of earlier versions can be read, and are written in the same way."""

from __future__ import annotations

import json

import pytest
from support.disks.golden_log import (
    BATCHES,
    BOOT_ID,
    FILES,
    GOLDEN,
    INCARNATION,
    STREAM,
    files,
    from_json,
)
from support.disks.logs import BASE_NS, read_all, reopen
from support.disks.simfs import SimFileSystem

from liftlog.log import ActiveState
from liftlog.log.files.acked_end import AckedEndFile
from liftlog.log.files.checkpoint_file import read_checkpoint_file
from liftlog.log.files.manifest import COPY_NAME, read_manifest
from liftlog.log.segment.index import SparseIndex
from liftlog.records import decode_batch, encode_batch, iter_batches
from liftlog.records.format import unescape_subject

CASES = from_json(json.loads((GOLDEN / "batches.json").read_text()))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_batches(case: dict[str, object]) -> None:
    raw, given = case["batch"], case["arguments"]
    assert isinstance(raw, bytes)
    assert isinstance(given, dict)
    assert bytes(encode_batch(**given)) == raw
    batch = decode_batch(raw)
    count = len(given["values"])
    assert batch.values() == given["values"]
    assert batch.keys() == given.get("keys", [None] * count)
    assert batch.headers() == given.get("headers", [b""] * count)
    assert list(batch.offsets()) == given.get("offsets", list(range(42, 42 + count)))
    assert batch.timestamps_ns() == [t for t, n in given["stamps"] for _ in range(n)]
    escaped = batch.escaped_subjects()
    found = [unescape_subject(s) if s in escaped else s.encode() for s in batch.subjects()]
    assert found == given["subjects"]
    assert (batch.header.leader_epoch, batch.header.commit_group) == (3, 7)
    assert batch.next_offset == given.get("last_offset", 41 + count) + 1


def test_the_batches_are_all_there() -> None:
    assert [case["name"] for case in CASES] == [case["name"] for case in BATCHES]


def test_a_whole_stream_is_written_the_same_way() -> None:
    made = files()
    assert made.keys() == set(FILES)
    for name, raw in made.items():
        assert (GOLDEN / "data" / name).read_bytes() == raw, name


def _on_disk(version: str = "data") -> SimFileSystem:
    """Return a disk. `older` has the checkpoint files from before generations of segments, `single`
    from before the second copy of the manifest, and `unnamed` has indexes that name no segment. All
    other files are the present ones."""
    fs = SimFileSystem()
    fs.make_directory(STREAM)
    for name in FILES:
        if name.endswith(COPY_NAME) and version in ("older", "single"):
            continue
        path = STREAM.parents[1] / name
        source = GOLDEN / version / name
        fs.open(path, create=True)
        fs.replace(path, (source if source.exists() else GOLDEN / "data" / name).read_bytes())
    return fs


@pytest.mark.parametrize("version", ["data", "older", "single", "unnamed"])
def test_a_whole_stream_is_read(version: str) -> None:
    fs = _on_disk(version)
    content = read_checkpoint_file(fs, STREAM.parents[1] / "clean", "clean")
    assert content is not None
    state = ActiveState(**content["streams"]["orders"])
    log, report = reopen(fs, boot=BOOT_ID, clean=state, directory=STREAM)
    assert (report.clean, report.events) == (True, [])
    assert (log.log_start_offset, log.high_watermark, log.incarnation) == (2, 91, INCARNATION)
    assert [s.record_count for s in log.segments] == [59, 31]
    found = read_all(log)
    assert sorted(found) == [2, *range(4, 91)]
    assert (found[2], found[4], found[5]) == (b"", b"v2", b"")
    assert log.offset_for_timestamp(BASE_NS + 39_000) == 60
    assert log.view.manifest.metadata == {"subject": "orders.>"}


def test_its_parts() -> None:
    fs = _on_disk()
    manifest = read_manifest(fs, STREAM)
    assert manifest is not None
    (first, second), (bad,) = manifest.segments, manifest.quarantined
    raw = fs.read(STREAM / first.file_name)
    assert len(raw) == first.size_bytes
    assert next(iter_batches(raw[bad.position : bad.end_position])).base_offset == 3
    index_bytes = fs.read(STREAM / "00000000000000000001.index")
    index = SparseIndex.from_bytes(index_bytes, first, INCARNATION)
    assert index is not None
    assert len(index) == 2
    assert index.to_bytes(first, INCARNATION) == index_bytes
    entry = index.floor(59)
    assert next(iter_batches(raw[entry.position :])).base_offset == entry.offset
    assert second.base_offset == first.next_offset == 60
    slot = AckedEndFile(fs, STREAM, INCARNATION, boot_id=BOOT_ID)
    assert slot.recovered == (91, True)
    assert AckedEndFile(fs, STREAM, INCARNATION, boot_id="x").recovered == (91, False)
    assert AckedEndFile(fs, STREAM, "other", boot_id=BOOT_ID).recovered is None
