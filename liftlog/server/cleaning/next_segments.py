"""Chooses the next sealed segments to rewrite without erased records, to re-batch, to sketch and
index by subject, and to verify.

Re-batching examines each segment once, to find segments with many small batches.

A segment is rewritten without its erased records in three cases:

- Half of its records are erased.
- This process has had the file for a day.
- Removing the erased records during reads has taken as long as a rewrite.

So erasures that arrive one by one cause one rewrite a day, or one rewrite for several reads of the
segment.

Scrubbing verifies each segment again after an interval. A round visits all segments of a stream
from the oldest to the newest. The next round begins one interval after the beginning of this round.
The progress is stored in a checkpoint file, so that a restart of the daemon does not restart the
round. If the file is lost, the interval begins again.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from liftlog.log import FileSystem, Log
from liftlog.log.erased import ErasedSet
from liftlog.log.files.checkpoint_file import read_dispensable_file, write_checkpoint_file
from liftlog.log.files.manifest import QuarantinedRange
from liftlog.log.read.ages import listed_times_of, newest_times_of
from liftlog.log.rewrite import RebatchJob, ScrubJob, SketchJob, needs_rebatch
from liftlog.log.segment.segment import Segment
from liftlog.log.segment.sketch import is_sketched
from liftlog.log.segment.subject_index import is_indexed
from liftlog.server.cleaning.compaction import compaction_of, damaged_files
from liftlog.server.commits.configs import window_ns
from liftlog.settings import StreamSettings

_LOOK_AT_ONCE = 64
SKETCHED_BYTES = 1024 * 1024
"""Segments below this size, in bytes, get neither a sketch nor a subject index, because reading a
whole small segment is fast."""
_SECOND_NS = 1_000_000_000
_REMOVE_WITHIN_NS = 24 * 3600 * _SECOND_NS
"""Time after which a segment is rewritten although few of its records are erased: one day."""
_CUTS_PER_REWRITE = 8
"""A rewrite takes as long as reads that remove erased records from this multiple of the segment's
bytes."""


class SmallBatches:
    """Finds segments with many small batches. It examines each segment of a stream once. A
    rewritten segment counts as a new segment."""

    def __init__(self) -> None:
        self._judged: set[str] = set()
        self._all_judged: tuple[Segment, ...] = ()

    def candidates(self, log: Log, settings: StreamSettings, now_ns: int) -> list[Segment]:
        """Return some of the segments that were not examined yet. Takes no time for an idle
        stream."""
        segments = log.segments
        if not settings.rebatch.enabled or self._all_judged is segments:
            return []
        oldest_ns = now_ns - int(settings.rebatch.min_age_seconds * _SECOND_NS)
        damaged = damaged_files(log)
        # Compaction will soon rewrite the segments that it has not cleaned yet.
        end = (
            segments[-1].base_offset
            if compaction_of(settings) is None
            else log.view.manifest.cleaned_below
        )
        # Uncommitted records may be truncated, and the log refuses to replace a segment that
        # contains them.
        end = min(end, log.high_watermark)
        found: list[Segment] = []
        waiting = False
        times = newest_times_of(log.environment, segments, now_ns)
        for segment, newest_ns in zip(segments, times, strict=True):
            name = segment.path.name
            if not segment.sealed or name in self._judged or name in damaged:
                continue
            if segment.next_offset > end or newest_ns > oldest_ns:
                waiting = True
            elif len(found) < _LOOK_AT_ONCE:
                found.append(segment)
        if not found:
            self._judged &= {segment.path.name for segment in segments}
            if not waiting:
                self._all_judged = segments
        return found

    def find(
        self, log: Log, candidates: Sequence[Segment], compression: str = "none"
    ) -> RebatchJob | None:
        """Return a job for the first segment that needs one; None if no segment needs a job.

        Reads the end of an index file for each segment: call it in a thread. Raises OSError.
        """
        for segment in candidates:
            self._judged.add(segment.path.name)
            about = log.directory, segment.entry(), log.incarnation
            if needs_rebatch(log.environment.fs, *about):
                return RebatchJob(
                    str(log.directory),
                    segment.entry(),
                    compression=compression,
                    epochs=log.view.manifest.epochs,
                    incarnation=log.incarnation,
                )
        return None

    def look_again(self, file_name: str) -> None:
        """Examine a segment again later, because its job failed."""
        self._judged.discard(file_name)
        self._all_judged = ()


def erased_job(log: Log, settings: StreamSettings, now_ns: int) -> RebatchJob | None:
    """Return a job that removes the bytes of erased records from one sealed segment; None if no
    removal is due. A segment is not rewritten while its message ids may still recognise duplicates,
    because these ids are restored from its records. Takes no time for a stream without erased
    records."""
    view = log.view
    erased = view.erased
    if erased is None or log.config.replicated:
        return None
    segments, damaged = view.segments, damaged_files(log)
    since_ns = now_ns - window_ns(settings)
    newest = newest_times_of(log.environment, segments, now_ns)
    due = rewritten_by(log, segments, newest, now_ns)
    for segment, newest_ns, due_ns in zip(segments, newest, due, strict=True):
        first, end = segment.base_offset, segment.next_offset
        count = erased.count_in(first, end)
        if not (count and segment.sealed) or newest_ns >= since_ns or end > log.high_watermark:
            continue
        is_due = (
            2 * count >= segment.record_count
            or now_ns >= due_ns
            or log.environment.cuts.of(segment) >= _CUTS_PER_REWRITE * segment.size_bytes
        )
        if is_due and segment.path.name not in damaged:
            return removal_job(log, settings, segment, erased)
    return None


def rewritten_by(
    log: Log, segments: Sequence[Segment], newest: Sequence[int], now_ns: int
) -> list[int]:
    """Return, for each segment, the time from which on single erased records cause a rewrite.
    `newest` contains the times of `newest_times_of`."""
    listed = listed_times_of(log.environment, segments, now_ns)
    return [
        # If there is no time, the segment was sealed in this process and has not been rewritten
        # since then.
        _REMOVE_WITHIN_NS + (listed_ns if segment.listed_since_ns else newest_ns)
        for segment, newest_ns, listed_ns in zip(segments, newest, listed, strict=True)
    ]


def removal_job(
    log: Log, settings: StreamSettings, segment: Segment, erased: ErasedSet
) -> RebatchJob:
    """Return a job that rewrites a segment without its erased records."""
    return RebatchJob(
        str(log.directory),
        segment.entry(),
        compression=settings.compression,
        epochs=log.view.manifest.epochs,
        incarnation=log.incarnation,
        erased=erased.within(segment.base_offset, segment.next_offset).to_plain(),
    )


class Unsketched:
    """Finds segments without a sketch or without a subject index. It examines each segment once."""

    def __init__(self, *, with_subjects: bool = True) -> None:
        """Create the finder. If `with_subjects` is False, it ignores subject indexes, and none are
        created."""
        self._with_subjects = with_subjects
        self._judged: set[tuple[str, str]] = set()
        self._all_judged: tuple[Segment, ...] = ()

    def candidates(self, log: Log) -> list[Segment]:
        """Return some segments that were not examined yet. Takes no time for an idle stream."""
        segments = log.segments
        if self._all_judged is segments:
            return []
        damaged, lineage, end = damaged_files(log), log.view.manifest.lineage, log.high_watermark
        waiting = False
        found: list[Segment] = []
        for segment in segments[:-1]:
            name = segment.path.name
            if (name, lineage) in self._judged or name in damaged:
                continue
            if not segment.sealed or segment.next_offset > end:
                waiting = True
            elif segment.size_bytes < SKETCHED_BYTES:
                self._judged.add((name, lineage))
            elif len(found) < _LOOK_AT_ONCE:
                found.append(segment)
        if not found:
            listed = {(segment.path.name, lineage) for segment in segments}
            self._judged &= listed
            if not waiting:
                self._all_judged = segments
        return found

    def find(self, log: Log, candidates: Sequence[Segment]) -> SketchJob | None:
        """Return a job for the first segment that has no sketch or no index; None if there is no
        such segment. Reads the beginning of each file: call it in a thread. Raises OSError."""
        fs, lineage, with_subjects = (
            log.environment.fs,
            log.view.manifest.lineage,
            self._with_subjects,
        )
        for segment in candidates:
            self._judged.add((segment.path.name, lineage))
            entry = segment.entry()
            about = fs, segment.path, entry, lineage
            if not is_sketched(*about) or (with_subjects and not is_indexed(*about)):
                return SketchJob(
                    str(log.directory), entry, lineage, log.view.manifest.epochs, with_subjects
                )
        return None

    def look_again(self, file_name: str) -> None:
        """Examine a segment again later, because its job failed."""
        self._judged = {one for one in self._judged if one[0] != file_name}
        self._all_judged = ()


logger = logging.getLogger("liftlog.server.cleaner")

SCRUB_NAME = "scrub"
_NOT_RUNNING = -1


@dataclass(slots=True)
class ScrubRound:
    """The current scrub round of one stream. The round continues at `next_offset`, which is -1
    between two rounds."""

    incarnation: str
    started_ns: int
    next_offset: int = _NOT_RUNNING


class ScrubSchedule:
    """The scrub rounds of all streams. Blocking; used from one thread at a time."""

    def __init__(self, fs: FileSystem, data_dir: Path, interval_ns: int) -> None:
        self._fs = fs
        self._path = data_dir / SCRUB_NAME
        self._interval_ns = interval_ns
        self._rounds: dict[str, ScrubRound] = {}
        self._changed = False
        self._reviewed: dict[str, frozenset[QuarantinedRange]] = {}

    def load(self) -> None:
        try:
            content = read_dispensable_file(self._fs, self._path, SCRUB_NAME)
            if content is not None:
                self._rounds = {
                    name: ScrubRound(**fields) for name, fields in content["streams"].items()
                }
        except (KeyError, TypeError, AttributeError, OSError) as error:
            logger.warning("checkpoint-file-ignored file=%s error=%s", SCRUB_NAME, error)

    def save(self, names: Collection[str]) -> None:
        """Write the progress of these streams to the file. Raises OSError."""
        if self._changed:
            self._rounds = {name: self._rounds[name] for name in names if name in self._rounds}
            streams = {name: asdict(one) for name, one in self._rounds.items()}
            write_checkpoint_file(self._fs, self._path, SCRUB_NAME, {"streams": streams})
            self._changed = False

    def next_job(self, log: Log, now_ns: int) -> ScrubJob | None:
        """Return a job for the next segment; None if there is nothing to verify.

        Segments with a newly quarantined range come first. A range that was quarantined before the
        start of the daemon counts as new.
        """
        claimed = self._claimed(log)
        if claimed is not None:
            return job_for(log, claimed)
        current = self._rounds.get(log.name)
        if current is None or current.incarnation != log.incarnation:
            current = self._rounds[log.name] = ScrubRound(log.incarnation, now_ns)
            self._changed = True
        if current.next_offset == _NOT_RUNNING:
            if now_ns - current.started_ns < self._interval_ns:
                return None
            current.started_ns, current.next_offset = now_ns, 0
            self._changed = True
        segments = log.segments
        following = bisect_right(segments, current.next_offset, key=lambda one: one.next_offset)
        if following < len(segments) and segments[following].sealed:
            return job_for(log, segments[following])
        current.next_offset = _NOT_RUNNING
        self._changed = True
        return None

    def _claimed(self, log: Log) -> Segment | None:
        """Return a segment with quarantined bytes that were not verified again yet; None if there
        is no such segment."""
        known = self._reviewed.get(log.name, frozenset())
        names = {
            bad.segment
            for bad in log.view.manifest.quarantined
            if bad.position < bad.end_position and bad not in known
        }
        segments = (one for one in log.segments if one.sealed and one.path.name in names)
        return next(segments, None) if names else None

    def done(self, log: Log, job: ScrubJob) -> None:
        known = self._reviewed.get(log.name, frozenset())
        self._reviewed[log.name] = frozenset(
            bad
            for bad in log.view.manifest.quarantined
            if bad in known or bad.segment == job.source.file_name
        )
        current = self._rounds.get(log.name)
        if (
            current is not None
            and current.next_offset != _NOT_RUNNING
            and job.source.file_name == self._next_file(log, current)
        ):
            current.next_offset = job.source.next_offset
            self._changed = True

    def _next_file(self, log: Log, current: ScrubRound) -> str:
        """Return the name of the file that this round verifies next."""
        segments = log.segments
        following = bisect_right(segments, current.next_offset, key=lambda one: one.next_offset)
        return segments[following].path.name if following < len(segments) else ""


def job_for(log: Log, segment: Segment) -> ScrubJob:
    name = segment.path.name
    known = tuple(bad for bad in log.view.manifest.quarantined if bad.segment == name)
    return ScrubJob(
        str(log.directory), segment.entry(), known, log.view.manifest.epochs, log.incarnation
    )
