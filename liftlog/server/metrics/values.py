"""Collects the values of all metrics: of the streams, of the daemon, and of its process."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from acl.rules import OPERATIONS
from liftlog import __version__
from liftlog.commit import commit
from liftlog.sequencing.refusals import DISK_FULL, OVERLOADED, STORE_FAILED
from liftlog.server.access.audit import LOGIN
from liftlog.server.cleaning.cleaner import Cleaner
from liftlog.server.cleaning.removing import Left, left_in
from liftlog.server.cleaning.state import StreamCleaning
from liftlog.server.commits.host import StreamHost
from liftlog.server.http.guard import ConnectionGuard
from liftlog.server.http.server import HttpCounters
from liftlog.server.ingest.endings import Cause
from liftlog.server.ingest.nats_link import NatsLink
from liftlog.server.journal import Journal
from liftlog.server.journal.upkeep import JournalCounters
from liftlog.server.life.health import Health, Phase
from liftlog.server.life.reloading import Reloads
from liftlog.server.metrics.table import REPLICATION
from liftlog.server.node.cluster_catalog import node_of
from liftlog.server.node.replicated import ReplicatedStreams
from liftlog.server.pull import PullServer
from liftlog.server.streams.broker import Broker
from liftlog.server.vitals.conditions import KINDS, Condition
from liftlog.server.vitals.delays import LoopWatch, SyncTimes
from liftlog.server.vitals.disk import DiskProbe
from liftlog.server.vitals.histogram import Histogram
from liftlog.server.web.sessions import Sessions

STREAM_VALUES: dict[str, Callable[[StreamHost], float]] = {
    "liftlog_log_start_offset": lambda host: host.log.log_start_offset,
    "liftlog_high_watermark": lambda host: host.log.high_watermark,
    "liftlog_log_end_offset": lambda host: host.log.log_end_offset,
    "liftlog_log_size_bytes": lambda host: host.log.view.size_bytes,
    "liftlog_segments": lambda host: host.log.segment_count,
    "liftlog_pending_bytes": lambda host: host.sequencer.pending_bytes,
    "liftlog_commit_in_flight_seconds": lambda host: host.turns.taken_seconds,
    "liftlog_ack_wait_seconds": lambda host: host.observed.wait_seconds,
    "liftlog_failed": lambda host: 1 if host.failure else 0,
    "liftlog_records_total": lambda host: host.observed.records,
    "liftlog_received_bytes_total": lambda host: host.observed.received_bytes,
    "liftlog_commits_total": lambda host: host.observed.commits,
    "liftlog_inline_commits_total": lambda host: host.observed.inline_commits,
    "liftlog_commit_failures_total": lambda host: host.observed.commit_failures,
    "liftlog_fsync_total": lambda host: host.log.writer.fsync_count,
    "liftlog_duplicates_total": lambda host: host.sequencer.duplicates,
    "liftlog_dedupe_ids": lambda host: len(host.sequencer.dedupe),
    "liftlog_dedupe_evicted_early_total": lambda host: host.sequencer.dedupe.evicted_early,
    "liftlog_acks_suppressed_total": lambda host: host.sequencer.acks_suppressed,
    "liftlog_possible_loss_events_total": lambda host: host.possible_loss_events,
    "liftlog_quarantined_ranges": lambda host: sum(
        bad.is_loss for bad in host.log.view.manifest.quarantined
    ),
    "liftlog_quarantined_offsets": lambda host: sum(
        bad.next_offset - bad.first_offset
        for bad in host.log.view.manifest.quarantined
        if bad.is_loss
    ),
    "liftlog_repaired_ranges_total": lambda host: host.observed.repaired_ranges,
    "liftlog_cleaned_below": lambda host: host.log.view.manifest.cleaned_below,
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

ERASED_VALUES: dict[str, Callable[[Left], float]] = {
    "liftlog_erased_left": lambda left: left.records,
    "liftlog_erased_left_bytes": lambda left: left.size_bytes,
    "liftlog_erased_due_timestamp_seconds": lambda left: (left.due_ns or 0) / 1e9,
}

ERASED_COUNTS: dict[str, Callable[[StreamHost], Counter[str]]] = {
    "liftlog_erasures_total": lambda host: host.observed.erasures,
    "liftlog_erased_total": lambda host: host.observed.erased,
}
_CAUSES = ("request", "jetstream")


def erased_left(host: StreamHost, now_ns: int) -> Left:
    """Describe the erased records of a stream whose bytes are still in segments."""
    erased = host.log.view.erased
    if erased is None:
        return Left(0, 0, (), None)
    return left_in(host.log, host.settings, erased, now_ns)


def by_cause(counts: Counter[str]) -> dict[str, int]:
    """Return the counts of all causes, including zeros. Without a zero, a query would not count the
    first erasure as an increase."""
    return {cause: counts[cause] for cause in _CAUSES}


_ALARMING = {refusal.reason: 0 for refusal in (DISK_FULL, OVERLOADED, STORE_FAILED)}


def refused(host: StreamHost) -> dict[str, int]:
    """Return the number of refusals by reason. Reasons that alerts use are exported as 0 from the
    start. Otherwise a query would not count the first refusal as an increase."""
    return _ALARMING | host.sequencer.refused


_DENIABLE = {(what, way): 0 for what in (*OPERATIONS, LOGIN) for way in ("http", "pull")}
"""Operations whose denials are exported as 0 from the start. Otherwise a query would not count the
first denial as an increase."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The parts of a daemon that have counters."""

    broker: Broker
    link: NatsLink
    pull: PullServer
    cleaner: Cleaner
    health: Health
    disk: DiskProbe
    reloads: Reloads
    loop_watch: LoopWatch
    sync_times: SyncTimes
    http: ConnectionGuard
    requests: HttpCounters
    sessions: Sessions


