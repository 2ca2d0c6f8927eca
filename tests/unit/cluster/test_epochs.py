"""The epoch table: where logs part."""

from __future__ import annotations

import pytest

from liftlog.cluster.epochs import begin_epoch, between, cut, end_of_epoch, extend, last_epoch

TABLE = ((2, 10), (3, 20), (5, 30))


@pytest.mark.parametrize(
    ("log_end", "epoch"), [(5, 0), (10, 0), (11, 2), (20, 2), (21, 3), (30, 3), (31, 5)]
)
def test_the_last_epoch_is_one_with_a_record(log_end: int, epoch: int) -> None:
    assert last_epoch(TABLE, log_end) == epoch


@pytest.mark.parametrize(
    ("epoch", "found"),
    [(1, (0, 10)), (2, (2, 20)), (3, (3, 30)), (4, (3, 30)), (5, (5, 40)), (6, (5, 40))],
)
def test_the_end_of_an_epoch(epoch: int, found: tuple[int, int]) -> None:
    assert end_of_epoch(TABLE, epoch, 40) == found


def test_the_end_of_an_epoch_in_an_empty_log() -> None:
    assert end_of_epoch((), 4, 7) == (0, 7)


def test_a_new_epoch_replaces_one_without_records() -> None:
    assert begin_epoch(TABLE, 6, 40) == (*TABLE, (6, 40))
    assert begin_epoch(TABLE, 6, 30) == ((2, 10), (3, 20), (6, 30))


def test_an_epoch_without_records_is_dropped_before_older_records_are_appended() -> None:
    assert extend(((2, 10), (4, 20)), ((3, 20),)) == ((2, 10), (3, 20))
    assert extend(((2, 10),), ((2, 15),)) == ((2, 10),)
    assert extend((), ((2, 15), (3, 16))) == ((2, 15), (3, 16))
    assert extend(TABLE, ()) == TABLE


@pytest.mark.parametrize(
    ("first", "end", "found"),
    [
        (0, 10, ()),
        (10, 20, ((2, 10),)),
        (12, 20, ((2, 12),)),
        (12, 31, ((2, 12), (3, 20), (5, 30))),
        (35, 40, ((5, 35),)),
    ],
)
def test_what_a_table_says_about_a_gap(
    first: int, end: int, found: tuple[tuple[int, int], ...]
) -> None:
    assert between(TABLE, first, end) == found


def test_a_cut_forgets_the_epochs_past_it() -> None:
    assert cut(TABLE, 30) == ((2, 10), (3, 20))
    assert cut(TABLE, 31) == TABLE
