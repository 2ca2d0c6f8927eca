"""Repairs one stream: plans the steps, and then carries them out.

First the manifest is rebuilt if it cannot be read. Then damaged ranges are quarantined, so that
readers get an error and compaction skips them, and the quarantine of readable ranges is lifted.
Last, recovery handles the end of the active segment, with the same code as at a start of the
daemon. If a repair crashes at any point, another run completes it: each step is one durable change,
and the next run skips completed steps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from liftlog.errors import CorruptMetadata
from liftlog.log.data_dir import KnownStates, read_known_states
from liftlog.log.environment import LogConfig, LogEnvironment, SystemClock
from liftlog.log.files.filesystem import FileSystem, OsFileSystem
from liftlog.log.files.manifest import MANIFEST_NAME, Manifest, QuarantinedRange, find_manifest
from liftlog.log.offline.files import StreamFiles, give_to_owner
from liftlog.log.offline.filesystems import KeepingFileSystem, PretendingFileSystem
from liftlog.log.offline.rebuild import Rebuilt, rebuild_manifest
from liftlog.log.offline.verify import (
    DAMAGE,
    LIFTED,
    MANIFEST,
    QUARANTINE,
    RECOVERY,
    TAIL,
    Finding,
    verify_stream,
)
from liftlog.log.recovery.opening import open_log
from liftlog.log.segment.tail import ActiveState
from liftlog.log.segment.walk import judge_all, merged

KEPT_NAME = "repaired"
"""Name of the directory, inside a data directory, with copies of the bytes that repairs have
changed."""

SAY_SETTINGS = "say --subject, and --set for what else was set; the rest gets its defaults"


@dataclass(slots=True)
class Repair:
    """The repair of one stream. If the manifest is lost, the rebuilt manifest contains `metadata`;
    without `metadata` the repair of such a stream raises CorruptMetadata."""

    directory: Path
    states: KnownStates = field(default_factory=KnownStates)
    metadata: Mapping[str, Any] | None = None
    boot_id: str | None = None

    def plan(self, fs: FileSystem) -> list[Finding]:
        """Return the steps that `run` would take, without changing a file. Raises CorruptMetadata,
        OSError, UnsupportedFormat."""
        return self.run(PretendingFileSystem(fs))

    def run(self, fs: PretendingFileSystem | KeepingFileSystem) -> list[Finding]:
        """Repair the stream, durably, and return the steps taken. Raises the errors of `plan`."""
        steps: list[Finding] = []
        manifest, problems = self._manifest(fs)
        steps += [Finding(MANIFEST, f"{problem}; the other copy is used") for problem in problems]
        rebuilt = manifest is None
        if manifest is None:
            made = self._rebuilt(fs)
            if made is None:
                return []
            manifest = made.manifest
            steps += [Finding(MANIFEST, "a new manifest, made from the segments"), *_notes(made)]
            steps += map(_quarantine_step, manifest.quarantined)
            for name in made.superseded:
                fs.unlink(self.directory / name)
            self._make_active(fs, manifest)
        judged = judge_all(fs, self.directory, manifest, self._trusted(manifest))
        found, lifted = judged.new, judged.lifted
        if found or lifted:
            steps += map(_lifted_step, lifted)
            steps += map(_quarantine_step, found)
            known = [bad for bad in manifest.quarantined if bad not in lifted]
            # Compaction has skipped the damaged files, and must process them now.
            cleaned = min([manifest.cleaned_below, *(bad.first_offset for bad in lifted)])
            manifest = manifest.with_changes(
                quarantined=merged(known, [*judged.still, *found]), cleaned_below=cleaned
            )
        if rebuilt or (found and manifest.replicated):
            manifest = manifest.with_changes(incomplete="it was repaired")
        if found or lifted or rebuilt or problems:
            manifest.write(fs, self.directory)
        # An unclean stop alone needs no repair: the daemon recovers when it starts.
        trial = PretendingFileSystem(fs)
        settled, events = self._recover(trial, manifest)
        if not events and not rebuilt:
            return steps
        for cut in trial.cuts:
            length = cut.end_position - cut.position
            text = f"cut {length:,} bytes that were never acked"
            steps.append(Finding(TAIL, text, cut.path.name, cut.position))
        steps += map(_quarantine_step, settled)
        if not trial.cuts and not settled:
            steps += [Finding(RECOVERY, event) for event in events]
        if isinstance(fs, KeepingFileSystem):
            self._recover(fs, manifest)
        return steps

    def _manifest(self, fs: FileSystem) -> tuple[Manifest | None, tuple[str, ...]]:
        """Return the manifest, or None if it must be rebuilt, and the problems of its two
        copies."""
        try:
            found = find_manifest(fs, self.directory)
        except CorruptMetadata:
            return None, ()
        if found.manifest is None or not found.manifest.segments:
            return None, ()
        return found.manifest, found.problems

    def _rebuilt(self, fs: FileSystem) -> Rebuilt | None:
        made = rebuild_manifest(fs, self.directory, self.states.all(), self.metadata or {})
        if made is not None and self.metadata is None:
            raise CorruptMetadata(
                f"the manifest of {self.directory.name} is lost, and with it the stream's settings",
                hint=SAY_SETTINGS,
            )
        return made

    def _make_active(self, fs: FileSystem, manifest: Manifest) -> None:
        active = self.directory / manifest.segments[-1].file_name
        if not fs.exists(active):
            fs.open(active, create=True).close()
            fs.fsync_directory(self.directory)

    def _trusted(self, manifest: Manifest) -> ActiveState | None:
        """Return the stored state of the stream at which recovery may begin, without examining
        earlier batches."""
        known = self.states.of(manifest.incarnation, manifest.segments[-1])
        return max(known, key=lambda state: state.next_offset, default=None)

    def _recover(
        self, fs: FileSystem, manifest: Manifest
    ) -> tuple[list[QuarantinedRange], list[str]]:
        """Open the log as the daemon does; return the ranges that the opening quarantined, and the
        events in the recovery report."""
        environment = LogEnvironment.create(fs, SystemClock())
        try:
            log, report = open_log(
                self.directory,
                environment,
                LogConfig(segment_max_age_ns=None, replicated=manifest.replicated),
                clean=self.states.clean,
                recovery_point=self.states.recovery_point,
                boot_id=self.boot_id,
            )
            quarantined = log.view.manifest.quarantined
            log.close()
        finally:
            environment.pool.close()
        return [bad for bad in quarantined if bad not in manifest.quarantined], report.events


@dataclass(slots=True)
class PlannedRepair:
    """The planned repair of one stream of a directory. `carry_out` sets `kept_in` (the place of the
    copies) and `damage_left`."""

    stream: StreamFiles
    repair: Repair
    steps: list[Finding]
    kept_in: Path | None = None
    damage_left: int | None = None

    def carry_out(self) -> None:
        """Repair the stream, keep a copy of everything that changes, and verify the result.

        Durable on return. Raises CorruptMetadata, OSError, UnsupportedFormat.
        """
        stream = self.stream
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        beside = stream.path.parent if stream.data_dir is None else stream.data_dir / KEPT_NAME
        fs = KeepingFileSystem(OsFileSystem(), beside / f"{stream.name}-{stamp}")
        self.steps = self.repair.run(fs)
        self.kept_in = fs.directory if fs.kept else None
        give_to_owner(stream.path)
        self.damage_left = len(verify_stream(stream).of_kind(DAMAGE))

    def to_object(self) -> dict[str, Any]:
        return {
            "stream": self.stream.name,
            "steps": [asdict(step) for step in self.steps],
            "done": self.damage_left is not None,
            "kept_in": None if self.kept_in is None else str(self.kept_in),
            "damage_left": self.damage_left,
        }


def plan_repair(stream: StreamFiles, metadata: Mapping[str, Any] | None) -> PlannedRepair:
    """Plan the repair of this stream without changing a file. Raises the errors of
    `Repair.plan`."""
    fs = OsFileSystem()
    repair = Repair(stream.path, read_known_states(fs, stream.data_dir, stream.name), metadata)
    return PlannedRepair(stream, repair, repair.plan(fs))


def salvaged_settings(directory: Path) -> str:
    """Return the stream's settings, as JSON, from a manifest with a wrong checksum, so that an
    operator can check them; empty if the manifest cannot be parsed."""
    try:
        _, _, body = (directory / MANIFEST_NAME).read_bytes().partition(b"\n")
        return json.dumps(json.loads(body)["metadata"]["settings"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _notes(made: Rebuilt) -> list[Finding]:
    return [Finding(MANIFEST, note) for note in made.notes]


def _lifted_step(bad: QuarantinedRange) -> Finding:
    text = f"reads well again, and readers get it; it was quarantined: {bad.reason}"
    return Finding(LIFTED, text, bad.segment, bad.position, bad.first_offset, bad.next_offset)


def _quarantine_step(bad: QuarantinedRange) -> Finding:
    return Finding(
        QUARANTINE, bad.reason, bad.segment, bad.position, bad.first_offset, bad.next_offset
    )
