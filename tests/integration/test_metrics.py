"""`/metrics` of a real daemon, read by the parser of Prometheus' own client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric as Family
from prometheus_client.parser import text_string_to_metric_families
from support.clients.ingesting import assert_no_traceback, publish, until
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.client import SyncClient, connect_sync
from liftlog.errors import OffsetOutOfRange
from liftlog.server.metrics.table import ACK_CONSUMERS, GROUPS, METRICS, REPLICATION

pytestmark = pytest.mark.integration

RECORDS = 30


@pytest.fixture(scope="module")
def daemon(server: NatsServer) -> Iterator[Daemon]:
    settings = {
        "streams": {
            "orders": {"subject": "orders.>"},
            "quiet": {"subject": "quiet.>", "paused": True},
            "own": {"subject": "own.>", "acks": "off"},
        }
    }
    with Daemon(server.url, settings) as daemon, RawNats(server.port) as raw:
        for _ in range(RECORDS):
            publish(raw, "orders.a", b"x")
        raw.request("quiet.a", b"refused")
        yield daemon
        assert_no_traceback(daemon)


@pytest.fixture
def client(daemon: Daemon) -> Iterator[SyncClient]:
    with connect_sync(daemon.pull_address) as client:
        yield client


def families(daemon: Daemon) -> dict[str, Family]:
    status, page = daemon.get("/metrics")
    assert status == 200
    return {family.name: family for family in text_string_to_metric_families(page)}


def samples(daemon: Daemon, name: str) -> dict[tuple[str, ...], float]:
    """By label values, in the order of the labels' names."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in families(daemon).values()
        for sample in family.samples
        if sample.name == name
    }


def test_what_is_exported_is_what_the_table_says(daemon: Daemon) -> None:
    found = families(daemon)
    named = {name.removesuffix("_total"): metric for name, metric in METRICS.items()}
    assert set(found) == set(named)
    for name, family in found.items():
        metric = named[name]
        assert family.type == metric.kind, name
        assert family.documentation == metric.help, name
        for sample in family.samples:
            assert sample.name in metric.sample_names, sample
            labels = {*metric.labels, "le"} if sample.name.endswith("_bucket") else metric.labels
            assert set(sample.labels) == set(labels), sample


def test_nearly_everything_has_a_value_from_the_start(daemon: Daemon) -> None:
    """An alert on what is not there yet would never come."""
    without = {name for name, family in families(daemon).items() if not family.samples}
    assert without <= {
        *(name for name in METRICS if name.startswith("liftlog_consumer_")),
        *(one.name.removesuffix("_total") for one in ACK_CONSUMERS if one.labels),
        *(one.name for one in GROUPS if "group" in one.labels),
        "liftlog_checkpoint_refusals",
        "liftlog_pull_refusals",
        # without nats.jetstream_api
        "liftlog_jetstream_api_requests",
        "liftlog_jetstream_api_seconds",
        # of a node of a cluster
        *(one.name.removesuffix("_total") for one in REPLICATION),
    }


def test_histograms_are_whole(daemon: Daemon) -> None:
    checked = 0
    for family in families(daemon).values():
        if family.type != "histogram":
            continue
        series: dict[tuple[str, ...], list[tuple[float, float]]] = {}
        for sample in family.samples:
            if sample.name.endswith("_bucket"):
                labels = tuple(v for k, v in sorted(sample.labels.items()) if k != "le")
                series.setdefault(labels, []).append((float(sample.labels["le"]), sample.value))
        for labels, buckets in series.items():
            assert [bound for bound, _ in buckets] == [
                *METRICS[family.name].bounds,
                float("inf"),
            ]
            counts = [count for _, count in buckets]
            assert counts == sorted(counts)
            of_series = {
                s.name: s.value
                for s in family.samples
                if tuple(v for _, v in sorted(s.labels.items())) == labels
            }
            assert of_series[f"{family.name}_count"] == counts[-1]
            total = of_series[f"{family.name}_sum"]
            if counts[-1] == 0:
                assert total == 0
            elif "lag" in family.name:  # the loop may have been exactly on time
                assert total >= 0
            else:
                assert total > 0
            checked += 1
    assert checked >= 2 + 2 * 4  # two of the daemon, two of each stream


def test_acks_commits_and_syncs_are_counted(daemon: Daemon) -> None:
    assert samples(daemon, "liftlog_ack_seconds_count")["orders",] == RECORDS
    assert samples(daemon, "liftlog_commit_group_records_sum")["orders",] == RECORDS
    assert samples(daemon, "liftlog_commit_group_records_count")["orders",] == RECORDS
    assert samples(daemon, "liftlog_fsync_total")["orders",] == RECORDS
    assert samples(daemon, "liftlog_fsync_seconds_count")[()] == sum(
        samples(daemon, "liftlog_fsync_total").values()
    )
    synced = samples(daemon, "liftlog_fsync_seconds_sum")[()]
    assert 0 < synced <= samples(daemon, "liftlog_ack_seconds_sum")["orders",] + 1


def test_refusals_by_reason(daemon: Daemon) -> None:
    found = samples(daemon, "liftlog_refused_total")
    assert found["paused", "quiet"] == 1
    assert found["disk_full", "orders"] == 0


