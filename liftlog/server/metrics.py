"""Prometheus metrics, read from the daemon's counters when they are scraped.

The hot path only counts in plain integers; names, types and help texts stand in one table here.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from liftlog.server.broker import Broker
from liftlog.server.cleaning.cleaner import Cleaner
from liftlog.server.cleaning.state import StreamCleaning
from liftlog.server.ingest.nats_link import NatsLink
from liftlog.server.pull import PullServer
from liftlog.server.stream_host import StreamHost


@dataclass(frozen=True, slots=True)
class StreamMetric:
    name: str
    kind: str
    help: str
    value: Callable[[StreamHost], float]


@dataclass(frozen=True, slots=True)
class CleaningMetric:
    name: str
    kind: str
    help: str
    value: Callable[[StreamCleaning], float]


STREAM_METRICS = (
    StreamMetric(
        "liftlog_log_start_offset",
        "gauge",
        "First offset that can be read",
        lambda host: host.log.log_start_offset,
    ),
    StreamMetric(
        "liftlog_high_watermark",
        "gauge",
        "Everything below is committed",
        lambda host: host.log.high_watermark,
    ),
    StreamMetric(
        "liftlog_log_end_offset",
        "gauge",
        "Next offset to assign",
        lambda host: host.log.log_end_offset,
    ),
    StreamMetric(
        "liftlog_log_size_bytes",
        "gauge",
        "Bytes of all segments",
        lambda host: host.log.size_bytes,
    ),
    StreamMetric(
        "liftlog_segments",
        "gauge",
        "Number of segments",
        lambda host: host.log.segment_count,
    ),
    StreamMetric(
        "liftlog_pending_bytes",
        "gauge",
        "Received but not yet committed",
        lambda host: host.sequencer.pending_bytes,
    ),
    StreamMetric("liftlog_records", "counter", "Records committed", lambda host: host.records),
    StreamMetric("liftlog_commits", "counter", "Commit groups", lambda host: host.commits),
    StreamMetric(
        "liftlog_inline_commits",
        "counter",
        "Commit groups that ran inside the event loop",
        lambda host: host.inline_commits,
    ),
    StreamMetric(
        "liftlog_fsync",
        "counter",
        "fdatasync calls on segment files",
        lambda host: host.log.fsync_count,
    ),
    StreamMetric(
        "liftlog_received_bytes",
        "counter",
        "Payload and header bytes received from NATS",
        lambda host: host.received_bytes,
    ),
    StreamMetric(
        "liftlog_duplicates",
        "counter",
        "Messages that were duplicates by Nats-Msg-Id",
        lambda host: host.sequencer.duplicates,
    ),
    StreamMetric(
        "liftlog_dedupe_ids",
        "gauge",
        "Message ids remembered",
        lambda host: len(host.sequencer.dedupe),
    ),
    StreamMetric(
        "liftlog_dedupe_evicted_early",
        "counter",
        "Message ids forgotten before their window ended",
        lambda host: host.sequencer.dedupe.evicted_early,
    ),
    StreamMetric(
        "liftlog_acks_suppressed",
        "counter",
        "Acks not sent because their subject is not allowed",
        lambda host: host.sequencer.acks_suppressed,
    ),
    StreamMetric(
        "liftlog_quarantined_ranges",
        "gauge",
        "Damaged offset ranges",
        lambda host: sum(1 for bad in host.log.quarantined if bad.is_loss),
    ),
    StreamMetric(
        "liftlog_cleaned_below",
        "gauge",
        "Compaction has looked at everything below this offset",
        lambda host: host.log.cleaned_below,
    ),
    StreamMetric(
        "liftlog_failed",
        "gauge",
        "1 when the stream's storage failed",
        lambda host: 1.0 if host.failure else 0.0,
    ),
)

CLEANING_METRICS = (
    CleaningMetric(
        "liftlog_compaction_dirty_ratio",
        "gauge",
        "Part of the sealed bytes that was never compacted, when last looked at",
        lambda state: state.backlog.dirty_ratio,
    ),
    CleaningMetric(
        "liftlog_compaction_running",
        "gauge",
        "1 while a pass is under way",
        lambda state: 1.0 if state.running == "compact" else 0.0,
    ),
    CleaningMetric(
        "liftlog_compaction_progress_ratio",
        "gauge",
        "How much of the present phase of a pass is done",
        lambda state: state.progress_ratio,
    ),
    CleaningMetric(
        "liftlog_compaction_passes", "counter", "Compaction passes", lambda state: state.passes
    ),
    CleaningMetric(
        "liftlog_compaction_records_removed",
        "counter",
        "Records that compaction removed",
        lambda state: state.records_removed,
    ),
    CleaningMetric(
        "liftlog_compaction_freed_bytes",
        "counter",
        "Bytes that compaction freed",
        lambda state: state.bytes_freed,
    ),
    CleaningMetric(
        "liftlog_rebatched_segments",
        "counter",
        "Segments rewritten with larger batches",
        lambda state: state.rebatched_segments,
    ),
    CleaningMetric(
        "liftlog_scrubbed_segments",
        "counter",
        "Sealed segments that were verified again",
        lambda state: state.scrubbed_segments,
    ),
    CleaningMetric(
        "liftlog_scrubbed_bytes",
        "counter",
        "Bytes that were verified again",
        lambda state: state.scrubbed_bytes,
    ),
    CleaningMetric(
        "liftlog_cleaning_failures",
        "counter",
        "Jobs of compaction, re-batching or scrubbing that failed",
        lambda state: state.failures,
    ),
)

DAEMON_METRICS = (
    ("liftlog_nats_connected", "gauge", "1 while connected to NATS"),
    ("liftlog_nats_disconnects", "counter", "Connections to NATS that were lost"),
    ("liftlog_nats_protocol_errors", "counter", "Input that nats-py could not parse"),
    ("liftlog_nats_slow_consumer_errors", "counter", "Times NATS called us a slow consumer"),
    ("liftlog_nats_watchdog_reconnects", "counter", "Reconnects because nobody was reading"),
    ("liftlog_acks_dropped", "counter", "Acks that had no connection to leave by"),
    ("liftlog_possible_loss_events", "counter", "Times messages may have passed us by"),
    ("liftlog_streams_failed_to_open", "gauge", "Streams on disk that could not be opened"),
    ("liftlog_pull_connections", "gauge", "Connected consumers"),
    ("liftlog_pull_fetches", "counter", "Fetches answered"),
    ("liftlog_pull_records", "counter", "Records sent to consumers, at most"),
    ("liftlog_pull_body_bytes", "counter", "Bytes of batches sent to consumers"),
    ("liftlog_max_resident_bytes", "gauge", "Largest resident memory so far"),
)
REFUSED = ("liftlog_refused", "counter", "Messages not stored, by reason")


class DaemonCollector(Collector):
    """Reads everything at scrape time, on the event loop."""

    def __init__(self, broker: Broker, link: NatsLink, pull: PullServer, cleaner: Cleaner) -> None:
        self._broker = broker
        self._cleaner = cleaner
        self._link = link
        self._pull = pull

    def collect(self) -> Iterator[Metric]:
        hosts = list(self._broker.hosts.values())
        for metric in STREAM_METRICS:
            family = _family(metric.name, metric.kind, metric.help, ["stream"])
            for host in hosts:
                family.add_metric([host.name], metric.value(host))
            yield family
        for one in CLEANING_METRICS:
            family = _family(one.name, one.kind, one.help, ["stream"])
            for host in hosts:
                family.add_metric([host.name], one.value(self._cleaner.state_of(host)))
            yield family
        refused = _family(*REFUSED, ["stream", "reason"])
        for host in hosts:
            for reason, count in host.sequencer.refused.items():
                refused.add_metric([host.name, reason], count)
        yield refused
        values = self._daemon_values()
        for name, kind, text in DAEMON_METRICS:
            family = _family(name, kind, text, [])
            family.add_metric([], values[name])
            yield family

    def _daemon_values(self) -> dict[str, float]:
        counters = self._link.counters
        return {
            "liftlog_nats_connected": 1.0 if self._link.connected else 0.0,
            "liftlog_nats_disconnects": counters.disconnects,
            "liftlog_nats_protocol_errors": counters.protocol_errors,
            "liftlog_nats_slow_consumer_errors": counters.slow_consumer_errors,
            "liftlog_nats_watchdog_reconnects": counters.watchdog_reconnects,
            "liftlog_acks_dropped": counters.acks_dropped,
            "liftlog_possible_loss_events": self._broker.possible_loss_events,
            "liftlog_streams_failed_to_open": len(self._broker.broken),
            "liftlog_pull_connections": self._pull.connection_count,
            "liftlog_pull_fetches": self._pull.counters.fetches_total,
            "liftlog_pull_records": self._pull.counters.records_total,
            "liftlog_pull_body_bytes": self._pull.counters.body_bytes_total,
            "liftlog_max_resident_bytes": 1024.0
            * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        }


def _family(
    name: str, kind: str, text: str, labels: list[str]
) -> CounterMetricFamily | GaugeMetricFamily:
    family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    return family(name, text, labels=labels)


def make_exposition(
    broker: Broker, link: NatsLink, pull: PullServer, cleaner: Cleaner
) -> Callable[[], bytes]:
    """A function that renders the text format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(DaemonCollector(broker, link, pull, cleaner))
    return lambda: generate_latest(registry)
