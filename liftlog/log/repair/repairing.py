"""Repair of one stream: what it would do, then doing it.

In order: a manifest made anew if there is none to read; what is damaged becomes quarantined, so
that readers are told and compaction keeps away; then recovery itself, the same code as at a start
of the daemon, settles the end of the active segment. After any crash in between, running it again
goes on: each step is one durable change that the next run finds done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from liftlog.errors import CorruptMetadata
from liftlog.log.clock import SystemClock
from liftlog.log.environment import LogConfig, LogEnvironment
from liftlog.log.filesystem import FileSystem
from liftlog.log.manifest import Manifest, QuarantinedRange, find_manifest
from liftlog.log.opening import open_log
from liftlog.log.recovery import ActiveState
from liftlog.log.repair.damage import find_new_damage, merged
from liftlog.log.repair.keeping import KeepingFileSystem
from liftlog.log.repair.pretending import PretendingFileSystem
from liftlog.log.repair.rebuild import Rebuilt, rebuild_manifest
from liftlog.log.shared_states import KnownStates

MANIFEST = "manifest"
QUARANTINE = "quarantine"
TAIL = "tail"
RECOVERY = "recovery"

SAY_SETTINGS = "say --subject, and --set for what else was set; the rest gets its defaults"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that repair does. `kind`: manifest, quarantine, tail or recovery.

    The offsets are [first_offset, next_offset), None where it is not about offsets.
    """

    kind: str
    text: str
    segment: str = ""
    position: int | None = None
    first_offset: int | None = None
    next_offset: int | None = None

    def to_object(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Repair:
    """One stream to repair. `metadata` is what a rebuilt manifest gets; without it a stream whose
    manifest is lost is refused with CorruptMetadata."""

    directory: Path
    states: KnownStates = field(default_factory=KnownStates)
    metadata: Mapping[str, Any] | None = None
    boot_id: str | None = None

    def plan(self, fs: FileSystem) -> list[Step]:
        """What `run` would do; nothing is changed. Raises CorruptMetadata, OSError,
        UnsupportedFormat."""
        return self.run(PretendingFileSystem(fs))

    def run(self, fs: PretendingFileSystem | KeepingFileSystem) -> list[Step]:
        """Do it, durably, and tell what was done. Errors as for `plan`."""
        steps: list[Step] = []
        manifest, problems = self._manifest(fs)
        steps += [Step(MANIFEST, f"{problem}; the other copy is used") for problem in problems]
        rebuilt = manifest is None
        if manifest is None:
            made = self._rebuilt(fs)
            if made is None:
                return []
            manifest = made.manifest
            steps += [Step(MANIFEST, "a new manifest, made from the segments"), *_notes(made)]
            steps += map(_quarantine_step, manifest.quarantined)
            for name in made.superseded:
                fs.unlink(self.directory / name)
            self._make_active(fs, manifest)
        found = find_new_damage(fs, self.directory, manifest, self._trusted(manifest))
        if found:
            steps += map(_quarantine_step, found)
            manifest = manifest.with_changes(quarantined=merged(manifest.quarantined, found))
        if found or rebuilt or problems:
            manifest.write(fs, self.directory)
        # An unclean stop by itself is nothing to repair: the daemon's next start sees to it.
        trial = PretendingFileSystem(fs)
        settled, events = self._recover(trial, manifest)
        if not events and not rebuilt:
            return steps
        for cut in trial.cuts:
            length = cut.end_position - cut.position
            text = f"cut {length:,} bytes that were never acked"
            steps.append(Step(TAIL, text, cut.path.name, cut.position))
        steps += map(_quarantine_step, settled)
        if not trial.cuts and not settled:
            steps += [Step(RECOVERY, event) for event in events]
        if isinstance(fs, KeepingFileSystem):
            self._recover(fs, manifest)
        return steps

    def _manifest(self, fs: FileSystem) -> tuple[Manifest | None, tuple[str, ...]]:
        """With what is wrong with one of its two copies."""
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
        """The state from which recovery goes on, so that it does not look at what lies before."""
        known = self.states.of(manifest.incarnation, manifest.segments[-1])
        return max(known, key=lambda state: state.next_offset, default=None)

    def _recover(
        self, fs: FileSystem, manifest: Manifest
    ) -> tuple[list[QuarantinedRange], list[str]]:
        """Open the log as the daemon does: (newly quarantined, what it had to say)."""
        environment = LogEnvironment.create(fs, SystemClock())
        try:
            log, report = open_log(
                self.directory,
                environment,
                LogConfig(segment_max_age_ns=None),
                clean=self.states.clean,
                recovery_point=self.states.recovery_point,
                boot_id=self.boot_id,
            )
            quarantined = log.quarantined
            log.close()
        finally:
            environment.pool.close()
        return [bad for bad in quarantined if bad not in manifest.quarantined], report.events


def _notes(made: Rebuilt) -> list[Step]:
    return [Step(MANIFEST, note) for note in made.notes]


def _quarantine_step(bad: QuarantinedRange) -> Step:
    return Step(
        QUARANTINE, bad.reason, bad.segment, bad.position, bad.first_offset, bad.next_offset
    )
