"""Retention compared with a model that handles single records."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from support.rounds import examples

from compaction import RetentionDecision, RetentionPolicy, decide

NOW = 10_000


@dataclass
class Segment:
    """A list of records (offset, timestamp); the view is computed from it."""

    base_offset: int
    next_offset: int
    sealed: bool
    size_bytes: int
    records: list[tuple[int, int]] = field(default_factory=list)

    @property
    def record_count(self) -> int:
        return len(self.records)

    def offset_of_record(self, number: int) -> int:
        return self.records[number][0]

    @property
    def max_timestamp_ns(self) -> int:
        return max((stamp for _, stamp in self.records), default=0)


@st.composite
def logs(draw: st.DrawFn, holes: bool) -> list[Segment]:
    segments = []
    offset = draw(st.integers(1, 50))
    for _ in range(draw(st.integers(1, 6))):
        length = draw(st.integers(0, 8))
        records = [
            (at, draw(st.integers(0, NOW + 500)))
            for at in range(offset, offset + length)
            if not holes or draw(st.booleans())
        ]
        size = draw(st.integers(0, 100))
        segments.append(Segment(offset, offset + length, True, size, records))
        offset += length
    segments[-1].sealed = draw(st.booleans())
    return segments


limits = st.none() | st.integers(1, 15)
policies = st.builds(
    RetentionPolicy,
    max_age_ns=st.none() | st.integers(1, NOW),
    max_bytes=st.none() | st.integers(1, 400),
    max_messages=limits,
    protect_newer_than_ns=st.just(0) | st.integers(1, NOW),
)


def exactly(
    segments: list[Segment],
    policy: RetentionPolicy,
    *,
    start: int,
    end: int,
    held_from: int | None = None,
) -> RetentionDecision:
    """Decide like the daemon, which reads segments with holes."""
    return decide(
        segments,
        policy,
        log_start_offset=start,
        log_end_offset=end,
        now_ns=NOW,
        offset_of_record=Segment.offset_of_record,
        held_from=held_from,
    )


def offsets(segments: list[Segment]) -> list[int]:
    return [offset for segment in segments for offset, _ in segment.records]


def model_start(segments: list[Segment], policy: RetentionPolicy, start: int) -> int:
    """For logs without holes: drop one segment or one record at a time."""
    best = start
    live = [segment for segment in segments if segment.next_offset > start]
    if policy.max_bytes is not None:
        for count in range(len(live), 0, -1):
            kept = sum(segment.size_bytes for segment in live[count:])
            if kept >= policy.max_bytes and all(segment.sealed for segment in live[:count]):
                best = max(best, live[count - 1].next_offset)
                break
    if policy.max_messages is not None:
        kept_offsets = offsets(segments)[-policy.max_messages :]
        if kept_offsets:
            best = max(best, kept_offsets[0])
    if policy.max_age_ns is not None:
        for segment in [segment for segment in live if segment.next_offset > best]:
            too_old = all(NOW - stamp > policy.max_age_ns for _, stamp in segment.records)
            if not segment.sealed or not too_old:
                break
            best = max(best, segment.next_offset)
    return best


def model_deleted(segments: list[Segment], policy: RetentionPolicy, start: int) -> int:
    count = 0
    for segment in segments[:-1]:
        if any(offset >= start for offset in range(segment.base_offset, segment.next_offset)):
            break
        if segment.next_offset > start or not segment.sealed:
            break
        window = policy.protect_newer_than_ns
        if window and any(NOW - stamp < window for _, stamp in segment.records):
            break
        count += 1
    return count


@given(logs(holes=False), policies, st.data())
def test_like_the_model(
    segments: list[Segment], policy: RetentionPolicy, data: st.DataObject
) -> None:
    first, end = segments[0].base_offset, segments[-1].next_offset
    start = data.draw(st.integers(first, end))
    decision = decide(segments, policy, log_start_offset=start, log_end_offset=end, now_ns=NOW)
    assert decision.log_start_offset == model_start(segments, policy, start)
    assert decision.delete_segments == model_deleted(segments, policy, decision.log_start_offset)


@given(logs(holes=True), policies, st.data())
def test_with_holes_and_uncommitted_records(
    segments: list[Segment], policy: RetentionPolicy, data: st.DataObject
) -> None:
    first, last = segments[0].base_offset, segments[-1].next_offset
    start = data.draw(st.integers(first, last))
    end = data.draw(st.integers(start, last))
    decision = decide(segments, policy, log_start_offset=start, log_end_offset=end, now_ns=NOW)
    new = decision.log_start_offset
    assert start <= new <= end
    assert decision.delete_segments == model_deleted(segments, policy, new)

    only_count = RetentionPolicy(max_messages=policy.max_messages)
    counted = decide(segments, only_count, log_start_offset=start, log_end_offset=end, now_ns=NOW)
    before = [offset for offset in offsets(segments) if start <= offset < end]
    after = [offset for offset in before if offset >= counted.log_start_offset]
    if policy.max_messages is None:
        assert after == before
    else:
        assert len(after) >= min(len(before), policy.max_messages)


@given(logs(holes=True), policies, st.data())
def test_like_the_model_with_holes(
    segments: list[Segment], policy: RetentionPolicy, data: st.DataObject
) -> None:
    """All limits, alone and together. A limit by number keeps exactly the right records."""
    first, end = segments[0].base_offset, segments[-1].next_offset
    start = data.draw(st.integers(first, end))
    decision = exactly(segments, policy, start=start, end=end)
    kept = [offset for offset in offsets(segments) if offset >= decision.log_start_offset]
    start_by_model = model_start(segments, policy, start)
    assert kept == [offset for offset in offsets(segments) if offset >= start_by_model]
    assert decision.delete_segments == model_deleted(segments, policy, decision.log_start_offset)
    if policy.max_messages is not None:
        assert len(kept) <= policy.max_messages


@given(logs(holes=True), policies, st.data())
def test_a_lease_holds_the_log_start_and_nothing_else(
    segments: list[Segment], policy: RetentionPolicy, data: st.DataObject
) -> None:
    first, end = segments[0].base_offset, segments[-1].next_offset
    start = data.draw(st.integers(first, end))
    held_from = data.draw(st.integers(start, end))
    free = exactly(segments, policy, start=start, end=end)
    held = exactly(segments, policy, start=start, end=end, held_from=held_from)
    assert held.log_start_offset == min(free.log_start_offset, held_from)
    assert held.delete_segments == model_deleted(segments, policy, held.log_start_offset)
    assert bool(held.reasons) == (held.log_start_offset > start)


@given(logs(holes=True), policies)
def test_no_limit_hides_another(segments: list[Segment], policy: RetentionPolicy) -> None:
    first, end = segments[0].base_offset, segments[-1].next_offset

    def start_of(one: RetentionPolicy) -> int:
        return decide(
            segments, one, log_start_offset=first, log_end_offset=end, now_ns=NOW
        ).log_start_offset

    assert start_of(policy) >= max(
        start_of(RetentionPolicy(max_age_ns=policy.max_age_ns)),
        start_of(RetentionPolicy(max_bytes=policy.max_bytes)),
        start_of(RetentionPolicy(max_messages=policy.max_messages)),
    )


@settings(max_examples=examples(5))
@given(logs(holes=True), policies)
def test_a_second_look_finds_nothing_to_do(
    segments: list[Segment], policy: RetentionPolicy
) -> None:
    first, end = segments[0].base_offset, segments[-1].next_offset
    decision = decide(segments, policy, log_start_offset=first, log_end_offset=end, now_ns=NOW)
    left = segments[decision.delete_segments :]
    again = decide(
        left, policy, log_start_offset=decision.log_start_offset, log_end_offset=end, now_ns=NOW
    )
    assert again.log_start_offset == decision.log_start_offset
    assert again.delete_segments == 0
    assert again.reasons == ()
