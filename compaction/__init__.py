"""Which segments go and which records stay: decisions only, applied by the log.

    retention  limits by age, size and number of messages

Pure: works on Protocols that it declares itself, knows no files and no clock.
"""

from __future__ import annotations

from .retention import RetentionDecision, RetentionPolicy, SegmentView, decide

PART_OF = "liftlog"

__all__ = ["PART_OF", "RetentionDecision", "RetentionPolicy", "SegmentView", "decide"]
