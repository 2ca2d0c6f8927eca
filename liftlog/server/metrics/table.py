"""Every metric that the daemon exports: name, type, labels, help. Tests compare
docs/reference/metrics.md, and the alert rules and dashboard in config/, with this table; nothing
else may be exported.

Names appear as in queries: a counter ends in `_total`; a histogram has `_bucket` (with `le`),
`_sum` and `_count`. This module imports nothing else of the daemon.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from liftlog.server.vitals.histogram import COUNT_BOUNDS, LATENCY_BOUNDS

Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    bounds: Sequence[float] = ()
    """The upper bounds of a histogram's buckets."""

    @property
    def sample_names(self) -> tuple[str, ...]:
        if self.kind != "histogram":
            return (self.name,)
        return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"liftlog_{name}_total", "counter", labels, text)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"liftlog_{name}", "gauge", labels, text)


def _histogram(name: str, text: str, bounds: Sequence[float], *labels: str) -> Metric:
    return Metric(f"liftlog_{name}", "histogram", labels, text, bounds)


def _per(labels: tuple[str, ...], *metrics: Metric) -> tuple[Metric, ...]:
    """Return the metrics with these labels in front of their own labels."""
    return tuple(one._replace(labels=labels + one.labels) for one in metrics)


STREAMS = _per(
    ("stream",),
    _gauge("log_start_offset", "First offset that can be read"),
    _gauge("high_watermark", "Everything below is committed"),
    _gauge("log_end_offset", "Next offset to assign"),
    _gauge("log_size_bytes", "Bytes of all segments"),
    _gauge("segments", "Number of segments"),
    _gauge("pending_bytes", "Received but not yet committed"),
    _gauge(
        "commit_in_flight_seconds",
        "Time that the current commit has waited for the disk; 0 if there is none",
    ),
    _gauge(
        "ack_wait_seconds",
        "Time that the oldest unanswered message has waited; 0 if there is none",
    ),
    _gauge("stream_attached", "1 while NATS delivers to the stream"),
    _gauge("failed", "1 when the stream's storage failed"),
    _counter("records", "Records committed"),
    _counter("received_bytes", "Payload and header bytes received from NATS"),
    _counter("commits", "Commit groups"),
    _counter("inline_commits", "Commit groups that ran inside the event loop"),
    _counter("commit_failures", "Commit groups that could not be stored"),
    _counter("fsync", "fdatasync calls on segment files"),
    _histogram(
        "ack_seconds",
        "From the arrival of a message to its ack, or to its commit when no ack is wanted",
        LATENCY_BOUNDS,
    ),
    _histogram("commit_group_records", "Records per commit group", COUNT_BOUNDS),
    _counter("refused", "Messages not stored", "reason"),
    _counter("duplicates", "Messages that were duplicates by Nats-Msg-Id"),
    _gauge("dedupe_ids", "Message ids remembered"),
    _counter("dedupe_evicted_early", "Message ids forgotten before their window ended"),
    _counter("acks_suppressed", "Acks not sent because their subject is not allowed"),
    _counter(
        "possible_loss_events",
        "Events in which the stream may have missed messages; `stream info` has the offsets",
    ),
    _gauge("quarantined_ranges", "Damaged offset ranges"),
    _gauge("quarantined_offsets", "Offsets in damaged ranges"),
    _counter("repaired_ranges", "Damaged offset ranges that came back from another replica"),
)

