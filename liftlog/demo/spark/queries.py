"""What is asked of the lake, in plain Spark SQL, and the answers against the shop's books."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, NamedTuple

from liftlog.demo.spark.shop import REVENUE, Order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERS = """\
CREATE OR REPLACE TEMPORARY VIEW orders AS
SELECT cast(key AS string) AS number, fields.*
FROM (
    SELECT key, from_json(cast(value AS string),
        'country string, placed_at timestamp, state string, cents bigint') AS fields
    FROM lake
)
"""

REVENUE_BY_DAY = f"""\
SELECT to_date(placed_at) AS day, country, sum(cents) AS cents
FROM orders
WHERE state IN ({", ".join(f"'{state}'" for state in REVENUE)})
GROUP BY day, country
ORDER BY day, country
"""

BY_STATE = """\
SELECT state, count(*) AS orders, sum(cents) AS cents
FROM orders
GROUP BY state
"""


class Sales(NamedTuple):
    """The shop's revenue with the orders that were placed on that day."""

    day: date
    country: str
    cents: int


class InState(NamedTuple):
    orders: int
    cents: int


class Findings(NamedTuple):
    """What Spark found in one state of the lake."""

    orders: dict[str, Order]
    sales: list[Sales]
    states: dict[str, InState]


def ask(spark: SparkSession, lake: DataFrame) -> Findings:
    """Run all queries. `lake` holds the newest record of each key."""
    lake.createOrReplaceTempView("lake")
    spark.sql(ORDERS)
    sales = [Sales(*row) for row in spark.sql(REVENUE_BY_DAY).collect()]
    states = {row.state: InState(row.orders, row.cents) for row in spark.sql(BY_STATE).collect()}
    # A timestamp would come back without its zone, in the local time of this process.
    known = spark.sql(
        "SELECT number, country, unix_seconds(placed_at) AS placed, state, cents FROM orders"
    )
    orders = {
        row.number: Order(
            row.number,
            row.country,
            datetime.fromtimestamp(row.placed, UTC),
            row.state,
            row.cents,
        )
        for row in known.collect()
    }
    return Findings(orders, sales, states)


def find_differences(books: Mapping[str, Order], found: Findings) -> list[str]:
    """Where the lake differs from the books, in words; empty if it does not."""
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
    """Revenue by day and country, sorted."""
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
