"""Retention of a stream as the daemon asks for it: from settings and a real log to a decision."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.disks.logs import BASE_NS, DIRECTORY, SMALL, FakeClock, encode, environment
from support.disks.simfs import Fault, SimFileSystem
from support.worlds.rewriting import add, compact_once, keyed, row, stored

from compaction.retention import RetentionDecision
from liftlog.errors import InvalidArgument, OffsetOutOfRange, StorageError
from liftlog.log import Log, OsFileSystem
from liftlog.log.rewrite import CompactJob, apply_compaction, compact
from liftlog.log.segment.index import SparseIndex
from liftlog.server.cleaning.compaction import plan_pass
from liftlog.server.streams.retention import (
    decide_retention,
    grant_lease,
    remove_decided,
    removes_too_much,
)
from liftlog.settings import StreamSettings, parse_stream_settings

HOUR_NS = 3600 * 1_000_000_000


def settings(**changes: Any) -> StreamSettings:
    return parse_stream_settings({"subject": "in", **changes})


def append(log: Log, count: int) -> None:
    log.append([encode(log, [b"x" * 100] * count)])
    log.sync()
    log.commit_up_to(log.log_end_offset)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log.create(tmp_path / "s", environment(OsFileSystem(), FakeClock()), SMALL)
    yield made
    made.close()
    made.environment.pool.close()


@pytest.mark.parametrize("window", ["2m", "0s"])
def test_files_older_than_the_dedupe_window_are_deleted(log: Log, window: str) -> None:
    for _ in range(5):
        append(log, 10)
    limits = settings(retention={"max_messages": 5}, dedupe_window=window)
    clock = log.environment.clock
    assert isinstance(clock, FakeClock)
    clock.now += HOUR_NS
    decision = decide_retention(log, limits, BASE_NS + HOUR_NS)
    assert decision is not None
    assert (decision.log_start_offset, decision.delete_segments) == (46, 4)
    before = log.view.size_bytes
    freed = log.structure.remove_before(decision.log_start_offset, decision.delete_segments)
    assert log.view.size_bytes == before - freed
    assert len(list(log.directory.glob("*.log"))) == 1


def test_files_inside_the_dedupe_window_stay_for_its_ids(log: Log) -> None:
    for _ in range(5):
        append(log, 10)
    limits = settings(retention={"max_messages": 5}, dedupe_window="2h")
    decision = decide_retention(log, limits, BASE_NS + HOUR_NS)
    assert decision is not None
    assert (decision.log_start_offset, decision.delete_segments) == (46, 0)


def test_a_decision_in_the_middle_of_an_append_keeps_what_is_committed(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer's thread appends while the loop decides."""
    append(log, 3)
    limits = settings(retention={"max_messages": 3})
    seen: list[RetentionDecision | None] = []
    original = SparseIndex.maybe_add

    def watched(index: SparseIndex, *arguments: Any) -> None:
        seen.append(decide_retention(log, limits, BASE_NS))
        original(index, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(SparseIndex, "maybe_add", watched)
        end = log.log_end_offset
        log.append([encode(log, [b"y"], first=end + i) for i in range(4)])
    assert seen == [None] * 4


# --- exact counts across holes ---


def with_holes(fs: SimFileSystem) -> Log:
    """Two sealed segments, compacted, and an active one: 57 records of 250 offsets."""
    log = keyed(fs)
    for _ in range(2):
        add(log, [[row(b"k%d" % (i % 50), b"v%d" % i)] for i in range(100)])
        log.writer.roll()
    add(log, [[row(None, b"new %d" % i) for i in range(7)]])
    assert compact_once(log, fs, max_bytes=1) is not None
    add(log, [[row(b"k%d" % i, b"active") for i in range(50)]])
    return log


@pytest.mark.parametrize("count", [1, 49, 50, 57, 58, 80, 106, 107, 1000])
def test_max_messages_is_exact_after_compaction(count: int) -> None:
    fs = SimFileSystem()
    log = with_holes(fs)
    before = sorted(stored(log))
    assert len(before) == 107
    decision = decide_retention(log, settings(retention={"max_messages": count}), BASE_NS)
    if decision is not None:
        remove_decided(log, decision, BASE_NS)
    assert sorted(stored(log)) == before[-count:]
    assert decide_retention(log, settings(retention={"max_messages": count}), BASE_NS) is None


def test_what_cannot_be_counted_is_kept() -> None:
    fs = SimFileSystem()
    log = with_holes(fs)
    before = sorted(stored(log))
    log.environment.pool.forget_directory(DIRECTORY)
    fs.faults = [Fault("pread", errno.EIO, path=log.segments[1].path.name)]
    decision = decide_retention(log, settings(retention={"max_messages": 80}), BASE_NS)
    assert fs.faults[0].times == 0
    if decision is not None:
        remove_decided(log, decision, BASE_NS)
    assert set(before[-80:]) <= set(stored(log))


# --- leases ---

KEEP_5: dict[str, Any] = {"retention": {"max_messages": 5}, "dedupe_window": "0s"}
MINUTE_NS = 60 * 1_000_000_000


def test_a_lease_holds_log_start_and_files(log: Log) -> None:
    for _ in range(5):
        append(log, 10)
    limits = settings(**KEEP_5)
    lease = grant_lease(log, 14, duration_ns=MINUTE_NS, now_ns=BASE_NS)
    assert (lease.low, lease.high) == (14, 51)
    decision = decide_retention(log, limits, BASE_NS)
    assert decision is not None
    assert (decision.log_start_offset, decision.delete_segments) == (14, 1)
    remove_decided(log, decision, BASE_NS)
    assert decide_retention(log, limits, BASE_NS) is None
    # Its reader gets on, and then it ends.
    log.leases.renew(lease.lease_id, duration_ns=MINUTE_NS, now_ns=BASE_NS, low=33)
    decision = decide_retention(log, limits, BASE_NS)
    assert decision is not None
    assert (decision.log_start_offset, decision.delete_segments) == (33, 2)
    decision = decide_retention(log, limits, BASE_NS + MINUTE_NS)
    assert decision is not None
    assert (decision.log_start_offset, decision.delete_segments) == (46, 3)


def test_a_lease_granted_after_the_decision_still_holds(log: Log) -> None:
    for _ in range(5):
        append(log, 10)
    decision = decide_retention(log, settings(**KEEP_5), BASE_NS)
    assert decision is not None
    grant_lease(log, 25, duration_ns=MINUTE_NS, now_ns=BASE_NS)
    remove_decided(log, decision, BASE_NS)
    assert log.log_start_offset == 25
    assert log.segments[0].base_offset == 21
    with pytest.raises(OffsetOutOfRange) as refused:
        grant_lease(log, 24, duration_ns=MINUTE_NS, now_ns=BASE_NS)
    assert refused.value.details == {"log_start_offset": 25, "log_end_offset": 51}
    with pytest.raises(OffsetOutOfRange):
        grant_lease(log, 52, duration_ns=MINUTE_NS, now_ns=BASE_NS)
    grant_lease(log, 51, duration_ns=MINUTE_NS, now_ns=BASE_NS)
    with pytest.raises(InvalidArgument):
        grant_lease(log, 51, duration_ns=0, now_ns=BASE_NS)


def test_leases_that_were_not_read_hold_up_retention_and_compaction() -> None:
    fs = SimFileSystem()
    log = with_holes(fs)
    grant_lease(log, 1, duration_ns=MINUTE_NS, now_ns=BASE_NS)
    log.leases._known = None  # as after a restart
    limits = settings(**KEEP_5, compaction={"min_dirty_ratio": 0})
    fs.faults = [Fault("pread", errno.ENOMEM, path="leases", times=2)]
    with pytest.raises(StorageError):
        decide_retention(log, limits, BASE_NS)
    assert not removes_too_much(log, limits, BASE_NS)
    assert plan_pass(log, log.segments, limits, BASE_NS, on_demand=True) is None
    assert fs.faults[0].times == 0
    assert decide_retention(log, limits, BASE_NS) is None, "now they can be read, and hold"


def test_compaction_looks_no_further_than_a_lease() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    limits = settings(dedupe_window="0s", compaction={"min_dirty_ratio": 0})
    add(log, [[row(b"k", b"1"), row(b"k", b"2")]])
    log.writer.roll()
    lease = grant_lease(log, 1, duration_ns=MINUTE_NS, now_ns=BASE_NS)
    add(log, [[row(b"k", b"3")]])
    log.writer.roll()
    plan = plan_pass(log, log.segments, limits, BASE_NS)
    assert plan is not None
    assert (plan.sources, plan.dirty_end) == (1, lease.high)
    plan = plan_pass(log, log.segments, limits, BASE_NS + MINUTE_NS)
    assert plan is not None
    assert (plan.sources, plan.dirty_end) == (2, 4)


def test_tombstones_of_replicas_stay_from_the_bound_that_the_leader_tells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept_from: list[int | None] = []

    def plan(*arguments: Any, keep_tombstones_from: int | None, **more: Any) -> None:
        kept_from.append(keep_tombstones_from)

    monkeypatch.setattr("liftlog.server.cleaning.compaction.plan_compaction", plan)
    fs = SimFileSystem()
    log = keyed(fs)
    limits = settings(dedupe_window="0s", replicas=3, compaction={})
    add(log, [[row(b"k", b"1")], [row(b"k", None)]])
    log.writer.roll()
    end = log.log_end_offset
    for bound in (0, end - 1, end):
        log.leases.set_tombstone_bound(bound)
        plan_pass(log, log.segments, limits, BASE_NS)
    grant_lease(log, 1, duration_ns=MINUTE_NS, now_ns=BASE_NS)
    plan_pass(log, log.segments, limits, BASE_NS)
    assert kept_from == [0, end - 1, end, 1]


def reopened(log: Log) -> None:
    """As after a restart: ages come from stamps again."""
    for segment in log.segments:
        segment.is_timed, segment.held_since_ns = False, log.environment.clock.monotonic_ns()


@pytest.mark.parametrize("wrong_seconds", [50 * 60, -7200])
def test_while_the_clock_is_in_doubt_no_lease_counts_as_ended(log: Log, wrong_seconds: int) -> None:
    for _ in range(5):
        append(log, 10)
    grant_lease(log, 1, duration_ns=1800 * 10**9, now_ns=BASE_NS)
    limits = settings(retention={"max_messages": 5}, dedupe_window="0s")
    wrong_ns = BASE_NS + wrong_seconds * 10**9
    assert decide_retention(log, limits, wrong_ns, by_time=False) is None
    assert log.log_start_offset == 1


def test_while_the_clock_is_in_doubt_files_with_message_ids_stay_for_a_window(log: Log) -> None:
    for _ in range(5):
        append(log, 10)
    reopened(log)
    limits = settings(retention={"max_messages": 5}, dedupe_window="2m")
    decision = decide_retention(log, limits, BASE_NS + 3000 * 10**9, by_time=False)
    assert decision is not None
    assert decision.delete_segments == 0
    clock = log.environment.clock
    assert isinstance(clock, FakeClock)
    clock.now += 121 * 10**9
    decision = decide_retention(log, limits, BASE_NS + 3000 * 10**9, by_time=False)
    assert decision is not None
    assert decision.delete_segments == 4


def test_a_clock_that_was_behind_during_a_pass_removes_no_tombstone_early() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    for value in (row(b"k", b"1"), row(b"k", None), row(b"z", b"1")):
        add(log, [[value]])
        log.writer.roll()
    compaction = {"tombstone_retention": "24h", "min_dirty_ratio": 0.01}
    limits = settings(compaction=compaction, dedupe_window="0s")
    plan = plan_pass(log, log.segments, limits, BASE_NS - 40 * 86_400 * 10**9)
    assert plan is not None
    job = CompactJob(
        str(log.directory),
        plan,
        tuple(segment.entry() for segment in log.segments[: plan.sources]),
        log_start_offset=log.log_start_offset,
        memory_bytes=1 << 20,
        compression="none",
        epochs=log.view.manifest.epochs,
        incarnation=log.incarnation,
    )
    apply_compaction(log, compact(job, fs))
    again = plan_pass(log, log.segments, limits, BASE_NS + 60 * 10**9)
    assert again is None or not any(again.drop_tombstones)
