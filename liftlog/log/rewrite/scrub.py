"""Verifying a sealed segment."""

from __future__ import annotations

from liftlog.log.filesystem import FileSystem
from liftlog.log.rewrite.job import (
    OnProgress,
    ScrubJob,
    ScrubResult,
    Throttle,
    no_progress,
    no_throttle,
)


def scrub(
    job: ScrubJob,
    fs: FileSystem,
    progress: OnProgress = no_progress,
    throttle: Throttle = no_throttle,
) -> ScrubResult:
    """Check every byte of a sealed segment against its checksums. Writes nothing.

    Raises OSError only when the file cannot be opened; bytes that cannot be read are damage.
    """
    raise NotImplementedError
