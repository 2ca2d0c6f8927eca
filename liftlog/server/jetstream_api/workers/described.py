"""JetStream's description of a consumer with acks."""

from __future__ import annotations

from typing import Any, NamedTuple

from liftlog.deliveries.consumer import Figures
from liftlog.server.jetstream_api.answers import ZERO_TIME, time_text
from liftlog.server.jetstream_api.consumers.config import ConsumerSpec, shown_config


class Gauges(NamedTuple):
    """Values for the metrics."""

    waiting: int
    """Number of messages that were not delivered yet, when they were last counted."""
    exhausted_total: int
    """Number of messages that have run out of deliveries since the daemon started."""
    is_paused: bool


def describe(
    spec: ConsumerSpec,
    stream: str,
    created_ns: int,
    figures: Figures,
    waiting: int,
    pinned: tuple[bytes, int],
    now_ns: int,
    active_ns: tuple[int, int],
) -> dict[str, Any]:
    """Return the body of an answer to CONSUMER.INFO. `waiting` is the number of messages that were
    not delivered yet. `pinned` contains the id of the pinned client, and the time at which it was
    pinned. `active_ns` contains the times of the last delivery and of the last ack. A time is 0 if
    there was none since the daemon began to lead the stream."""
    found: dict[str, Any] = {
        "stream_name": stream,
        "name": spec.name,
        "created": time_text(created_ns),
        "config": shown_config(spec),
        "delivered": {
            "consumer_seq": figures.delivered_sequence,
            "stream_seq": max(figures.delivered_offset, 0),
        },
        "ack_floor": {
            "consumer_seq": figures.floor_sequence,
            "stream_seq": max(figures.floor_offset, 0),
        },
        "num_ack_pending": figures.num_ack_pending,
        "num_redelivered": figures.num_redelivered,
        "num_waiting": figures.num_waiting,
        "num_pending": waiting,
        "ts": time_text(now_ns),
    }
    for position, last_ns in zip(("delivered", "ack_floor"), active_ns, strict=True):
        if last_ns:
            found[position]["last_active"] = time_text(last_ns)
    groups = spec.settings.priority_groups
    if groups:
        pin, pinned_ns = pinned
        group = {"group": groups[0], "pinned_ts": time_text(pinned_ns) if pin else ZERO_TIME}
        if pin:
            group["pinned_client_id"] = pin.decode()
        found["priority_groups"] = [group]
    if figures.is_paused:
        found["paused"] = True
        found["pause_remaining"] = spec.settings.pause_until_ns - now_ns
    return found
