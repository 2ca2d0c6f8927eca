"""Files of rewritten segments: if positions would not fit an index, another file begins."""

from __future__ import annotations

import pytest
from support.disks.logs import DIRECTORY
from support.disks.simfs import SimFileSystem

from liftlog.log.rewrite.job import no_throttle
from liftlog.log.rewrite.segments import SegmentWriter
from liftlog.log.segment.index import read_index
from liftlog.records import decode_batch, encode_batch, iter_batches, parse_header

PAYLOAD = bytes(5000)  # each batch gets an index entry of its own


def _batch(offset: int, epoch: int = 1) -> bytearray:
    return encode_batch(
        base_offset=offset,
        leader_epoch=epoch,
        commit_group=7,
        stamps=[(1_000 * offset, 2)],
        subjects=[b"orders"] * 2,
        values=[PAYLOAD, PAYLOAD],
    )


def _writer(fs: SimFileSystem, names: list[str], max_bytes: int) -> SegmentWriter:
    fs.make_directory(DIRECTORY)
    return SegmentWriter(
        fs, DIRECTORY, 11, 3, throttle=no_throttle, names=names, max_bytes=max_bytes
    )


def test_a_file_that_would_become_too_long_is_followed_by_another() -> None:
    fs, names = SimFileSystem(), list[str]()
    size = len(_batch(11))
    writer = _writer(fs, names, 2 * size)
    for offset in range(11, 21, 2):
        batch = _batch(offset)
        writer.write(batch, parse_header(batch))
    entries = writer.finish(delete_horizon_ns=5)
    assert names == [entry.file_name for entry in entries]
    assert [(one.base_offset, one.next_offset, one.generation) for one in entries] == [
        (11, 15, 3),
        (15, 19, 3),
        (19, 21, 3),
    ]
    assert [one.size_bytes for one in entries] == [2 * size, 2 * size, size]
    assert [one.record_count for one in entries] == [4, 4, 2]
    assert [one.max_timestamp_ns for one in entries] == [13_000, 17_000, 19_000]
    assert {one.delete_horizon_ns for one in entries} == {5}
    for entry in entries:
        path = DIRECTORY / entry.file_name
        offsets = [one for batch in iter_batches(fs.read(path)) for one in batch.offsets()]
        assert offsets == list(range(entry.base_offset, entry.next_offset))
        index = read_index(fs, fs.open(path, writable=False), entry, "")
        assert index is not None
        assert len(index) == entry.record_count // 2


def test_only_the_last_batch_of_a_file_can_stand_for_more() -> None:
    fs = SimFileSystem()
    writer = _writer(fs, [], 1 << 20)
    assert not writer.extend(parse_header(_batch(11))), "there is no batch yet"
    writer.write(first := _batch(11), parse_header(first))
    assert not writer.extend(parse_header(_batch(13, epoch=2))), "of another epoch"
    assert writer.extend(parse_header(_batch(13)))
    (entry,) = writer.finish(None)
    assert (entry.next_offset, entry.record_count) == (15, 2)
    assert decode_batch(fs.read(DIRECTORY / entry.file_name)).next_offset == 15


def test_a_batch_must_begin_where_the_one_before_ended() -> None:
    writer = _writer(SimFileSystem(), [], 1 << 20)
    with pytest.raises(ValueError, match="batch at offset 13, expected 11"):
        writer.write(late := _batch(13), parse_header(late))
