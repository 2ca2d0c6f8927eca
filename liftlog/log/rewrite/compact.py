"""Key compaction of sealed segments."""

from __future__ import annotations

from liftlog.log.filesystem import FileSystem
from liftlog.log.rewrite.job import (
    CompactJob,
    CompactResult,
    OnProgress,
    Throttle,
    no_progress,
    no_throttle,
)


def compact(
    job: CompactJob,
    fs: FileSystem,
    progress: OnProgress = no_progress,
    throttle: Throttle = no_throttle,
) -> CompactResult:
    """Write what stays of `job.sources` into new files. They and the directory are fsynced.

    Changes no file that was there. Raises SourceDamaged when a source cannot be read to its end,
    OSError when a file operation fails (ENOSPC among them); then it has removed what it wrote.
    """
    raise NotImplementedError
