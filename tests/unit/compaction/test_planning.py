"""When a pass is due and what takes part in it."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

import pytest

from compaction import CompactionPlan, CompactionPolicy, plan_compaction
from compaction.planning import MAX_RELATIVE_OFFSET, backlog

NOW = 1_000_000


@dataclass
class Segment:
    base_offset: int
    next_offset: int
    size_bytes: int
    max_timestamp_ns: int
    delete_horizon_ns: int | None = None
    sealed: bool = True


def log(*sizes: int, age: int = 1000) -> list[Segment]:
    """Sealed segments of ten offsets each from 1 on, the oldest `age` x their number old, and an
    active one."""
    segments = [
        Segment(1 + 10 * i, 11 + 10 * i, size, NOW - age * (len(sizes) - i))
        for i, size in enumerate(sizes)
    ]
    end = segments[-1].next_offset if segments else 1
    return [*segments, Segment(end, end + 5, 50, NOW, sealed=False)]


def plan(
    segments: list[Segment],
    policy: CompactionPolicy | None = None,
    *,
    cleaned: int = 1,
    start: int = 1,
    bound: int | None = None,
    max_bytes: int = 100,
    on_demand: bool = False,
    quarantined: Collection[int] = (),
    lease: int | None = None,
    first_stamp_ns: Callable[[int], int] | None = None,
) -> CompactionPlan | None:
    return plan_compaction(
        segments,
        policy or CompactionPolicy(min_dirty_ratio=0.5, tombstone_retention_ns=80),
        cleaned_below=cleaned,
        log_start_offset=start,
        bound_offset=segments[-1].next_offset if bound is None else bound,
        segment_max_bytes=max_bytes,
        now_ns=NOW,
        on_demand=on_demand,
        quarantined=quarantined,
        keep_tombstones_from=lease,
        first_stamp_ns=first_stamp_ns,
    )


def made(plan: CompactionPlan | None) -> CompactionPlan:
    assert plan is not None
    return plan


def test_all_sealed_segments_and_never_the_active_one() -> None:
    found = made(plan(log(100, 100, 100)))
    assert found.sources == 3
    assert (found.dirty_from, found.dirty_end) == (1, 31)
    assert found.groups == ((0, 1), (1, 2), (2, 3))
    assert found.drop_tombstones == (False, False, False)
    assert found.reasons == ("dirty ratio 1.00",)
    assert plan(log()) is None
    assert plan([], bound=1) is None


@pytest.mark.parametrize(("cleaned", "ratio"), [(11, 0.75), (21, 0.5), (31, 0.25), (41, 0.0)])
def test_dirty_ratio_counts_bytes(cleaned: int, ratio: float) -> None:
    segments = log(100, 100, 100, 100)
    found = plan(segments, cleaned=cleaned)
    if ratio >= 0.5:
        assert made(found).backlog.dirty_ratio == ratio
        assert made(found).dirty_from == cleaned
        assert made(found).sources == 4, "clean segments take part: the map is applied to them"
    else:
        assert found is None
    dirt = backlog(
        segments,
        CompactionPolicy(),
        cleaned_below=cleaned,
        log_start_offset=1,
        bound_offset=46,
        now_ns=NOW,
    )
    assert dirt.dirty_ratio == ratio


def test_a_segment_that_was_mapped_in_part_is_dirty() -> None:
    found = made(plan(log(100, 100), cleaned=15))
    assert (found.dirty_from, found.dirty_end) == (15, 21)
    assert found.backlog.dirty_bytes == 100


def test_on_demand_needs_something_to_do() -> None:
    few = CompactionPolicy(min_dirty_ratio=1.0)
    segments = log(100, 100, 100, 100)
    assert plan(segments, few, cleaned=31) is None
    assert made(plan(segments, few, cleaned=31, on_demand=True)).reasons == ("on demand",)
    assert plan(segments, few, cleaned=41, on_demand=True) is None


def test_the_bound_and_young_segments_end_what_takes_part() -> None:
    segments = log(100, 100, 100)  # 3000, 2000 and 1000 old
    assert made(plan(segments, bound=30)).sources == 2
    assert made(plan(segments, bound=31)).sources == 3
    assert plan(segments, bound=10) is None
    assert made(plan(segments, CompactionPolicy(min_lag_ns=1001))).sources == 2
    assert made(plan(segments, CompactionPolicy(min_lag_ns=1000))).sources == 3
    assert made(plan(segments, CompactionPolicy(protect_newer_than_ns=1001))).sources == 2
    assert made(plan(segments, CompactionPolicy(protect_newer_than_ns=1000))).sources == 3
    # min_lag is about what was not compacted yet, the dedupe window about every file.
    lagging = CompactionPolicy(min_lag_ns=2500)
    assert made(plan(segments, lagging, cleaned=1)).sources == 1
    assert plan(segments, lagging, cleaned=21) is None, "only clean segments are old enough"
    # A stamp from the future holds back what follows: order must not change.
    segments[1].max_timestamp_ns = NOW + 1
    assert made(plan(segments, CompactionPolicy(min_lag_ns=1))).sources == 1


def test_max_lag_makes_a_nearly_clean_stream_due() -> None:
    segments = log(100, 100, 100, 100)  # 4000, 3000, 2000 and 1000 old

    def lag(max_lag_ns: int) -> CompactionPolicy:
        return CompactionPolicy(min_dirty_ratio=1.0, max_lag_ns=max_lag_ns)

    stamps = {3: NOW - 1900}  # of the first record of the only dirty segment
    aged = partial(plan, segments, cleaned=31, first_stamp_ns=stamps.__getitem__)
    assert aged(lag(1901)) is None
    assert made(aged(lag(1900))).reasons == ("max_lag: older than 1.9e-06 s",)
    assert plan(segments, lag(1), cleaned=41) is None
    # What lies before it may be as old as it likes, or have been emptied by compaction.
    segments[2].max_timestamp_ns = 0
    assert aged(lag(1901)) is None
    # Where it cannot be read, the newest record says at least how old all are.
    assert plan(segments, lag(1001), cleaned=31) is None
    assert plan(segments, lag(1000), cleaned=31) is not None


def test_tombstones_go_when_their_time_is_over() -> None:
    segments = log(40, 40, 40)
    segments[0].delete_horizon_ns = NOW
    segments[1].delete_horizon_ns = NOW + 1
    found = made(plan(segments, cleaned=31))
    assert found.reasons == ("expired tombstones in 1 segments",)
    assert found.drop_tombstones == (True, False, False)
    assert found.dirty_from == found.dirty_end == 31, "nothing has to be mapped"
    segments[0].delete_horizon_ns = NOW + 1
    assert plan(segments, cleaned=31) is None


def test_a_dirty_segment_keeps_its_tombstones() -> None:
    segments = log(40, 40)
    segments[0].delete_horizon_ns = segments[1].delete_horizon_ns = NOW - 1
    assert made(plan(segments, cleaned=11)).drop_tombstones == (True, False)
    assert made(plan(segments, cleaned=15)).drop_tombstones == (True, False)
    assert made(plan(segments, cleaned=21)).drop_tombstones == (True, True)


def test_quarantined_segments_are_left_alone_and_hold_back_tombstones() -> None:
    segments = log(40, 40, 40, 40)
    for segment in segments[:4]:
        segment.delete_horizon_ns = NOW - 1
    found = made(plan(segments, cleaned=41, quarantined={11}))
    assert found.drop_tombstones == (True, False, False, False)
    assert found.groups == ((0, 1), (2, 4))
    # Once the log start has passed it, it holds back nothing.
    found = made(plan(segments, cleaned=41, start=21, quarantined={11}))
    assert found.drop_tombstones == (False, False, True, True)
    assert found.groups == ((2, 4),)
    # It does not make a stream dirty either.
    assert plan(log(40), quarantined={1}) is None


def test_a_lease_keeps_the_tombstones_that_its_reader_has_not_seen() -> None:
    segments = log(40, 40)
    segments[0].delete_horizon_ns = segments[1].delete_horizon_ns = NOW - 1
    assert made(plan(segments, cleaned=21, lease=21)).drop_tombstones == (True, True)
    assert made(plan(segments, cleaned=21, lease=20)).drop_tombstones == (True, False)
    assert plan(segments, cleaned=21, lease=1) is None


def test_small_neighbours_are_merged() -> None:
    def groups(*sizes: int) -> tuple[tuple[int, int], ...]:
        return made(plan(log(*sizes))).groups

    assert groups(30, 30, 40) == ((0, 2), (2, 3)), "what has grown to more than half stays alone"
    assert groups(30, 20, 30, 10) == ((0, 3), (3, 4))
    assert groups(10, 51, 10) == ((0, 1), (1, 2), (2, 3))
    assert groups(50, 50, 50) == ((0, 2), (2, 3))


def test_no_segment_grows_past_32_bits_of_offsets() -> None:
    segments = log(1, 1)
    segments[1].next_offset = 1 + MAX_RELATIVE_OFFSET
    segments[2].base_offset = segments[2].next_offset = segments[1].next_offset
    assert made(plan(segments)).groups == ((0, 2),)
    segments[1].next_offset += 1
    segments[2].base_offset = segments[2].next_offset = segments[1].next_offset
    assert made(plan(segments)).groups == ((0, 1), (1, 2))


def test_only_equal_horizons_are_merged() -> None:
    policy = CompactionPolicy(min_dirty_ratio=0.0, tombstone_retention_ns=800)
    new = policy.horizon_ns(NOW)
    segments = log(10, 10, 10, 10, 10)
    for segment, horizon in zip(segments, (None, NOW, NOW + 5, new, None), strict=False):
        segment.delete_horizon_ns = horizon
    found = made(plan(segments, policy, cleaned=41))
    # None and expired ones go together; the dirty last one gets the horizon of the fourth.
    assert found.groups == ((0, 3), (3, 5))
    assert found.horizon_ns == new


def test_horizons_lie_an_eighth_of_the_time_apart() -> None:
    policy = CompactionPolicy(tombstone_retention_ns=800)
    horizons = {policy.horizon_ns(now) for now in range(NOW, NOW + 800)}
    assert len(horizons) <= 9
    for now in range(NOW, NOW + 800):
        assert now + 800 <= policy.horizon_ns(now) < now + 900
    assert CompactionPolicy(tombstone_retention_ns=0).horizon_ns(NOW) == NOW


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_dirty_ratio": 1.1},
        {"min_dirty_ratio": -0.1},
        {"min_lag_ns": -1},
        {"max_lag_ns": 0},
        {"tombstone_retention_ns": -1},
        {"protect_newer_than_ns": -1},
    ],
)
def test_impossible_policies_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"must"):
        CompactionPolicy(**wrong)  # type: ignore[arg-type]