CLEANING = (
    _gauge(
        "cleaning_at_idle_rate",
        "1 while compaction or re-batching runs without the limit that holds while the daemon is "
        "busy (`cleaner.max_rate: auto`)",
    ),
    *_per(
        ("stream",),
        _gauge("cleaned_below", "Compaction has examined everything below this offset"),
        _gauge(
            "compaction_dirty_ratio",
            "Part of the sealed bytes that was never compacted, at the last check",
        ),
        _gauge("compaction_dirty_bytes", "Sealed bytes that were never compacted"),
        _gauge("compaction_running", "1 while a pass is under way"),
        _gauge("compaction_progress_ratio", "Completed part of the present phase of a pass"),
        _counter("compaction_passes", "Compaction passes"),
        _counter("compaction_records_removed", "Records that compaction removed"),
        _counter("compaction_freed_bytes", "Bytes that compaction freed"),
        _counter("rebatched_segments", "Segments rewritten with larger batches"),
        _counter("scrubbed_segments", "Sealed segments that were verified again"),
        _counter("scrubbed_bytes", "Bytes that were verified again"),
        _gauge(
            "cleaning_failing",
            "1 while the last job of compaction, re-batching or scrubbing failed",
        ),
        _counter("cleaning_failures", "Jobs of compaction, re-batching or scrubbing that failed"),
    ),
)

CONSUMERS = (
    *_per(
        ("consumer", "stream"),
        _gauge(
            "consumer_lag",
            "Records between a consumer's checkpoint and the high watermark",
        ),
        _gauge("consumer_checkpoint_offset", "Next offset the consumer will read"),
        _gauge(
            "consumer_checkpoint_timestamp_seconds",
            "When the checkpoint was committed, since 1970",
        ),
        _gauge(
            "consumer_checkpoint_unreadable",
            "1 when the consumer will get an error: the checkpoint no longer matches the stream",
        ),
    ),
    _gauge("checkpoints", "Checkpoints stored"),
    _gauge(
        "checkpoints_uncertain",
        "Checkpoints that may be older than confirmed ones, which were lost to damage",
    ),
    _gauge("checkpoints_not_shown", "Checkpoints beyond the bound of this page (10,000)"),
    _counter("checkpoint_commits", "Checkpoints committed or deleted"),
    _counter("checkpoint_refusals", "Checkpoints refused, by error", "error"),
)

GROUPS = (
    *_per(
        ("group", "stream"),
        _gauge("group_members", "Members of a consumer group; for the first 1,000 groups by name"),
        _gauge("group_generation", "Changes of its members or owners, since it began"),
        _gauge("group_free_slots", "Slots without owner: no member reads them"),
        _gauge("group_lag", "Offsets between the slot that is farthest behind and the end"),
        _gauge(
            "group_member_slots",
            "Slots of a member; those without a name of their own count as one, `unnamed`",
            "member",
        ),
        _gauge("group_member_lag", "Lag of its slot that is farthest behind", "member"),
        _gauge(
            "group_slot_lag",
            "Offsets between the committed offset of a slot and the high watermark; members and "
            "slots are shown of the first groups by name, 10,000 of both in all",
            "slot",
        ),
    ),
    _gauge("groups", "Consumer groups stored"),
    _gauge("groups_not_shown", "Groups beyond the bounds of this page"),
    _counter("group_rebalances", "Changes of the members or owners of a group"),
    _counter("group_members_expired", "Members that lost their slots by the end of their session"),
    _counter("group_commits", "Commits of members"),
)

JOURNAL = (
    _gauge("ack_consumers", "Consumers with acks that this daemon stores"),
    _gauge(
        "ack_consumers_uncertain",
        "Consumers with acks that may be older than what was confirmed, which was lost to damage",
    ),
    _gauge("journal_size_bytes", "Bytes of the journal of consumers"),
    _gauge("journal_delta_bytes", "Bytes of changes that follow the snapshots"),
    _gauge("journal_writable", "0 while changes of consumers cannot be stored"),
    _counter("journal_changes", "Changes of consumers written"),
    _counter("journal_appends", "Writes of the journal, each with all changes of a moment"),
    _counter("journal_written_bytes", "Bytes written to the journal"),
    _counter("journal_syncs", "Syncs of the journal"),
    _counter("journal_snapshots", "Snapshots made to keep the journal short"),
    _counter("journal_copies", "Consumers copied as they are to keep the journal short"),
    _counter("journal_cut_bytes", "Bytes of the journal that were removed"),
    _counter("journal_failures", "Failed writes and syncs; each is tried again"),
)

