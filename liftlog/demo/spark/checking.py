"""The lake against the shop's books: order by order, cent by cent. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import date

from liftlog.cli.demo.spark.queries import Findings, InState, Sales
from liftlog.cli.demo.spark.shop import REVENUE, Order


def find_differences(books: Mapping[str, Order], found: Findings) -> list[str]:
    """What is not as the books have it, in words; empty when everything is."""
    problems = []
    for number in sorted(books.keys() | found.orders.keys()):
        wanted, got = books.get(number), found.orders.get(number)
        if got is None:
            problems.append(f"order {number} is missing from the lake")
        elif wanted is None:
            problems.append(f"order {number} was cancelled, but is in the lake as {got.state}")
        elif got != wanted:
            problems.append(f"order {number} is {_shown(got)} in the lake, not {_shown(wanted)}")
    if found.sales != (sales := sales_of(books)):
        problems.append(
            f"the revenue by day and country comes to {_total(found.sales)} in Spark SQL and to "
            f"{_total(sales)} in the books"
        )
    if found.states != (states := states_of(books)):
        problems.append(f"the orders by state are {found.states}, not {states}")
    return problems


def sales_of(books: Mapping[str, Order]) -> list[Sales]:
    """By day and country, in their order."""
    sums: Counter[tuple[date, str]] = Counter()
    for order in books.values():
        if order.state in REVENUE:
            sums[order.placed_at.date(), order.country] += order.cents
    return sorted(Sales(day, country, cents) for (day, country), cents in sums.items())


def states_of(books: Mapping[str, Order]) -> dict[str, InState]:
    found: dict[str, InState] = {}
    for order in books.values():
        count, cents = found.get(order.state, InState(0, 0))
        found[order.state] = InState(count + 1, cents + order.cents)
    return found


def show_money(cents: int) -> str:
    return f"{cents / 100:,.2f} EUR"


def _shown(order: Order) -> str:
    return f"{order.state}, {show_money(order.cents)}, {order.country}, {order.placed_at:%F %T}"


def _total(sales: list[Sales]) -> str:
    return show_money(sum(one.cents for one in sales))
