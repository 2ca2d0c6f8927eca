"""Batches and records of a log's files as objects and as lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from liftlog.cli.offline.files import (
    StreamDirectory,
    opened,
    read_facts,
    sealed_index,
    segments_on_disk,
)
from liftlog.cli.record_output import record_object
from liftlog.cli.text import plural, show_size, show_time
from liftlog.log.manifest import Manifest, SegmentEntry
from liftlog.log.recovery import find_data_end
from liftlog.log.repair.walk import Found, Missing, walk
from liftlog.records import format as layout
from liftlog.records.decode import RecordBatch

_ATTRIBUTES = {
    "offset-deltas": layout.OFFSET_DELTAS,
    "timestamp-deltas": layout.TIMESTAMP_DELTAS,
    "subject-ids": layout.SUBJECT_IDS,
    "keys": layout.KEYS,
    "headers": layout.HEADERS,
    "tombstones": layout.TOMBSTONES,
    "escaped-subjects": layout.ESCAPED_SUBJECTS,
}


@dataclass(frozen=True, slots=True)
class SegmentStart:
    stream: str
    entry: SegmentEntry
    size_bytes: int
    is_active: bool


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    stream: str
    segment: str
    position: int
    batch: RecordBatch


@dataclass(frozen=True, slots=True)
class DumpedGap:
    stream: str
    segment: str
    gap: Missing
    is_tail: bool
    """Nothing good follows in the active segment: perhaps just being written."""


DumpItem = SegmentStart | DumpedBatch | DumpedGap


def dump_stream(stream: StreamDirectory, first_offset: int = 0) -> Iterator[DumpItem]:
    """Everything that holds offsets from `first_offset` on. Raises OSError, UnsupportedFormat."""
    manifest = read_facts(stream).manifest
    segments = list(manifest.segments) if manifest else segments_on_disk(stream.path)
    for number, entry in enumerate(segments):
        is_last = number == len(segments) - 1
        if not is_last and segments[number + 1].base_offset <= first_offset:
            continue
        try:
            with opened(stream.path / entry.file_name) as file:
                size, end_offset = file.size(), None
                if manifest is not None and not is_last:
                    if size >= entry.size_bytes:
                        size, end_offset = entry.size_bytes, entry.next_offset
                    data_end = size
                    index = sealed_index(stream.path, entry)
                else:
                    data_end, index = find_data_end(file, 0), None
                yield SegmentStart(stream.name, entry, data_end, is_last)
                items = walk(
                    file,
                    entry.base_offset,
                    size,
                    data_end,
                    index,
                    end_offset=end_offset,
                    epochs=manifest.epochs if manifest is not None else (),
                )
                for item in items:
                    dumped = _dumped(stream.name, entry.file_name, item, is_last, first_offset)
                    if dumped is not None:
                        yield dumped
        except FileNotFoundError:
            yield _missing_file(stream.name, entry)


def _missing_file(stream: str, entry: SegmentEntry) -> DumpedGap:
    following = entry.next_offset if entry.next_offset > entry.base_offset else None
    gap = Missing(0, 0, entry.base_offset, following, "the file is missing")
    return DumpedGap(stream, entry.file_name, gap, is_tail=False)


def _dumped(
    stream: str, segment: str, item: Found | Missing, is_active: bool, first_offset: int
) -> DumpItem | None:
    if isinstance(item, Missing):
        is_tail = is_active and item.next_offset is None
        below = item.next_offset is not None and item.next_offset <= first_offset
        return None if below else DumpedGap(stream, segment, item, is_tail)
    if item.batch.next_offset <= first_offset:
        return None
    return DumpedBatch(stream, segment, item.position, item.batch.trim(first_offset))


# --- as objects ---


def attribute_names(batch: RecordBatch) -> list[str]:
    attributes = batch.header.attributes
    names = [name for name, bit in _ATTRIBUTES.items() if attributes & bit]
    codec = attributes & layout.CODEC_MASK
    return [layout.CODEC_NAMES[codec], *names] if codec else names


def batch_object(dumped: DumpedBatch) -> dict[str, Any]:
    header = dumped.batch.header
    return {
        "stream": dumped.stream,
        "segment": dumped.segment,
        "position": dumped.position,
        "length": header.length,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "base_timestamp_ns": header.base_timestamp_ns,
        "max_timestamp_ns": header.max_timestamp_ns,
        "leader_epoch": header.leader_epoch,
        "commit_group": header.commit_group,
        "attributes": attribute_names(dumped.batch),
        "body_crc32c": f"{header.body_crc32c:08x}",
    }


def record_objects(dumped: DumpedBatch) -> list[dict[str, Any]]:
    return [{"stream": dumped.stream, **record_object(record)} for record in dumped.batch.records()]


# --- as lines ---


def stream_lines(stream: StreamDirectory, manifest: Manifest | None) -> list[str]:
    if manifest is None:
        return [f"stream {stream.name}  (no readable manifest)"]
    return [
        f"stream {stream.name}  incarnation {manifest.incarnation}  "
        f"epoch {manifest.leader_epoch}  log start {manifest.log_start_offset}  "
        f"{plural(len(manifest.segments), 'segment')}"
    ]


def segment_line(start: SegmentStart) -> str:
    kind = "active" if start.is_active else "sealed"
    return f"segment {start.entry.file_name}  {show_size(start.size_bytes)}  {kind}"


def batch_line(dumped: DumpedBatch) -> str:
    header = dumped.batch.header
    names = ",".join(attribute_names(dumped.batch))
    return (
        f"  batch at {dumped.position:<10} offsets {header.base_offset}..{header.last_offset}  "
        f"{plural(header.record_count, 'record')}  {header.length:,} bytes  "
        f"{show_time(header.base_timestamp_ns)}  epoch {header.leader_epoch}  "
        f"group {header.commit_group}  {names}"
    ).rstrip()


def gap_line(dumped: DumpedGap) -> str:
    gap = dumped.gap
    if dumped.is_tail:
        return (
            f"{dumped.segment} at {gap.position}: {plural(gap.size_bytes, 'byte')} that are no "
            f"whole batch yet ({gap.reason}); `liftlog log verify` judges them"
        )
    offsets = f"offset {gap.first_offset} on"
    if gap.next_offset is not None:
        offsets = f"offsets {gap.first_offset}..{gap.next_offset - 1}"
    return f"{dumped.segment} at {gap.position}: {offsets} damaged: {gap.reason}"
