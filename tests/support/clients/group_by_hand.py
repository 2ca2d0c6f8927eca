"""A member of a consumer group without a connection and an event loop. The test gives the
answers."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from liftlog.client.groups.arrived import Arrived
from liftlog.client.groups.group_member import Lane
from liftlog.client.groups.group_settings import GroupSettings
from liftlog.client.groups.grouping import GroupReading
from liftlog.client.reading.base_reader import BaseReader
from liftlog.client.reading.read_ahead import ReadAhead
from liftlog.client.reading.read_options import ReadOptions, Start
from liftlog.errors import LiftlogError
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.groups import AssignmentAnswer, CommitGroup, JoinGroup
from liftlog.protocol.messages import Fetch, FetchHeader
from liftlog.records.columns.positions import Batches
from liftlog.records.decode import Record


class GroupByHand(GroupReading):
    """Drives a `GroupReading`, like the two clients. Its session never ends because of time."""

    def __init__(self, **options: Any) -> None:
        chosen: dict[str, Any] = {"session": 10.0, "slots": None, "commit_every": 1}
        chosen |= {"commit_interval": 1.0, "on_revoked": None, **options}
        named = [chosen.pop(one) for one in ("session", "slots", "commit_every", "commit_interval")]
        revoked = chosen.pop("on_revoked")
        super().__init__(
            GroupSettings("g", "s", "m", True, "earliest", *named, None, revoked, chosen)  # type: ignore[arg-type]
        )

    @property
    def lanes(self) -> list[Lane]:
        return self._state.lanes

    @property
    def ended_reads(self) -> list[Any]:
        """The reads of lanes that were merged into another lane."""
        return self._unread

    # --- answers of the daemon ---

    def join(self) -> JoinGroup:
        return self._join_request(0)

    def has_joined(self, answer: AssignmentAnswer) -> None:
        self._has_joined(answer, 0.0)

    def told(self, *assignment: Any) -> None:
        """Return the fields of an `AssignmentAnswer`."""
        self._told(AssignmentAnswer(*assignment), math.inf)

    def beat_fails(self, error: LiftlogError, joined: int) -> None:
        """Answer a heartbeat of the membership `joined` with this error."""
        self._news.append((error, joined, 0.0))
        self._take_news()

    def lose(self, error: LiftlogError) -> None:
        self._lose(error)

    def give_up(self, slots: Collection[int]) -> None:
        self._state.give_up(slots)

    def commit(self, offsets: dict[int, int]) -> CommitGroup:
        return self._commit_request(offsets)

    # --- reads ---

    def start_of(self, lane: Lane) -> tuple[Start, ReadOptions]:
        return self._start_of(lane)

    def begin_read(self, lane: Lane, reader: Any) -> None:
        self._readers[lane] = reader

    def join_lanes(self) -> None:
        """Merge lanes, as both clients do before they wait for records."""
        self._join_lanes()

    def answered(self, lane: Lane, reader: Any) -> None:
        """Note that the read of this lane has received an answer."""
        self._know(lane, reader)

    def nothing_until(self, lane: Lane, reader: Any) -> None:
        """Note that the stream has no records for the lane below the position of its read."""
        self._pass(lane, reader)

    def arrive(self, lane: Lane, reader: Any, batch: Batches) -> None:
        self._arrive(lane, reader, batch)

    def arrive_empty(self, lane: Lane, end: int) -> None:
        self._arrived[lane] = Arrived([], None, end)

    def take(self) -> list[Record]:
        """Return the next records that the member returns to its caller."""
        return self._next_records()


class ReadByHand(BaseReader):
    """The read of the newest lane. The test answers its fetches."""

    def __init__(self, group: GroupByHand) -> None:
        lane = group.lanes[-1]
        start, options = group.start_of(lane)
        slots = sorted(lane.slots), 64
        self._ahead = ReadAhead(self, "s", start, None, slots=slots, **options)
        self.asked: list[tuple[Any, list[int] | None]] = []
        self._exchanges: list[Exchange] = []
        self._ahead.next_batch()
        group.begin_read(lane, self)

    def request(self, message: Fetch, exchange: Exchange) -> None:
        self.asked.append((message.start, message.filter_slots))
        self._exchanges.append(exchange)

    def give_up(self, exchange: Exchange) -> None:
        raise AssertionError("a fetch is cancelled")

    def answer(self, next_offset: int) -> None:
        """Answer a fetch: there are no records before this offset."""
        start, exchange = self.asked[-1][0], self._exchanges[-1]
        header = FetchHeader(start, start, next_offset, 0, next_offset, 1, next_offset, 1, "i", 0)
        assert exchange.on_header is not None
        exchange.on_header(header)
        exchange.finish(header, None)
