"""Lists all intact batches in a log's files, without erased records, and all gaps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from liftlog.errors import CorruptMetadata
from liftlog.log.files.erased_file import is_erased_name
from liftlog.log.files.manifest import SegmentEntry
from liftlog.log.offline.files import (
    StreamFiles,
    opened,
    read_facts,
    segment_bytes,
    segments_on_disk,
)
from liftlog.log.segment.walk import Found, Missing
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

    def attribute_names(self) -> list[str]:
        attributes = self.batch.header.attributes
        names = [name for name, bit in _ATTRIBUTES.items() if attributes & bit]
        codec = attributes & layout.CODEC_MASK
        return [layout.CODEC_NAMES[codec], *names] if codec else names


@dataclass(frozen=True, slots=True)
class DumpedGap:
    stream: str
    segment: str
    gap: Missing
    is_tail: bool
    """True if no good batch follows in the active segment. A daemon may be writing a batch
    there."""


DumpItem = SegmentStart | DumpedBatch | DumpedGap


def dump_stream(stream: StreamFiles, first_offset: int = 0) -> Iterator[DumpItem]:
    """Yield all batches and gaps with offsets from `first_offset` on. Raises OSError,
    UnsupportedFormat; CorruptMetadata if it is not known which records are erased."""
    facts = read_facts(stream)
    manifest = facts.manifest
    if manifest is None and any(is_erased_name(path.name) for path in stream.path.iterdir()):
        raise CorruptMetadata(
            f"{stream.name} has erased records, and its manifest cannot be read: {facts.problem}",
            hint="`liftlog log repair` writes the manifest again",
        )
    segments = list(manifest.segments) if manifest else segments_on_disk(stream.path)
    for number, entry in enumerate(segments):
        is_last = number == len(segments) - 1
        if not is_last and segments[number + 1].base_offset <= first_offset:
            continue
        try:
            with opened(stream.path / entry.file_name) as file:
                found = segment_bytes(stream.path, entry, file, manifest, is_active=is_last)
                yield SegmentStart(stream.name, entry, found.data_end, is_last)
                for item in found.walk():
                    if facts.erased is not None and isinstance(item, Found):
                        item = item._replace(batch=facts.erased.cut(item.batch))
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
