"""The manifest: what a stream consists of. The commit point of roll, retention and swap.

A file in the stream's directory that the manifest does not list is garbage. `metadata` belongs
to the layer above (the stream's settings, for one); the log carries it and never looks inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from liftlog.errors import CorruptMetadata
from liftlog.log.checkpoint_file import read_checkpoint_file, to_json, write_checkpoint_text
from liftlog.log.filesystem import FileSystem

MANIFEST_NAME = "manifest"
KIND = "manifest"
SEGMENT_SUFFIX = ".log"


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """One listed segment. The last one is active; of it only base and generation are meant."""

    base_offset: int
    generation: int = 0
    size_bytes: int = 0
    next_offset: int = 0
    record_count: int = 0
    max_timestamp_ns: int = 0
    delete_horizon_ns: int | None = None

    @property
    def file_name(self) -> str:
        stem = f"{self.base_offset:020d}"
        return f"{stem}.{self.generation}.log" if self.generation else f"{stem}.log"

    def to_json(self) -> str:
        """As `json` would write it. There may be many thousands, and in one call that would keep
        the event loop from running."""
        horizon = self.delete_horizon_ns
        return (
            f'{{"base_offset":{self.base_offset},'
            f'"delete_horizon_ns":{"null" if horizon is None else horizon},'
            f'"file":"{self.file_name}","generation":{self.generation},'
            f'"max_timestamp_ns":{self.max_timestamp_ns},"next_offset":{self.next_offset},'
            f'"record_count":{self.record_count},"size_bytes":{self.size_bytes}}}'
        )


SKIPPED = "offsets skipped after an unreadable tail that was not acked"
"""The reason of a range that nobody was promised: offsets passed over, to be on the safe side."""

NOT_SYNCED = "not yet fsynced: acked before the fsync, and lost when the machine stopped"
"""The reason of a range in which records may be missing that were acked before they were durable,
as `durability: interval` and `os` do. It reaches as far as offsets may have been handed out."""


@dataclass(frozen=True, slots=True)
class QuarantinedRange:
    """Offsets that are gone: [first_offset, next_offset), and where their bytes lie, if they do."""

    first_offset: int
    next_offset: int
    segment: str
    position: int
    end_position: int
    reason: str

    @property
    def is_loss(self) -> bool:
        """Whether records may have been in it that somebody was told are stored."""
        return self.reason != SKIPPED

    @property
    def is_cut_tail(self) -> bool:
        """Whether an earlier start judged a bad tail there and gave up its bytes."""
        return self.position == self.end_position and self.reason in (SKIPPED, NOT_SYNCED)

    def widened(self, other: QuarantinedRange) -> QuarantinedRange:
        """Over the offsets and bytes of both, for the reason of this one."""
        return replace(
            self,
            first_offset=min(self.first_offset, other.first_offset),
            next_offset=max(self.next_offset, other.next_offset),
            position=min(self.position, other.position),
            end_position=max(self.end_position, other.end_position),
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    incarnation: str
    leader_epoch: int
    log_start_offset: int
    reserved_offset: int
    segments: tuple[SegmentEntry, ...]
    epochs: tuple[tuple[int, int], ...]  # (epoch, its first offset), ascending
    high_watermark: int = 0
    quarantined: tuple[QuarantinedRange, ...] = ()
    tombstones_removed_below: int = 0
    cleaned_below: int = 0  # compaction has looked at everything below
    acks_before_sync: bool = False  # acks may have left for what only the page cache held
    generation: int = 0  # of new segment files; truncation raises it, so that no name comes twice
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def lineage(self) -> str:
        """Names one history of offsets: what was noted of another one says nothing about this.

        Truncating the end of a log lets offsets be assigned again, and begins a new one.
        """
        return f"{self.incarnation}:{self.generation}" if self.generation else self.incarnation

    @property
    def unclaimed_generation(self) -> int:
        """A generation of which no segment file is, nor will be by a rewriting under way.

        That writes one above its sources, unaware that it may have become pointless, and into
        whatever it finds under the name.
        """
        return max(self.generation, *(one.generation for one in self.segments)) + 2

    def quarantined_in(self, file_name: str) -> list[QuarantinedRange]:
        """The ranges of one segment file."""
        return [bad for bad in self.quarantined if bad.segment == file_name]

    def with_changes(self, **changes: Any) -> Manifest:
        return replace(self, **changes)

    def write(self, fs: FileSystem, directory: Path) -> None:
        """Make this the manifest of `directory`; durable on return. Raises OSError."""
        content = {
            "incarnation": self.incarnation,
            "leader_epoch": self.leader_epoch,
            "log_start_offset": self.log_start_offset,
            "reserved_offset": self.reserved_offset,
            "high_watermark": self.high_watermark,
            "tombstones_removed_below": self.tombstones_removed_below,
            "cleaned_below": self.cleaned_below,
            "acks_before_sync": self.acks_before_sync,
            "generation": self.generation,
            "epochs": [list(entry) for entry in self.epochs],
            "segments": [],
            "quarantined": [
                {name: getattr(q, name) for name in QuarantinedRange.__slots__}
                for q in self.quarantined
            ],
            "metadata": self.metadata,
        }
        # Behind it, by the order of the keys, stands a number only.
        before, _, behind = to_json(content).rpartition('"segments":[]')
        entries = ",".join([entry.to_json() for entry in self.segments])
        text = f'{before}"segments":[{entries}]{behind}'
        write_checkpoint_text(fs, directory / MANIFEST_NAME, KIND, text)


def epochs_from(epochs: Sequence[tuple[int, int]], offset: int) -> tuple[tuple[int, int], ...]:
    """Without the epochs that ended at or below `offset`."""
    ends = [start for _, start in epochs[1:]]
    return tuple(entry for i, entry in enumerate(epochs) if i == len(ends) or ends[i] > offset)


def epoch_before(epochs: Sequence[tuple[int, int]], offset: int) -> int:
    """The epoch of the record before `offset`; 0 when there can be none."""
    return max((epoch for epoch, start in epochs if start < offset), default=0)


def read_manifest(fs: FileSystem, directory: Path) -> Manifest | None:
    """The manifest of `directory`, None when there is none; raises CorruptMetadata."""
    content = read_checkpoint_file(fs, directory / MANIFEST_NAME, KIND)
    if content is None:
        return None
    try:
        return Manifest(
            incarnation=content["incarnation"],
            leader_epoch=content["leader_epoch"],
            log_start_offset=content["log_start_offset"],
            reserved_offset=content["reserved_offset"],
            high_watermark=content["high_watermark"],
            tombstones_removed_below=content["tombstones_removed_below"],
            cleaned_below=content.get("cleaned_below", 0),
            acks_before_sync=content["acks_before_sync"],
            generation=content.get("generation", 0),
            epochs=tuple((epoch, offset) for epoch, offset in content["epochs"]),
            segments=tuple(
                SegmentEntry(**{name: entry[name] for name in SegmentEntry.__slots__})
                for entry in content["segments"]
            ),
            quarantined=tuple(
                QuarantinedRange(**{name: entry[name] for name in QuarantinedRange.__slots__})
                for entry in content["quarantined"]
            ),
            metadata=content["metadata"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptMetadata(f"the manifest in {directory.name} lacks a field: {error}") from error