def daemon_values(sources: Sources, found: Iterable[Condition]) -> dict[str, float]:
    """Return values by the name of the metric. Values that the system does not provide are left
    out. `found` contains the present conditions."""
    api = sources.health.jetstream_api
    return {
        "liftlog_ready": int(not any(one.is_unready for one in found)),
        "liftlog_draining": int(sources.health.phase is Phase.DRAINING),
        **_broker_values(sources.broker),
        **_journal_values(sources.broker.journal.opened),
        **_link_values(sources.link),
        **_pull_values(sources.pull),
        **_http_values(sources.http),
        "liftlog_jetstream_consumers": 0 if api is None else api.consumer_count,
        "liftlog_web_sessions": sources.sessions.count(sources.pull.services.gate.policy),
        **_disk_values(sources.disk),
        "liftlog_cleaning_at_idle_rate": int(sources.cleaner.is_at_idle_rate),
        "liftlog_last_reload_successful": int(sources.reloads.last_succeeded),
        **process_values(),
    }


def daemon_histograms(sources: Sources) -> dict[str, Histogram]:
    return {
        "liftlog_fsync_seconds": sources.sync_times.snapshot(),
        "liftlog_event_loop_lag_seconds": sources.loop_watch.lag,
    }


def labelled_histograms(sources: Sources) -> dict[str, dict[tuple[str, ...], Histogram]]:
    """Return histograms by metric and label values."""
    api = sources.health.jetstream_api
    seconds = sources.requests.seconds
    return {
        "liftlog_http_request_seconds": {(route,): found for route, found in seconds.items()},
        "liftlog_jetstream_api_seconds": {} if api is None else {(): api.counters.seconds},
    }


def condition_values(found: Iterable[Condition]) -> dict[tuple[str, ...], float]:
    """Count the conditions of every kind. Kinds without a condition are exported as 0, so that an
    alert can detect the beginning of a condition."""
    counts = Counter(one.kind.name for one in found)
    return {(name, kind.severity.value): counts[name] for name, kind in KINDS.items()}


