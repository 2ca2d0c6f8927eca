"""The queries on the lake, in plain Spark SQL, a comparison of their answers with the shop's books,
and a chart of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from liftlog.errors import MissingDependency
from orders_into_a_lake.shop import COUNTRIES, DAYS, FIRST_DAY, FIRST_EXPORT, REVENUE, STATES, Order

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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

# Okabe and Ito: distinct with any kind of colour vision, and by their lightness in print.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9")
_NAMES = {"de": "Germany", "fr": "France", "nl": "Netherlands", "es": "Spain", "pl": "Poland"}
_FIRST, _SECOND = "#B8B8B8", "#0072B2"
_INK, _FAINT = "#222222", "#666666"
_INCHES, _DPI = (11.0, 5.0), 110


class Sales(NamedTuple):
    """The shop's revenue from the orders that were placed on that day."""

    day: date
    country: str
    cents: int


class InState(NamedTuple):
    orders: int
    cents: int


class Findings(NamedTuple):
    """The answers of Spark for one state of the lake."""

    orders: dict[str, Order]
    sales: list[Sales]
    states: dict[str, InState]


def ask(spark: SparkSession, lake: DataFrame) -> Findings:
    """Run all queries. `lake` holds the newest record of each key."""
    lake.createOrReplaceTempView("lake")
    spark.sql(ORDERS)
    sales = [Sales(*row) for row in spark.sql(REVENUE_BY_DAY).collect()]
    states = {row.state: InState(row.orders, row.cents) for row in spark.sql(BY_STATE).collect()}
    # A timestamp would be returned without its zone, in the local time of this process.
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
    """Describe the differences between the lake and the books; empty if there are none."""
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
    """Return revenue by day and country, sorted."""
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


def check_matplotlib() -> None:
    """Raises MissingDependency if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingDependency(
            "the chart needs matplotlib, which is not installed", hint="pip install matplotlib"
        ) from None


def draw_chart(path: Path, first: Findings, second: Findings) -> None:
    """Write a PNG: the lake after the second export, compared with the first."""
    # Not pyplot: it needs the main thread and keeps every figure in memory.
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2, width_ratios=[2.3, 1])
    total = sum(one.cents for one in second.sales) / 100
    figure.suptitle(
        f"{len(second.orders):,} orders in the lake, {total / 1000:,.0f} thousand euro of revenue",
        x=0.012,
        ha="left",
        fontsize=15,
        fontweight="bold",
        color=_INK,
    )
    _draw_revenue(left, second.sales)
    _draw_states(right, first, second)
    figure.savefig(path, format="png", metadata={"Software": None})


def _draw_revenue(axes: Axes, sales: list[Sales]) -> None:
    days = [FIRST_DAY + timedelta(days=i) for i in range(DAYS)]
    thousands: Counter[tuple[date, str]] = Counter()
    for one in sales:
        thousands[one.day, one.country] += one.cents
    heights = [0.0] * DAYS
    for country, colour in zip(COUNTRIES, COLOURS, strict=True):
        parts = [thousands[day, country] / 100_000 for day in days]
        axes.bar(
            range(DAYS),
            parts,
            width=0.8,
            bottom=heights,
            color=colour,
            edgecolor="white",
            linewidth=0.6,
            label=_NAMES[country],
        )
        heights = [height + part for height, part in zip(heights, parts, strict=True)]
    _plain(axes, "Revenue by day of the order and country, thousand euro")
    axes.set_ylim(0, 1.25 * (max(heights) or 1))
    axes.yaxis.grid(visible=True, color="#E0E0E0", linewidth=0.8)
    marks = [i for i, day in enumerate(days) if day.weekday() == 0 or i == DAYS - 1]
    axes.set_xticks(marks, [f"{days[i]:%a} {days[i].day} {days[i]:%b}" for i in marks])
    axes.set_xlim(-0.7, DAYS - 0.3)
    axes.legend(loc="upper left", ncols=len(COUNTRIES), frameon=False, fontsize=9, borderpad=0)
    border = (FIRST_EXPORT - FIRST_DAY).days - 0.5
    axes.axvline(border, ymax=0.86, color=_FAINT, linewidth=1, linestyle=(0, (4, 3)))
    for x, text, side in (
        (border - 0.15, "first export", "right"),
        (border + 0.15, "added by the second", "left"),
    ):
        axes.text(
            x,
            0.855,
            text,
            transform=axes.get_xaxis_transform(),
            ha=side,
            va="top",
            fontsize=9,
            color=_FAINT,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        )


def _draw_states(axes: Axes, first: Findings, second: Findings) -> None:
    for shift, found, colour, label in (
        (-0.2, first, _FIRST, "after the first export"),
        (0.2, second, _SECOND, "after the second"),
    ):
        counts = [found.states[state].orders if state in found.states else 0 for state in STATES]
        places = [i + shift for i in range(len(STATES))]
        bars = axes.barh(places, counts, height=0.38, color=colour, label=label)
        axes.bar_label(bars, [f"{count:,}" for count in counts], padding=3, fontsize=9, color=_INK)
    _plain(axes, "Orders by state")
    axes.set_yticks(range(len(STATES)), STATES)
    axes.invert_yaxis()  # the first state on top
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.margins(x=0.18)
    axes.legend(loc="lower right", frameon=False, fontsize=9)


def _plain(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, color=_INK)
    for name in ("top", "right", "left"):
        axes.spines[name].set_visible(False)
    axes.tick_params(length=0, labelsize=9, colors=_INK)
    axes.set_axisbelow(True)
