"""Consumers of a stream `orders` with either client, and the progress that the broker stores for
them."""

from __future__ import annotations

from typing import Any

from support.clients.opened_client import Opened


def stored(broker: Any, consumer: str = "billing") -> int:
    found = broker.checkpoints.table.get((consumer, "orders"))
    return 0 if found is None else int(found.offset)


def make(client: Opened, **options: Any) -> Any:
    """Make a consumer that stops at the end of the stream, because waiting reads would delay other
    reads of the same stream."""
    options = {"checkpoint_every": None, "checkpoint_interval": None, "until": "end", **options}
    return client.client.consumer("billing", "orders", **options)


async def offsets(client: Opened, consumer: Any, count: int) -> list[int]:
    return [record.offset for record in await client.take(consumer, count)]
