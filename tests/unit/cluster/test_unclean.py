"""Which copy leads when none is left that is known to have everything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from liftlog.cluster import transitions as t
from liftlog.cluster.election import LogEnd
from liftlog.cluster.guard import Known
from liftlog.cluster.record import StreamMetadata
from liftlog.cluster.unclean import best_copy

WHOLE = t.create("s", "i", {"min_isr": 2}, "abc", starts=dict.fromkeys("abc", 1))


def all_unclean() -> StreamMetadata:
    record = WHOLE
    for node in "abc":
        after = t.register(record, node, 2, clean=False)
        assert after is not None
        record = after
    return record


NONE_WHOLE = all_unclean()


def told(record: StreamMetadata = NONE_WHOLE, **ends: tuple[int, int]) -> dict[str, Known | None]:
    return {node: Known(record, LogEnd(*end)) for node, end in ends.items()}


@pytest.mark.parametrize(
    ("ends", "best"),
    [
        ({"a": (1, 5), "b": (1, 7), "c": (1, 6)}, "b"),
        ({"a": (1, 9), "b": (1, 7), "c": (2, 6)}, "c"),
        ({"a": (1, 5), "b": (1, 7), "c": (1, 7)}, "b"),
        ({"a": (0, 0), "b": (0, 0), "c": (0, 0)}, "a"),
    ],
)
def test_the_longest_log_of_the_newest_epoch_gives_up_the_least(
    ends: dict[str, tuple[int, int]], best: str
) -> None:
    assert best_copy(NONE_WHOLE, told(**ends)) == best
    after = t.recover(NONE_WHOLE, best)
    assert after is not None
    assert (after.leader, after.isr, after.unclean_epoch) == (best, (best,), after.leader_epoch)
    assert best_copy(after, told(after, **ends)) is None, "there is a leader"


def test_no_copy_is_chosen_before_every_replica_has_told() -> None:
    ends = told(a=(1, 5), b=(1, 7), c=(1, 6))
    for node in "abc":
        assert best_copy(NONE_WHOLE, {**ends, node: None}) is None, "it is down"
        closed = {**ends, node: Known(NONE_WHOLE, None)}
        assert best_copy(NONE_WHOLE, closed) is None, "its copy cannot be read"
        other = replace(NONE_WHOLE, version=NONE_WHOLE.version - 1)
        behind = {**ends, node: Known(other, LogEnd(1, 9))}
        assert best_copy(NONE_WHOLE, behind) is None, "it may follow an older record"
        assert best_copy(NONE_WHOLE, {key: ends[key] for key in ends if key != node}) is None


def test_nothing_is_given_up_while_a_complete_copy_may_come_back() -> None:
    ends = {"a": (1, 5), "b": (1, 7), "c": (1, 6)}
    record = WHOLE
    for node in "abc":
        assert best_copy(record, told(record, **ends)) is None
        after = t.register(record, node, 2, clean=False)
        assert after is not None
        record = after
    assert best_copy(record, told(record, **ends)) == "b"
    deleted = t.delete(record)
    assert deleted is not None
    assert best_copy(deleted, told(deleted, **ends)) is None
