"""Three weeks of a shop: every order in all of its states, the same in every run. Pure.

At each change the shop publishes the whole order, with its number as the key. So the newest message
of an order contains its complete state, and compaction keeps that message.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

FIRST_DAY = date(2026, 3, 2)  # a Monday
DAYS = 21
FIRST_EXPORT = date(2026, 3, 16)
"""The first export covers changes published before this day."""

COUNTRIES: Mapping[str, float] = {"de": 0.30, "fr": 0.25, "nl": 0.18, "es": 0.16, "pl": 0.11}
PLACED, PAID, SHIPPED, DELIVERED, RETURNED = "placed", "paid", "shipped", "delivered", "returned"
CANCELLED = "cancelled"
STATES = (PLACED, PAID, SHIPPED, DELIVERED, RETURNED)
REVENUE = (PAID, SHIPPED, DELIVERED)
"""The states in which the shop has received the money."""

_WEEKDAYS = (0.85, 0.80, 0.85, 0.95, 1.10, 1.35, 1.20)
_GROWTH_A_DAY = 0.012


class Order(NamedTuple):
    """An order in the shop's books."""

    number: str
    country: str
    placed_at: datetime
    state: str
    cents: int


class Change(NamedTuple):
    """A message: the state of an order from this moment on. A cancelled order is a tombstone."""

    at: datetime
    order: Order

    @property
    def subject(self) -> str:
        return f"orders.{self.order.country}.{self.order.state}"

    @property
    def key(self) -> str:
        return self.order.number

    @property
    def value(self) -> bytes | None:
        order = self.order
        if order.state == CANCELLED:
            return None
        return json.dumps(
            {
                "order": order.number,
                "country": order.country,
                "placed_at": f"{order.placed_at:%Y-%m-%dT%H:%M:%SZ}",
                "state": order.state,
                "cents": order.cents,
            }
        ).encode()


def changes(orders: int, *, seed: int = 7) -> list[Change]:
    """Return all messages of about this many orders, in the order of publishing."""
    chance = random.Random(seed)
    end = _midnight(FIRST_DAY + timedelta(days=DAYS))
    found = [
        change
        for order in _placed(orders, chance)
        for change in _life(order, chance)
        if change.at < end
    ]
    return sorted(found, key=lambda change: (change.at, change.key))


def split_at(found: Iterable[Change], day: date) -> tuple[list[Change], list[Change]]:
    """Return the changes published before `day`, and the changes published from `day` on."""
    border = _midnight(day)
    parts: tuple[list[Change], list[Change]] = ([], [])
    for change in found:
        parts[change.at >= border].append(change)
    return parts


def books(found: Iterable[Change]) -> dict[str, Order]:
    """Return the shop's books after these changes, by order number. They contain no cancelled
    orders."""
    known: dict[str, Order] = {}
    for change in found:
        if change.order.state == CANCELLED:
            known.pop(change.key, None)
        else:
            known[change.key] = change.order
    return known


def _placed(orders: int, chance: random.Random) -> Iterator[Order]:
    days = [FIRST_DAY + timedelta(days=i) for i in range(DAYS)]
    weights = [_WEEKDAYS[day.weekday()] * (1 + _GROWTH_A_DAY * i) for i, day in enumerate(days)]
    moments = sorted(
        _midnight(day) + timedelta(seconds=chance.triangular(6 * 3600, 24 * 3600 - 1, 20 * 3600))
        for day in chance.choices(days, weights, k=orders)
    )
    for i, moment in enumerate(moments):
        (country,) = chance.choices(list(COUNTRIES), list(COUNTRIES.values()))
        cents = 500 + round(chance.lognormvariate(8.2, 0.6))
        yield Order(f"A-{1001 + i}", country, moment.replace(microsecond=0), PLACED, cents)


def _life(order: Order, chance: random.Random) -> Iterator[Change]:
    """Yield the changes of an order after it was placed. Most orders are paid, shipped and
    delivered."""
    moment = order.placed_at
    yield Change(moment, order)
    at_once = chance.random() < 0.85
    moment += _hours(chance, 0.01, 0.3) if at_once else _hours(chance, 1, 20)
    if chance.random() < 0.07:
        yield Change(moment, order._replace(state=CANCELLED))
        return
    order = order._replace(state=PAID)
    yield Change(moment, order)
    moment += _hours(chance, 4, 40)
    if chance.random() < 0.06:  # an article is sold out: less to pay
        order = order._replace(cents=order.cents - order.cents // chance.randint(3, 6))
        yield Change(moment, order)
        moment += _hours(chance, 1, 6)
    elif chance.random() < 0.02:
        yield Change(moment, order._replace(state=CANCELLED))
        return
    yield Change(moment, order._replace(state=SHIPPED))
    moment += _hours(chance, 20, 90)
    yield Change(moment, order._replace(state=DELIVERED))
    if chance.random() < 0.06:
        yield Change(moment + _hours(chance, 24, 120), order._replace(state=RETURNED))


def _hours(chance: random.Random, least: float, most: float) -> timedelta:
    return timedelta(seconds=round(3600 * chance.uniform(least, most)))


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
