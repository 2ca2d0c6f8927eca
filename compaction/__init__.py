"""Retention and key compaction: which segments are deleted and which records stay. Decisions only;
the log applies them.

    retention  limits by age, size and number of messages
    planning   when a stream is compacted by key, and which segments take part
    keymap     the newest offset of each key, in bounded memory
    keytable   its tables of distinct keys
    keys       columns of keys, as words that can be compared and hashed many at a time
    keep       which record stays

Pure: works on Protocols and arrays that it declares itself, knows no files and no clock.
The last four need numpy and are imported by whoever rewrites segments.
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
