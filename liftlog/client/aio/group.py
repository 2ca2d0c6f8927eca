"""The asyncio client's member of a consumer group."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Self

from liftlog.client.aio.background_requests import BackgroundRequests, ConnectionOpener
from liftlog.client.aio.batch_reader import BatchReader, first_of, together
from liftlog.client.aio.consuming_block import Batches, ConsumingBlock
from liftlog.client.aio.heartbeats import Heartbeats
from liftlog.client.aio.routing import Router
from liftlog.client.connecting.reconnecting import ReadPatience, is_interruption
from liftlog.client.groups.group_member import Lane
from liftlog.client.groups.group_settings import LOOK_SECONDS, POLL_MS, GroupSettings
from liftlog.client.groups.grouping import GroupReading, logger
from liftlog.client.reading.read_ahead import ReadAhead
from liftlog.client.requests import fetch_answer, fetch_request, result_of
from liftlog.errors import GroupFenced, LiftlogError, RequestTimeout
from liftlog.protocol.groups import AssignmentAnswer
from liftlog.protocol.messages import Done, Message
from liftlog.records.decode import Record

_OPENING_SECONDS = 0.005
"""Interval, in seconds, of the checks whether a connection in the background is open, while no
records arrive."""


class GroupConsumer(GroupReading, ConsumingBlock[list[Record]]):
    """Iterates over the records of the slots that this member owns, with at-least-once delivery, in
    order for each key. Created by `Client.group`.

    A record counts as processed when the next record is requested. The consumer commits after
    `commit_every` records or `commit_interval` seconds, when slots move, on request, and in
    `close`, which `async with` calls. It sends heartbeats in the background, while the caller
    processes records. The session can still end if the process hangs or has no connection. The
    consumer then joins again, and continues with the slots that the group assigns to it.

    A group consumer belongs to one task. An iteration that was cancelled can be continued.
    """

    def __init__(
        self,
        session: Router,
        settings: GroupSettings,
    ) -> None:
        super().__init__(settings)
        self._session = session
        self._ways: dict[BatchReader, Router] = {}
        self._idle_ways: list[Router] = []
        self._heartbeats = Heartbeats(session, self._news)
        self._opener = ConnectionOpener(session)
        self._requests = BackgroundRequests(session)

    async def _ask(self, message: Message) -> Message:
        timeout = self._session.target.request_timeout
        return result_of(await self._session.ask(message, timeout), Message)

    # --- reading ---

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        record = self._next_at_once()
        while record is None:
            await self._attend()
            record = self._next_record()
            if record is None:
                await self._fill()
        return record

    def batches(self) -> AsyncIterator[list[Record]]:
        """Return the records in lists, one list per batch. A list counts as processed when the next
        list is requested."""
        return Batches(self)

    async def _take_batch(self) -> list[Record]:
        while True:
            await self._attend()
            records = self._next_records()
            if records:
                return records
            await self._fill()

    async def _fill(self) -> None:
        """Take the records that have arrived for the lanes. If no record has arrived, wait for the
        first one."""
        self._join_lanes()
        lanes = self._state.lanes
        if not lanes:
            await asyncio.sleep(LOOK_SECONDS)
            return
        idle: list[BatchReader] = []
        alone, pause = len(lanes) == 1, LOOK_SECONDS
        for lane in list(lanes):
            if lane in self._arrived or lane.in_hand:
                continue
            reader = self._readers.get(lane) or await self._read(lane)
            if reader is None:
                pause = _OPENING_SECONDS
                continue
            try:
                batch = await reader.next_within(LOOK_SECONDS if alone else 0)
                if batch is not None:
                    self._arrive(lane, reader, batch)
                    continue
            except LiftlogError:
                self._unread.append(self._readers.pop(lane))  # ended, or past the error
                raise
            self._pass(lane, reader)
            idle.append(reader)
        if not alone and not self._arrived:
            await first_of(idle, pause)

    async def _read(self, lane: Lane) -> BatchReader | None:
        """Begin to read the lane; return None while a connection for it is being opened."""
        way = await self._way()
        if way is None:
            return None
        route = way.route(self.stream, None)
        start, options = self._start_of(lane)
        slots = sorted(lane.slots), self._slot_count
        ahead = ReadAhead(route, self.stream, start, None, slots=slots, poll_ms=POLL_MS, **options)
        reader = BatchReader(route, ahead)
        together(reader)
        self._readers[lane], self._ways[reader] = reader, way
        return reader

    async def _way(self) -> Router | None:
        """Return a connection for one lane. On one connection, a daemon answers the fetches of a
        stream in the order in which they arrive. So a fetch that waits for new records would delay
        the fetches of another lane. The iteration waits for the first connection; further
        connections are opened in the background."""
        await self._close_unread()
        if self._idle_ways:
            return self._idle_ways.pop()
        if self._ways:
            return await self._opener.take()
        return await self._session.another()

    async def _close_unread(self) -> None:
        """Close the readers whose lanes no longer exist, and keep their connections for other
        lanes."""
        while self._unread:
            reader = self._unread.pop()
            self._idle_ways.append(self._ways.pop(reader))
            await reader.aclose()

    # --- membership ---

    async def _attend(self) -> None:
        """Do the work between two records: count the returned records as processed, update the
        slots, and commit if it is time."""
        if self._closed:
            raise StopAsyncIteration
        self._settle()
        self._state.processed()
        if self._stopped:
            raise StopAsyncIteration
        self._take_news()
        if self._storing is not None and not self._requests.busy:
            await self._if_possible(self._end_storing)
        self._say()
        if self._unread:
            await self._close_unread()
        now = time.monotonic()
        if not self._state.may_return(now):
            await self._join_when_possible()
        elif self._storing is not None:
            if self._has_run_ahead:
                await self._if_possible(self._commit)
        elif self._state.is_moving or self._commit_is_due(now):
            self._store_beside()

    async def _join_when_possible(self) -> None:
        """Join the group. If the join fails, retry for `reconnect_for` seconds, as for a read."""
        patience = ReadPatience(self._session.target.reconnect_for)
        while True:
            try:
                return await self._join()
            except LiftlogError as error:
                now = time.monotonic()
                pause, deadline = patience.interrupted(0, now)
                over = deadline is not None and now + pause >= deadline
                if over or not (is_interruption(error) or isinstance(error, RequestTimeout)):
                    raise
                logger.warning(
                    "group-join-failed group=%s stream=%s reason=%s",
                    self.group,
                    self.stream,
                    error,
                )
            await asyncio.sleep(pause)

    async def _join(self) -> None:
        """Become a member, possibly again."""
        if self._state.joined:
            self._lose(GroupFenced("its session has ended, because no heartbeat arrived in time"))
        start = 0
        if self._settings.start != "earliest":
            start = await self._first_offset()
        sent = time.monotonic()
        answer = await self._ask(self._join_request(start))
        assert isinstance(answer, AssignmentAnswer)
        self._has_joined(answer, sent)
        self._say()
        self._heartbeats.start()

    def _say(self) -> None:
        """Update the heartbeat from the present state."""
        state, beat = self._state, self._heartbeats.beat
        if state.joined == 0:
            self._heartbeats.beat = None
        elif beat is None or (beat.joined, beat.generation) != (state.joined, state.generation):
            self._heartbeats.beat = self._beat_request(self._wait)

    async def _first_offset(self) -> int:
        """Return the first offset of a new group."""
        request = fetch_request(self.stream, self._settings.start, max_records=1)
        timeout = self._session.target.request_timeout
        return fetch_answer(request, await self._session.ask(request, timeout)).header.offset

    # --- commits ---

    async def commit(self) -> None:
        """Count all records returned so far as processed, and store the positions. Durable on
        return.

        Raises GroupFenced if the member has lost its slots. The iteration then joins again.
        """
        self._settle()
        self._state.processed()
        await self._commit()

    async def _if_possible(self, store: Callable[[], Any]) -> None:
        try:
            await store()
        except GroupFenced as error:
            self._lose(error)
        except LiftlogError as error:
            if not error.retriable:
                raise
            self._log_failure(error)

    async def _commit(self) -> None:
        """Store new offsets, and release the slots that are to move to other members."""
        try:
            await self._end_storing()
        except LiftlogError as error:
            if not error.retriable:
                raise  # otherwise it is retried here
        state = self._state
        offsets = self._begin_commit()
        if offsets:
            joined, sent = state.joined, time.monotonic()
            await self._ask(self._commit_request(offsets))
            state.committed(joined, offsets, sent)
        if state.give_up():
            sent = time.monotonic()
            answer = await self._ask(self._beat_request(0.0))
            assert isinstance(answer, AssignmentAnswer)
            self._told(answer, sent)
            self._heartbeats.beat = self._beat_request(self._wait)

    def _store_beside(self) -> None:
        """Store new offsets in the background, so that no record waits for the commit."""
        messages = self._begin_storing()
        if messages:
            self._requests.begin(messages)

    async def _end_storing(self) -> None:
        storing = self._storing
        if storing is not None:
            answered = await self._requests.answered()
            self._storing = None
            self._has_stored(storing, answered)
            if self._state.joined:
                self._heartbeats.beat = self._beat_request(self._wait)

    def _log_failure(self, failure: LiftlogError) -> None:
        logger.warning(
            "group-commit-failed group=%s stream=%s member=%s reason=%s",
            self.group,
            self.stream,
            self.member,
            failure,
        )

    # --- the end ---

    async def leave(self) -> None:
        """Commit, and leave the group, so that other members receive the slots at once. For a
        member with a random name, `close` does the same."""
        self._settle()
        if self._state.joined:
            await self._commit()
            self._heartbeats.beat = None  # leaving ends the heartbeat in flight
            result_of(
                await self._session.ask(
                    self._leave_request(), self._session.target.request_timeout
                ),
                Done,
            )
        self._state.lost()
        await self._end()

    async def close(self) -> None:
        """Stop reading, and commit. A member with a chosen name keeps its slots until its session
        ends. So if a process joins with this name before the session ends, it receives the same
        slots. A member with a random name leaves the group.

        The last returned record or batch does not count as processed, unless `commit` was called
        after it.
        """
        if self._closed:
            return
        self._settle()
        try:
            if not self._settings.is_static:
                await self.leave()
            elif self._state.joined:
                await self._commit()
                # This heartbeat restarts the session's time. It also makes the daemon answer the
                # heartbeat in flight, so that stopping the heartbeats does not have to wait for it.
                self._heartbeats.beat = None
                with suppress(LiftlogError):
                    await self._ask(self._beat_request(0.0))
        except GroupFenced:
            self._state.lost()  # the member has already lost its slots
        finally:
            await self._end()

    async def _end(self) -> None:
        self._closed = True
        await self._heartbeats.stop()
        await self._requests.stop()
        await self._opener.stop()
        self._unread += self._readers.values()
        self._readers.clear()
        await self._close_unread()
        for way in self._idle_ways:
            way.close("closed by this client")

    async def __aenter__(self) -> Self:
        if not self._stopped:
            await self._attend()
        return self
