"""Rewriting sealed segments: key compaction and re-batching; and verifying them.

    job        what a job gets and what it returns, plain values; applying an outcome to the log
    compact    keeps the newest record of each key
    rebatch    joins small batches
    scrub      verifies a segment
    sketching  makes the sketch and the subject index of a segment, for selective reads
    subject_indexing  what the index consists of
    mend       puts what another replica has in the place of what is damaged
    batches    what is handled in one step; the records that stay, in new batches
    segments   reads sealed segments, every checksum verified; writes new ones

Blocking, on the injectable file system and without locks: made to run in a worker process that
reads sealed files and writes new ones. Only applying an outcome uses the `Log`.
"""

from liftlog.log.rewrite.compact import compact
from liftlog.log.rewrite.job import (
    CompactJob,
    CompactResult,
    MendJob,
    MendResult,
    Piece,
    Progress,
    RebatchJob,
    RebatchResult,
    ScrubJob,
    ScrubResult,
    SketchJob,
    SketchResult,
    Swap,
    apply_compaction,
    apply_mending,
    apply_rebatch,
    leftover_files,
    remove_files,
)
from liftlog.log.rewrite.mend import PatchDamaged, mend
from liftlog.log.rewrite.rebatch import needs_rebatch, rebatch
from liftlog.log.rewrite.scrub import scrub
from liftlog.log.rewrite.segments import SourceDamaged
from liftlog.log.rewrite.sketching import make_sketch

__all__ = [
    "CompactJob",
    "CompactResult",
    "MendJob",
    "MendResult",
    "PatchDamaged",
    "Piece",
    "Progress",
    "RebatchJob",
    "RebatchResult",
    "ScrubJob",
    "ScrubResult",
    "SketchJob",
    "SketchResult",
    "SourceDamaged",
    "Swap",
    "apply_compaction",
    "apply_mending",
    "apply_rebatch",
    "compact",
    "leftover_files",
    "make_sketch",
    "mend",
    "needs_rebatch",
    "rebatch",
    "remove_files",
    "scrub",
]
