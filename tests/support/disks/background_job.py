"""Runs a rewriting job in three steps. Other work can happen between the steps.

As in the daemon, the job is planned on the event loop, runs in another process, and a thread swaps
in the result. If a step fails, the files of the job are removed.
"""

from __future__ import annotations

import json
from typing import Any

from support.disks.logs import DIRECTORY
from support.disks.simfs import Fault, SimFileSystem
from support.worlds.rewriting import plain_erased, plan

from liftlog.errors import SegmentsChanged
from liftlog.log import Log
from liftlog.log.rewrite import (
    CompactJob,
    CompactResult,
    RebatchJob,
    RebatchResult,
    SourceDamaged,
    apply_compaction,
    apply_rebatch,
    compact,
    leftover_files,
    rebatch,
)
from liftlog.log.rewrite.job import Throttle, no_throttle
from liftlog.log.segment.index import index_path


class Killed(BaseException):
    """The worker process ends in the middle of its work, and removes no files."""


class BackgroundJob:
    def __init__(self, log: Log, job: CompactJob | RebatchJob) -> None:
        self.job = job
        self.lineage = log.view.manifest.lineage
        self.result: CompactResult | RebatchResult | None = None
        self.swaps_made = 0

    @classmethod
    def compaction(cls, log: Log, **how: Any) -> BackgroundJob | None:
        job = plan(log, **how)
        return None if job is None else cls(log, job)

    @classmethod
    def rebatching(cls, log: Log, number: int, *, target: int = 4096) -> BackgroundJob:
        entry = log.segments[number].entry()
        return cls(
            log,
            RebatchJob(
                str(DIRECTORY),
                entry,
                target,
                "none",
                log.view.manifest.epochs,
                log.incarnation,
                plain_erased(log),
            ),
        )

    @property
    def is_compaction(self) -> bool:
        return isinstance(self.job, CompactJob)

    @property
    def sources(self) -> tuple[Any, ...]:
        return self.job.sources if isinstance(self.job, CompactJob) else (self.job.source,)

    def is_outdated(self, log: Log) -> bool:
        """Return True if the log has changed since the planning, or a part of it is damaged."""
        listed = {one.path.name: one for one in log.segments if one.sealed}
        return self.lineage != log.view.manifest.lineage or any(
            one.file_name not in listed or one.file_name in log.view.damaged_files
            for one in self.sources
        )

    # --- the worker ---

    def work(self, log: Log, fs: SimFileSystem, throttle: Throttle = no_throttle) -> bool:
        """Run the worker's code. Returns False if the sources were removed or damaged; then no file
        of the job is left."""
        files = set(fs.list_directory(DIRECTORY))
        try:
            if isinstance(self.job, CompactJob):
                done = compact(self.job, fs, throttle=throttle)
                self.result = CompactResult.from_dict(json.loads(json.dumps(done.to_dict())))
            else:
                packed = rebatch(self.job, fs, throttle=throttle)
                self.result = RebatchResult.from_dict(json.loads(json.dumps(packed.to_dict())))
        except (OSError, SourceDamaged):
            if not self.is_outdated(log):
                raise
            assert set(fs.list_directory(DIRECTORY)) <= files | _files_of(log)
            return False
        return True

    def be_killed(self, log: Log, fs: SimFileSystem, after: int) -> None:
        """Kill the worker in the middle of its work. Its files are removed by the code that detects
        its end."""

        def throttle(_: int) -> None:
            nonlocal after
            after -= 1
            if after < 0:
                fs.faults = [Fault("unlink")]
                raise Killed

        try:
            self.work(log, fs, throttle)
        except Killed:
            pass
        fs.faults = []
        self._discard(log, leftover_files(fs, self.job))

    # --- the end ---

    def swap_in(self, log: Log, fs: SimFileSystem) -> bool:
        """Swap in the result. Returns False if the log refused it; then the files that were not
        swapped in are discarded."""
        assert self.result is not None
        before = (
            log.segments,
            log.view.manifest.cleaned_below,
            log.view.manifest.tombstones_removed_below,
        )
        manifest = fs.read(log.directory / "manifest")
        damaged, counting = log.view.damaged_files, _Counting(log)
        try:
            if isinstance(self.result, CompactResult):
                apply_compaction(counting, self.result, self.lineage, self.job.erased)
            else:
                apply_rebatch(counting, self.result, self.lineage, self.job.erased)
        except SegmentsChanged:
            assert self.is_outdated(log), "refused without a reason"
            self.swaps_made = counting.calls
            self.discard(log)
            if not self.swaps_made:
                assert fs.read(log.directory / "manifest") == manifest
                assert before == (
                    log.segments,
                    log.view.manifest.cleaned_below,
                    log.view.manifest.tombstones_removed_below,
                )  # fmt: skip
            return False
        self.swaps_made = len(self.result.swaps)
        if self.is_compaction or self.swaps_made:  # otherwise there was nothing to swap in
            assert self.lineage == log.view.manifest.lineage
        assert not damaged.intersection(name for one in self.result.swaps for name in one.old)
        return True

    def discard(self, log: Log) -> None:
        """Discard the result, which is no longer needed."""
        if self.result is not None:
            self._discard(log, self.result.new_files)

    def _discard(self, log: Log, names: Any) -> None:
        listed = {segment.path.name for segment in log.segments}
        log.structure.discard_files([name for name in names if name not in listed])
        check_files(log)


class _Counting:
    """A log that counts its swaps. It is its own structure."""

    def __init__(self, log: Log) -> None:
        self._structure = log.structure
        self.structure = self
        self.calls = 0

    def replace_segments(self, old_files: Any, new: Any, **more: Any) -> int:
        freed = self._structure.replace_segments(old_files, new, **more)
        self.calls += 1
        return freed


def _files_of(log: Log) -> set[str]:
    paths = [segment.path for segment in log.segments]
    return {path.name for path in paths} | {index_path(path).name for path in paths}


def check_files(log: Log) -> None:
    """Check that no segment file exists that the log does not list."""
    found = set(log.environment.fs.list_directory(log.directory))
    listed = {segment.path.name for segment in log.segments}
    assert {name for name in found if name.endswith(".log")} <= listed
    assert {name for name in found if name.endswith(".index")} <= _files_of(log)
    erased = {entry.file_name for entry in log.view.manifest.erased}
    assert erased <= {name for name in found if name.endswith(".erased")}
