"""Putting the small batches of a sealed segment together."""

from __future__ import annotations

from pathlib import Path

from liftlog.log.filesystem import FileSystem
from liftlog.log.manifest import SegmentEntry
from liftlog.log.rewrite.job import (
    OnProgress,
    RebatchJob,
    RebatchResult,
    Throttle,
    no_progress,
    no_throttle,
)

SMALL_BATCH_BYTES = 16 * 1024


def needs_rebatch(
    fs: FileSystem, directory: Path, entry: SegmentEntry, *, below_bytes: int = SMALL_BATCH_BYTES
) -> bool:
    """Whether the mean batch of a sealed segment is smaller than `below_bytes`.

    Reads the end of its index only. False without a good index. Raises OSError.
    """
    raise NotImplementedError


def rebatch(
    job: RebatchJob,
    fs: FileSystem,
    progress: OnProgress = no_progress,
    throttle: Throttle = no_throttle,
) -> RebatchResult:
    """Write `job.source` anew with batches of about `job.target_bytes`; fsynced on return.

    Raises SourceDamaged and OSError; then it has removed what it wrote.
    """
    raise NotImplementedError
