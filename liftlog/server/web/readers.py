"""The consumers and groups of all streams for the pages, listed at most once a second.

A daemon can have ten thousand consumers, and any viewer can request the pages that list them. So
all viewers share one listing, which is created at most once a second. Each page shows only the
entries that its viewer may see.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from liftlog.errors import LiftlogError
from liftlog.protocol.checkpoints import Checkpoint, CheckpointsAnswer, ListCheckpoints
from liftlog.protocol.groups import GroupInfo, GroupsAnswer, ListGroups
from liftlog.server.access.gate import Gate
from liftlog.server.requests.rights import Caller, carry_out
from liftlog.server.streams.broker import Broker
from liftlog.server.vitals.slices import Slices
from liftlog.server.web.waiting import Place, received_ns

MAX_CONSUMERS = 10_000
MAX_GROUPS = 10_000
MAX_SHOWN = 5
"""Number of readers that `StreamReaders` names."""
MAX_AGE_SECONDS = 1.0
_AGE_PER_READER = 0.0005
"""A listing is reused for this number of seconds, multiplied by the number of its consumers, groups
and members."""
_FEW = 100
"""A listing of at most this number of consumers, groups and members is made for each request."""
_ROWS_PER_SLICE = 100

_ALL = Gate(None)
"""A gate that permits everything. It is used to create a listing. Each page that shows the listing
asks the gate of its viewer."""

Row = dict[str, Any]

_BLANK = {**Checkpoint().to_wire(), "lag_seconds": None, "may_move": False}
"""Default values, because a node with another version may report fewer fields."""

_ORDER: dict[str, Callable[[Row], Any]] = {
    # Consumers that cannot continue come first: their lag is unknown.
    "lag": lambda row: (not row["problem"], -(row["lag"] or 0), row["id"]),
    "consumer": lambda row: row["id"],
    "stream": lambda row: (row["stream"], row["consumer"]),
    "stored": lambda row: (-row["time_ns"], row["id"]),
}
SORTS = tuple(_ORDER)


class StreamReaders(NamedTuple):
    """The readers of one stream: the rows of the first `MAX_SHOWN` readers, the number of the other
    readers, and the names of all readers."""

    shown: list[Row]
    more: int
    names: str


class Listing:
    """The consumers and groups at one moment. All viewers share its rows, so callers must not
    change them."""

    def __init__(self, consumers: list[Row], has_more: bool, groups: list[Row]) -> None:
        """`has_more` is True if there are more consumers than these. `groups` are sorted by lag,
        the largest first."""
        self.consumers, self.has_more, self.groups = consumers, has_more, groups
        self._sorted: dict[str, list[Row]] = {}
        self._of_streams: dict[str, StreamReaders] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._stamps: dict[tuple[str, int], int | None] = {}

    def sorted_by(self, sort: str) -> list[Row]:
        """Return the consumers in an order, one of `SORTS`."""
        if sort not in self._sorted:
            self._sorted[sort] = sorted(self.consumers, key=_ORDER[sort])
        return self._sorted[sort]

    async def of_streams(self) -> Mapping[str, StreamReaders]:
        """Return the readers by stream: first the readers that cannot continue, then the readers
        with the largest lag."""
        async with self._one_at_a_time:
            if self._of_streams is None:
                self._of_streams = await _by_stream(self.consumers, self.groups)
            return self._of_streams

    async def stamps(
        self, places: Iterable[Place], read: Callable[..., Any]
    ) -> Mapping[tuple[str, int], int | None]:
        """Return the arrival times of the records at these places, by incarnation and offset.
        `read` runs a blocking function in a thread."""
        async with self._one_at_a_time:
            wanted = {(one.log.incarnation, one.offset): one for one in places}
            new = {key: one for key, one in wanted.items() if key not in self._stamps}
            if new:
                found = await read(received_ns, list(new.values()))
                self._stamps.update(zip(new, found, strict=True))
            return self._stamps


class Readers:
    """Makes the listings. Belongs to one event loop."""

    def __init__(self, broker: Broker, now: Callable[[], float] = time.monotonic) -> None:
        self._broker, self._now = broker, now
        self._kept: Listing | None = None
        self._good_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._one_at_a_time = asyncio.Lock()

    async def listing(self) -> Listing:
        """Return a listing that was made at most a second ago. Raises the broker's errors."""
        async with self._one_at_a_time:
            if self._kept is not None and self._now() < self._good_until:
                return self._kept
            self.forget()
            consumers, has_more = await self._consumers()
            groups = await self._groups()
            made = Listing(consumers, has_more, groups)
            count = len(consumers) + sum(1 + row["members"] for row in groups)
            if count > _FEW:
                self._kept = made
                # This time counts from the end of the listing. Under load, creating the listing may
                # take longer than the time for which it is reused.
                self._good_until = self._now() + min(count * _AGE_PER_READER, MAX_AGE_SECONDS)
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(MAX_AGE_SECONDS, self.forget)
            return made

    def forget(self) -> None:
        """Drop the listing. Called when a reader in it has changed, or when the last viewer has
        left."""
        self._kept = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _consumers(self) -> tuple[list[Row], bool]:
        found: list[Row] = []
        slices = Slices()
        after: str | None = None
        while True:
            page = await carry_out(self._caller, ListCheckpoints(after=after))
            assert isinstance(page, CheckpointsAnswer), "the answer to checkpoints"
            for first in range(0, len(page.checkpoints), _ROWS_PER_SLICE):
                found += [
                    {**_BLANK, **one, "id": f"{one.get('consumer')}/{one.get('stream')}"}
                    for one in page.checkpoints[first : first + _ROWS_PER_SLICE]
                ]
                await slices.pause()
            after = page.after
            if after is None or len(found) >= MAX_CONSUMERS:
                return found, after is not None

    async def _groups(self) -> list[Row]:
        found: list[Row] = []
        slices = Slices()
        after: str | None = None
        while True:
            page = await carry_out(self._caller, ListGroups(after=after))
            assert isinstance(page, GroupsAnswer), "the answer to groups"
            for one in page.groups:
                found.append(_group_row(GroupInfo.from_wire(one)))
                await slices.pause()
            after = page.after
            if after is None or len(found) >= MAX_GROUPS:
                return sorted(found, key=lambda row: (-(row["lag"] or 0), row["id"]))

    @property
    def _caller(self) -> Caller:
        return Caller(None, _ALL, self._broker, "")


