"""What the charts of the web page are made from: the counters of the streams and of the daemon."""

from __future__ import annotations

import asyncio
import math

from liftlog.server.commits.host import StreamHost
from liftlog.server.metrics.values import Sources
from liftlog.server.streams.broker import Broker
from liftlog.server.web.history import DAEMON, Reading, of_consumer

_MAX_CHECKPOINTS = 10_000
_MAX_CONSUMERS = 1000
"""The lag of so many is kept one by one: 3 KiB each."""
_HOSTS_PER_TURN = 100


class Readings:
    """Call it for the present state. Belongs to the event loop, and gives others their turn."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._grown = {"records": 0.0, "received_bytes": 0.0, "refused": 0.0}
        self._before: dict[str, dict[str, float]] = {}

    async def __call__(self) -> dict[str, Reading]:
        broker = self._sources.broker
        lags, consumers = await _lags(broker)
        found = {}
        for number, host in enumerate(list(broker.hosts.values()), 1):
            found[host.name] = _of_stream(host, lags.get(host.name, 0))
            if number % _HOSTS_PER_TURN == 0:
                await asyncio.sleep(0)
        self._add(found)
        found[DAEMON] = self._of_daemon()
        return found | consumers

    def _add(self, found: dict[str, Reading]) -> None:
        """Over all streams, also those that were deleted since: their sum would fall."""
        before, self._before = self._before, {}
        for name, reading in found.items():
            counted = {**reading.totals, "refused": reading.events["refused"]}
            self._before[name] = counted
            last = before.get(name, {})
            if counted["records"] < last.get("records", 0):
                last = {}
            for one in self._grown:
                self._grown[one] += max(0, counted[one] - last.get(one, 0))

    def _of_daemon(self) -> Reading:
        sources, grown = self._sources, self._grown
        pull = sources.pull.services.counters
        return Reading(
            {
                "records": grown["records"],
                "received_bytes": grown["received_bytes"],
                "read_records": pull.records_total,
                "read_bytes": pull.body_bytes_total,
            },
            {"refused": grown["refused"]},
            {
                "fsync": sources.sync_times.snapshot().counts,
                "loop": list(sources.loop_watch.lag.counts),
            },
            {},
        )


def _of_stream(host: StreamHost, lag: float) -> Reading:
    observed = host.observed
    return Reading(
        {"records": observed.records, "received_bytes": observed.received_bytes},
        {
            "refused": sum(host.sequencer.refused.values()),
            "possible_losses": host.possible_loss_events,
        },
        {"ack": list(observed.ack_seconds.counts)},
        {"lag": lag},
    )


async def _lags(broker: Broker) -> tuple[dict[str, int], dict[str, Reading]]:
    """Per stream the largest, of the consumers that can continue at their checkpoints; and those of
    single consumers."""
    found: dict[str, int] = {}
    consumers: dict[str, Reading] = {}
    if not broker.has_checkpoints:
        return found, consumers
    after: str | None = None
    looked_at = 0
    while looked_at < _MAX_CHECKPOINTS:
        some, after = broker.checkpoints.page(lambda stream: True, after=after)
        for one in some:
            if one.lag is not None:
                found[one.stream] = max(one.lag, found.get(one.stream, 0))
            if len(consumers) < _MAX_CONSUMERS:
                lag = math.nan if one.lag is None else one.lag
                name = of_consumer(one.consumer, one.stream)
                consumers[name] = Reading({}, {}, {}, {"lag": lag})
        looked_at += len(some)
        if after is None:
            break
        await asyncio.sleep(0)
    return found, consumers
