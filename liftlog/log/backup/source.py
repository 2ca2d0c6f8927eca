"""What of a stream is to be copied, read beside a daemon that goes on appending, rolling, rewriting
and deleting.

The end is what was acked when this was read. Of a daemon that runs, or was killed since the last
boot, the slot says it exactly; of one that was stopped, the clean marker. Otherwise the end is
not known before a recovery has judged the tail, and there is no backup.

The slot is read before the manifest, so a segment that was rolled in between is already sealed in
the manifest: what of the active segment lies below the end is all there, whatever happens since.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from liftlog.errors import CorruptMetadata, StreamUnavailable
from liftlog.log.data_dir import STREAMS_NAME
from liftlog.log.filesystem import FileSystem
from liftlog.log.manifest import Manifest, SegmentEntry, read_manifest
from liftlog.log.shared_states import read_known_states
from liftlog.log.slot import SlotState, read_slot

_TRIES = 100


@dataclass(frozen=True, slots=True)
class Source:
    """One look at a stream. Everything below `end_offset` was acked or is sealed."""

    manifest: Manifest
    end_offset: int

    @property
    def sealed(self) -> tuple[SegmentEntry, ...]:
        return self.manifest.segments[:-1]

    @property
    def active(self) -> SegmentEntry:
        return self.manifest.segments[-1]


def look(fs: FileSystem, data_dir: Path, name: str, boot_id: str | None = None) -> Source | None:
    """None when the stream is not there: never made whole, or deleted meanwhile.

    Raises StreamUnavailable when the end of the log is not known, CorruptMetadata, OSError.
    """
    directory = data_dir / STREAMS_NAME / name
    for _ in range(_TRIES):
        before = read_manifest(fs, directory)
        if before is None:
            if _has_data(fs, directory):
                raise CorruptMetadata(f"stream {name} has files but no manifest")
            return None
        end = _end(fs, data_dir, name, before, boot_id)
        manifest = read_manifest(fs, directory)
        if manifest is None or manifest.lineage != before.lineage:
            continue  # just deleted, created again or truncated
        if not manifest.segments:
            raise CorruptMetadata(f"the manifest of stream {name} lists no segment")
        if end is None:
            raise StreamUnavailable(
                f"how far stream {name} was acked is not known since the machine was restarted",
                hint="start the daemon once: its recovery settles that",
            )
        end = max(end, manifest.segments[-1].base_offset)
        if manifest.log_start_offset <= end:
            return Source(manifest, end)
    raise StreamUnavailable(f"stream {name} changes faster than it can be looked at")


def _has_data(fs: FileSystem, directory: Path) -> bool:
    try:
        return any(name.endswith(".log") for name in fs.list_directory(directory))
    except FileNotFoundError:
        return False


def _end(
    fs: FileSystem, data_dir: Path, name: str, manifest: Manifest, boot_id: str | None
) -> int | None:
    """Everything below was acked, and nothing at or above it; None when that is not known."""
    if not manifest.segments:
        return None
    clean = read_known_states(fs, data_dir, name).clean
    if clean is not None and clean.is_of(manifest.incarnation, manifest.segments[-1]):
        # A hole behind the last record, where more was acked than is left, is in the manifest.
        return max(clean.next_offset, manifest.high_watermark)
    slot = _slot(fs, data_dir / STREAMS_NAME / name, manifest.lineage, boot_id)
    return slot.acked_end if slot is not None and slot.exact else None


def _slot(fs: FileSystem, directory: Path, lineage: str, boot_id: str | None) -> SlotState | None:
    try:
        return read_slot(fs, directory, lineage, boot_id=boot_id)
    except OSError:
        return None
