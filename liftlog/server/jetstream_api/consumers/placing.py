"""Moves the cursor of a new consumer to its start."""

from __future__ import annotations

from liftlog.server.jetstream_api.consumers.config import ConsumerSpec
from liftlog.server.jetstream_api.consumers.cursor import Cursor
from liftlog.server.jetstream_api.messages.shown import Shown


async def place(cursor: Cursor, spec: ConsumerSpec, shown: Shown) -> None:
    """Move the cursor to the start of this consumer. Raises LimitExceeded."""
    limit = shown.history
    match spec.policy:
        case "new":
            await cursor.begin(shown.host.log.high_watermark, None)
        case "last":
            await cursor.begin_at_last()
        case "last_per_subject":
            await cursor.begin(0, 1)
        case "by_start_sequence":
            await cursor.begin(spec.start_sequence, limit)
        case "by_start_time":
            await cursor.begin_at_time(spec.start_time_ns, limit)
        case _:
            await cursor.begin(0, limit)
