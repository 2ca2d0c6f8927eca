"""Reads the counters of the streams and of the daemon for the charts of the web page."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from liftlog.errors import LiftlogError
from liftlog.log import Log
from liftlog.server.checkpoints.checkpoint import CheckpointKey
from liftlog.server.commits.host import StreamHost
from liftlog.server.metrics.values import Sources
from liftlog.server.streams.broker import Broker
from liftlog.server.vitals.histogram import LATENCY_BOUNDS
from liftlog.server.web.history import DAEMON, Reading, of_consumer, of_group
from liftlog.server.web.waiting import Place, Waiting, received_ns

_MAX_READERS = 10_000
"""Maximum number of consumers, and of groups, that are examined."""
_MAX_FOLLOWED = 1000
"""Maximum number of consumers, and of groups, whose lag gets a separate history. Such a history
takes 8 KiB."""
_HOSTS_PER_TURN = 50
_READERS_PER_TURN = 250
"""Number of consumers or groups that are examined in one turn of the event loop. This takes some
0.3 ms. The number is small because the request for a web page needs a dozen turns, and waits for
this work in each turn."""
_EVENTS = ("refused", "possible_losses")
_NO_ACKS = [0] * (len(LATENCY_BOUNDS) + 1)
_ZERO = Reading(
    {"records": 0, "received_bytes": 0}, dict.fromkeys(_EVENTS, 0), {"ack": _NO_ACKS}, {}
)


class Readings:
    """Reads the counters at each call. It belongs to the event loop and yields to other tasks while
    it reads."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._grown = dict.fromkeys(("records", "received_bytes", *_EVENTS), 0.0)
        self._acks = _NO_ACKS.copy()
        self._before: dict[str, Reading] = {}
        self._of_readers: dict[str, Reading] = {}
        self._waiting = Waiting(self._received)

    async def __call__(self) -> dict[str, Reading]:
        broker, lags = self._sources.broker, _Lags()
        if broker.has_checkpoints:
            await lags.look(broker)
        found = {}
        for number, host in enumerate(list(broker.hosts.values()), 1):
            name = host.name
            found[name] = _of_stream(host, lags.largest.get(name, 0), self._before.get(name))
            if number % _HOSTS_PER_TURN == 0:
                await asyncio.sleep(0)
        self._add(found)
        found[DAEMON] = self._of_daemon(max(lags.largest.values(), default=0))
        await self._add_readers(lags.followed, found)
        return found

    async def _add_readers(self, readers: list[_Reader], found: dict[str, Reading]) -> None:
        logs: dict[str, Log | None] = {}
        places: list[Place | None] = []
        for reader in readers:
            places.append(_place_of(reader, self._sources.broker, logs))
            if len(places) % _READERS_PER_TURN == 0:
                await asyncio.sleep(0)
        known = [place for place in places if place is not None]
        seconds = iter(await self._waiting.seconds(known))
        for number, (reader, place) in enumerate(zip(readers, places, strict=True), 1):
            lag = math.nan if reader.lag is None else reader.lag
            waits = math.nan if place is None else next(seconds)
            found[reader.name] = self._of_reader(reader.name, lag, waits)
            if number % _READERS_PER_TURN == 0:
                await asyncio.sleep(0)
        self._of_readers = {reader.name: found[reader.name] for reader in readers}

    def _of_reader(self, name: str, lag: float, waits: float) -> Reading:
        """Return a reading of one reader. If nothing has changed since the last reading, return the
        last reading."""
        last = self._of_readers.get(name)
        if last is not None and [*last.levels.values()] == [lag, waits]:
            return last
        return Reading({}, {}, {}, {"lag": lag, "lag_seconds": waits})

    async def _received(self, places: list[Place]) -> list[int | None]:
        loop = asyncio.get_running_loop()
        thread = self._sources.pull.services.scanners.of("charts")
        try:
            return await loop.run_in_executor(thread, received_ns, places)
        except RuntimeError:  # the threads have ended: the daemon is stopping
            return [None] * len(places)

    def _add(self, found: dict[str, Reading]) -> None:
        """Add the sums over all streams. Deleted streams stay included, because a sum must never
        fall."""
        before, self._before = self._before, found.copy()
        for name, reading in found.items():
            last = before.get(name, _ZERO)
            if reading is last:
                continue
            if reading.totals["records"] < last.totals["records"]:
                last = _ZERO
            for one in self._grown:
                self._grown[one] += max(0, _counted(reading, one) - _counted(last, one))
            acks = zip(reading.timings["ack"], last.timings["ack"], strict=True)
            for place, (now, was) in enumerate(acks):
                self._acks[place] += max(0, now - was)

    def _of_daemon(self, lag: float) -> Reading:
        sources, grown = self._sources, self._grown
        pull = sources.pull.services.counters
        return Reading(
            {
                "records": grown["records"],
                "received_bytes": grown["received_bytes"],
                "read_records": pull.records_total,
                "read_bytes": pull.body_bytes_total,
            },
            {one: grown[one] for one in _EVENTS},
            {
                "ack": list(self._acks),
                "fsync": sources.sync_times.snapshot().counts,
                "loop": list(sources.loop_watch.lag.counts),
            },
            {"lag": lag},
        )


