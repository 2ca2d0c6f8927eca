"""The parts of the example `orders_into_a_lake` that need no Spark: shop, books, chart."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from orders_into_a_lake import queries
from orders_into_a_lake.queries import (
    Findings,
    InState,
    draw_chart,
    find_differences,
    sales_of,
    states_of,
)
from orders_into_a_lake.shop import (
    CANCELLED,
    COUNTRIES,
    DAYS,
    FIRST_DAY,
    FIRST_EXPORT,
    REVENUE,
    STATES,
    Order,
    books,
    changes,
    split_at,
)
from support.repository import REPOSITORY

EXAMPLES = REPOSITORY / "docs/examples"
CHANGES = changes(600)


def found_for(orders: dict[str, Order]) -> Findings:
    return Findings(dict(orders), sales_of(orders), states_of(orders))


# --- the shop ---


def test_the_shop_is_the_same_every_time() -> None:
    assert changes(600) == CHANGES
    assert changes(600, seed=8) != CHANGES


def test_changes_come_in_order_and_tell_a_whole_life() -> None:
    assert all(one.at <= two.at for one, two in pairwise(CHANGES))
    lives: dict[str, list[str]] = {}
    for change in CHANGES:
        lives.setdefault(change.key, []).append(change.order.state)
        assert change.subject == f"orders.{change.order.country}.{change.order.state}"
    assert len(lives) == 600
    for states in lives.values():
        assert states[0] == "placed"
        ranks = [[*STATES, CANCELLED].index(state) for state in states]
        assert ranks == sorted(ranks)
        assert CANCELLED not in states[:-1]  # nothing comes after it
    days = {change.order.placed_at.date() for change in CHANGES}
    assert days == {FIRST_DAY + timedelta(days=i) for i in range(DAYS)}
    assert {change.order.country for change in CHANGES} == set(COUNTRIES)


def test_a_value_is_the_whole_order_and_a_cancelled_one_has_none() -> None:
    for change in CHANGES:
        if change.order.state == CANCELLED:
            assert change.value is None
        else:
            assert change.value is not None
            told = json.loads(change.value)
            assert (told["order"], told["state"]) == (change.key, change.order.state)
            assert told["cents"] == change.order.cents > 0


def test_the_second_part_changes_cancels_and_adds() -> None:
    """Otherwise an incremental export would have nothing to show."""
    before, after = split_at(CHANGES, FIRST_EXPORT)
    assert before + after == CHANGES
    known = books(before)
    touched = {change.key for change in after}
    cancelled = {change.key for change in after if change.value is None}
    assert len(touched & known.keys()) > 50
    assert cancelled & known.keys()
    assert len(touched - known.keys()) > 100
    assert any(len({c.order.cents for c in CHANGES if c.key == key}) > 1 for key in touched)
    assert not cancelled & books(CHANGES).keys()
    assert {order.state for order in books(CHANGES).values()} == set(STATES)


# --- the lake against the books ---


def test_what_differs_is_told() -> None:
    known = books(CHANGES)
    assert find_differences(known, found_for(known)) == []
    first, second, third, *_ = sorted(known)
    orders = dict(known)
    del orders[first]
    orders[second] = known[second]._replace(cents=1)
    orders["A-0"] = known[third]._replace(number="A-0", state="paid")
    told = find_differences(known, Findings(orders, sales_of(known), states_of(known)))
    assert told[0] == "order A-0 was cancelled, but is in the lake as paid"
    assert told[1] == f"order {first} is missing from the lake"
    assert told[2].startswith(f"order {second} is ")
    assert ", 0.01 EUR, " in told[2]
    assert len(told) == 3


def test_sums_that_differ_are_told() -> None:
    known = books(CHANGES)
    right = found_for(known)
    less = right._replace(sales=right.sales[1:])
    (told,) = find_differences(known, less)
    assert "the revenue by day and country comes to" in told
    other = right._replace(states={**right.states, "paid": InState(1, 2)})
    (told,) = find_differences(known, other)
    assert "the orders by state are" in told
    paid = sum(order.cents for order in known.values() if order.state in REVENUE)
    assert sum(one.cents for one in right.sales) == paid


# --- the chart ---


def test_the_chart_is_a_picture_of_what_was_found(tmp_path: Path) -> None:
    from matplotlib.image import imread

    before, _ = split_at(CHANGES, FIRST_EXPORT)
    first, second = found_for(books(before)), found_for(books(CHANGES))
    pictures = []
    for name, findings in (("one.png", first), ("two.png", second)):
        draw_chart(tmp_path / name, first, findings)
        size = (tmp_path / name).stat().st_size
        assert 10_000 < size < 150_000  # fit for a page
        pictures.append(imread(tmp_path / name))
    assert pictures[0].shape == pictures[1].shape == (550, 1210, 4)
    # Only the second one has sales in the third week: its colours appear there.
    ours = [tuple(int(text[i : i + 2], 16) for i in (1, 3, 5)) for text in queries.COLOURS]
    in_third_week = [
        {tuple(round(255 * x) for x in dot[:3]) for dot in picture[130:520, 545:760].reshape(-1, 4)}
        for picture in pictures
    ]
    assert not in_third_week[0] & set(ours)
    assert in_third_week[1] >= set(ours)


def test_nothing_found_can_be_drawn(tmp_path: Path) -> None:
    nothing = Findings({}, [], {})
    draw_chart(tmp_path / "empty.png", nothing, nothing)
    assert (tmp_path / "empty.png").stat().st_size > 1000


# --- what is missing ---


@pytest.mark.parametrize(
    ("hidden", "told"),
    [("matplotlib", "pip install matplotlib"), ("pyspark", "pip install 'liftlog[spark]'")],
)
def test_what_is_not_installed_is_told(hidden: str, told: str) -> None:
    code = (
        "import sys, importlib.util as u; find = u.find_spec; sys.modules[sys.argv[1]] = None;"
        "u.find_spec = lambda name, *rest: None if name == sys.argv[1] else find(name, *rest);"
        "from liftlog.spark.export import session; session._check_java = lambda: None;"
        "from orders_into_a_lake.__main__ import main; main(['--orders', '300'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, hidden],
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_without_java_it_says_how_to_get_one() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "orders_into_a_lake"],
        cwd=EXAMPLES,
        env={"PATH": "/nonexistent", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "apt install openjdk-17-jre-headless" in done.stderr
    assert "Traceback" not in done.stderr
