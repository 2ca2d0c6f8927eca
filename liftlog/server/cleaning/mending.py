"""Repairs damaged segments of this node from other replicas of their streams.

A scrub, a reader or a follower finds damage, and the damaged range is quarantined. This module
fetches the records of the range from another node (`Donors`), and a worker process rewrites the
segment. If the damage is in the active segment, that segment is sealed first. Readers can wait for
a running repair, because the records are not lost.

Offsets that are missing on all replicas stay quarantined, as on a daemon without replicas. The
repair is tried again later.

A damaged range from which tombstones were removed is not repaired in this way. Another replica may
still have an old value of a key although this node has already removed the key's tombstone.
Instead, this node replaces its whole copy by the leader's copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from liftlog.errors import LiftlogError, SegmentsChanged
from liftlog.log import Log
from liftlog.log.files.filesystem import File, FileSystem, storage_errors, write_all
from liftlog.log.files.manifest import QuarantinedRange
from liftlog.log.rewrite import MendJob, Piece
from liftlog.log.segment.segment import Segment
from liftlog.log.state import lies_behind
from liftlog.server.cleaning.jobs import JobRunner
from liftlog.server.cleaning.process import JobFailed, Worker, WorkerDied
from liftlog.server.cleaning.state import StreamCleaning
from liftlog.server.commits.host import StreamHost
from liftlog.settings import CleanerSettings

logger = logging.getLogger("liftlog.server.cleaner")

_LOOK_SECONDS = 5.0
_LOOK_AGAIN_SECONDS = 1.0
"""Pause, in seconds, before the next search for damage to repair."""
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 600.0
_PATIENCE_SECONDS = 30.0
"""Maximum time, in seconds, that readers wait for a replica that does not respond. After this time
they get an error."""
_PATCH_SUFFIX = ".patch.tmp"


class Donors(Protocol):
    """The other nodes that have a copy of a stream."""

    def count(self, name: str) -> int:
        """Return the number of other replicas of the stream."""
        ...

    def all_answer(self, name: str) -> bool:
        """Return True if this node has a connection to each of the other replicas."""
        ...

    async def fetch(
        self,
        name: str,
        incarnation: str,
        first: int,
        end: int,
        take: Callable[[memoryview], object],
        *,
        turn: int,
    ) -> str:
        """Pass every batch with a record in [first, end) to `take`, in order.

        Returns the reason if batches are missing, and an empty text otherwise. `turn` determines
        the node to ask first.
        """
        ...

    def copy_again(self, name: str) -> None:
        """Delete this node's copy and fetch all of it from the leader, as soon as the stream has
        enough replicas without this copy."""
        ...


@dataclass(slots=True)
class _Attempts:
    """Attempts to repair one damaged segment."""

    failing_since: float = 0.0
    not_before: float = 0.0
    failures: int = 0
    is_given_up: bool = False


class Mender:
    """Repairs all streams. Belongs to the event loop. `run` does the work; the other methods may be
    called while it runs."""

    def __init__(
        self,
        hosts: Mapping[str, StreamHost],
        donors: Donors,
        settings: CleanerSettings,
        worker: Worker | None = None,
    ) -> None:
        self._hosts = hosts
        self._donors = donors
        self._jobs = JobRunner(settings, worker or Worker())
        self._attempts: dict[tuple[str, str], _Attempts] = {}  # keys are lineage and segment file
        self._waiting: dict[StreamHost, set[Callable[[], None]]] = {}
        self._poke = asyncio.Event()
        self._current: tuple[StreamHost, asyncio.Task[None]] | None = None

    # --- for the rest of the daemon ---

    def is_expected(self, host: StreamHost, first: int, end: int) -> bool:
        """Return True if damage in [first, end) will probably be repaired soon. Readers then wait,
        and get no error."""
        if host.failure or not self._donors.count(host.name):
            return False
        log = host.log
        return any(
            bad.first_offset < end
            and first < bad.next_offset <= log.high_watermark
            and (segment := _damaged_segment(log, bad)) is not None
            and not self._attempts_for(log, segment).is_given_up
            for bad in log.view.manifest.quarantined
        )

    def wait(self, host: StreamHost, told: Callable[[], None]) -> Callable[[], None]:
        """Call `told` once, when the next repair of the stream has ended, successfully or not.
        Returns a function that cancels this request."""
        waiting = self._waiting.setdefault(host, set())
        waiting.add(told)
        self._poke.set()
        return lambda: waiting.discard(told)

    async def forget(self, host: StreamHost) -> None:
        """End the repairs of a stream that this node stops serving. When the call returns, no
        repair runs for the stream, and none starts later."""
        if self._current is not None and self._current[0] is host:
            task = self._current[1]
            task.cancel()
            await asyncio.wait({task})
        self._tell(host)

    # --- the work ---

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            while True:
                self._poke.clear()
                found = self._next()
                if found is not None:
                    await self._work(*found)
                    continue
                with contextlib.suppress(TimeoutError):
                    pause = _LOOK_AGAIN_SECONDS if self._attempts else _LOOK_SECONDS
                    async with asyncio.timeout(pause):
                        await self._poke.wait()
        finally:
            await self._jobs.close()

    def _next(self) -> tuple[StreamHost, Segment] | None:
        now = time.monotonic()
        for host in self._hosts.values():
            log = host.log
            if (
                not log.view.manifest.quarantined
                or host.failure
                or not self._donors.count(host.name)
            ):
                continue
            for bad in log.view.manifest.quarantined:
                segment = _damaged_segment(log, bad)
                if segment is None or not _is_committed(log, segment, bad):
                    continue
                if self._attempts_for(log, segment).not_before <= now:
                    return host, segment
        return None

    def _attempts_for(self, log: Log, segment: Segment) -> _Attempts:
        key = (log.view.manifest.lineage, segment.path.name)
        found = self._attempts.get(key)
        if found is None:
            found = self._attempts[key] = _Attempts()
        return found

    async def _work(self, host: StreamHost, segment: Segment) -> None:
        """Repair one segment in a separate task, so that `forget` can cancel it."""
        task = asyncio.get_running_loop().create_task(self._supervise(host, segment))
        self._current = (host, task)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        finally:
            self._current = None
            self._tell(host)

    def _tell(self, host: StreamHost) -> None:
        for told in self._waiting.pop(host, ()):
            told()

    async def _supervise(self, host: StreamHost, segment: Segment) -> None:
        known = len(host.log.view.manifest.quarantined)
        try:
            problem = await self._mend(host, segment)
        except SegmentsChanged as error:  # retention or compaction changed the segments: look again
            problem = str(error)
        except (LiftlogError, JobFailed, WorkerDied, OSError) as error:
            if len(host.log.view.manifest.quarantined) > known:
                return  # the repair found more damage: try again at once
            problem = str(error)
        except Exception as error:  # a supervisor: repairs must not end the daemon
            logger.exception("repair-failed stream=%s segment=%s", host.name, segment.path.name)
            problem = repr(error)
        if problem:
            self._note_failure(host, segment, problem)
        else:
            self._attempts.pop((host.log.view.manifest.lineage, segment.path.name), None)

    def _note_failure(self, host: StreamHost, segment: Segment, problem: str) -> None:
        now = time.monotonic()
        attempts = self._attempts_for(host.log, segment)
        if not attempts.failures:  # until now other repairs may have delayed this one
            attempts.failing_since = now
        pause = min(_FIRST_PAUSE_SECONDS * 2**attempts.failures, _LONGEST_PAUSE_SECONDS)
        attempts.failures = min(attempts.failures + 1, 20)
        attempts.not_before = now + pause
        waited = now - attempts.failing_since
        asked_all = attempts.failures > self._donors.count(host.name)
        attempts.is_given_up = waited > _PATIENCE_SECONDS or (
            asked_all and self._donors.all_answer(host.name)
        )
        logger.warning(
            "not-repaired stream=%s segment=%s again_in_seconds=%.0f reason=%s",
            host.name,
            segment.path.name,
            pause,
            problem,
        )

    async def _mend(self, host: StreamHost, segment: Segment) -> str:
        """Repair a segment. Returns the reason if the repair failed, and "" otherwise."""
        log, name = host.log, segment.path.name
        if not segment.sealed:
            await host.run_exclusive(log.writer.roll)
            return ""  # the next search finds the segment sealed
        lineage = log.view.manifest.lineage
        ranges = [bad for bad in _ranges_in(log, segment) if bad.next_offset > bad.first_offset]
        first = min(bad.first_offset for bad in ranges)
        if first < log.view.manifest.tombstones_removed_below:
            self._donors.copy_again(host.name)
            return "tombstones were removed there: the stream is to be copied again as a whole"
        fs, patch = log.environment.fs, log.directory / f"{name}{_PATCH_SUFFIX}"
        try:
            pieces, problem = await self._fetch(host, segment, ranges, patch)
            if problem:
                return problem
            source, given = segment.entry(), tuple(pieces)
            job = MendJob(
                str(log.directory),
                source,
                patch.name,
                given,
                log.view.manifest.epochs,
                log.incarnation,
            )
            ended = await self._jobs.mend(host, StreamCleaning(), job, lineage)
        finally:
            await self._jobs.in_thread(lambda: _remove(fs, patch))
        host.observed.repaired_ranges += ended
        host.subjects.request()
        logger.warning(
            "repaired stream=%s segment=%s ranges=%d offsets=%d",
            host.name,
            name,
            ended,
            sum(bad.next_offset - bad.first_offset for bad in ranges),
        )
        return ""

    async def _fetch(
        self, host: StreamHost, segment: Segment, ranges: list[QuarantinedRange], path: Path
    ) -> tuple[list[Piece], str]:
        """Fetch the records at these offsets from other replicas and write them to the patch file.
        Returns the pieces, and the reason if records are missing."""
        log = host.log
        turn = self._attempts_for(log, segment).failures
        patch = await self._jobs.in_thread(lambda: _PatchFile(log, path))
        pieces: list[Piece] = []
        try:
            for bad in sorted(ranges, key=lambda one: one.first_offset):
                position = patch.size
                # Other replicas may have deleted the offsets below the log start.
                first = max(bad.first_offset, log.log_start_offset)
                if first < bad.next_offset:
                    problem = await self._donors.fetch(
                        host.name, log.incarnation, first, bad.next_offset, patch.take, turn=turn
                    )
                    if problem:
                        return pieces, problem
                pieces.append(Piece(bad.first_offset, bad.next_offset, position, patch.size))
        finally:
            await self._jobs.in_thread(patch.close)
        return pieces, ""


class _PatchFile:
    """A file of records for a repair. It is not synced: no repair continues after a stop, and the
    next start removes the file."""

    def __init__(self, log: Log, path: Path) -> None:
        self._name = log.name
        with storage_errors(f"repairing {log.name}"):
            self._file: File = log.environment.fs.open(path, create=True)
        self.size = 0

    def take(self, body: memoryview) -> None:
        with storage_errors(f"repairing {self._name}"):
            write_all(self._file, [body], self.size)
        self.size += len(body)

    def close(self) -> None:
        self._file.close()


def _remove(fs: FileSystem, path: Path) -> None:
    with contextlib.suppress(OSError):  # if this fails, the next start removes the file
        fs.unlink(path)


def _damaged_segment(log: Log, bad: QuarantinedRange) -> Segment | None:
    """Return the segment that contains the bytes of a lost range. Return None if no segment
    contains them, or if no reader needs the range."""
    if not bad.is_loss or bad.next_offset <= log.log_start_offset:
        return None
    for segment in log.segments:
        if segment.path.name == bad.segment:
            return None if segment.sealed and lies_behind(bad, segment) else segment
    return None


def _ranges_in(log: Log, segment: Segment) -> list[QuarantinedRange]:
    """Return the quarantined ranges that lie inside a sealed segment."""
    name = segment.path.name
    return [
        bad
        for bad in log.view.manifest.quarantined
        if bad.segment == name and not lies_behind(bad, segment)
    ]


def _is_committed(log: Log, segment: Segment, bad: QuarantinedRange) -> bool:
    """Return True if all records of the damaged segment are committed. Only committed records are
    the same on all replicas. A repair replaces a sealed segment as a whole, so all of its records
    must be committed."""
    end = segment.next_offset if segment.sealed else bad.next_offset
    return end <= log.high_watermark
