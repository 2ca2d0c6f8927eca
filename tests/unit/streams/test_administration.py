"""Streams are cut and held while they run, and the daemon tells what it has."""

from __future__ import annotations

import pytest
from support.daemons.administered import MINUTE_MS, fill, restarted
from support.daemons.local_broker import Running

from liftlog.errors import (
    Conflict,
    InvalidArgument,
    LeaseGone,
    OffsetOutOfRange,
    StaleIncarnation,
)
from liftlog.server.streams.administration import Administration
from liftlog.server.vitals.conditions import Condition

# --- truncate ---


async def test_truncation_moves_the_log_start_and_frees_files(
    running: Running, admin: Administration
) -> None:
    log = await fill(running)
    count, size = log.segment_count, log.view.size_bytes
    info = await admin.truncate_prefix("s", 12, incarnation=log.incarnation)
    assert (info.log_start_offset, info.high_watermark) == (12, 21)
    assert log.segment_count < count
    assert info.size_bytes < size
    with pytest.raises(OffsetOutOfRange):
        log.read(11, 1)
    assert (await admin.truncate_prefix("s", 5)).log_start_offset == 12
    for offset in (22, 2**62):
        with pytest.raises(OffsetOutOfRange) as raised:
            await admin.truncate_prefix("s", offset)
        assert raised.value.details == {"log_start_offset": 12, "log_end_offset": 21}
    with pytest.raises(StaleIncarnation):
        await admin.truncate_prefix("s", 15, incarnation="another")
    again = await restarted(running)
    assert again.broker.hosts["s"].log.log_start_offset == 12
    await again.broker.close()


async def test_truncation_up_to_the_end_leaves_no_bytes(
    running: Running, admin: Administration
) -> None:
    log = await fill(running)
    info = await admin.truncate_prefix("s", 21)
    assert (info.log_start_offset, info.log_end_offset, info.size_bytes) == (21, 21, 0)
    await running.publish("s", b"next")
    assert log.high_watermark == 22


async def test_truncation_leaves_the_files_of_message_ids(
    running: Running, admin: Administration
) -> None:
    log = await fill(running, dedupe_window="10m")
    count = log.segment_count
    await admin.truncate_prefix("s", 12)
    assert (log.log_start_offset, log.segment_count) == (12, count)


async def test_truncation_leaves_files_to_a_pass_that_reads_them(
    running: Running, admin: Administration
) -> None:
    log = await fill(running)
    count = log.segment_count
    running.broker.hosts["s"].rewriting = True
    await admin.truncate_prefix("s", 12)
    assert (log.log_start_offset, log.segment_count) == (12, count)


async def test_truncation_respects_leases(running: Running, admin: Administration) -> None:
    log = await fill(running)
    lease = await admin.leases.acquire("s", 7, ttl_ms=MINUTE_MS, holder="export")
    with pytest.raises(Conflict, match="export") as raised:
        await admin.truncate_prefix("s", 8)
    assert raised.value.details == {"leases": 1, "low": 7}
    await admin.truncate_prefix("s", 7)
    await admin.leases.release("s", lease.lease_id)
    await admin.truncate_prefix("s", 8)
    assert log.log_start_offset == 8


# --- leases ---


async def test_a_lease_from_beginning_to_end(running: Running, admin: Administration) -> None:
    log = await fill(running)
    await admin.truncate_prefix("s", 4)
    lease = await admin.leases.acquire("s", "earliest", ttl_ms=MINUTE_MS, holder="spark")
    assert (lease.low, lease.high, lease.holder) == (4, 21, "spark")
    assert (lease.stream, lease.incarnation) == ("s", log.incarnation)
    assert MINUTE_MS - 5000 < lease.remaining_ms <= MINUTE_MS
    assert [one.lease_id for one in admin.leases.live("s")] == [lease.lease_id]
    running.clock.ahead_ns += 59 * 10**9
    renewed = await admin.leases.renew("s", lease.lease_id, ttl_ms=MINUTE_MS, low=9)
    assert (renewed.low, renewed.high) == (9, 21)
    again = await restarted(running)
    again.clock.ahead_ns = running.clock.ahead_ns
    live = again.broker.administration
    assert [one.low for one in live.leases.live("s")] == [9]
    again.clock.ahead_ns += 60 * 10**9
    assert live.leases.live("s") == []
    with pytest.raises(LeaseGone):
        await live.leases.renew("s", lease.lease_id, ttl_ms=MINUTE_MS)
    await live.leases.release("s", lease.lease_id)
    await again.broker.close()


