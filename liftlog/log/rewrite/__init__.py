"""Rewrites sealed segments (key compaction, re-batching), and verifies them.

    job        the input and the result of a job; applies a result to the log
    compact    keeps the newest record of each key
    rebatch    joins small batches
    scrub      verifies a segment
    sketching  makes the sketch and the subject index of a segment, for selective reads
    subject_indexing  builds the content of the subject index
    mend       replaces damaged parts by data of another replica
    batches    writes the remaining records into new batches
    segments   reads sealed segments, every checksum verified; writes new ones

These functions block, use the injectable file system and take no lock: they are made for a worker
process that reads sealed files and writes new files. Only the code that applies a result uses the
`Log`.
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
