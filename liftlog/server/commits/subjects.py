"""The last offset of each subject, found by scanning the log.

The log is scanned in these cases:

- at the start
- after a change of the setting
- after compaction, damage or a failed sync has removed records that were not the oldest

At the start, a small log is scanned when it is opened. A thread scans a large log while commits
continue. All later scans also run in a thread. Until a scan ends, a message that names the expected
last offset of its subject is refused with a special code. If the subject has a record that was
written after the scan began, its last offset is known, and the message is not refused.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from liftlog.errors import CorruptBatch, CorruptRange, LiftlogError
from liftlog.log import Log
from liftlog.log.files.checkpoint_file import read_dispensable_file, write_checkpoint_file
from liftlog.log.state import ReadView
from liftlog.records import Place, RecordBatch, decode_batch, parse_header
from liftlog.sequencing import Sequencer
from liftlog.sequencing.subject_sequences import SubjectScan, SubjectSequences, deletes_subject
from liftlog.server.commits.damage import quarantine_damage, quarantine_found
from liftlog.server.commits.waiting import WatermarkWaiters
from liftlog.settings import StreamSettings

logger = logging.getLogger("liftlog.server.stream")

_SCAN_BYTES = 1024 * 1024
_AT_ONCE_BYTES = 256 * 1024 * 1024
"""A log below this size, in bytes, is scanned before its stream is served; the scan takes at most
about a second."""
_LOOK_AGAIN_SECONDS = 0.5
_PAUSE_SECONDS = 0.001
"""Pause between two reads of a scan, so that commits get the interpreter."""
_LATER = 10.0
"""Pause before a scan that is not urgent, as a multiple of the time that the previous scan took."""
_SNAPSHOT_NAME = "subjects"
_SNAPSHOT_MAX_SUBJECTS = 200_000  # a larger snapshot would take about as long as a scan


def new_table(settings: StreamSettings, log: Log, known_from: int) -> SubjectSequences | None:
    """Return a table without the records below `known_from`; None if the settings want no table."""
    wanted = settings.subject_sequences
    if wanted is None:
        return None
    own = settings.jetstream
    return SubjectSequences(
        wanted.max_subjects,
        known_from=known_from,
        log_start_offset=lambda: log.log_start_offset,
        tombstones_delete=own is not None and own.max_msgs_per_subject is not None,
        hides=lambda offset: log.view.hides(offset),
    )


def restore_subjects(log: Log, table: SubjectSequences) -> None:
    """Fill the table of a log that is being opened. Leaves the table empty if the scan would take
    too long, or if a new leader must first commit the end of the log. Blocking."""
    if log.high_watermark < log.log_end_offset or restore_subject_snapshot(log, table):
        return
    if sum(segment.size_bytes for segment in log.segments) <= _AT_ONCE_BYTES:
        table.adopt(scan_subjects(log, table.new_scan()))


def scan_subjects(
    log: Log, scan: SubjectScan, go_on: Callable[[], bool] = lambda: True
) -> SubjectScan:
    """Scan all records that are committed now; returns `scan`. Blocking.

    `go_on` is called for every megabyte. If it returns False, the scan ends early and does not
    change `scan.end`. Damage that the scan finds is quarantined. Lost records count as deleted. If
    records exist but cannot be read, `scan` notes that they may be the newest records of any
    subject.
    """
    offset, end, examined = log.log_start_offset, log.high_watermark, -1
    while offset < end:
        if not go_on():
            return scan
        problem: object = "a damaged batch"
        try:
            found = log.read_stored(offset, _SCAN_BYTES)
            if found is None:
                break
            with found:
                place = Place(found.first_offset, found.next_offset)
                reached = _learn(found.pread(), offset, end, place, scan, log.view)
            if reached < min(found.next_offset, end) and reached != examined:
                offset = examined = reached
                quarantine_damage(log, offset, found.next_offset)
                continue
        except CorruptRange as error:
            with suppress(LiftlogError):  # if this fails, the next reader tries to quarantine again
                quarantine_found(log, error)
            reached = error.next_offset
        except (LiftlogError, OSError) as error:
            reached, problem = offset, error
        if reached == offset:
            reached = _end_of_segment(log, offset, end)
            scan.lost_below(reached)
            logger.warning(
                "subjects-unknown stream=%s offset=%d next_offset=%d error=%s",
                log.name,
                offset,
                reached,
                problem,
            )
        offset = reached
    scan.end = end
    return scan


def _end_of_segment(log: Log, offset: int, end: int) -> int:
    """Return the end of the segment that holds `offset`, but at most `end`."""
    ends = [segment.next_offset for segment in log.segments]
    return min([stop for stop in ends if stop > offset], default=end)


def _learn(
    raw: bytes, offset: int, end: int, place: Place, scan: SubjectScan, view: ReadView
) -> int:
    """Add the records in [offset, end) of the batches in `raw` to the table, except records that
    `view` hides. Returns the offset to continue at. Stops at a damaged or misplaced batch."""
    reached, position = offset, 0
    while position < len(raw) and reached < end:
        try:
            header = parse_header(raw, position)
            place.take(header)
            batch = decode_batch(raw, position).trim(offset, end)
            subjects, offsets = batch.raw_subjects(), batch.offsets()
            if scan.tombstones_delete and batch.has_tombstones:
                subjects, offsets = _without_deleted(batch)
            if view.erased is not None:
                left = [i for i, one in enumerate(offsets) if not view.hides(abs(one))]
                subjects = [subjects[i] for i in left]
                offsets = [offsets[i] for i in left]
            scan.add(subjects, offsets)
        except CorruptBatch:
            break
        position += header.length
        reached = max(offset, header.next_offset)
    return reached


def _without_deleted(batch: RecordBatch) -> tuple[list[bytes], list[int]]:
    """Return subjects and offsets for a scan in which tombstones delete subjects. The offset of a
    tombstone is negative."""
    subjects, offsets = [], []
    columns = (batch.raw_subjects(), batch.offsets(), batch.keys(), batch.values())
    for subject, offset, key, value in zip(*columns, strict=True):
        if value is not None or deletes_subject(key, value):
            subjects.append(subject)
            offsets.append(offset if value is not None else -offset)
    return subjects, offsets


class SubjectUpkeep:
    """Scans one stream, one scan at a time. Belongs to the event loop.

    A follower judges no messages and has no table. A new leader creates the table from its log, as
    after a start. So the answers of all replicas would be the same.
    """

    def __init__(
        self, log: Log, sequencer: Sequencer, waiters: WatermarkWaiters, *, is_leading: bool
    ) -> None:
        self._is_leading = is_leading
        self._log = log
        self._sequencer = sequencer
        self._waiters = waiters
        self._wanted = False
        self._is_current = True
        self._erasures = 0
        self._urgent = asyncio.Event()
        self._next_scan = 0.0
        self._damage_seen = log.view.manifest.quarantined
        self._task: asyncio.Task[None] | None = None
        self._closed = threading.Event()

    def adopt(self, settings: StreamSettings) -> None:
        """Create, resize or drop the table according to these settings. They apply from the next
        message on."""
        if not self._is_leading:
            return
        sequencer = self._sequencer
        table = sequencer.subjects
        fresh = new_table(settings, self._log, sequencer.next_offset)
        if (
            table is not None
            and fresh is not None
            and table.tombstones_delete == fresh.tombstones_delete
        ):
            if table.max_subjects != fresh.max_subjects:
                table.resize(fresh.max_subjects)
        else:
            sequencer.subjects = fresh
        if sequencer.subjects is not None and sequencer.subjects.needs_scan:
            self.request()

    def lost_from(self, offset: int) -> None:
        """Note that the records from `offset` on are lost although they were acked."""
        table = self._sequencer.subjects
        if table is not None:
            table.lost_from(offset, self._log.log_end_offset)
            self.request()

    @contextmanager
    def erasing(self) -> Iterator[None]:
        """While this context is open, the table may contain records that were just erased. Call
        `erased` or `request` for them before it ends."""
        self._erasures += 1
        try:
            yield
        except BaseException:
            self._is_current = False
            self.request()
            raise
        finally:
            self._erasures -= 1

    def erased(self, subject: bytes, offset: int, left: int) -> None:
        """Note that the record at `offset` was erased; see `SubjectSequences.erased`."""
        table = self._sequencer.subjects
        if table is not None and not table.erased(subject, offset, left):
            self.request_later()

    def request(self) -> None:
        """Request a scan of the remaining records, because records were removed. Does nothing if
        there is no table."""
        if self._sequencer.subjects is None or self._closed.is_set():
            return
        self._urgent.set()
        self.request_later()

    def request_later(self) -> None:
        """Like `request`, for callers that may request scans continuously: scans take only a share
        of the time. Until the scan, the last offsets of subjects whose last record was erased are
        unknown."""
        if self._sequencer.subjects is None or self._closed.is_set():
            return
        self._wanted, self._is_current = True, False
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def is_scanning(self) -> bool:
        """True while a scan is running or requested."""
        return self._task is not None

    async def settled(self, seconds: float) -> None:
        """Wait until the requested scans have ended, for at most `seconds`."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=seconds)

    async def _run(self) -> None:
        try:
            while self._wanted and not self._closed.is_set():
                await self._pause()
                self._wanted = False
                self._urgent.clear()
                began = time.monotonic()
                await self._scan()
                ended = time.monotonic()
                self._next_scan = ended + _LATER * (ended - began)
        except Exception:  # a supervisor: conditional messages are refused, the stream continues
            logger.exception("subjects-scan-failed stream=%s", self._log.name)
        finally:
            self._task = None

    async def _pause(self) -> None:
        """Wait until the next scan may begin or must begin."""
        while not self._closed.is_set() and time.monotonic() < self._next_scan:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN_SECONDS):
                    await self._urgent.wait()
                    return

    async def _scan(self) -> None:
        log = self._log
        table = self._sequencer.subjects
        if table is None:
            return
        while log.high_watermark < table.known_from:
            if self._waiters.has_ended:
                return
            committed = self._waiters.add(table.known_from - 1)
            # Check again from time to time, because the group may fail and other records may get
            # its offsets.
            await asyncio.wait({committed}, timeout=_LOOK_AGAIN_SECONDS)
            committed.cancel()
        began, damage = time.monotonic(), log.view.manifest.quarantined
        scan = await asyncio.to_thread(scan_subjects, log, table.new_scan(), self._go_on)
        if self._closed.is_set() or self._sequencer.subjects is not table:
            return
        if not table.adopt(scan):
            self._wanted = True
            return
        self._is_current, self._damage_seen = not self._wanted, damage
        logger.info(
            "subjects-scanned stream=%s subjects=%d complete=%s seconds=%.2f",
            log.name,
            len(table),
            table.is_complete,
            time.monotonic() - began,
        )

    def _go_on(self) -> bool:
        time.sleep(_PAUSE_SECONDS)
        return not self._closed.is_set()

    def close(self) -> None:
        """Stop: a running scan ends soon and has no effect."""
        self._closed.set()

    def save(self) -> None:
        """Write a snapshot for the next start, if the table agrees with the log. Call this when the
        stream is closed. Blocking. Raises OSError."""
        table, log = self._sequencer.subjects, self._log
        if log.high_watermark < log.log_end_offset:
            return  # records that are not committed are missing in the table
        if (
            table is not None
            and self._is_current
            and not self._erasures
            and self._damage_seen == log.view.manifest.quarantined
        ):
            write_subject_snapshot(log, table)