async def test_leases_that_make_no_sense(running: Running, admin: Administration) -> None:
    await fill(running, count=3)
    for start in (0, 5):
        with pytest.raises(OffsetOutOfRange):
            await admin.leases.acquire("s", start, ttl_ms=MINUTE_MS)
    for start, ttl_ms in (("latest", 1), (1, 0), (1, 3_600_001), (1, 2**63 - 1)):
        with pytest.raises(InvalidArgument):
            await admin.leases.acquire("s", start, ttl_ms=ttl_ms)
    with pytest.raises(StaleIncarnation):
        await admin.leases.acquire("s", 1, ttl_ms=1, incarnation="another")
    assert admin.leases.live("s") == []


async def test_a_renewal_is_judged_when_it_is_its_turn(
    running: Running, admin: Administration
) -> None:
    """Retention that came first saw it expired, and took what it held."""
    await fill(running, retention={"max_messages": 3})
    host, log = running.broker.hosts["s"], running.broker.hosts["s"].log
    lease = await admin.leases.acquire("s", "earliest", ttl_ms=MINUTE_MS)

    def expire_and_remove() -> None:
        running.clock.ahead_ns += 61 * 10**9
        log.structure.remove_before(18, 0)

    removal = host.run_exclusive(expire_and_remove)
    with pytest.raises(LeaseGone):
        await admin.leases.renew("s", lease.lease_id, ttl_ms=MINUTE_MS)
    await removal


# --- questions ---


async def test_streams_for_a_subject(running: Running, admin: Administration) -> None:
    for name, subject in (("a", "orders.>"), ("b", "orders.*"), ("c", "orders.eu"), ("d", "x")):
        await running.broker.create_stream(name, {"subject": subject})

    def names(subject: str) -> list[str]:
        return [info.name for info in admin.streams_for(subject)]

    assert names("orders.eu") == ["a", "b", "c"]
    assert names("orders.eu.1") == ["a"]
    assert names("orders.us") == ["a", "b"]
    assert names("orders") == []
    assert names("*.eu") == ["a", "b", "c"]
    assert names(">") == ["a", "b", "c", "d"]
    for bad in ("", "a..b", "a b", ">.a", "x" * 2000):
        with pytest.raises(InvalidArgument):
            admin.streams_for(bad)


async def test_the_daemon_tells_what_it_is(running: Running) -> None:
    await running.broker.create_stream("a", {"subject": "in"})
    await running.broker.create_stream("b", {"subject": "in"})
    info = running.broker.daemon_info()
    assert (info.name, info.server_id) == ("liftlog", running.broker.server_id)
    assert (info.stream_count, info.nats["connected"]) == (2, False)
    assert running.broker.daemon_info(lambda name: name == "b").stream_count == 1
    running.broker.broken["lost"] = "its manifest is damaged"
    assert (
        running.broker.daemon_info().stream_count == len(await running.broker.list_streams()) == 3
    )
    many = [Condition.of("no_leader", "no node leads it", f"s{number}") for number in range(100)]
    assert len(running.broker.daemon_info(conditions=many).conditions) == 21
    assert {"fetch", "lease", "update"} <= set(info.features)
    assert info.limits["max_in_flight"] == running.broker.settings.pull.max_in_flight
    assert type(info).from_wire(info.to_wire()) == info
