"""What is asked of the lake, in Spark SQL as anybody writes it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, NamedTuple

from liftlog.cli.demo.spark.shop import REVENUE, Order

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
    """What Spark made of one state of the lake."""

    orders: dict[str, Order]
    sales: list[Sales]
    states: dict[str, InState]


def ask(spark: SparkSession, lake: DataFrame) -> Findings:
    """All of the queries. `lake` holds the newest record of each key."""
    lake.createOrReplaceTempView("lake")
    spark.sql(ORDERS)
    sales = [Sales(*row) for row in spark.sql(REVENUE_BY_DAY).collect()]
    states = {row.state: InState(row.orders, row.cents) for row in spark.sql(BY_STATE).collect()}
    # As a timestamp it would come back without its zone, in that of this process.
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
