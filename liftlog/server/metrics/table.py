"""Every metric that the daemon exports: name, type, labels, help. Tests compare
docs/reference/metrics.md, and the alert rules and dashboard in config/, with this table; nothing
else may be exported.

Names have the form that queries use: a counter ends in `_total`; a histogram has `_bucket` (with
`le`), `_sum` and `_count`. This module imports no other module of the daemon.
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
    """Return the metrics, with these labels in front of the labels of each metric."""
    return tuple(one._replace(labels=labels + one.labels) for one in metrics)


STREAMS = _per(
    ("stream",),
    _gauge("log_start_offset", "Offset of the first record that can be read"),
    _gauge("high_watermark", "All records below this offset are committed"),
    _gauge("log_end_offset", "Next offset to assign"),
    _gauge("log_size_bytes", "Bytes of all segments"),
    _gauge("segments", "Number of segments"),
    _gauge("pending_bytes", "Bytes of messages that are received but not committed yet"),
    _gauge(
        "commit_in_flight_seconds",
        "Time that the current commit has waited for the disk; 0 without a commit",
    ),
    _gauge(
        "ack_wait_seconds",
        "Time that the oldest unanswered message has waited; 0 without such a message",
    ),
    _gauge("stream_attached", "1 while the stream has its subscriptions at NATS"),
    _gauge("failed", "1 when the stream's storage failed"),
    _counter("records", "Records committed"),
    _counter("received_bytes", "Payload and header bytes received from NATS"),
    _counter("commits", "Commit groups"),
    _counter("inline_commits", "Commit groups that ran inside the event loop"),
    _counter("commit_failures", "Commit groups that could not be stored"),
    _counter("fsync", "fdatasync calls on segment files"),
    _histogram(
        "ack_seconds",
        "Time from the arrival of a message to its ack, or to its commit if no ack is requested",
        LATENCY_BOUNDS,
    ),
    _histogram("commit_group_records", "Records per commit group", COUNT_BOUNDS),
    _counter("refused", "Messages not stored", "reason"),
    _counter("duplicates", "Messages whose Nats-Msg-Id showed that they were duplicates"),
    _gauge("dedupe_ids", "Message ids that the stream stores for deduplication"),
    _counter(
        "dedupe_evicted_early", "Message ids that were removed before their dedupe window ended"
    ),
    _counter("acks_suppressed", "Acks not sent: `nats.ack_subjects` forbids their subject"),
    _counter(
        "possible_loss_events",
        "Events in which the stream may have missed messages; `stream info` has the offsets",
    ),
    _gauge("quarantined_ranges", "Damaged offset ranges"),
    _gauge("quarantined_offsets", "Offsets in damaged ranges"),
    _counter("repaired_ranges", "Damaged offset ranges that were restored from another replica"),
)

ERASED = _per(
    ("stream",),
    _counter("erasures", "Erasures: by the request `erase`, or by JetStream's API", "cause"),
    _counter("erased", "Records that were erased", "cause"),
    _gauge("erased_left", "Erased records whose bytes are still in segments"),
    _gauge("erased_left_bytes", "Estimated bytes of erased records that are still in segments"),
    _gauge("erased_due_timestamp_seconds", "Time of the next removal of these bytes, or 0"),
)

CLEANING = (
    _gauge(
        "cleaning_at_idle_rate",
        "1 while compaction or re-batching runs at full speed, because the daemon is idle "
        "(`cleaner.max_rate: auto`)",
    ),
    *_per(
        ("stream",),
        _gauge("cleaned_below", "Compaction has processed all records below this offset"),
        _gauge(
            "compaction_dirty_ratio",
            "Fraction (0 to 1) of the sealed bytes that were never compacted, at the last check",
        ),
        _gauge("compaction_dirty_bytes", "Sealed bytes that were never compacted"),
        _gauge("compaction_running", "1 while a compaction pass is running"),
        _gauge(
            "compaction_progress_ratio",
            "Completed part of the present phase of a compaction pass, from 0 to 1",
        ),
        _counter("compaction_passes", "Compaction passes"),
        _counter("compaction_records_removed", "Records that compaction removed"),
        _counter("compaction_freed_bytes", "Bytes that compaction freed"),
        _counter("rebatched_segments", "Segments that were rewritten with larger batches"),
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
        _gauge("consumer_checkpoint_offset", "Offset that the consumer reads next"),
        _gauge(
            "consumer_checkpoint_timestamp_seconds",
            "Time at which the checkpoint was committed, in seconds since 1970",
        ),
        _gauge(
            "consumer_checkpoint_unreadable",
            "1 if the checkpoint does not match the stream, so that the consumer will receive "
            "an error",
        ),
    ),
    _gauge("checkpoints", "Checkpoints that are stored"),
    _gauge(
        "checkpoints_uncertain",
        "Checkpoints that may be older than the last confirmed checkpoint, because newer "
        "checkpoints are damaged and lost",
    ),
    _gauge("checkpoints_not_shown", "Checkpoints beyond the limit of this page (10,000)"),
    _counter("checkpoint_commits", "Commits and deletions of checkpoints"),
    _counter("checkpoint_refusals", "Refused commits of checkpoints, by error", "error"),
)

GROUPS = (
    *_per(
        ("group", "stream"),
        _gauge(
            "group_members",
            "Members of a consumer group; shown for the first 1,000 groups by name",
        ),
        _gauge(
            "group_generation",
            "Number of changes of the group's members or owners since its creation",
        ),
        _gauge("group_free_slots", "Slots without an owner, which no member reads"),
        _gauge("group_lag", "Largest lag of a slot of the group, see `liftlog_group_slot_lag`"),
        _gauge(
            "group_member_slots",
            "Slots of a member; all members without a fixed name count as one member, `unnamed`",
            "member",
        ),
        _gauge("group_member_lag", "Largest lag of a slot of the member", "member"),
        _gauge(
            "group_slot_lag",
            "Offsets between the committed offset of a slot and the high watermark; shown for "
            "the first groups by name, until 10,000 members and slots are shown",
            "slot",
        ),
    ),
    _gauge("groups", "Consumer groups that are stored"),
    _gauge("groups_not_shown", "Groups beyond the limits of this page"),
    _counter("group_rebalances", "Changes of the members or owners of a group"),
    _counter("group_members_expired", "Members that lost their slots because their session ended"),
    _counter("group_commits", "Commits of members of groups"),
)

ACK_CONSUMERS = (
    *_per(
        ("consumer", "stream"),
        _gauge(
            "ack_consumer_waiting",
            "Messages that the consumer has not delivered yet; for a consumer with a filter, "
            "the number may be some scrapes old",
        ),
        _gauge("ack_consumer_pending", "Messages that were delivered but are not acked"),
        _gauge(
            "ack_consumer_redelivered",
            "Messages that were delivered more than once but are not acked, and the last 1,000 "
            "messages that reached `max_deliver`",
        ),
        _gauge("ack_consumer_pulls", "Pulls that wait for messages"),
        _gauge(
            "ack_consumer_floor_offset",
            "Offset below which all messages are acked, or are not delivered again",
        ),
        _gauge("ack_consumer_paused", "1 while the consumer is paused"),
        _counter(
            "ack_consumer_deliveries",
            "Deliveries since the consumer was created, including redeliveries",
        ),
        _counter(
            "ack_consumer_exhausted",
            "Messages that were delivered `max_deliver` times without an ack",
        ),
    ),
    _gauge("ack_consumers_not_shown", "Consumers with acks beyond the limit of this page (1,000)"),
)

JOURNAL = (
    _gauge("ack_consumers", "Consumers with acks that this daemon stores"),
    _gauge(
        "ack_consumers_uncertain",
        "Consumers with acks whose state may lack confirmed changes, because these changes are "
        "damaged and lost",
    ),
    _gauge("journal_size_bytes", "Bytes of the journal of consumers"),
    _gauge(
        "journal_delta_bytes",
        "Bytes of the changes after the newest snapshots of their consumers",
    ),
    _gauge(
        "journal_writable",
        "1 if the journal can be written; 0 while changes of consumers cannot be stored",
    ),
    _counter("journal_changes", "Changes of consumers that were written to the journal"),
    _counter(
        "journal_appends", "Writes of the journal, each of which contains all waiting changes"
    ),
    _counter("journal_written_bytes", "Bytes written to the journal"),
    _counter("journal_syncs", "Syncs of the journal"),
    _counter(
        "journal_snapshots",
        "Snapshots that were written so that old segments of the journal can be removed",
    ),
    _counter(
        "journal_copies",
        "Consumers whose records were copied unchanged so that old segments of the journal can be "
        "removed",
    ),
    _counter("journal_cut_bytes", "Bytes of the journal that were removed"),
    _counter(
        "journal_failures",
        "Failed writes and syncs of the journal; the daemon repeats each of them",
    ),
)

PULL = (
    _gauge("pull_connections", "Connected consumers"),
    _counter("pull_connections_accepted", "Connections of consumers"),
    _counter(
        "pull_connections_refused",
        "Connections that were refused because of a limit, or because the daemon was stopping",
    ),
    _counter("pull_fetches", "Fetches answered"),
    _counter("pull_records", "Upper bound of the number of records that were sent to consumers"),
    _counter("pull_body_bytes", "Bytes of batches sent to consumers"),
    _counter("pull_refusals", "Requests answered with an error", "error"),
    _gauge("pull_unsent_bytes", "Bytes of answers in memory that clients have not received yet"),
    _counter(
        "pull_held_back_seconds",
        "Time for which the daemon delayed answers to consumers, because the CPU was busy and "
        "messages from NATS were unread",
    ),
)

NATS = (
    _gauge("nats_connected", "1 while connected to NATS"),
    _counter("nats_connects", "Connections to NATS that were opened"),
    _counter("nats_disconnects", "Connections to NATS that were lost"),
    _counter("nats_protocol_errors", "Times that nats-py could not parse input from NATS"),
    _counter(
        "nats_slow_consumer_errors",
        "Number of times that NATS reported the daemon as a slow consumer, or closed the "
        "connection while the daemon had unread messages",
    ),
    _counter(
        "nats_watchdog_reconnects", "Reconnects because the read loop of the connection had ended"
    ),
    _counter("nats_disconnects_by_cause", "Connections to NATS that were lost", "cause"),
    _counter(
        "nats_handovers",
        "Moves to another NATS server without a lost message, because the previous server was "
        "going to stop",
    ),
    _gauge(
        "nats_refused_subjects",
        "Subscriptions that NATS refuses at present; `/readyz` names them",
    ),
    _counter("nats_subscriptions_refused", "Attempts to subscribe that NATS refused"),
    _counter("acks_dropped", "Acks that were dropped because the daemon had no connection to NATS"),
    _counter(
        "acks_oversized",
        "Answers that were not sent because they were larger than the `max_payload` of NATS",
    ),
    _counter("acks_refused", "Acks that NATS refused to publish"),
)

JETSTREAM_API = (
    _counter(
        "jetstream_api_requests",
        "Requests of JetStream's clients that this node received, by `result`: ok, refused, "
        "failed, or too many (not processed)",
        "method",
        "result",
    ),
    _histogram(
        "jetstream_api_seconds",
        "Time from the arrival of a request of a JetStream client to its answer",
        LATENCY_BOUNDS,
    ),
    _gauge("jetstream_consumers", "Consumers of JetStream's clients that this node serves"),
)

HTTP = (
    _gauge("http_connections", "Connections to the HTTP port"),
    _counter(
        "http_connections_refused",
        "Connections that were refused because the daemon was serving requests on all other "
        "connections",
    ),
    _counter(
        "http_connections_evicted",
        "Idle or unauthenticated connections that were closed so that other clients could connect",
    ),
    _counter(
        "http_connections_timed_out",
        "Connections that were closed because a request or the reading of an answer took too long",
    ),
    _counter(
        "http_requests",
        "Requests, by route (`none` for an unknown path) and status (`cut off` if no answer was "
        "sent)",
        "route",
        "code",
    ),
    _histogram(
        "http_request_seconds",
        "Time from a request to its answer, by route",
        LATENCY_BOUNDS,
        "route",
    ),
    _gauge("web_sessions", "Browsers that are signed in to the web page"),
)

ACCESS = (
    _counter(
        "denied",
        "Requests that the ACL denied, by operation (`login` for refused logins) and port "
        "(`pull`, `http`)",
        "operation",
        "way_in",
    ),
)

DAEMON = (
    Metric("liftlog_build_info", "gauge", ("version", "commit", "python", "seam"), "Always 1"),
    _gauge("ready", "1 while /readyz answers 200"),
    _gauge(
        "conditions",
        "Number of present problems, by kind ([Conditions](conditions.md))",
        "condition",
        "severity",
    ),
    _gauge("draining", "1 while the daemon is stopping"),
    _gauge("streams", "Open streams, including system streams"),
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
    _gauge("disk_free_bytes", "Free space for the data directory"),
    _gauge("disk_size_bytes", "Size of the data directory's file system"),
    _gauge("disk_writable", "1 while the daemon can write to the data directory"),
    _counter("reloads", "Reloads (SIGHUP), by `result`: ok or refused", "result"),
    _gauge("last_reload_successful", (
        "1 if the last reload succeeded; 0 if the daemon refused a file and continues with its "
        "previous content"
    )),
    _gauge("max_resident_bytes", "Largest resident memory so far"),
)  # fmt: skip

PROCESS = (
    Metric("process_cpu_seconds_total", "counter", (), "User and system time of the daemon"),
    Metric("process_resident_memory_bytes", "gauge", (), "Resident memory"),
    Metric("process_virtual_memory_bytes", "gauge", (), "Virtual memory"),
    Metric("process_start_time_seconds", "gauge", (), "Start of the process, s since 1970"),
    Metric("process_open_fds", "gauge", (), "Open file descriptors"),
    Metric("process_max_fds", "gauge", (), "Maximum number of open file descriptors"),
    Metric("process_threads", "gauge", (), "Threads"),
)

REPLICATION = (
    *_per(
        ("stream",),
        _gauge(
            "leader",
            "1 if this node leads the stream; 0 if it follows, or if the stream has no leader",
        ),
        _gauge("isr_size", "Replicas in sync; exported only by the leader"),
        _gauge("under_replicated", "1 if a replica is not in sync; exported only by the leader"),
        _gauge(
            "under_min_isr",
            "1 if fewer than `min_isr` replicas are in sync (the leader then refuses messages that "
            "ask for an ack); exported only by the leader",
        ),
        _gauge(
            "replica_lag",
            "Records of the leader that `node` does not have; exported only by the leader, for "
            "nodes that have sent a request in this epoch",
            "node",
        ),
        _counter("isr_changes", "Changes of the in-sync set while this node led the stream"),
    ),
    _counter(
        "elections",
        "Elections that this node won, by `reason`: leader-lost (most replicas received no "
        "heartbeats from the leader), no-leader (the leader had resigned), unclean (no complete "
        "copy existed, and `cluster.unclean` is balanced)",
        "reason",
    ),
    _counter(
        "handovers",
        "Planned handovers of a stream's leadership by this node, by `result`: ok, or failed "
        "(the leadership stayed at this node, or an election followed)",
        "result",
    ),
    *_per(
        ("node",),
        _gauge(
            "peer_clock_ahead_seconds",
            "Time by which the clock of another node is ahead of this node's clock; negative if "
            "it is behind",
        ),
        _gauge(
            "peer_clock_error_seconds",
            "Error of `liftlog_peer_clock_ahead_seconds`: half of the shortest round trip of a "
            "ping",
        ),
    ),
    _gauge("session_valid", "1 while this node's session in the metadata store is valid"),
    _gauge("metadata_age_seconds", "Time since the metadata store renewed this node's session"),
    _counter(
        "metadata_cas",
        "Attempts to change a value in the metadata store, by `result`: stored, lost (another "
        "node changed it first), unknown (no answer), unavailable",
        "result",
    ),
)

SECTIONS: tuple[tuple[str, tuple[Metric, ...]], ...] = (
    ("Streams", STREAMS),
    ("Erased records", ERASED),
    ("Compaction, re-batching, scrubbing", CLEANING),
    ("Replication", REPLICATION),
    ("Consumers", CONSUMERS),
    ("Consumer groups", GROUPS),
    ("Consumers with acks", (*ACK_CONSUMERS, *JOURNAL)),
    ("Pull socket", PULL),
    ("NATS", NATS),
    ("JetStream's API", JETSTREAM_API),
    ("HTTP port", HTTP),
    ("Access", ACCESS),
    ("Daemon", DAEMON),
    ("Process", PROCESS),
)
METRICS: dict[str, Metric] = {metric.name: metric for _, section in SECTIONS for metric in section}