def _group_row(one: GroupInfo) -> Row:
    return {
        "id": f"{one.group}/{one.stream}",
        "group": one.group,
        "stream": one.stream,
        "members": len(one.members),
        "free_slots": one.slot_count - sum(member["slots"] for member in one.members),
        "lag": one.lag,
        "lag_seconds": None,
        "time_ns": one.time_ns,
    }


async def _by_stream(consumers: list[Row], groups: list[Row]) -> dict[str, StreamReaders]:
    readers: dict[str, list[Row]] = {}
    slices = Slices()
    for kind, rows in (("consumer", consumers), ("group", groups)):
        for row in rows:
            stream, name = row["stream"], row[kind]
            one = {
                "id": f"{kind} {name}/{stream}",
                "kind": kind,
                "name": name,
                "stream": stream,
                "lag": row["lag"],
                "problem": row.get("problem", ""),
                "members": row.get("members", 0),
            }
            readers.setdefault(stream, []).append(one)
            await slices.pause()
    found = {}
    for stream, some in readers.items():
        some.sort(key=lambda one: (not one["problem"], -(one["lag"] or 0), one["id"]))
        names = " ".join([one["name"] for one in some])
        found[stream] = StreamReaders(some[:MAX_SHOWN], max(0, len(some) - MAX_SHOWN), names)
        await slices.pause()
    return found


async def add_seconds(
    rows: list[Row], listing: Listing, broker: Broker, read: Callable[..., Any]
) -> None:
    """Add a time to each row: the time for which the oldest unread record of the row's consumer or
    group has been in the stream. `read` runs a blocking function in a thread."""
    behind: list[tuple[Row, Place]] = []
    for row in rows:
        if row["lag"] == 0:
            row["lag_seconds"] = 0.0
        elif row["lag"]:
            try:
                log = broker.readable_stream(row["stream"]).log
            except LiftlogError:  # the record was deleted meanwhile, or is not readable: unknown
                continue
            first = max(log.high_watermark - row["lag"], log.log_start_offset)
            behind.append((row, Place(log, row.get("offset", first))))
    if not behind:
        return
    stamps = await listing.stamps([place for _, place in behind], read)
    for row, place in behind:
        stamp = stamps.get((place.log.incarnation, place.offset))
        if stamp is not None:
            row["lag_seconds"] = round(max(0.0, time.time() - stamp / 1e9), 1)
