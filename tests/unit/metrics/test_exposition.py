"""A scrape of many streams and consumers is bounded, and lets everything else go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.daemons.local_broker import Running
from support.daemons.local_checkpoints import LocalOffsets

from liftlog.errors import ShuttingDown
from liftlog.groups.assignment import joined, settled
from liftlog.groups.state import Member, encode_key, encode_value, new_group
from liftlog.server.access.audit import Audit
from liftlog.server.access.gate import Gate
from liftlog.server.checkpoints.checkpoint import Stored
from liftlog.server.checkpoints.service import Checkpoints
from liftlog.server.checkpoints.table import CheckpointTable
from liftlog.server.cleaning.state import StreamCleaning
from liftlog.server.http.guard import ConnectionGuard
from liftlog.server.http.server import HttpCounters
from liftlog.server.ingest.nats_link import NatsLink
from liftlog.server.life.health import Health, Phase
from liftlog.server.life.reloading import Reloads
from liftlog.server.metrics.exposition import (
    MAX_SHOWN_CHECKPOINTS,
    MAX_SHOWN_GROUPS,
    MAX_SHOWN_PARTS,
    Exposition,
)
from liftlog.server.metrics.table import METRICS
from liftlog.server.metrics.values import Sources
from liftlog.server.pull.services import PullCounters
from liftlog.server.vitals import slices
from liftlog.server.vitals.delays import LoopWatch, SyncTimes
from liftlog.server.vitals.disk import DiskProbe
from liftlog.server.web.sessions import Sessions
from liftlog.settings import NatsSettings

STREAMS = 500


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    made = Running(tmp_path)
    await made.start()
    await made.broker.create_stream("stream", {"subject": "in"})
    await made.publish("stream", b"1", b"2")
    yield made
    await made.broker.close()


def exposition_of(running: Running) -> Exposition:
    broker = running.broker
    intake = broker.intake
    link = NatsLink(
        NatsSettings(),
        [],
        "parser",
        on_chunk_end=intake.chunk_ended,
        wait_until_ready_to_read=intake.wait_until_ready_to_read,
        reading_is_held=intake.reading_is_held,
    )
    services = SimpleNamespace(
        counters=PullCounters(),
        memory=SimpleNamespace(used_bytes=0),
        read_share=SimpleNamespace(held_back_seconds=0.0),
        gate=Gate(None),
        audit=Audit(),
    )
    pull: Any = SimpleNamespace(services=services, connection_count=0)
    cleaning = StreamCleaning()
    disk = DiskProbe(running.data_dir.path)
    reloads = Reloads()
    health = Health(broker, link, disk, reloads, lambda: 0.0)
    health.phase = Phase.SERVING
    cleaner: Any = SimpleNamespace(state_of=lambda host: cleaning, is_at_idle_rate=False)
    watch = LoopWatch()
    return Exposition(
        Sources(
            broker,
            link,
            pull,
            cleaner,
            health,
            disk,
            reloads,
            watch,
            SyncTimes(),
            ConnectionGuard(),
            HttpCounters(),
            Sessions(),
        )
    )


async def test_the_loop_turns_during_a_scrape(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "_SLICE_SECONDS", -1.0)
    host = running.broker.hosts["stream"]
    running.broker.hosts |= {f"stream-{number}": host for number in range(STREAMS)}
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.get_running_loop().create_task(count())
    page = await exposition_of(running).render()
    counting.cancel()
    for number in range(STREAMS):
        del running.broker.hosts[f"stream-{number}"]
    per_stream = [metric for metric in METRICS.values() if metric.labels == ("stream",)]
    # No more than 64 streams of one metric at a time.
    assert turns > (len(per_stream) - 2) * (STREAMS // 64)
    assert page.count(b'stream="stream-499"') > len(per_stream)


async def test_a_stream_that_is_deleted_meanwhile(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, gone = asyncio.Event(), asyncio.Event()

    async def pause(self: slices.Slices) -> None:
        under_way.set()
        await gone.wait()

    monkeypatch.setattr(slices.Slices, "pause", pause)
    rendering = asyncio.get_running_loop().create_task(exposition_of(running).render())
    await under_way.wait()
    await running.broker.create_stream("other", {"subject": "other"})
    await running.broker.delete_stream("stream")
    gone.set()
    page = (await rendering).decode()
    assert len(list(text_string_to_metric_families(page))) == len(METRICS)
    assert 'liftlog_log_start_offset{stream="stream"} 1\n' in page
    assert 'liftlog_records_total{stream="stream"} 2\n' in page
    assert 'stream="other"' not in page


async def test_no_more_consumers_than_the_bound(running: Running) -> None:
    log = running.broker.hosts["stream"].log
    stored = Stored(2, log.leader_epoch, log.incarnation, 1_500_000_000, "")
    count = MAX_SHOWN_CHECKPOINTS + 7
    running.broker.serve_checkpoints(
        Checkpoints(
            running.broker.stream,
            LocalOffsets(),
            CheckpointTable({(f"c-{number:05}", "stream"): stored for number in range(count)}),
            subject_prefix="x",
            max_count=count,
            now_ns=lambda: 0,
        )
    )
    page = (await exposition_of(running).render()).decode()
    assert page.count("liftlog_consumer_lag{") == MAX_SHOWN_CHECKPOINTS
    assert 'liftlog_consumer_lag{consumer="c-00000",stream="stream"} 1\n' in page
    assert 'liftlog_consumer_checkpoint_timestamp_seconds{consumer="c-09999"' in page
    assert f"liftlog_checkpoints {count}\n" in page
    assert "liftlog_checkpoints_not_shown 7\n" in page


async def test_no_more_groups_members_and_slots_than_the_bounds(running: Running) -> None:
    names = [f"unnamed-{number}" for number in range(30)]
    state = joined(new_group(64, 1), "w1", Member(0, 10_000))
    for name in names:
        state = joined(state, name, Member(0, 10_000))
    state = settled(state, None)
    table = CheckpointTable()
    table.groups = {
        encode_key((f"g-{number:04}", "stream")): encode_value(state)
        for number in range(MAX_SHOWN_GROUPS + 7)
    }
    checkpoints = Checkpoints(
        running.broker.stream,
        LocalOffsets(),
        table,
        subject_prefix="x",
        max_count=10,
        now_ns=lambda: 0,
    )
    running.broker.serve_checkpoints(checkpoints)
    page = (await exposition_of(running).render()).decode()
    checkpoints.groups.close(ShuttingDown("the test ends"))
    assert page.count("liftlog_group_members{") == MAX_SHOWN_GROUPS
    assert 'liftlog_group_lag{group="g-0999",stream="stream"} 2\n' in page
    shown = MAX_SHOWN_PARTS // (64 + 31)
    assert page.count("liftlog_group_slot_lag{") == shown * 64
    # Random names are no labels.
    assert page.count("liftlog_group_member_slots{") == shown * 2
    own = state.owners.count("w1")
    labels = 'group="g-0000",stream="stream",member='
    assert f'liftlog_group_member_slots{{{labels}"w1"}} {own}\n' in page
    assert f'liftlog_group_member_slots{{{labels}"unnamed"}} {64 - own}\n' in page
    assert "liftlog_groups_not_shown 7\n" in page
    assert f"liftlog_groups {MAX_SHOWN_GROUPS + 7}\n" in page


async def test_without_checkpoints(running: Running) -> None:
    page = (await exposition_of(running).render()).decode()
    assert "liftlog_checkpoints 0\n" in page
    assert "liftlog_checkpoints_not_shown 0\n" in page
    assert "liftlog_consumer_lag{" not in page


async def test_a_failed_commit_is_counted(running: Running) -> None:
    host = running.broker.hosts["stream"]
    host.fail("on purpose")
    page = (await exposition_of(running).render()).decode()
    assert 'liftlog_failed{stream="stream"} 1\n' in page
    assert 'liftlog_commit_failures_total{stream="stream"} 1\n' in page
    assert "liftlog_ready 0\n" in page  # without NATS
    assert cast("Any", host).observed.ack_seconds.count == 2
