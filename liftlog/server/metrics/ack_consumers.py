"""The metrics of single consumers with acks, on the node that leads their streams."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from liftlog.server.jetstream_api.workers.acked_consumer import AckedConsumer
from liftlog.server.jetstream_api.workers.acked_table import AckedConsumers
from liftlog.server.vitals.slices import Slices

MAX_SHOWN = 1_000
_COUNTED_AT_ONCE = 100
"""Number of consumers whose waiting messages are counted again after a scrape. If there are more
consumers, they are counted in turn. The number is limited because, for a consumer with a filter,
the count has to read the subjects of new records."""

ACK_CONSUMER_VALUES: dict[str, Callable[[AckedConsumer], float]] = {
    "liftlog_ack_consumer_waiting": lambda one: one.gauges().waiting,
    "liftlog_ack_consumer_pending": lambda one: one.machine.state.pending.total,
    "liftlog_ack_consumer_redelivered": lambda one: one.machine.state.num_redelivered,
    "liftlog_ack_consumer_pulls": lambda one: len(one.machine.state.pulls),
    "liftlog_ack_consumer_floor_offset": lambda one: one.machine.state.floor_offset,
    "liftlog_ack_consumer_paused": lambda one: int(one.gauges().is_paused),
    "liftlog_ack_consumer_deliveries_total": lambda one: one.machine.state.sequence,
    "liftlog_ack_consumer_exhausted_total": lambda one: one.gauges().exhausted_total,
}
"""Functions that return the value of a metric for a consumer, by the name of the metric. Counters
begin at 0 when the daemon starts, except the number of deliveries, which is stored."""


class AckConsumerRows:
    """Reads the values for the scrapes. It belongs to the event loop."""

    def __init__(self) -> None:
        self._counted = 0

    async def read(
        self, table: AckedConsumers | None, streams: list[str], slices: Slices
    ) -> tuple[list[tuple[tuple[str, str], list[float]]], int]:
        """Return the names of consumers, their values in the order of `ACK_CONSUMER_VALUES`, and
        the number of consumers that are left out. The consumers with the most messages come
        first."""
        if table is None:
            return [], 0
        found: list[AckedConsumer] = []
        for name in streams:
            found += table.of(name)
            await slices.pause()
        shown = heapq.nlargest(MAX_SHOWN, found, key=_messages)
        rows = []
        for one in shown:
            values = [value(one) for value in ACK_CONSUMER_VALUES.values()]
            rows.append(((one.spec.name, one.host.name), values))
            await slices.pause()
        self._count(shown)
        return rows, len(found) - len(shown)

    def _count(self, shown: list[AckedConsumer]) -> None:
        """Start to count the waiting messages, for the next scrape."""
        if self._counted >= len(shown):
            self._counted = 0
        for one in shown[self._counted : self._counted + _COUNTED_AT_ONCE]:
            one.count_again()
        self._counted += _COUNTED_AT_ONCE


def _messages(one: AckedConsumer) -> int:
    return one.gauges().waiting + one.machine.state.pending.total
