"""Removes the bytes of erased records at once, on request.

If the active segment contains such records, it is sealed. Then each segment with such records is
rewritten without its erased records. This is also done within the dedupe window; the hashes of the
message ids that would be lost are stored first (`log.files.kept_ids`). A segment with quarantined
bytes is not rewritten, so the bytes of its erased records stay.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from liftlog.errors import CorruptBatch, CorruptRange, LiftlogError
from liftlog.log import Log
from liftlog.log.erased import ErasedSet
from liftlog.log.files.erasures import read_erasures
from liftlog.log.files.filesystem import storage_errors
from liftlog.log.files.kept_ids import KeptId, KeptIds, read_kept_ids, write_kept_ids
from liftlog.log.read.ages import newest_times_of
from liftlog.log.segment.segment import Segment
from liftlog.records.decode import iter_batches
from liftlog.sequencing.dedupe import DedupeWindow, StoredHeaders
from liftlog.server.cleaning.compaction import damaged_files
from liftlog.server.cleaning.jobs import JobRunner
from liftlog.server.cleaning.next_segments import removal_job, rewritten_by
from liftlog.server.cleaning.state import StreamCleaning
from liftlog.server.commits.configs import window_ns
from liftlog.server.commits.host import StreamHost
from liftlog.settings import StreamSettings

logger = logging.getLogger("liftlog.server.cleaner")

_READ_BYTES = 4 * 1024 * 1024
_SETTLE_SECONDS = 30.0
"""Maximum time, in seconds, to wait for the scan of the last offsets of subjects."""
_SNAPSHOT_NAME = "dedupe"
"""The file with the message ids of a clean stop. Once the stream has been opened, the file is not
needed. It may contain the ids of erased records."""


class Removals:
    """The requested removals of all streams. Belongs to the event loop."""

    def __init__(self, jobs: JobRunner, now_ns: Callable[[], int]) -> None:
        self._jobs = jobs
        self._now_ns = now_ns
        self._wanted: dict[StreamHost, ErasedSet] = {}

    def request(self, host: StreamHost, offsets: ErasedSet) -> None:
        """Remove the bytes of these erased records as soon as possible."""
        before = self._wanted.get(host)
        self._wanted[host] = offsets if before is None else before | offsets

    def is_requested(self, host: StreamHost) -> bool:
        return host in self._wanted

    def requested(self) -> list[StreamHost]:
        return list(self._wanted)

    def forget(self, host: StreamHost) -> None:
        self._wanted.pop(host, None)

    async def recall(self, hosts: Iterable[StreamHost]) -> None:
        """Request again all removals that had not ended when the daemon stopped."""
        for host in hosts:
            if host.log.view.erased is None or host.log.config.replicated:
                continue
            with suppress(OSError, ValueError):
                read = partial(read_erasures, host.log.environment.fs, host.log.directory)
                listed = await self._jobs.in_thread(read)
                for one in listed:
                    if one.now:
                        self.request(host, ErasedSet.from_plain(one.offsets))

    def _left(self, host: StreamHost) -> ErasedSet | None:
        """Return the records of the requests whose bytes still exist."""
        wanted, erased = self._wanted.get(host), host.log.view.erased
        return None if wanted is None or erased is None else wanted & erased

    async def step(self, host: StreamHost, state: StreamCleaning) -> None:
        """Rewrite one segment. The last step ends the request. Raises LiftlogErrors, JobFailed,
        WorkerDied."""
        log, left = host.log, self._left(host)
        if left:
            active = log.segments[-1]
            if left.count_in(active.base_offset, log.high_watermark):
                await host.run_exclusive(log.writer.roll)
            # A rewrite removes the offsets from the erased set. The last offsets of subjects must
            # be corrected before that.
            await host.subjects.settled(_SETTLE_SECONDS)
            segment = self._next(log, left)
            if segment is not None:
                await self._remove(host, state, segment)
                return
        self.forget(host)
        await self._jobs.in_thread(lambda: _forget_snapshot(log))
        logger.info("erased-removed stream=%s left=%d", host.name, 0 if not left else len(left))

    def _next(self, log: Log, left: ErasedSet) -> Segment | None:
        damaged = damaged_files(log)
        for segment in log.segments:
            if segment.sealed and segment.path.name not in damaged:
                if segment.next_offset > log.high_watermark:
                    return None
                if left.count_in(segment.base_offset, segment.next_offset):
                    return segment
        return None

    async def _remove(self, host: StreamHost, state: StreamCleaning, segment: Segment) -> None:
        log = host.log
        erased, now_ns = log.view.erased, self._now_ns()
        assert erased is not None
        since_ns = now_ns - window_ns(host.settings)
        (newest_ns,) = newest_times_of(log.environment, [segment], now_ns)
        if newest_ns >= since_ns:
            dedupe = host.sequencer.dedupe
            await self._jobs.in_thread(lambda: keep_ids(log, segment, erased, dedupe, since_ns))
        job = removal_job(log, host.settings, segment, erased)
        await self._jobs.rebatch(host, state, job, hurries=True)


class Left(NamedTuple):
    """Erased records whose bytes are still in segments, about `size_bytes` in total. `reasons` are
    sentences. `due_ns` is the time by which the next segment with such records is rewritten; None
    if it is not known."""

    records: int
    size_bytes: int
    reasons: tuple[str, ...]
    due_ns: int | None


def left_in(log: Log, settings: StreamSettings, left: ErasedSet, now_ns: int) -> Left:
    """Describe where the bytes of these erased records are. If timestamps are not credible, a few
    headers are read."""
    if not left:
        return Left(0, 0, (), None)
    view, damaged, since_ns = log.view, damaged_files(log), now_ns - window_ns(settings)
    counts: Counter[str] = Counter()
    size, due_ns = 0, None
    found = [
        (segment, count)
        for segment in view.segments
        if (count := left.count_in(segment.base_offset, _end_of(log, segment)))
    ]
    segments = [segment for segment, _ in found]
    newest = newest_times_of(log.environment, segments, now_ns)
    due = rewritten_by(log, segments, newest, now_ns)
    for (segment, count), newest_ns, by_ns in zip(found, newest, due, strict=True):
        size += segment.size_bytes * count // max(segment.record_count, 1)
        if not segment.sealed:
            counts["in the active segment, which is not sealed yet"] += count
        elif segment.path.name in damaged:
            counts["in a segment with damaged records, which is not rewritten"] += count
        else:
            counts["in a segment that is to be rewritten"] += count
            by_ns = max(by_ns, newest_ns + window_ns(settings)) if newest_ns >= since_ns else by_ns
            due_ns = by_ns if due_ns is None else min(due_ns, by_ns)
    reasons = [f"{count:,} {where}" for where, count in counts.items()]
    return Left(sum(counts.values()), size, tuple(reasons), due_ns)


def _end_of(log: Log, segment: Segment) -> int:
    return segment.next_offset if segment.sealed else log.log_end_offset


def keep_ids(
    log: Log, segment: Segment, erased: ErasedSet, dedupe: DedupeWindow, since_ns: int
) -> None:
    """Store the hashes of the message ids of the erased records of a segment. Durable on return.
    Ids older than `since_ns` are removed from the file. Blocking. Raises StorageError, DiskFull."""
    fs, key = log.environment.fs, dedupe.key
    with storage_errors(f"keeping message ids of {log.name}"):
        before = read_kept_ids(fs, log.directory)
        kept = (
            {} if before is None or before.key != key else {one.offset: one for one in before.ids}
        )
        offset = segment.base_offset
        while (at := erased.next_at(offset)) is not None and at < segment.next_offset:
            offset = _collect(log, at, erased, dedupe, kept)
        young = [kept[one] for one in sorted(kept) if kept[one].timestamp_ns >= since_ns]
        if young or before is not None:
            write_kept_ids(fs, log.directory, KeptIds(key, tuple(young)))


def _collect(
    log: Log, offset: int, erased: ErasedSet, dedupe: DedupeWindow, kept: dict[int, KeptId]
) -> int:
    """Add the ids of the erased records in a piece of the log. Returns the offset at which to
    continue."""
    try:
        found = log.read_stored(offset, _READ_BYTES)
    except CorruptRange as error:  # unreadable ids are lost anyway
        return int(error.details["next_offset"])
    if found is None:
        return log.high_watermark
    headers, reached = StoredHeaders(), offset + 1
    with found:
        try:
            for batch in iter_batches(found.pread()):
                if erased.count_in(batch.base_offset, batch.next_offset):
                    headers.add(batch)
                reached = max(reached, batch.next_offset)
        except CorruptBatch:
            pass
    ids = headers.ids()
    for at, stamp_ns, message_id in zip(ids.offsets, ids.stamps_ns, ids.ids, strict=True):
        if erased.next_at(at) == at:
            kept[at] = KeptId(at, stamp_ns, dedupe.hash_of(message_id))
    return max(reached, found.next_offset) if reached > offset + 1 else reached


def _forget_snapshot(log: Log) -> None:
    path = log.directory / _SNAPSHOT_NAME
    with suppress(OSError, LiftlogError):
        if log.environment.fs.exists(path):
            log.environment.fs.unlink(path)