def labelled_values(
    sources: Sources, found: Iterable[Condition]
) -> dict[str, dict[tuple[str, ...], float]]:
    """Return values by metric and label values. `found` contains the present conditions."""
    checkpoints = sources.broker.checkpoints if sources.broker.has_checkpoints else None
    refused = checkpoints.refused if checkpoints is not None else {}
    reloads, api = sources.reloads, sources.health.jetstream_api
    build = (__version__, commit(), platform.python_version(), sources.link.seam)
    return {
        "liftlog_build_info": {build: 1},
        "liftlog_conditions": condition_values(found),
        "liftlog_reloads_total": {("ok",): reloads.succeeded, ("refused",): reloads.failed},
        "liftlog_nats_disconnects_by_cause_total": {
            (cause.value,): sources.link.counters.disconnects_by_cause[cause] for cause in Cause
        },
        "liftlog_pull_refusals_total": _by_error(sources.pull.services.counters.refusals_total),
        "liftlog_checkpoint_refusals_total": _by_error(refused),
        "liftlog_http_requests_total": dict(sources.requests.requests_total.items()),
        "liftlog_jetstream_api_requests_total": {}
        if api is None
        else dict(api.counters.requests.items()),
        "liftlog_denied_total": dict(
            (_DENIABLE | sources.pull.services.audit.denied_total).items()
        ),
        **_replication_values(node_of(sources.broker)),
    }


