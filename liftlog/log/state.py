"""What a log is made of and what is known of it; the base of `writing.py` and what follows.

`Log` is one object in five steps, each a class on top of the one before: its state (here), writing
at the end (`writing.py`), changes of structure (`structure.py`), truncation (`truncation.py`), and
reading and closing (`log.py`).
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from liftlog.errors import StorageError
from liftlog.log.counting import RecordCounts
from liftlog.log.environment import LogConfig, LogEnvironment
from liftlog.log.filesystem import File
from liftlog.log.index import SparseIndex, index_path
from liftlog.log.leases import Leases
from liftlog.log.manifest import Manifest, QuarantinedRange
from liftlog.log.reading import LogEnd
from liftlog.log.segment import Segment
from liftlog.log.slot import AckedSlot

logger = logging.getLogger("liftlog.log")


class LogState:
    """Attributes, and the one way in which the manifest changes."""

    def __init__(
        self,
        directory: Path,
        environment: LogEnvironment,
        config: LogConfig,
        manifest: Manifest,
        segments: Sequence[Segment],
        active_file: File,
        active_index: SparseIndex,
        *,
        commit_group: int = 0,
        boot_id: str | None = None,
    ) -> None:
        self.directory = directory
        self.name = directory.name
        self.environment = environment
        self.config = config
        self._manifest = manifest
        self._segments = tuple(segments)
        self._file = active_file
        self._index = active_index
        self._allocated = active_file.size()
        self._lock = threading.RLock()
        self._counts = RecordCounts(environment.pool)
        self.leases = Leases(environment.fs, directory)
        self._load_leases()
        self._commit_group = commit_group
        self.fsync_count = 0
        self.last_sync_seconds = 0.0
        active = self._segments[-1]
        end = LogEnd(active.next_offset, active.base_offset, active.size_bytes, active.record_count)
        self._log_end = end
        self._durable = end
        self._committed = end
        self._appended: list[LogEnd] = []
        self._slot = AckedSlot(environment.fs, directory, manifest.lineage, boot_id=boot_id)
        # Never lower than what it said: between here and `skip_to` the machine may stop again.
        recovered = self._slot.recovered
        self._acked_end = max(end.offset, recovered.acked_end if recovered is not None else 0)
        self._slot.update(self._acked_end)
        self._manifest_in_doubt = False
        self._leftover_bytes = False
        self._must_leave_file = False  # its last page cannot be read, so nothing can be added to it
        self._closed = False

    def _load_leases(self) -> None:
        try:
            self.leases.load()
        except StorageError as error:  # until they can be read nothing is removed or compacted
            logger.warning("leases-not-read stream=%s error=%s", self.name, error)

    @property
    def log_start_offset(self) -> int:
        return self._manifest.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The next offset to assign."""
        return self._log_end.offset

    @property
    def high_watermark(self) -> int:
        """Everything below it is committed; readers never see more."""
        return self._committed.offset

    @property
    def durable_end_offset(self) -> int:
        """Everything below it was fsynced."""
        return self._durable.offset

    @property
    def leader_epoch(self) -> int:
        return self._manifest.leader_epoch

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """(leader epoch, its first offset), ascending."""
        return self._manifest.epochs

    @property
    def incarnation(self) -> str:
        return self._manifest.incarnation

    @property
    def metadata(self) -> dict[str, Any]:
        return self._manifest.metadata

    @property
    def quarantined(self) -> tuple[QuarantinedRange, ...]:
        return self._manifest.quarantined

    @property
    def segments(self) -> tuple[Segment, ...]:
        """A snapshot, oldest first; the last one is active."""
        return self._segments

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def record_count(self) -> int:
        """Records that can be read; an upper bound where damage or the log start cut a segment
        that was compacted."""
        segments, start, end = self._segments, self.log_start_offset, self.high_watermark
        total = sum([segment.record_count for segment in segments])
        # Of most segments everything can be read. There may be many thousands of them, and this is
        # asked for on the event loop.
        below_start = _index_from(segments, start)
        past_end = max(_index_from(segments, end) - 1, 0)
        lost = dict.fromkeys([*range(below_start), *range(past_end, len(segments))], 0)
        for bad in self.quarantined:
            i = max(_index_from(segments, bad.first_offset + 1) - 1, 0)
            while i < len(segments) and segments[i].base_offset < bad.next_offset:
                low, high = max(segments[i].base_offset, start), min(segments[i].next_offset, end)
                gone = min(bad.next_offset, high) - max(bad.first_offset, low)
                lost[i] = lost.get(i, 0) + max(gone, 0)
                i += 1
        for i, count in lost.items():
            low, high = max(segments[i].base_offset, start), min(segments[i].next_offset, end)
            total -= max(segments[i].record_count - max(high - low - count, 0), 0)
        return total

    @property
    def commit_group(self) -> int:
        """The number that batches encoded for the next append must carry."""
        return self._commit_group

    @property
    def max_timestamp_ns(self) -> int:
        return max(segment.max_timestamp_ns for segment in self._segments)

    @property
    def lineage(self) -> str:
        """Changes when truncation lets offsets be assigned again, and with the incarnation."""
        return self._manifest.lineage

    @property
    def cleaned_below(self) -> int:
        """Compaction has looked at everything below this offset."""
        return self._manifest.cleaned_below

    @property
    def tombstones_removed_below(self) -> int:
        """Compaction may have removed tombstones below this offset."""
        return self._manifest.tombstones_removed_below

    @property
    def damaged_files(self) -> frozenset[str]:
        """Names of segment files that hold quarantined bytes; they are never rewritten."""
        segments = self._segments
        found: set[str] = set()
        for bad in self._manifest.quarantined:
            base_offset = int(bad.segment.partition(".")[0])
            i = bisect_left(segments, base_offset, key=lambda one: one.base_offset)
            segment = segments[i] if i < len(segments) else None
            if segment is None or segment.path.name != bad.segment:
                continue
            if not lies_behind(bad, segment):
                found.add(bad.segment)
        return frozenset(found)

    def _quarantined_in(self, segment: Segment) -> list[QuarantinedRange]:
        return self._manifest.quarantined_in(segment.path.name)

    # --- how it changes ---

    def _write_manifest(self, manifest: Manifest) -> None:
        """Make it the manifest, on disk first. Raises OSError; then nothing changed in memory.

        A failure may come after the rename, so the disk may already say otherwise: no append may
        follow before it has been told again what is true, or a segment that it takes for sealed
        would grow behind its back.
        """
        if self._closed:
            # The directory may belong to another process by now.
            raise StorageError(f"the log of {self.name} is closed")
        try:
            manifest.write(self.environment.fs, self.directory)
        except OSError:
            self._manifest_in_doubt = True
            raise
        self._manifest_in_doubt = False
        self._manifest = manifest

    def _remove_files(self, segment: Segment) -> int:
        """Unlink what the manifest no longer lists; what cannot go now goes at the next start."""
        self.environment.indexes.drop(segment.path)
        for path in (segment.path, index_path(segment.path)):
            try:
                self.environment.pool.remove(path)
            except OSError as error:
                logger.warning("file-not-removed path=%s error=%s", path, error)
        return segment.size_bytes


def _index_from(segments: Sequence[Segment], offset: int) -> int:
    """Of the first segment that begins at or after `offset`."""
    return bisect_left(segments, offset, key=lambda segment: segment.base_offset)


def lies_behind(bad: QuarantinedRange, segment: Segment) -> bool:
    """Whether it only says that offsets behind the segment are gone: no byte of it is damaged."""
    return bad.first_offset >= segment.next_offset and bad.end_position == bad.position
