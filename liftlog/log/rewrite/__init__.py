"""Rewriting sealed segments: key compaction and re-batching; and verifying them.

Blocking, on the injectable file system, without locks and without the `Log`: made to run in a
worker process that reads sealed files and writes new ones. Read `job.py` first (what goes in, what
comes out, how that is applied), then `compact.py`.
"""

from liftlog.log.rewrite.compact import compact
from liftlog.log.rewrite.job import (
    CompactJob,
    CompactResult,
    Progress,
    RebatchJob,
    RebatchResult,
    ScrubJob,
    ScrubResult,
    Swap,
    apply_compaction,
    apply_rebatch,
    leftover_files,
    remove_files,
)
from liftlog.log.rewrite.rebatch import needs_rebatch, rebatch
from liftlog.log.rewrite.scrub import scrub
from liftlog.log.rewrite.segments import SourceDamaged

__all__ = [
    "CompactJob",
    "CompactResult",
    "Progress",
    "RebatchJob",
    "RebatchResult",
    "ScrubJob",
    "ScrubResult",
    "SourceDamaged",
    "Swap",
    "apply_compaction",
    "apply_rebatch",
    "compact",
    "leftover_files",
    "needs_rebatch",
    "rebatch",
    "remove_files",
    "scrub",
]
