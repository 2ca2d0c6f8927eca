"""The values of the metrics of one stream, by name."""

from __future__ import annotations

from collections.abc import Callable

from liftlog.server.cleaning.state import StreamCleaning
from liftlog.server.commits.host import StreamHost
from liftlog.server.vitals.histogram import Histogram
from liftlog.stream.refusals import DISK_FULL, OVERLOADED, STORE_FAILED

STREAM_VALUES: dict[str, Callable[[StreamHost], float]] = {
    "liftlog_log_start_offset": lambda host: host.log.log_start_offset,
    "liftlog_high_watermark": lambda host: host.log.high_watermark,
    "liftlog_log_end_offset": lambda host: host.log.log_end_offset,
    "liftlog_log_size_bytes": lambda host: host.log.size_bytes,
    "liftlog_segments": lambda host: host.log.segment_count,
    "liftlog_pending_bytes": lambda host: host.sequencer.pending_bytes,
    "liftlog_commit_in_flight_seconds": lambda host: host.turns.taken_seconds,
    "liftlog_failed": lambda host: 1 if host.failure else 0,
    "liftlog_records_total": lambda host: host.observed.records,
    "liftlog_received_bytes_total": lambda host: host.observed.received_bytes,
    "liftlog_commits_total": lambda host: host.observed.commits,
    "liftlog_inline_commits_total": lambda host: host.observed.inline_commits,
    "liftlog_commit_failures_total": lambda host: host.observed.commit_failures,
    "liftlog_fsync_total": lambda host: host.log.fsync_count,
    "liftlog_duplicates_total": lambda host: host.sequencer.duplicates,
    "liftlog_dedupe_ids": lambda host: len(host.sequencer.dedupe),
    "liftlog_dedupe_evicted_early_total": lambda host: host.sequencer.dedupe.evicted_early,
    "liftlog_acks_suppressed_total": lambda host: host.sequencer.acks_suppressed,
    "liftlog_possible_loss_events_total": lambda host: host.possible_loss_events,
    "liftlog_quarantined_ranges": lambda host: sum(bad.is_loss for bad in host.log.quarantined),
    "liftlog_quarantined_offsets": lambda host: sum(
        bad.next_offset - bad.first_offset for bad in host.log.quarantined if bad.is_loss
    ),
    "liftlog_cleaned_below": lambda host: host.log.cleaned_below,
}

STREAM_HISTOGRAMS: dict[str, Callable[[StreamHost], Histogram]] = {
    "liftlog_ack_seconds": lambda host: host.observed.ack_seconds,
    "liftlog_commit_group_records": lambda host: host.observed.group_records,
}

CLEANING_VALUES: dict[str, Callable[[StreamCleaning], float]] = {
    "liftlog_compaction_dirty_ratio": lambda state: state.backlog.dirty_ratio,
    "liftlog_compaction_dirty_bytes": lambda state: state.backlog.dirty_bytes,
    "liftlog_cleaning_failing": lambda state: 1 if state.failures_in_a_row else 0,
    "liftlog_compaction_running": lambda state: 1 if state.running == "compact" else 0,
    "liftlog_compaction_progress_ratio": lambda state: state.progress_ratio,
    "liftlog_compaction_passes_total": lambda state: state.passes,
    "liftlog_compaction_records_removed_total": lambda state: state.records_removed,
    "liftlog_compaction_freed_bytes_total": lambda state: state.bytes_freed,
    "liftlog_rebatched_segments_total": lambda state: state.rebatched_segments,
    "liftlog_scrubbed_segments_total": lambda state: state.scrubbed_segments,
    "liftlog_scrubbed_bytes_total": lambda state: state.scrubbed_bytes,
    "liftlog_cleaning_failures_total": lambda state: state.failures,
}

_ALARMING = {refusal.reason: 0 for refusal in (DISK_FULL, OVERLOADED, STORE_FAILED)}


def refused(host: StreamHost) -> dict[str, int]:
    """By reason. Reasons that alerts use are exported from the start: otherwise the first refusal
    would not count as an increase."""
    return _ALARMING | host.sequencer.refused
