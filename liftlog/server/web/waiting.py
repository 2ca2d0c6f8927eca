"""Measures the lag of a reader as a time: the time for which its next record has been in the
stream.

Every few seconds, the module notes the end offset of each stream with the time. These notes give
the arrival times of the records of the last minutes, to about a second, without reading any record.
For a reader that is farther behind, the module reads the next record once. It reads again only
after the reader has moved.
"""

from __future__ import annotations

import asyncio
import math
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from liftlog.errors import LiftlogError
from liftlog.log import Log
from liftlog.records.decode import decode_batch

_NOTES = 60
_PLACES_PER_TURN = 500
_READS = 100
"""Maximum number of records read in one pass. Each read loads a batch."""


class Place(NamedTuple):
    """Position of a reader in a stream; `offset` is the next offset to read."""

    log: Log
    offset: int


class Waiting:
    """Computes the time for which the next record of each reader has been in its stream. Belongs to
    the event loop.

    `read` returns the arrival times, in ns since 1970, of the records at the given places, as
    `received_ns` does.
    """

    def __init__(
        self,
        read: Callable[[list[Place]], Awaitable[list[int | None]]],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._read, self._now = read, now
        self._notes: dict[str, _Notes] = {}
        self._known: dict[tuple[str, int], float] = {}

    async def seconds(self, places: Sequence[Place]) -> list[float]:
        """Return the time for each place, in seconds. It is 0 at the end of the stream, and NaN if
        it is unknown. Call this every few seconds, with all places."""
        now = self._now()
        self._note({place.log.incarnation: place.log for place in places}, now)
        found: list[float | None] = []
        for first in range(0, len(places), _PLACES_PER_TURN):
            found += [self._since(place) for place in places[first : first + _PLACES_PER_TURN]]
            await asyncio.sleep(0)
        unknown = {
            (place.log.incarnation, place.offset): place
            for place, since in zip(places, found, strict=True)
            if since is None
        }
        await self._learn(unknown)
        known = self._known = {key: self._known[key] for key in unknown if key in self._known}
        return [
            _age(known.get((place.log.incarnation, place.offset)) if since is None else since, now)
            for place, since in zip(places, found, strict=True)
        ]

    def _note(self, logs: dict[str, Log], now: float) -> None:
        for gone in self._notes.keys() - logs.keys():
            del self._notes[gone]
        for incarnation, log in logs.items():
            self._notes.setdefault(incarnation, _Notes()).add(log.high_watermark, now)

    def _since(self, place: Place) -> float | None:
        return self._notes[place.log.incarnation].since(place.offset)

    async def _learn(self, places: Mapping[tuple[str, int], Place]) -> None:
        new = {key: one for key, one in places.items() if key not in self._known}
        keys = list(islice(new, _READS))
        if not keys:
            return
        stamps = await self._read([new[key] for key in keys])
        for key, stamp in zip(keys, stamps, strict=True):
            self._known[key] = math.nan if stamp is None else stamp / 1e9


def _age(since: float | None, now: float) -> float:
    return math.nan if since is None else max(now - since, 0.0)


class _Notes:
    """End offsets of a stream, each with the time at which it was read."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._times: list[float] = []

    def add(self, end: int, now: float) -> None:
        if self._ends and end < self._ends[-1]:  # a replica has been truncated
            self._ends.clear()
            self._times.clear()
        self._ends.append(end)
        self._times.append(now)
        del self._ends[:-_NOTES], self._times[:-_NOTES]

    def since(self, offset: int) -> float | None:
        """Return the arrival time of the record, in seconds since 1970. Return infinity if it has
        not arrived. Return None if it arrived before the first note."""
        following = bisect_right(self._ends, offset)
        if following == len(self._ends):
            return math.inf
        if following == 0:
            return None
        low, high = self._ends[following - 1], self._ends[following]
        early, late = self._times[following - 1], self._times[following]
        return early + (late - early) * (offset - low) / (high - low)


def received_ns(places: Sequence[Place]) -> list[int | None]:
    """Return the arrival time, in ns since 1970, of the first record at or after each place; None
    if the record cannot be read. Blocking: reads a batch for each place."""
    return [_received_ns(place) for place in places]


def _received_ns(place: Place) -> int | None:
    try:
        piece = place.log.read(place.offset, 1, 1)
        if piece is None:
            return None
        try:
            batch = decode_batch(piece.pread())
        finally:
            piece.release()
        left = batch.trim(place.offset)
        return int(left.timestamps_ns()[0]) if len(left) else None
    except LiftlogError:  # damaged or deleted; the stream's page shows damage
        return None
