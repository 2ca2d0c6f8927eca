from dataclasses import dataclass

import pytest

from compaction import RetentionDecision, RetentionPolicy, decide

NOW = 1_000_000


@dataclass
class Segment:
    base_offset: int
    next_offset: int
    size_bytes: int
    record_count: int
    max_timestamp_ns: int
    sealed: bool = True


def log(*rows: tuple[int, int, int]) -> list[Segment]:
    """Segments without holes from offset 1 on, by (records, bytes, age); the last is active."""
    segments: list[Segment] = []
    base = 1
    for records, size, age in rows:
        segments.append(Segment(base, base + records, size, records, NOW - age))
        base += records
    if segments:
        segments[-1].sealed = False
    return segments


def run(segments: list[Segment], policy: RetentionPolicy, start: int = 1) -> tuple[int, int]:
    end = segments[-1].next_offset if segments else start
    decision = decide(segments, policy, log_start_offset=start, log_end_offset=end, now_ns=NOW)
    assert bool(decision.reasons) is (decision.log_start_offset > start)
    return decision.log_start_offset, decision.delete_segments


# Offsets 1-10, 11-20, 21-30 and 31-35.
FOUR = log((10, 100, 4000), (10, 100, 3000), (10, 100, 2000), (5, 50, 1000))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (RetentionPolicy(), (1, 0)),
        # by age: whole sealed segments
        (RetentionPolicy(max_age_ns=5000), (1, 0)),
        (RetentionPolicy(max_age_ns=4000), (1, 0)),
        (RetentionPolicy(max_age_ns=3999), (11, 1)),
        (RetentionPolicy(max_age_ns=2500), (21, 2)),
        (RetentionPolicy(max_age_ns=1), (31, 3)),
        # by size: at least the limit stays
        (RetentionPolicy(max_bytes=350), (1, 0)),
        (RetentionPolicy(max_bytes=251), (1, 0)),
        (RetentionPolicy(max_bytes=250), (11, 1)),
        (RetentionPolicy(max_bytes=50), (31, 3)),
        (RetentionPolicy(max_bytes=1), (31, 3)),
        # by count: exact, into segments, into the active one
        (RetentionPolicy(max_messages=36), (1, 0)),
        (RetentionPolicy(max_messages=35), (1, 0)),
        (RetentionPolicy(max_messages=34), (2, 0)),
        (RetentionPolicy(max_messages=26), (10, 0)),
        (RetentionPolicy(max_messages=25), (11, 1)),
        (RetentionPolicy(max_messages=6), (30, 2)),
        (RetentionPolicy(max_messages=5), (31, 3)),
        (RetentionPolicy(max_messages=1), (35, 3)),
        # together: the furthest wins
        (RetentionPolicy(max_age_ns=3999, max_bytes=150, max_messages=34), (21, 2)),
        (RetentionPolicy(max_age_ns=3999, max_bytes=350, max_messages=12), (24, 2)),
        # the dedupe window keeps files, not records
        (RetentionPolicy(max_messages=1, protect_newer_than_ns=2500), (35, 2)),
        (RetentionPolicy(max_messages=1, protect_newer_than_ns=2000), (35, 3)),
        (RetentionPolicy(max_messages=1, protect_newer_than_ns=4001), (35, 0)),
        (RetentionPolicy(max_bytes=50, protect_newer_than_ns=4001), (31, 0)),
    ],
)
def test_decisions(policy: RetentionPolicy, expected: tuple[int, int]) -> None:
    assert run(FOUR, policy) == expected


def test_two_messages_kept_in_many_segments() -> None:
    # Liftbridge kept 21 segments with this limit.
    assert run(log(*[(1, 10, 0)] * 22), RetentionPolicy(max_messages=2)) == (21, 20)


def test_the_log_start_does_not_go_back() -> None:
    assert run(FOUR, RetentionPolicy(max_messages=20), start=25) == (25, 2)
    assert run(FOUR, RetentionPolicy(max_bytes=350), start=12) == (12, 1)


def test_passed_files_go_when_their_time_has_come() -> None:
    policy = RetentionPolicy(protect_newer_than_ns=3500)
    assert run(FOUR, policy, start=35) == (35, 1)
    assert run(FOUR, RetentionPolicy(), start=35) == (35, 3)


def test_files_that_were_passed_do_not_count_as_bytes() -> None:
    # 250 bytes can still be read, so nothing more has to go.
    assert run(FOUR, RetentionPolicy(max_bytes=200, protect_newer_than_ns=9999), start=11) == (
        11,
        0,
    )


def test_a_young_segment_holds_back_older_ones_behind_it() -> None:
    segments = log((10, 100, 4000), (10, 100, 10), (10, 100, 4000), (5, 50, 0))
    assert run(segments, RetentionPolicy(max_age_ns=1000)) == (11, 1)


def test_the_age_limit_goes_on_where_another_limit_led() -> None:
    segments = log((10, 100, 4000), (10, 100, 10), (10, 100, 4000), (5, 50, 0))
    policy = RetentionPolicy(max_age_ns=1000, max_bytes=150)
    assert run(segments, policy) == (31, 3)
    assert run(segments, RetentionPolicy(max_bytes=150)) == (21, 2)