def test_the_system_s_own_stream_does_not_look_detached(daemon: Daemon) -> None:
    attached = samples(daemon, "liftlog_stream_attached")
    assert attached == {("orders",): 1, ("quiet",): 1, ("own",): 1, ("_offsets",): 1}


def test_a_consumer_s_lag_follows_its_checkpoint(daemon: Daemon, client: SyncClient) -> None:
    client.commit_checkpoint("billing", "orders", 11)
    assert samples(daemon, "liftlog_consumer_lag")["billing", "orders"] == RECORDS + 1 - 11
    assert samples(daemon, "liftlog_consumer_checkpoint_offset")["billing", "orders"] == 11
    stamp = samples(daemon, "liftlog_consumer_checkpoint_timestamp_seconds")["billing", "orders"]
    started = samples(daemon, "process_start_time_seconds")[()]
    assert started <= stamp < started + 3600
    assert samples(daemon, "liftlog_checkpoints")[()] == 1
    with pytest.raises(OffsetOutOfRange):
        client.commit_checkpoint("billing", "orders", 10_000)
    refused = samples(daemon, "liftlog_checkpoint_refusals_total")
    assert refused == {("OFFSET_OUT_OF_RANGE",): 1}


def test_a_checkpoint_that_fits_no_longer_has_no_lag(daemon: Daemon, client: SyncClient) -> None:
    client.create_stream("short", subject="short.>")
    client.commit_checkpoint("reader", "short", 1)
    client.delete_stream("short")
    until(lambda: ("reader", "short") not in samples(daemon, "liftlog_consumer_lag"))
    unreadable = samples(daemon, "liftlog_consumer_checkpoint_unreadable")
    assert unreadable["reader", "short"] == 1
    client.delete_checkpoint("reader", "short")
    assert ("reader", "short") not in samples(daemon, "liftlog_consumer_checkpoint_unreadable")


def test_members_and_slots_of_a_group(daemon: Daemon, client: SyncClient) -> None:
    before = {
        name: samples(daemon, f"liftlog_group_{name}_total")[()]
        for name in ("rebalances", "commits", "members_expired")
    }
    of_orders = ("shipping", "orders")
    options: dict[str, Any] = {"member": "w1", "slots": 4, "commit_every": 1, "session": 600}
    with client.group("shipping", "orders", **options) as records:
        for _ in range(RECORDS):
            next(records)
        assert samples(daemon, "liftlog_group_members")[of_orders] == 1
        assert samples(daemon, "liftlog_group_free_slots")[of_orders] == 0
        assert samples(daemon, "liftlog_group_lag")[of_orders] == 1  # the one in hand
        records.commit()
        # By group, member or slot, stream.
        assert samples(daemon, "liftlog_group_member_slots") == {("shipping", "w1", "orders"): 4}
        assert samples(daemon, "liftlog_group_member_lag") == {("shipping", "w1", "orders"): 0}
        assert samples(daemon, "liftlog_group_slot_lag") == {
            ("shipping", str(slot), "orders"): 0 for slot in range(4)
        }
        with (
            connect_sync(daemon.pull_address) as other,
            other.group("shipping", "orders", session=600),
        ):
            shown = samples(daemon, "liftlog_group_member_slots")
            assert shown.keys() == {("shipping", one, "orders") for one in ("unnamed", "w1")}
        records.leave()
    assert samples(daemon, "liftlog_group_members")[of_orders] == 0
    assert samples(daemon, "liftlog_group_free_slots")[of_orders] == 4
    assert samples(daemon, "liftlog_group_generation")[of_orders] >= 4
    after = {name: samples(daemon, f"liftlog_group_{name}_total")[()] for name in before}
    assert after["rebalances"] - before["rebalances"] >= 4
    assert after["commits"] - before["commits"] >= RECORDS
    assert after["members_expired"] == before["members_expired"]
    assert samples(daemon, "liftlog_groups")[()] == 1
    client.remove_group("shipping", "orders")
    assert samples(daemon, "liftlog_group_lag") == {}


def test_file_descriptors_and_connections(daemon: Daemon) -> None:
    until(lambda: samples(daemon, "liftlog_pull_connections")[()] == 0)
    before = samples(daemon, "process_open_fds")[()]
    with connect_sync(daemon.pull_address) as one, connect_sync(daemon.pull_address) as two:
        one.ping()
        two.ping()
        # Other parts of the daemon open files at any time, and the scrape itself has some open.
        until(lambda: samples(daemon, "process_open_fds")[()] >= before + 2)
        found = samples(daemon, "process_open_fds")[()]
        assert abs(found - len(list(Path(f"/proc/{daemon.pid}/fd").iterdir()))) < 10
        assert samples(daemon, "liftlog_pull_connections")[()] == 2
    assert samples(daemon, "process_max_fds")[()] > before


def test_the_event_loop_is_watched_all_the_time(daemon: Daemon) -> None:
    before = samples(daemon, "liftlog_event_loop_lag_seconds_count")[()]
    until(lambda: samples(daemon, "liftlog_event_loop_lag_seconds_count")[()] > before)


async def test_scrapes_at_the_same_time(daemon: Daemon) -> None:
    pages = await asyncio.gather(*(asyncio.to_thread(daemon.get, "/metrics") for _ in range(5)))
    for status, page in pages:
        assert status == 200
        assert page.count("# TYPE") == len(METRICS)
