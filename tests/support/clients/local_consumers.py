"""Consumers of a stream `orders`, with either client, and what the broker stores of them."""

from __future__ import annotations

from typing import Any

from support.clients.opened_client import Opened


def stored(broker: Any, consumer: str = "billing") -> int:
    found = broker.checkpoints.table.get((consumer, "orders"))
    return 0 if found is None else int(found.offset)


def make(client: Opened, **options: Any) -> Any:
    """It stops at the end: reads of one stream that wait would delay the others."""
    options = {"checkpoint_every": None, "checkpoint_interval": None, "until": "end", **options}
    return client.client.consumer("billing", "orders", **options)


async def offsets(client: Opened, consumer: Any, count: int) -> list[int]:
    return [record.offset for record in await client.take(consumer, count)]