# --- the snapshot of a clean stop ---


def write_subject_snapshot(log: Log, table: SubjectSequences) -> None:
    """Save the table, so that the next start does not have to scan a large log. The table must
    reflect all removals. Raises OSError."""
    if not 0 < len(table) <= _SNAPSHOT_MAX_SUBJECTS:
        return
    content = table.snapshot(log.log_end_offset) | _state_of(log)
    write_checkpoint_file(log.environment.fs, _snapshot_path(log), _SNAPSHOT_NAME, content)


def restore_subject_snapshot(log: Log, table: SubjectSequences) -> bool:
    """Restore the table; return True if there is a snapshot of exactly this state of the log."""
    try:
        content = read_dispensable_file(log.environment.fs, _snapshot_path(log), _SNAPSHOT_NAME)
        state = _state_of(log)
        if content is None or {name: content[name] for name in state} != state:
            return False
        return table.restore(content, log.log_end_offset)
    except (LiftlogError, KeyError, TypeError, ValueError, OSError) as error:
        logger.warning("subjects-snapshot-ignored stream=%s error=%s", log.name, error)
        return False


def _snapshot_path(log: Log) -> Path:
    return log.directory / _SNAPSHOT_NAME


def _state_of(log: Log) -> dict[str, Any]:
    """Return the state that a snapshot depends on. If the files, the erased records or the damage
    differ, the log may have other records."""
    return {
        "lineage": log.view.manifest.lineage,
        "log_end_offset": log.log_end_offset,
        "segments": [segment.path.name for segment in log.segments],
        "erased": [entry.file_name for entry in log.view.manifest.erased],
        "quarantined": [
            [bad.first_offset, bad.next_offset] for bad in log.view.manifest.quarantined
        ],
    }