PULL = (
    _gauge("pull_connections", "Connected consumers"),
    _counter("pull_connections_accepted", "Connections of consumers"),
    _counter("pull_connections_refused", "Connections refused: too many, or shutting down"),
    _counter("pull_fetches", "Fetches answered"),
    _counter("pull_records", "Records sent to consumers, at most"),
    _counter("pull_body_bytes", "Bytes of batches sent to consumers"),
    _counter("pull_refusals", "Requests answered with an error", "error"),
    _gauge("pull_unsent_bytes", "Answers in memory that their clients do not receive"),
    _counter(
        "pull_held_back_seconds",
        "Time for which consumers had to wait because the processor was short and NATS had more",
    ),
)

NATS = (
    _gauge("nats_connected", "1 while connected to NATS"),
    _counter("nats_connects", "Connections to NATS that were made"),
    _counter("nats_disconnects", "Connections to NATS that were lost"),
    _counter("nats_protocol_errors", "Input that nats-py could not parse"),
    _counter(
        "nats_slow_consumer_errors",
        "Times NATS reported a slow consumer, or closed the connection while the daemon was behind",
    ),
    _counter("nats_watchdog_reconnects", "Reconnects because the read loop had ended"),
    _counter("nats_disconnects_by_cause", "Connections to NATS that were lost", "cause"),
    _counter(
        "nats_handovers",
        "Moves to another NATS server because the first was about to stop; none lost",
    ),
    _gauge("nats_refused_subjects", "Subscriptions that NATS refuses now; `/readyz` names them"),
    _counter("nats_subscriptions_refused", "Attempts at a subscription that NATS refused"),
    _counter("acks_dropped", "Acks dropped for lack of a connection"),
    _counter("acks_oversized", "Answers larger than the `max_payload` of NATS, which are not sent"),
    _counter("acks_refused", "Acks that NATS refused to publish"),
)

JETSTREAM_API = (
    _counter(
        "jetstream_api_requests",
        "Requests of JetStream's clients that this node took, by `result`: ok, refused, failed, or "
        "too many (not processed)",
        "method",
        "result",
    ),
    _histogram(
        "jetstream_api_seconds", "From the arrival of such a request to its answer", LATENCY_BOUNDS
    ),
    _gauge("jetstream_consumers", "Ordered consumers that this node serves"),
)

HTTP = (
    _gauge("http_connections", "Connections to the HTTP port"),
    _counter("http_connections_refused", "Connections refused while all others were being served"),
    _counter("http_connections_evicted", "Idle or unknown connections that made room for others"),
    _counter("http_connections_timed_out", "Connections that were too slow"),
    _counter(
        "http_requests",
        "Requests, by route (`none`: there is no such) and status (`cut off`: it had none)",
        "route",
        "code",
    ),
    _histogram(
        "http_request_seconds", "From a request to its answer, by route", LATENCY_BOUNDS, "route"
    ),
    _gauge("web_sessions", "Browsers that are signed in to the web page"),
)

ACCESS = (
    _counter(
        "denied",
        "Requests denied by the ACL, by operation (or `login`: refused) and port (`pull`, `http`)",
        "operation",
        "way_in",
    ),
)

