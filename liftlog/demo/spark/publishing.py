"""The shop's publisher: plain nats-py, with the order's number as key and one ack per message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nats.aio.client import Client as NatsClient

from liftlog.cli.demo.spark.shop import Change
from liftlog.client.publisher import Published, Publisher

STREAM = "orders"
_ACK_SECONDS = 60.0


async def publish(nc: NatsClient, changes: Sequence[Change], last_offset: int) -> int:
    """Publish them in this order; returns the offset of the last one.

    `last_offset` is that of the last message before. Raises PublishFailed.
    """
    publisher = Publisher(
        nc,
        expect=[STREAM],
        order="sequence",
        last_sequence=last_offset,
        ack_timeout=_ACK_SECONDS,
        retry_for=0,
    )
    settled: list[asyncio.Future[Published]] = []
    try:
        async with publisher:
            for change in changes:
                settled.append(  # noqa: PERF401  # what was sent has to be known whenever it ends
                    await publisher.submit(change.subject, change.value, key=change.key)
                )
            for one in settled:
                last_offset = (await one).offset
    finally:
        for one in settled:  # the first failure speaks for all
            if one.done() and not one.cancelled():
                one.exception()
    return last_offset
