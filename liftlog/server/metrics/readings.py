"""Reads the counters of the streams and of the daemon for the charts of the web page."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import NamedTuple

from liftlog.errors import LiftlogError
from liftlog.protocol.checkpoints import Checkpoint
from liftlog.protocol.groups import GroupInfo
from liftlog.server.commits.host import StreamHost
from liftlog.server.metrics.values import Sources
from liftlog.server.streams.broker import Broker
from liftlog.server.vitals.histogram import LATENCY_BOUNDS
from liftlog.server.web.history import DAEMON, Reading, of_consumer, of_group
from liftlog.server.web.waiting import Place, Waiting, received_ns

_MAX_READERS = 10_000
"""Maximum number of consumers that are examined, and of groups."""
_MAX_FOLLOWED = 1000
"""Maximum number of consumers, and of groups, whose lag gets a history of its own, at 8 KiB
each."""
_HOSTS_PER_TURN = 50
_READERS_PER_TURN = 50
"""Consumers or groups that are looked at in one turn of the event loop: some 0.5 ms of work. A
request of a web page passes through a dozen turns, and would wait for as many pieces."""
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
        self._waiting = Waiting(self._received)

    async def __call__(self) -> dict[str, Reading]:
        broker = self._sources.broker
        consumers: list[_Reader] = []
        groups: list[_Reader] = []
        if broker.has_checkpoints:
            consumers, groups = await _consumers(broker), await _groups(broker)
        lags: dict[str, int] = {}
        for one in consumers + groups:
            lags[one.stream] = max(one.lag or 0, lags.get(one.stream, 0))
        found = {}
        for number, host in enumerate(list(broker.hosts.values()), 1):
            name = host.name
            found[name] = _of_stream(host, lags.get(name, 0), self._before.get(name))
            if number % _HOSTS_PER_TURN == 0:
                await asyncio.sleep(0)
        self._add(found)
        found[DAEMON] = self._of_daemon(max(lags.values(), default=0))
        return found | await self._of_readers(consumers[:_MAX_FOLLOWED] + groups[:_MAX_FOLLOWED])

    async def _of_readers(self, readers: list[_Reader]) -> dict[str, Reading]:
        places = [one.place for one in readers if one.place is not None]
        seconds = iter(await self._waiting.seconds(places))
        found = {}
        for one in readers:
            lag = math.nan if one.lag is None else one.lag
            waits = math.nan if one.place is None else next(seconds)
            found[one.name] = Reading({}, {}, {}, {"lag": lag, "lag_seconds": waits})
        return found

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
    """Return a reading of one stream; `last` itself if nothing has changed since then."""
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
    place: Place | None


async def _consumers(broker: Broker) -> list[_Reader]:
    found: list[_Reader] = []
    after: str | None = None
    while len(found) < _MAX_READERS:
        some, after = broker.checkpoints.page(_any_stream, after=after, limit=_READERS_PER_TURN)
        found += [_reader(broker, of_consumer(one.consumer, one.stream), one) for one in some]
        if after is None:
            break
        await asyncio.sleep(0)
    return found


async def _groups(broker: Broker) -> list[_Reader]:
    found: list[_Reader] = []
    after: str | None = None
    while len(found) < _MAX_READERS:
        some, after = broker.checkpoints.groups.page(
            _any_stream, after=after, limit=_READERS_PER_TURN
        )
        found += [_reader(broker, of_group(one.group, one.stream), one) for one in some]
        if after is None:
            break
        await asyncio.sleep(0)
    return found


def _any_stream(_name: str) -> bool:
    return True


def _reader(broker: Broker, name: str, one: Checkpoint | GroupInfo) -> _Reader:
    place = None
    if one.lag is not None:
        with suppress(LiftlogError):  # the stream was deleted meanwhile
            log = broker.readable_stream(one.stream).log
            place = Place(log, max(log.high_watermark - one.lag, log.log_start_offset))
    return _Reader(name, one.stream, one.lag, place)