DAEMON = (
    Metric("liftlog_build_info", "gauge", ("version", "commit", "python", "seam"), "Always 1"),
    _gauge("ready", "1 while /readyz answers 200"),
    _gauge(
        "conditions",
        "Present problems, as listed in [Conditions](conditions.md): their number, by kind",
        "condition",
        "severity",
    ),
    _gauge("draining", "1 while the daemon is stopping"),
    _gauge("streams", "Streams that are open, the system's own included"),
    _gauge("streams_failed_to_open", "Streams on disk that could not be opened"),
    _histogram(
        "fsync_seconds", "Duration of fdatasync calls on segment files", LATENCY_BOUNDS
    ),
    _gauge("writer_queue_jobs", "Commits that wait for a writer thread"),
    _histogram(
        "event_loop_lag_seconds",
        "Delay of the event loop, measured four times a second",
        LATENCY_BOUNDS,
    ),
    _gauge("disk_free_bytes", "Room left for the data directory"),
    _gauge("disk_size_bytes", "Size of the data directory's file system"),
    _gauge("disk_writable", "1 while the data directory can be written"),
    _counter("reloads", "Reloads (SIGHUP), by `result`: ok or refused", "result"),
    _gauge("last_reload_successful", "0 when the last reload found a bad file, whose old "
           "content holds"),
    _gauge("max_resident_bytes", "Largest resident memory so far"),
)  # fmt: skip

PROCESS = (
    Metric("process_cpu_seconds_total", "counter", (), "User and system time of the daemon"),
    Metric("process_resident_memory_bytes", "gauge", (), "Resident memory"),
    Metric("process_virtual_memory_bytes", "gauge", (), "Virtual memory"),
    Metric("process_start_time_seconds", "gauge", (), "Start of the process since 1970"),
    Metric("process_open_fds", "gauge", (), "Open file descriptors"),
    Metric("process_max_fds", "gauge", (), "Most file descriptors that may be open"),
    Metric("process_threads", "gauge", (), "Threads"),
)

REPLICATION = (
    *_per(
        ("stream",),
        _gauge(
            "leader",
            "1 if this node leads the stream, 0 if it follows; 0 from every node if none leads it",
        ),
        _gauge("isr_size", "Replicas in sync; only from the leader"),
        _gauge("under_replicated", "1 if a replica is not in sync; only from the leader"),
        _gauge(
            "under_min_isr",
            "1 if too few replicas are in sync to commit acked messages; only from the leader",
        ),
        _gauge(
            "replica_lag",
            "Records that the leader has and this node has not, if it has asked in this epoch; "
            "only from the leader",
            "node",
        ),
        _counter("isr_changes", "Changes of the in-sync set while this node led the stream"),
    ),
    _counter(
        "elections",
        "Elections that this node won, by `reason`: leader-lost (most replicas did not hear "
        "from it), no-leader (it had resigned) or unclean (no complete copy was left, "
        "and `cluster.unclean` is balanced)",
        "reason",
    ),
    _counter(
        "handovers",
        "Planned handovers of the lead of a stream by this node, by `result`: ok, or failed (it "
        "stayed here, or was left to an election)",
        "result",
    ),
    *_per(
        ("node",),
        _gauge(
            "peer_clock_ahead_seconds",
            "Time by which the clock of another node is ahead of this node's; negative: behind",
        ),
        _gauge(
            "peer_clock_error_seconds",
            "The error of that measurement: half of the time that the quickest ping took",
        ),
    ),
    _gauge("session_valid", "1 while this node's session in the metadata store holds"),
    _gauge("metadata_age_seconds", "Time since the metadata store renewed this node's session"),
    _counter(
        "metadata_cas",
        "Attempts to change a record of the metadata, by `result`: stored, lost (another node was "
        "faster), unknown (no answer), unavailable",
        "result",
    ),
)

SECTIONS: tuple[tuple[str, tuple[Metric, ...]], ...] = (
    ("Streams", STREAMS),
    ("Compaction, re-batching, scrubbing", CLEANING),
    ("Replication", REPLICATION),
    ("Consumers", CONSUMERS),
    ("Consumer groups", GROUPS),
    ("Consumers with acks", JOURNAL),
    ("Pull socket", PULL),
    ("NATS", NATS),
    ("JetStream's API", JETSTREAM_API),
    ("HTTP port", HTTP),
    ("Access", ACCESS),
    ("Daemon", DAEMON),
    ("Process", PROCESS),
)
METRICS: dict[str, Metric] = {metric.name: metric for _, section in SECTIONS for metric in section}