def _counted(reading: Reading, name: str) -> float:
    return (reading.events if name in _EVENTS else reading.totals)[name]


def _of_stream(host: StreamHost, lag: float, last: Reading | None) -> Reading:
    """Return a reading of one stream. If nothing has changed since `last`, return `last` itself."""
    observed = host.observed
    records = observed.records + observed.copied_offsets
    received_bytes = observed.received_bytes + observed.copied_bytes
    read_records, read_bytes = observed.read_records, observed.read_bytes
    refused, losses = sum(host.sequencer.refused.values()), host.possible_loss_events
    acks = observed.ack_seconds.counts
    if (
        last is not None
        and acks == last.timings["ack"]
        and (records, received_bytes, read_records, read_bytes) == (*last.totals.values(),)
        and (refused, losses) == (*last.events.values(),)
        and lag == last.levels["lag"]
    ):
        return last
    return Reading(
        {
            "records": records,
            "received_bytes": received_bytes,
            "read_records": read_records,
            "read_bytes": read_bytes,
        },
        {"refused": refused, "possible_losses": losses},
        {"ack": list(acks)},
        {"lag": lag},
    )


class _Reader(NamedTuple):
    """A consumer or a group. `name` is the name of its history. `lag` is None if the reader cannot
    continue, or if this node cannot read its stream."""

    name: str
    stream: str
    lag: int | None


class _Lags:
    """The largest lag of the readers of each stream, and the readers whose lag gets a history."""

    def __init__(self) -> None:
        self.largest: dict[str, int] = {}
        self.followed: list[_Reader] = []

    async def look(self, broker: Broker) -> None:
        """Examine the consumers, then the groups."""
        count = 0
        after: CheckpointKey | None = None
        while count < _MAX_READERS:
            consumers = broker.checkpoints.lags(after, _READERS_PER_TURN)
            if not consumers:
                break
            self._take(consumers, of_consumer, count)
            count += len(consumers)
            after = consumers[-1][0]
            await asyncio.sleep(0)
        keys = broker.checkpoints.groups.keys()[:_MAX_READERS]
        for first in range(0, len(keys), _READERS_PER_TURN):
            await asyncio.sleep(0)
            groups = broker.checkpoints.groups
            some = keys[first : first + _READERS_PER_TURN]
            self._take([(key, groups.lag(key)) for key in some], of_group, first)

    def _take(
        self,
        readers: list[tuple[tuple[str, str], int | None]],
        name_of: Callable[[str, str], str],
        before: int,
    ) -> None:
        """Take readers of one kind. `before` of them have already been taken."""
        largest = self.largest
        for (_, stream), lag in readers:
            if lag is not None and lag > largest.get(stream, 0):
                largest[stream] = lag
        for (reader, stream), lag in readers[: max(0, _MAX_FOLLOWED - before)]:
            self.followed.append(_Reader(name_of(reader, stream), stream, lag))


def _place_of(reader: _Reader, broker: Broker, logs: dict[str, Log | None]) -> Place | None:
    """Return the place of a reader. Return None if the reader cannot continue, or if its stream was
    deleted. `logs` contains the logs that were found so far, by stream."""
    name, lag = reader.stream, reader.lag
    if lag is None:
        return None
    if name not in logs:
        logs[name] = None
        with suppress(LiftlogError):
            logs[name] = broker.readable_stream(name).log
    log = logs[name]
    return None if log is None else Place(log, max(log.high_watermark - lag, log.log_start_offset))
