"""Decides which data a log deletes: retention deletes whole segments, compaction deletes superseded
records.

Both are in one package, because each limits the other. The package only decides; the log carries
the decisions out.

    ages       ages of segments, even if clocks were wrong when their records were stamped
    retention  limits by age, size and number of messages: decides which segments are deleted
    planning   decides when a stream is compacted by key, and which segments take part
    keymap     maps each key to its newest offset, in bounded memory
    keys       columns of keys, as words that are compared and hashed in bulk
    keep       decides which records stay

Pure: it works on arrays and on Protocols that it declares itself, without files or a clock. The
last three modules need numpy; only code that rewrites segments imports them.
"""

from __future__ import annotations

from .planning import (
    CompactableSegment,
    CompactionBacklog,
    CompactionPlan,
    CompactionPolicy,
    StoppedBy,
    plan_compaction,
)
from .retention import RetentionDecision, RetentionPolicy, SegmentView, decide

PART_OF = "liftlog"

__all__ = [
    "PART_OF",
    "CompactableSegment",
    "CompactionBacklog",
    "CompactionPlan",
    "CompactionPolicy",
    "RetentionDecision",
    "RetentionPolicy",
    "SegmentView",
    "StoppedBy",
    "decide",
    "plan_compaction",
]
