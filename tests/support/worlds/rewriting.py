"""A log of keyed records and a plain dict. The sealed segments of the log are rewritten."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from support.disks.logs import BASE_NS, DIRECTORY, create
from support.disks.simfs import SimFileSystem

from compaction import CompactionPolicy, plan_compaction
from liftlog.log import EncodedBatch, Log, LogConfig
from liftlog.log.rewrite import (
    CompactJob,
    CompactResult,
    RebatchJob,
    RebatchResult,
    SketchJob,
    SketchResult,
    apply_compaction,
    apply_rebatch,
    compact,
    make_sketch,
    rebatch,
)
from liftlog.log.segment.index import read_index
from liftlog.records import RecordBatch, encode_batch, iter_batches
from liftlog.server.commits.writing import compressed

MINUTE_NS = 60 * 1_000_000_000
ROLL_ON_DEMAND = LogConfig(segment_max_bytes=1 << 20, segment_max_age_ns=None)
HEADER = b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n"


class Row(NamedTuple):
    """All data of a record that a reader gets, except the offset."""

    timestamp_ns: int
    subject: str
    key: bytes | None
    value: bytes | None
    headers: bytes

    @property
    def is_tombstone(self) -> bool:
        return self.key is not None and self.value is None


Rows = dict[int, Row]


def keyed(fs: SimFileSystem) -> Log:
    return create(fs, config=ROLL_ON_DEMAND)


def row(
    key: bytes | None,
    value: bytes | None,
    *,
    subject: str = "orders.new",
    stamp: int = BASE_NS,
    headers: bytes = b"",
) -> Row:
    return Row(stamp, subject, key, value, headers)


def encode_rows(log: Log, batches: Iterable[list[Row]]) -> tuple[list[EncodedBatch], Rows]:
    """Encode each list as one batch of the same group, for the end of the log."""
    offset = log.log_end_offset
    encoded = []
    found: Rows = {}
    for rows in batches:
        data = encode_batch(
            base_offset=offset,
            leader_epoch=log.leader_epoch,
            commit_group=log.writer.commit_group,
            stamps=[(one.timestamp_ns, 1) for one in rows],
            subjects=[one.subject.encode() for one in rows],
            keys=[one.key for one in rows] if any(one.key is not None for one in rows) else None,
            headers=[one.headers for one in rows] if any(one.headers for one in rows) else None,
            values=[one.value for one in rows],
            has_tombstones=any(one.value is None for one in rows),
        )
        newest = max(one.timestamp_ns for one in rows)
        following = offset + len(rows)
        encoded.append(
            EncodedBatch(data, offset, following, len(rows), rows[0].timestamp_ns, newest)
        )
        found.update(enumerate(rows, offset))
        offset = following
    return encoded, found


def add(log: Log, batches: Iterable[list[Row]], *, compression: str = "none") -> Rows:
    """Append each list as one batch, all in one group. Committed on return."""
    encoded, found = encode_rows(log, batches)
    log.append(compressed(encoded, compression))
    log.commit_up_to(log.sync())
    return found


def add_segments(log: Log, *groups: list[list[Row]]) -> Rows:
    """Make one sealed segment for each group of batches."""
    rows: Rows = {}
    for batches in groups:
        rows.update(add(log, batches))
        log.writer.roll()
    return rows


def key_rows(count: int, of: int = 10, *, tag: bytes = b"", first: int = 0) -> list[Row]:
    """Return `count` rows, which use `of` keys in turn."""
    return [row(b"k%d" % (i % of), b"%s%d" % (tag, i)) for i in range(first, first + count)]


def segment_files(fs: SimFileSystem) -> list[str]:
    return [name for name in fs.list_directory(DIRECTORY) if name.endswith((".log", ".index"))]


def file_names(log: Log) -> list[str]:
    return [segment.path.name for segment in log.segments]


def rows_of(batch: RecordBatch) -> Rows:
    columns = (
        batch.timestamps_ns(), batch.subjects(), batch.keys(), batch.values(), batch.headers(),
    )  # fmt: skip
    return dict(zip(batch.offsets(), map(Row, *columns), strict=True))


def batches_of(log: Log, *, max_bytes: int = 300) -> list[RecordBatch]:
    """Return all batches that readers get. Checks that the offsets in each answer have no gaps."""
    found = []
    offset = log.log_start_offset
    while (piece := log.read(offset, max_bytes)) is not None:
        with piece:
            reached = piece.first_offset
            for batch in iter_batches(piece.pread()):
                assert batch.header.base_offset == reached
                reached = batch.next_offset
                found.append(batch)
            assert reached == piece.next_offset > offset
            offset = reached
    return found


def stored(log: Log) -> Rows:
    start = log.log_start_offset
    return {o: r for b in batches_of(log) for o, r in rows_of(b).items() if o >= start}


def plain_erased(log: Log) -> tuple[tuple[int, str], ...]:
    """Return the erased set in the form for a job."""
    erased = log.view.erased
    return () if erased is None else erased.to_plain()


def plan(
    log: Log,
    *,
    now_ns: int = BASE_NS,
    policy: CompactionPolicy | None = None,
    max_bytes: int = 1 << 20,
    memory: int = 1 << 20,
    bound: int | None = None,
    compression: str = "none",
) -> CompactJob | None:
    """Plan a compaction on demand like the scheduler, and return the job in the form that the
    worker receives."""
    damaged = log.view.damaged_files
    planned = plan_compaction(
        log.segments,
        policy or CompactionPolicy(min_dirty_ratio=0),
        cleaned_below=log.view.manifest.cleaned_below,
        log_start_offset=log.log_start_offset,
        bound_offset=log.high_watermark if bound is None else bound,
        segment_max_bytes=max_bytes,
        now_ns=now_ns,
        on_demand=True,
        quarantined={one.base_offset for one in log.segments if one.path.name in damaged},
    )
    if planned is None:
        return None
    job = CompactJob(
        str(DIRECTORY),
        planned,
        tuple(segment.entry() for segment in log.segments[: planned.sources]),
        log_start_offset=log.log_start_offset,
        memory_bytes=memory,
        compression=compression,
        epochs=log.view.manifest.epochs,
        incarnation=log.incarnation,
        erased=plain_erased(log),
    )
    assert CompactJob.from_dict(json.loads(json.dumps(job.to_dict()))) == job
    return job


def compact_once(log: Log, fs: Any, **how: Any) -> CompactResult | None:
    """Run one pass, and swap in its result."""
    job = plan(log, **how)
    if job is None:
        return None
    result = compact(job, fs)
    assert CompactResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    apply_compaction(log, result, erased=job.erased)
    return result


def compact_fully(log: Log, fs: Any, **how: Any) -> int:
    """Run passes until one is complete, and return their number."""
    for passes in range(1, 1000):
        result = compact_once(log, fs, **how)
        if result is None or result.complete:
            return passes
    raise AssertionError("compaction never ends")


def rebatch_file(
    log: Log, fs: Any, number: int, *, target: int = 4096, compression: str = "none"
) -> RebatchResult:
    entry = log.segments[number].entry()
    job = RebatchJob(
        str(DIRECTORY),
        entry,
        target,
        compression,
        log.view.manifest.epochs,
        log.incarnation,
        plain_erased(log),
    )
    assert RebatchJob.from_dict(json.loads(json.dumps(job.to_dict()))) == job
    result = rebatch(job, fs)
    assert RebatchResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    apply_rebatch(log, result, erased=job.erased)
    return result


def sketch_segments(log: Log, fs: Any, *, with_subjects: bool = False) -> list[SketchResult]:
    """Make the sketches of all sealed segments and, if requested, their subject indexes."""
    found = []
    for segment in log.segments[:-1]:
        entry = segment.entry()
        job = SketchJob(
            str(log.directory),
            entry,
            log.view.manifest.lineage,
            log.view.manifest.epochs,
            with_subjects,
        )
        assert SketchJob.from_dict(json.loads(json.dumps(job.to_dict()))) == job
        found.append(make_sketch(job, fs))
        assert SketchResult.from_dict(json.loads(json.dumps(found[-1].to_dict()))) == found[-1]
    return found


def check_entries(log: Log, fs: Any) -> None:
    """Check that the manifest and the indexes describe the content of the sealed segments."""
    for segment in log.segments[:-1]:
        raw = fs.read(segment.path)[: segment.size_bytes]
        batches = list(iter_batches(raw))
        assert len(raw) == segment.size_bytes
        assert batches[0].header.base_offset == segment.base_offset
        assert batches[-1].next_offset == segment.next_offset
        assert sum(len(batch) for batch in batches) == segment.record_count
        assert max(batch.header.max_timestamp_ns for batch in batches) == segment.max_timestamp_ns
        epochs = [batch.header.leader_epoch for batch in batches]
        assert epochs == sorted(epochs)
        file = fs.open(segment.path, writable=False)
        try:
            index = read_index(fs, file, segment, log.incarnation)
        finally:
            file.close()
        assert index is not None
        position, newest = 0, 0
        for batch in batches:
            at = index.floor(batch.header.base_offset)
            assert at.position <= position
            if at.position == position:
                assert at.offset == batch.header.base_offset
            assert position - at.position < 4096
            newest = max(newest, batch.header.max_timestamp_ns)
            position += len(batch.stored)
        assert index.floor_time(newest + 1).position <= position


def expected(rows: Rows, end: int, start: int = 1) -> Rows:
    """Return the expected result of a pass over all records below `end`, including tombstones."""
    newest = {r.key: o for o, r in sorted(rows.items()) if r.key is not None and o < end}
    return {
        o: r
        for o, r in rows.items()
        if o >= start and (r.key is None or o >= end or newest[r.key] == o)
    }