def _replication_values(
    streams: ReplicatedStreams | None,
) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the values of replication; empty if the daemon belongs to no cluster."""
    if streams is None:
        return {metric.name: {} for metric in REPLICATION}
    led, followed, session = streams.led, streams.followed, streams.session
    now = time.monotonic()
    records = {name: one.leader.record for name, one in led.items()}
    clocks = streams.clocks.known()
    leading: dict[tuple[str, ...], float] = {(name,): 1 for name in led}
    return {
        "liftlog_leader": {(one.name,): 0 for one in streams.view.without_leader()}
        | {(name,): 0 for name in followed}
        | leading,
        "liftlog_isr_size": {(name,): len(record.isr) for name, record in records.items()},
        "liftlog_under_replicated": {
            (name,): len(record.isr) < len(record.replicas) for name, record in records.items()
        },
        "liftlog_under_min_isr": {
            (name,): not record.can_commit for name, record in records.items()
        },
        "liftlog_replica_lag": {
            (name, node): lag
            for name, one in led.items()
            for node, lag in one.leader.lags().items()
        },
        "liftlog_isr_changes_total": {(name,): n for name, n in streams.isr_changes.items()},
        "liftlog_elections_total": {(reason,): n for reason, n in streams.candidacy.won.items()},
        "liftlog_handovers_total": {
            ("ok",): streams.handovers.given,
            ("failed",): streams.handovers.failed,
        },
        "liftlog_peer_clock_ahead_seconds": {(node,): one.seconds for node, one in clocks.items()},
        "liftlog_peer_clock_error_seconds": {(node,): one.error for node, one in clocks.items()},
        "liftlog_session_valid": {} if session is None else {(): now < session.deadline},
        "liftlog_metadata_age_seconds": {} if session is None else {(): now - session.renewed_at},
        "liftlog_metadata_cas_total": {(what,): n for what, n in streams.mirror.writes.items()},
    }


def _by_error(counts: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    return {(error,): count for error, count in counts.items()}


def _broker_values(broker: Broker) -> dict[str, float]:
    checkpoints = broker.checkpoints if broker.has_checkpoints else None
    groups = None if checkpoints is None else checkpoints.groups.coordinator
    return {
        "liftlog_streams": len(broker.hosts),
        "liftlog_streams_failed_to_open": len(broker.broken),
        "liftlog_nats_refused_subjects": len(broker.refused_subjects()),
        "liftlog_writer_queue_jobs": broker.intake.pool.waiting_jobs,
        "liftlog_checkpoints": 0 if checkpoints is None else len(checkpoints.table),
        "liftlog_checkpoints_uncertain": (
            0 if checkpoints is None else checkpoints.table.uncertain_count
        ),
        "liftlog_checkpoint_commits_total": 0 if checkpoints is None else checkpoints.commits,
        "liftlog_groups": 0 if groups is None else len(groups.groups),
        "liftlog_group_rebalances_total": 0 if groups is None else groups.generations_total,
        "liftlog_group_members_expired_total": 0 if groups is None else groups.expired_total,
        "liftlog_group_commits_total": 0 if groups is None else groups.commits_total,
    }


def _journal_values(journal: Journal | None) -> dict[str, float]:
    counters = JournalCounters() if journal is None else journal.counters
    return {
        "liftlog_ack_consumers": 0 if journal is None else len(journal.ledger),
        "liftlog_ack_consumers_uncertain": (
            0 if journal is None else len(journal.ledger.uncertain())
        ),
        "liftlog_journal_size_bytes": 0 if journal is None else journal.size_bytes,
        "liftlog_journal_delta_bytes": 0 if journal is None else journal.ledger.delta_bytes,
        "liftlog_journal_writable": int(journal is None or journal.problem is None),
        "liftlog_journal_changes_total": counters.changes,
        "liftlog_journal_appends_total": counters.appends,
        "liftlog_journal_written_bytes_total": counters.bytes,
        "liftlog_journal_syncs_total": counters.syncs,
        "liftlog_journal_snapshots_total": counters.snapshots,
        "liftlog_journal_copies_total": counters.copies,
        "liftlog_journal_cut_bytes_total": counters.cut_bytes,
        "liftlog_journal_failures_total": counters.failures,
    }


def _link_values(link: NatsLink) -> dict[str, float]:
    counters = link.counters
    return {
        "liftlog_nats_connected": int(link.connected),
        "liftlog_nats_connects_total": counters.connects,
        "liftlog_nats_disconnects_total": counters.disconnects,
        "liftlog_nats_protocol_errors_total": counters.protocol_errors,
        "liftlog_nats_slow_consumer_errors_total": counters.slow_consumer_errors,
        "liftlog_nats_watchdog_reconnects_total": counters.watchdog_reconnects,
        "liftlog_nats_handovers_total": counters.handovers,
        "liftlog_nats_subscriptions_refused_total": link.subscriptions_refused,
        "liftlog_acks_dropped_total": counters.acks_dropped,
        "liftlog_acks_oversized_total": counters.acks_oversized,
        "liftlog_acks_refused_total": counters.acks_refused,
    }


def _pull_values(pull: PullServer) -> dict[str, float]:
    counters = pull.services.counters
    return {
        "liftlog_pull_connections": pull.connection_count,
        "liftlog_pull_connections_accepted_total": counters.connections_total,
        "liftlog_pull_connections_refused_total": counters.connections_refused_total,
        "liftlog_pull_fetches_total": counters.fetches_total,
        "liftlog_pull_records_total": counters.records_total,
        "liftlog_pull_body_bytes_total": counters.body_bytes_total,
        "liftlog_pull_unsent_bytes": pull.services.memory.used_bytes,
        "liftlog_pull_held_back_seconds_total": pull.services.read_share.held_back_seconds,
    }


def _http_values(guard: ConnectionGuard) -> dict[str, float]:
    return {
        "liftlog_http_connections": guard.connection_count,
        "liftlog_http_connections_refused_total": guard.refused_total,
        "liftlog_http_connections_evicted_total": guard.evicted_total,
        "liftlog_http_connections_timed_out_total": guard.timed_out_total,
    }


def _disk_values(disk: DiskProbe) -> dict[str, float]:
    state = disk.last
    return {
        "liftlog_disk_free_bytes": state.free_bytes,
        "liftlog_disk_size_bytes": state.size_bytes,
        "liftlog_disk_writable": int(not state.problem),
    }


_PROC = Path("/proc/self")


def _start_time() -> float:
    """Return the start time of the process in seconds since 1970; 0.0 without /proc.

    Also works in a hardened systemd unit, which hides /proc/stat and with it the boot time.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        started = float(_stat_fields()[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    return 0.0


def _stat_fields() -> list[str]:
    """Return the fields of /proc/self/stat that follow the process name. The name itself may
    contain blanks and brackets."""
    return (_PROC / "stat").read_text().rpartition(")")[2].split()


_STARTED = _start_time()


def process_values() -> dict[str, float]:
    """Return the process values that every Prometheus client exports, by their names. Values that
    the system does not provide are left out."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    values: dict[str, float] = {
        "process_cpu_seconds_total": usage.ru_utime + usage.ru_stime,
        "process_max_fds": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "liftlog_max_resident_bytes": usage.ru_maxrss * 1024,
    }
    if _STARTED:
        values["process_start_time_seconds"] = _STARTED
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = _stat_fields()
        values["process_threads"] = int(fields[17])
        values["process_virtual_memory_bytes"] = int(fields[20])
        values["process_resident_memory_bytes"] = int(fields[21]) * resource.getpagesize()
    with contextlib.suppress(OSError):
        # Subtract the descriptor that this listing itself has opened.
        values["process_open_fds"] = sum(1 for _ in (_PROC / "fd").iterdir()) - 1
    return values
