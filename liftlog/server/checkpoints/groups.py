"""The consumer groups of the daemon. `liftlog.groups` decides; this module stores the decisions and
waits.

Groups are records of `_offsets`, like checkpoints. The node that has the table of checkpoints also
decides about groups. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from liftlog.errors import (
    CorruptBatch,
    InvalidArgument,
    LiftlogError,
    NotReady,
    RequestTimeout,
    StreamUnavailable,
)
from liftlog.groups.coordinator import Coordinator, Flight
from liftlog.groups.quota import Limits
from liftlog.groups.requests import Asked, Assignment, Commit, Join, Remove, Restamp, Seek, Told
from liftlog.groups.state import GroupKey, GroupState, decode_key, decode_value, encode_key
from liftlog.groups.state import encode_value as encode_group
from liftlog.names import check_consumer_name
from liftlog.protocol.groups import PAGE_GROUPS, GroupInfo
from liftlog.server.checkpoints.checkpoint import StreamBounds, why_not_storable
from liftlog.server.checkpoints.newer import refusal
from liftlog.server.commits.host import StreamHost

logger = logging.getLogger("liftlog.server.checkpoints")


_PAGE_WEIGHT = 8192
"""Maximum number of slots and members in the groups of one page. Collecting such a page blocks the
event loop for some milliseconds."""


class Progress(NamedTuple):
    """A group, and the lag of each of its slots. `lags` is None if this node does not know the
    stream."""

    state: GroupState
    lags: list[int] | None


class Groups:
    """The consumer groups. `stored` are the newest records of `_offsets`, each key with its value.
    `find_stream` raises StreamNotFound and StreamUnavailable."""

    def __init__(
        self,
        find_stream: Callable[[str], StreamHost | StreamBounds],
        offsets: StreamHost,
        stored: Mapping[bytes, bytes],
        *,
        newer: Iterable[bytes] = (),
        subject_prefix: str,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        now_ns: Callable[[], int],
    ) -> None:
        self.newer = set(newer)
        """The keys of groups in a form that only a newer version can read."""
        self._find_stream = find_stream
        self._offsets = offsets
        self._subject_prefix = subject_prefix
        self._now_ns = now_ns
        self._coordinator = Coordinator(
            understood(stored),
            time.monotonic(),
            limits=limits,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = math.inf
        self._in_flight = False
        self._scheduled = False
        self._closed: LiftlogError | None = None
        if self._coordinator.groups:
            self._go_on()

    # --- requests ---

    def ask(self, asked: Asked, told: Told) -> None:
        """Queue a request. `told` is called later, never within this call.

        Raises InvalidArgument, StreamNotFound, StreamUnavailable and LimitExceeded. A commit or a
        seek to an offset that the stream never had raises OffsetOutOfRange. A commit can also raise
        StaleIncarnation and Diverged.

        `told` may receive GroupFenced, Conflict, StaleIncarnation, LimitExceeded, DiskFull,
        StreamUnavailable and ShuttingDown. For a new group, it may also receive InvalidArgument and
        OffsetOutOfRange.
        """
        if self._closed is not None:
            raise self._closed
        if self._offsets.failure:
            raise StreamUnavailable(f"groups cannot be stored: {self._offsets.failure}")
        if self.newer and encode_key(asked.key) in self.newer:
            self._ask_newer(asked, told)
            return
        self._coordinator.ask(self._checked(asked), told, time.monotonic())
        # Not at once, so that other requests of this turn of the loop join the flight.
        self._go_on()

    def _ask_newer(self, asked: Asked, told: Told) -> None:
        """Refuse every request for a group whose form only a newer version can read. An operator
        may delete such a group. Raises StreamUnavailable."""
        group, stream = asked.key
        if not isinstance(asked, Remove):
            raise refusal(f"group {group} of stream {stream}")
        key = encode_key(asked.key)

        def removed(error: LiftlogError | None) -> None:
            if error is None:
                self.newer.discard(key)
            told(None, error)

        self._offsets.store([self._subject(asked.key)], [key], [None], removed)

    async def asked(self, asked: Asked) -> Assignment | None:
        """Queue a request, and wait for the answer."""
        future: asyncio.Future[Assignment | None] = asyncio.get_running_loop().create_future()
        self.ask(asked, partial(_complete, future))
        return await future

    def _checked(self, asked: Asked) -> Asked:
        group, stream = asked.key
        check_consumer_name(group)
        if isinstance(asked, Join):
            check_consumer_name(asked.member)
            log = self._find_stream(stream).log
            if asked.start:
                error = why_not_storable(log, stream, asked.start, None, None)
                asked = replace(asked, start_error=error)
        elif isinstance(asked, Commit) and asked.offsets:
            highest = max(asked.offsets.values())
            if min(asked.offsets.values()) < 1:
                raise InvalidArgument("a commit is the offset to read next, which is at least 1")
            log = self._find_stream(stream).log
            error = why_not_storable(log, stream, highest, asked.incarnation, asked.epoch)
            if error is not None:
                raise error
        elif isinstance(asked, Seek) and asked.offset:
            log = self._find_stream(stream).log
            error = why_not_storable(log, stream, asked.offset, None, None)
            if error is not None:
                raise error
        return asked

    def seek(self, key: GroupKey, offset: int, principal: str = "") -> Seek:
        """Return the request that moves a group to `offset` in the current incarnation of the
        stream. Raises StreamNotFound."""
        log = self._find_stream(key[1]).log
        return Seek(key, offset, log.incarnation, log.leader_epoch, principal)

    async def expire(
        self,
        before_ns: int,
        unread_since: Callable[[str], Awaitable[tuple[str, int] | None]],
    ) -> int:
        """Delete groups that have had no members since `before_ns` although there were records to
        read.

        Returns the number of deleted groups. See `expiring.expire`. `unread_since` returns the
        incarnation and the offset.
        """
        count = 0
        known: dict[str, tuple[str, int] | None] = {}
        for key, state in list(self._coordinator.groups.items()):
            if state.members or state.time_ns >= before_ns:
                continue
            stream = key[1]
            if stream not in known:
                known[stream] = await unread_since(stream)
            found = known[stream]
            if found is None:
                continue  # this node cannot read the stream
            incarnation, offset = found
            is_other = state.incarnation != incarnation if state.incarnation else not incarnation
            if not is_other and min(state.offsets) >= offset:
                continue
            try:
                await self.asked(Remove(key, state))
            except LiftlogError as error:
                logger.warning("group-not-expired group=%s stream=%s error=%s", *key, error)
            else:
                count += key not in self._coordinator.groups
        if count:
            logger.info("groups-expired count=%d", count)
        return count

    async def restamp_ahead(self, ahead_ns: int) -> int:
        """Store the groups without members again with the present time if their times are after
        `ahead_ns`. Returns their number."""
        count = 0
        for key, state in list(self._coordinator.groups.items()):
            if state.members or state.time_ns <= ahead_ns:
                continue
            try:
                await self.asked(Restamp(key, state))
            except LiftlogError as error:
                logger.warning("group-not-restamped group=%s stream=%s error=%s", *key, error)
            else:
                count += 1
        return count

    # --- flights ---

    def _go_on(self) -> None:
        if not self._in_flight and not self._scheduled and self._closed is None:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_flight)

    def _begin_flight(self) -> None:
        self._scheduled = False
        coordinator, now = self._coordinator, time.monotonic()
        if self._closed is not None or not coordinator.wants_flight(now):
            self._set_timer()
            return
        flight = coordinator.begin(now)
        if not flight.drafts:
            self._landed(flight, None)
            return
        now_ns = self._now_ns()
        for key, draft in flight.drafts.items():
            flight.drafts[key] = draft and replace(draft, time_ns=now_ns)
        self._in_flight = True
        self._offsets.store(
            [self._subject(key) for key in flight.drafts],
            [encode_key(key) for key in flight.drafts],
            [None if one is None else encode_group(one) for one in flight.drafts.values()],
            partial(self._landed, flight),
        )

    def _landed(self, flight: Flight, error: LiftlogError | None) -> None:
        self._in_flight = False
        if self._closed is not None:
            # The flight may or may not have been stored. The next coordinator reads the result.
            error = self._closed
        if isinstance(error, RequestTimeout):
            # The next leader may still store the flight. Repeating a request changes nothing.
            error = NotReady(error.message, hint="try again: storing it twice changes nothing")
        self._coordinator.landed(flight, error, time.monotonic())
        if self._coordinator.has_requests:
            self._go_on()
        else:
            self._set_timer()

    def _subject(self, key: GroupKey) -> bytes:
        group, stream = key
        return f"{self._subject_prefix}.{stream}.{group}".encode("ascii")

    def _set_timer(self) -> None:
        """Set the timer for the next end of a session, or of the longest wait."""
        due = self._coordinator.quiet_until
        if self._timer is not None:
            if self._timer_due <= due:
                return
            self._timer.cancel()
        self._timer, self._timer_due = None, due
        if due < math.inf and self._closed is None:
            seconds = max(due - time.monotonic(), 0)
            self._timer = asyncio.get_running_loop().call_later(seconds, self._timer_ended)

    def _timer_ended(self) -> None:
        self._timer = None
        self._go_on()

    def close(self, error: LiftlogError) -> None:
        """Stop answering requests. Waiting requests get the error."""
        if self._closed is None:
            self._closed = error
            if self._timer is not None:
                self._timer.cancel()
            self._coordinator.close(error)

    # --- look-ups ---

    @property
    def count(self) -> int:
        return len(self._coordinator.groups)

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator, for counters."""
        return self._coordinator

    def keys(self) -> list[GroupKey]:
        """Return the keys of all groups, sorted by name."""
        return sorted(self._coordinator.groups)

    def progress(self, key: GroupKey) -> Progress | None:
        """Return the progress of a group; None if the group does not exist."""
        state = self._coordinator.groups.get(key)
        return None if state is None else Progress(state, self._lags(key[1], state))

    def lag(self, key: GroupKey) -> int | None:
        """Return the largest lag of the slots of a group. Return None if the group does not exist,
        or if this node does not know its stream. Takes much less time than `progress`."""
        state, bounds = self._coordinator.groups.get(key), self._bounds(key[1])
        if state is None or bounds is None:
            return None
        start, end = bounds
        return max(end - max(min(state.offsets), start), 0)

    def _lags(self, stream: str, state: GroupState) -> list[int] | None:
        bounds = self._bounds(stream)
        if bounds is None:
            return None
        start, end = bounds
        return [max(end - max(offset, start), 0) for offset in state.offsets]

    def _bounds(self, stream: str) -> tuple[int, int] | None:
        """Return the log start and the high watermark; None if this node does not know the
        stream."""
        try:
            log = self._find_stream(stream).log
        except LiftlogError:
            return None
        end = log.high_watermark
        return None if end is None else (log.log_start_offset, end)

    def describe(self, key: GroupKey) -> GroupInfo | None:
        """Describe a group, with the owner and the offset of each slot. Returns None if the group
        does not exist."""
        state = self._coordinator.groups.get(key)
        if self.newer and encode_key(key) in self.newer:
            raise refusal(f"group {key[0]} of stream {key[1]}")
        if state is None:
            return None
        info = self._summary(key, state)
        return replace(info, owners=list(state.owners), offsets=list(state.offsets))

    def page(
        self,
        may_read: Callable[[str], bool],
        *,
        stream: str | None = None,
        after: str | None = None,
        limit: int = PAGE_GROUPS,
    ) -> tuple[list[GroupInfo], str | None]:
        """Return a page of groups, sorted by name, and the `after` of the next page; None at the
        end. A page has at most `limit` groups, and fewer if the groups are large."""
        keys = self.keys()
        first = 0
        if after is not None:
            group, _, name = after.partition("/")
            first = bisect_right(keys, (group, name))
        allowed: dict[str, bool] = {}
        found: list[GroupInfo] = []
        weight = 0
        for key in keys[first:]:
            name = key[1]
            if stream not in (None, name):
                continue
            if name not in allowed:
                allowed[name] = may_read(name)
            if not allowed[name]:
                continue
            if len(found) == limit or weight >= _PAGE_WEIGHT:
                return found, f"{found[-1].group}/{found[-1].stream}"
            state = self._coordinator.groups[key]
            weight += state.slots + len(state.members)
            found.append(self._summary(key, state))
        return found, None

    def _summary(self, key: GroupKey, state: GroupState) -> GroupInfo:
        group, stream = key
        lags = self._lags(stream, state)
        lag = None if lags is None else max(lags)
        slots = Counter(state.owners)
        behind: dict[str, int] = {}
        for owner, one in zip(state.owners, lags or (), strict=False):
            if one > behind.get(owner, 0):
                behind[owner] = one
        members = [
            {
                "name": name,
                "slots": slots[name],
                "session_ms": member.session_ms,
                "principal": member.principal,
                "lag": None if lag is None else behind.get(name, 0),
            }
            for name, member in sorted(state.members.items())
        ]
        return GroupInfo(
            group,
            stream,
            state.generation,
            state.slots,
            members,
            lag=lag,
            incarnation=state.incarnation,
            epoch=state.epoch,
            time_ns=state.time_ns,
            principal=state.principal,
        )


def understood(stored: Mapping[bytes, bytes]) -> dict[GroupKey, GroupState]:
    """Return the groups of these records. Logs records that this version does not understand."""
    found: dict[GroupKey, GroupState] = {}
    for key, value in stored.items():
        try:
            found[decode_key(key)] = decode_value(value)
        except CorruptBatch as error:
            logger.error("group-not-understood error=%s", error)  # noqa: TRY400
    return found


def _complete(
    future: asyncio.Future[Assignment | None],
    assignment: Assignment | None,
    error: LiftlogError | None,
) -> None:
    """Complete a future, unless the waiting task was cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(assignment)
    else:
        future.set_exception(error)