def test_what_compaction_has_emptied_has_no_age() -> None:
    """A consumer that stands in the hole goes on behind it, as long as that is young enough."""
    holes = [Segment(1, 11, 88, 0, -1), Segment(11, 21, 88, 0, -1)]
    kept = [Segment(21, 31, 90, 3, NOW - 2000), Segment(31, 41, 88, 0, -1)]
    active = Segment(41, 46, 50, 5, NOW - 1000, sealed=False)
    assert run([*holes, *kept, active], RetentionPolicy(max_age_ns=2000)) == (1, 0)
    # With the records behind them the holes go; the one that follows waits for its neighbour.
    assert run([*holes, *kept, active], RetentionPolicy(max_age_ns=1999)) == (31, 3)
    assert run([*holes, active], RetentionPolicy(max_age_ns=1)) == (1, 0)


def test_a_stamp_in_the_future_is_young() -> None:
    assert run(log((10, 100, -5000), (1, 1, 0)), RetentionPolicy(max_age_ns=1)) == (1, 0)
    # Without a dedupe window it protects nothing.
    assert run(log((10, 100, -5000), (1, 1, 0)), RetentionPolicy(max_messages=1)) == (11, 1)


def test_the_active_segment_stays_however_old_and_large() -> None:
    segments = log((10, 10_000, 9000))
    assert run(segments, RetentionPolicy(max_age_ns=1, max_bytes=1)) == (1, 0)
    assert run(segments, RetentionPolicy(max_messages=3)) == (8, 0)


def test_the_last_file_stays_even_when_sealed() -> None:
    segments = log((10, 100, 9000), (10, 100, 9000))
    segments[-1].sealed = True
    assert run(segments, RetentionPolicy(max_age_ns=1)) == (21, 1)


def test_an_empty_active_segment() -> None:
    segments = log((10, 100, 9000), (0, 0, 0))
    assert run(segments, RetentionPolicy(max_age_ns=1)) == (11, 1)
    assert run(segments, RetentionPolicy(max_messages=4)) == (7, 0)
    assert run(segments, RetentionPolicy(max_bytes=1)) == (1, 0)


def test_no_segments() -> None:
    everything = RetentionPolicy(max_age_ns=1, max_bytes=1, max_messages=1)
    assert run([], everything, start=7) == (7, 0)


def test_only_committed_records_count() -> None:
    decision = decide(
        FOUR, RetentionPolicy(max_messages=2), log_start_offset=1, log_end_offset=33, now_ns=NOW
    )
    assert decision.log_start_offset == 31
    decision = decide(
        FOUR, RetentionPolicy(max_messages=2), log_start_offset=1, log_end_offset=12, now_ns=NOW
    )
    assert (decision.log_start_offset, decision.delete_segments) == (10, 0)
    old = RetentionPolicy(max_age_ns=1)
    decision = decide(FOUR, old, log_start_offset=1, log_end_offset=15, now_ns=NOW)
    assert (decision.log_start_offset, decision.delete_segments) == (15, 1)


def test_holes_never_cost_a_record_too_many() -> None:
    # After compaction 3 records are left of the offsets 1-10; where, only the file knows.
    segments = log((10, 30, 0), (5, 50, 0))
    segments[0].record_count = 3
    assert run(segments, RetentionPolicy(max_messages=8)) == (1, 0)
    assert run(segments, RetentionPolicy(max_messages=6)) == (3, 0)
    assert run(segments, RetentionPolicy(max_messages=5)) == (11, 1)


def test_the_count_passes_holes_only_with_records() -> None:
    """A reader in a hole at the beginning has lost nothing while exactly the limit is there."""
    hole = Segment(1, 11, 88, 0, -1)
    kept = [Segment(11, 21, 90, 3, NOW), Segment(21, 31, 88, 0, -1)]
    active = Segment(31, 36, 50, 5, NOW, sealed=False)
    segments = [hole, *kept, active]
    assert run(segments, RetentionPolicy(max_messages=9)) == (1, 0)
    assert run(segments, RetentionPolicy(max_messages=8)) == (1, 0)
    assert run(segments, RetentionPolicy(max_messages=7)) == (12, 1)
    # All three go; the hole behind them waits for the next record that does.
    assert run(segments, RetentionPolicy(max_messages=5)) == (21, 2)
    assert run(segments, RetentionPolicy(max_messages=4)) == (32, 3)


def test_the_count_goes_to_right_behind_what_goes() -> None:
    segment = Segment(1, 11, 30, 3, NOW)
    active = Segment(11, 16, 50, 5, NOW, sealed=False)

    def start(limit: int) -> int:
        return decide(
            [segment, active],
            RetentionPolicy(max_messages=limit),
            log_start_offset=1,
            log_end_offset=16,
            now_ns=NOW,
            offset_of_record=lambda _, number: (2, 5, 9)[number],
        ).log_start_offset

    assert [start(limit) for limit in (8, 7, 6, 5)] == [1, 3, 6, 11]


def test_reasons_say_which_limit_and_how_far() -> None:
    policy = RetentionPolicy(max_age_ns=3_500, max_bytes=350, max_messages=6)
    assert decide(
        FOUR, policy, log_start_offset=1, log_end_offset=36, now_ns=NOW
    ) == RetentionDecision(
        30,
        2,
        ("max_messages: more than 6 messages, log start from 1 to 30",),
        delete_below=FOUR[1].next_offset,
    )


@pytest.mark.parametrize("limit", [0, -1])
@pytest.mark.parametrize("name", ["max_age_ns", "max_bytes", "max_messages"])
def test_limits_are_positive(name: str, limit: int) -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        RetentionPolicy(**{name: limit})
    with pytest.raises(ValueError, match="negative"):
        RetentionPolicy(protect_newer_than_ns=-1)
