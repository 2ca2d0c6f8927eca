"""The listing of consumers and groups that all viewers share."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from liftlog.protocol.checkpoints import Checkpoint
from liftlog.server.web.readers import Readers

MANY = 3000


class Kept:
    """Checkpoints and groups that count how often they are listed."""

    def __init__(self, count: int) -> None:
        self.listed = 0
        self.groups = self
        self._found = [
            Checkpoint(f"c{n:04}", "orders" if n % 2 else "secret", 1, lag=n) for n in range(count)
        ]

    def page(
        self, may_read: Any, *, limit: int = 1, after: str | None = None, **given: Any
    ) -> tuple[list[Any], str | None]:
        if "consumer" not in given:  # the groups
            return [], None
        first = int(after.partition("/")[0][1:]) + 1 if after else 0
        self.listed += first == 0
        some = self._found[first : first + limit]
        last = first + limit >= len(self._found)
        return some, None if last else f"{some[-1].consumer}/{some[-1].stream}"


@pytest.fixture
def many(broker: Any) -> Kept:
    for name in ("orders", "secret"):
        broker.add(name, subject=f"{name}.>")
    broker.checkpoints = Kept(MANY)
    return broker.checkpoints


async def consumers(browser: Any, query: str = "") -> dict[str, Any]:
    status, text, _ = await browser.get(f"/ui/consumers.json{query}")
    assert status == 200, text
    return dict(json.loads(text))


async def test_many_viewers_share_a_listing(site: Any, many: Kept, policy: Any) -> None:
    async with site(policy) as browser:
        await browser.sign_in("eu")
        found = await asyncio.gather(*[consumers(browser) for _ in range(4)])
        assert many.listed == 1
        for one in found:
            assert one["totals"]["consumers"] == MANY / 2  # none of the stream that is secret
            assert {row["stream"] for row in one["consumers"]} == {"orders"}
        (one,) = (await consumers(browser, "?q=C0101"))["consumers"]
        assert (one["consumer"], one["lag"]) == ("c0101", 101)
        assert (await consumers(browser, "?q=secret"))["consumers"] == []


async def test_a_listing_ends_when_a_reader_changes_and_after_a_second(
    broker: Any, many: Kept
) -> None:
    now = 0.0
    readers = Readers(broker, lambda: now)
    first = await readers.listing()
    assert first.sorted_by("lag")[0]["lag"] == MANY - 1
    assert await readers.listing() is first
    readers.forget()
    second = await readers.listing()
    now = 0.999
    assert await readers.listing() is second
    now = 1.0
    assert await readers.listing() is not second
    assert many.listed == 3


async def test_a_listing_that_is_cancelled_is_made_by_the_next(broker: Any, many: Kept) -> None:
    readers = Readers(broker)
    first, second = (asyncio.create_task(readers.listing()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert len((await second).consumers) == MANY
    assert first.cancelled()


async def test_a_short_listing_is_always_fresh(broker: Any) -> None:
    broker.add("orders", subject="orders.>")
    broker.checkpoints = kept = Kept(50)
    readers = Readers(broker)
    for count in range(1, 4):
        await readers.listing()
        assert kept.listed == count
