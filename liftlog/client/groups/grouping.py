"""The part of a group's consumer that does not wait, shared by both kinds: which record comes next,
what counts as processed, when to commit, and what its beats say."""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from liftlog.client.groups.arrived import Arrived, slots_of
from liftlog.client.groups.group_member import GroupMember, Lane
from liftlog.client.reading.base_reader import ahead_of
from liftlog.client.reading.batches import take_records
from liftlog.client.reading.read_ahead import DEFAULT_READ_AHEAD_BYTES, ReadAhead
from liftlog.client.reading.read_options import ReadOptions, Start
from liftlog.errors import GroupFenced, InvalidArgument, LiftlogError
from liftlog.protocol.groups import (
    MAX_SLOTS,
    AssignmentAnswer,
    BeatGroup,
    CommitGroup,
    JoinGroup,
    LeaveGroup,
)
from liftlog.protocol.limits import MIB
from liftlog.records.decode import Record

if TYPE_CHECKING:
    from liftlog.protocol.messages import Message
    from liftlog.records.columns.positions import Batches

SESSION_SECONDS = 10.0
COMMIT_EVERY = 10_000
COMMIT_INTERVAL_SECONDS = 1.0
LOOK_SECONDS = 0.1
"""A member without records looks so often for news of its group."""
POLL_MS = 1000
"""A member hears so often how far the stream was searched for records of its slots."""
LONGEST_WAIT_SECONDS = 5.0
"""Of a beat without news."""
MOST_LANES = 4
_READ_AHEAD_BYTES = 1 * MIB
"""Of a member with a share of the slots, unless it says otherwise: so the members stay near each
other, and the daemon looks into each piece of the log once for all of them."""
_LONGEST_RUN_SECONDS = 0.05
"""Records are returned without a look at anything else for so long."""

SlotsCallback = Callable[[Sequence[int]], None]

logger = logging.getLogger("liftlog.client")


class Answered(NamedTuple):
    """The answer to a message, and when that was sent (monotonic seconds)."""

    message: Message
    answer: Message | LiftlogError
    sent: float


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """As `Client.group` gets them."""

    group: str
    stream: str
    member: str
    is_static: bool
    start: Start
    session: float
    slot_count: int | None
    every: int | None
    interval: float | None
    on_assigned: SlotsCallback | None
    on_revoked: SlotsCallback | None
    options: ReadOptions = field(default_factory=ReadOptions)

    def check(self) -> None:
        """Raises InvalidArgument."""
        if not 0.2 <= self.session <= 3600:
            raise InvalidArgument(f"session={self.session!r} is not 0.2 to 3600 seconds")
        if self.slot_count is not None and not 1 <= self.slot_count <= MAX_SLOTS:
            raise InvalidArgument(f"slots={self.slot_count!r} is not 1 to {MAX_SLOTS}")
        if self.every is not None and self.every < 1:
            raise InvalidArgument(f"commit_every={self.every!r} is not a number of records")
        if self.interval is not None and self.interval <= 0:
            raise InvalidArgument(f"commit_interval={self.interval!r} is not a time in seconds")
        for name in ("filter", "columns", "replica"):
            if self.options.get(name) is not None:
                raise InvalidArgument(f"a group reads whole records of the leader: no {name!r}")


class _Storing(NamedTuple):
    """What is being stored beside the iteration, and which slots are given up then."""

    joined: int
    offsets: dict[int, int]
    finished: list[int]


class GroupReading:
    """Which records a member of a group returns, in which order. The two consumers add the loops
    that wait. `reader` of a lane is the read that fills it."""

    def __init__(self, settings: GroupSettings) -> None:
        settings.check()
        self.group = settings.group
        self.stream = settings.stream
        self.member = settings.member
        self._settings = settings
        self._state = GroupMember(settings.session)
        self._readers: dict[Lane, Any] = {}
        self._arrived: dict[Lane, Arrived] = {}
        self._unread: list[Any] = []  # readers whose lanes are gone, to be closed
        self._news: deque[tuple[AssignmentAnswer | LiftlogError, int, float]] = deque()
        self._slot_count = 0
        self._token = ""  # of the join under way
        self._had_joined: int | None = None  # in the newest membership of this client
        self._incarnation, self._epoch = "", 0
        self._run: Arrived | None = None  # what records are returned from at once
        self._run_end, self._run_until = 0, 0.0
        self._turn: Lane | None = None
        self._last_turn: Lane | None = None
        self._uncounted = 0
        self._commit_at: float | None = None
        self._storing: _Storing | None = None
        self._closed = False
        self._stopped = False

    def stop(self) -> None:
        """End the iteration: when the next record is asked for, or within 0.1 s while one is waited
        for. All records returned until then count as processed; `close` commits them.

        Does nothing else, so the handler of a signal and other threads may call it.
        """
        self._stopped = True
        self._run_until = 0.0  # nothing more at once

    # --- where it stands ---

    @property
    def slots(self) -> list[int]:
        """The slots whose records it returns now."""
        return self._state.slots

    @property
    def generation(self) -> int:
        """Of the group, as far as this member knows; 0 while it is no member."""
        return self._state.generation

    def slot_of(self, record: Record) -> int:
        """The slot of a record that it has returned: its key decides, its subject if it has none.
        In a slot, offsets only grow."""
        return slots_of((record,), self._slot_count)[0]

    # --- what it says ---

    def _join_request(self, start: int) -> JoinGroup:
        """The same join again until it is answered, or this client would take the member of one
        whose answer was lost for another client."""
        one = self._settings
        token = self._token = self._token or secrets.token_hex(16)
        session_ms = round(one.session * 1000)
        return JoinGroup(
            self.stream,
            self.group,
            self.member,
            token,
            session_ms,
            one.slot_count,
            start,
            self._had_joined,
        )

    def _has_joined(self, answer: AssignmentAnswer, sent: float) -> None:
        self._token, self._had_joined = "", answer.joined
        self._told(answer, sent)

    def _beat_request(self, wait: float, *, without: Collection[int] = ()) -> BeatGroup:
        """`without` these slots, which it has finished."""
        state = self._state
        return BeatGroup(
            self.stream,
            self.group,
            self.member,
            state.joined,
            state.generation,
            [slot for slot in state.owned if slot not in without],
            round(wait * 1000),
        )

    def _commit_request(self, offsets: dict[int, int]) -> CommitGroup:
        return CommitGroup(
            self.stream,
            self.group,
            self.member,
            self._state.joined,
            self._state.generation,
            list(offsets),
            list(offsets.values()),
            self._incarnation,
            self._epoch,
        )

    def _leave_request(self) -> LeaveGroup:
        return LeaveGroup(self.stream, self.group, self.member, self._state.joined)

    @property
    def _wait(self) -> float:
        return min(self._settings.session / 3, LONGEST_WAIT_SECONDS)

    # --- what it hears ---

    def _take_news(self) -> None:
        """Act on what the coordinator has answered. Raises GroupFenced when another client has the
        name of this member, and errors that would come again."""
        while self._news:
            answer, joined, sent = self._news.popleft()
            if joined != self._state.joined:
                continue  # of an earlier membership: that it is over was known when this one began
            if isinstance(answer, AssignmentAnswer):
                self._told(answer, sent)
            elif isinstance(answer, GroupFenced):
                self._lose(answer)
            else:
                raise answer

    def _told(self, answer: AssignmentAnswer, sent: float) -> None:
        if self._state.joined and answer.joined != self._state.joined:
            return  # of an earlier membership
        self._slot_count = answer.slot_count
        slots = zip(answer.slots, answer.since, answer.offsets, strict=True)
        if answer.incarnation and not self._incarnation:
            self._incarnation, self._epoch = answer.incarnation, answer.epoch
        lanes = set(self._state.lanes)
        gained, revoked = self._state.told(answer.joined, answer.generation, slots, sent)
        if answer.incarnation == self._incarnation:
            for lane in set(self._state.lanes) - lanes:
                lane.epoch = answer.epoch  # others have read so far, perhaps in a newer one than we
        if revoked:
            for lane, arrived in self._arrived.items():
                arrived.keep(lane, self._slot_count)
            self._tell(self._settings.on_revoked, revoked)
        if gained:
            self._tell(self._settings.on_assigned, gained)
        self._drop_readers()
        self._ask_for_what_it_has()

    def _lose(self, error: LiftlogError) -> None:
        """It is no member any more. Raises the error if it must not join again."""
        had = self._state.slots  # the caller was told already of those that were being given up
        self._state.lost()
        self._drop_readers()
        if had:
            logger.warning(
                "group-member-lost group=%s stream=%s member=%s slots=%d reason=%s",
                self.group,
                self.stream,
                self.member,
                len(had),
                error,
            )
            self._tell(self._settings.on_revoked, had)
        if error.details.get("replaced") and self._settings.is_static:
            raise error

    def _tell(self, callback: SlotsCallback | None, slots: list[int]) -> None:
        if callback is not None:
            callback(slots)

    def _drop_readers(self) -> None:
        """Of lanes that are gone."""
        lanes = set(self._state.lanes)
        for lane in [lane for lane in self._readers if lane not in lanes]:
            self._unread.append(self._readers.pop(lane))
        for lane in [lane for lane in self._arrived if lane not in lanes]:
            del self._arrived[lane]

    # --- records ---

    def _start_of(self, lane: Lane) -> tuple[Start, ReadOptions]:
        """Where the read of a lane begins, and its options."""
        options = self._settings.options.copy()
        options["read_ahead_bytes"] = self._read_ahead_bytes(len(lane.slots))
        if lane.done == 0:
            return "earliest", options
        if self._incarnation:
            options["incarnation"] = self._incarnation
            if lane.epoch:
                options["epoch"] = lane.epoch
        return lane.done, options

    def _read_ahead_bytes(self, slots: int) -> int:
        is_divided = 2 * slots <= self._slot_count
        unless_set = _READ_AHEAD_BYTES if is_divided else DEFAULT_READ_AHEAD_BYTES
        return self._settings.options.get("read_ahead_bytes", unless_set)

    def _arrive(self, lane: Lane, reader: Any, batch: Batches) -> None:
        """A batch for this lane; what is not its own is left out. Raises CorruptBatch."""
        self._know(lane, reader)
        records: list[Record] = []
        waiting = [batch]
        while waiting:
            some, waiting = take_records(waiting)
            records += some
        slots = None
        starts = lane.slots
        are_its_own = len(starts) == self._slot_count or reader.divided_by == starts.keys()
        if not are_its_own or (records and lane.latest_start > records[0].offset):
            slots = slots_of(records, self._slot_count)
            never = math.inf
            kept = [
                place
                for place, (record, slot) in enumerate(zip(records, slots, strict=True))
                if record[0] >= starts.get(slot, never)
            ]
            if len(kept) < len(records):
                records = [records[place] for place in kept]
                slots = [slots[place] for place in kept]
        self._arrived[lane] = Arrived(records, slots, reader.position)

    def _know(self, lane: Lane, reader: Any) -> None:
        """Which stream it reads, and in which epoch: commits state the newest that any lane knows,
        since they tell how far all of them are."""
        lane.epoch = reader.epoch
        is_same = reader.incarnation == self._incarnation
        self._epoch = max(self._epoch, reader.epoch) if is_same else reader.epoch
        self._incarnation = reader.incarnation

    def _next_at_once(self) -> Record | None:
        """The record that follows the last one in its batch, if nothing is to be done before. It
        costs little: the state learns of it later, by `_settle`."""
        run = self._run
        if run is None or self._news:
            return None
        index = run.index
        if index >= self._run_end or time.monotonic() >= self._run_until:
            return None
        run.index = index + 1
        return run.records[index]

    def _begin_run(self, arrived: Arrived, now: float) -> None:
        """What follows may be returned at once, until there is something else to do."""
        self._run = arrived
        self._run_end = len(arrived.records)
        one = self._settings
        if one.every is not None:
            self._run_end = min(self._run_end, arrived.index + one.every - self._uncounted)
        until = 0.0 if self._stopped else min(self._state.deadline, now + _LONGEST_RUN_SECONDS)
        self._run_until = until if self._commit_at is None else min(until, self._commit_at)

    def _settle(self) -> None:
        """Tell the state what was returned at once. The last record may be in the caller's hands
        still."""
        run, self._run = self._run, None
        if run is None or run.index == run.counted:
            return
        lane = self._turn
        assert lane is not None, "what is in hand came from the lane in turn"
        last = run.records[run.index - 1]
        self._state.processed()
        self._state.passed(lane, last.offset)
        slots = run.slots(run.index - 1, run.index, self._slot_count)
        self._state.hand_out(lane, slots, last.offset + 1)
        self._uncounted += run.index - run.counted
        run.counted = run.index

    def _pass(self, lane: Lane, reader: Any) -> None:
        """The stream has nothing for this lane below the position of its reader. A commit of that
        has to name the stream, also if no record of it has come yet."""
        if reader.position is not None and reader.incarnation is not None:
            self._know(lane, reader)
            self._state.passed(lane, reader.position)

    def _next_record(self) -> Record | None:
        """From what has arrived; None if that is used up, or nothing may be returned."""
        while (lane := self._lane_in_turn()) is not None:
            arrived = self._arrived[lane]
            place = arrived.index
            if place < len(arrived.records):
                record = arrived.records[place]
                self._state.passed(lane, record.offset)
                slots = arrived.slots(place, place + 1, self._slot_count)
                self._state.hand_out(lane, slots, record.offset + 1)
                arrived.index = arrived.counted = place + 1
                self._uncounted += 1
                self._begin_run(arrived, time.monotonic())
                return record
            self._use_up(lane, arrived)
        return None

    def _next_records(self) -> list[Record]:
        """The same for all records of a batch; empty if there are none."""
        while (lane := self._lane_in_turn()) is not None:
            arrived = self._arrived[lane]
            first, end = arrived.index, len(arrived.records)
            if first < end:
                found = arrived.records[first:] if first else arrived.records
                slots: Collection[int] = lane.slots  # or those that are known to be there
                if arrived.knows_slots:
                    slots = set(arrived.slots(first, end, self._slot_count))
                arrived.index = arrived.counted = end
                self._state.passed(lane, found[0].offset)
                self._state.hand_out(lane, slots, found[-1].offset + 1)
                self._uncounted += len(found)
                return found
            self._use_up(lane, arrived)
        return []

    def _use_up(self, lane: Lane, arrived: Arrived) -> None:
        self._state.passed(lane, arrived.end)
        del self._arrived[lane]
        self._turn = None

    def _lane_in_turn(self) -> Lane | None:
        """Batches of several lanes take turns; what is in hand came from one of them."""
        self._join_if_many()
        lanes = [lane for lane in self._state.lanes if lane in self._arrived]
        if not lanes or not self._state.may_return(time.monotonic()):
            return None
        if self._turn not in lanes:
            others = [lane for lane in lanes if lane is not self._last_turn] or lanes
            self._turn = self._last_turn = min(others, key=lambda lane: lane.done)
        return self._turn

    def _ask_for_what_it_has(self) -> None:
        """Have each read ask for the slots that its lane has now, and the first one also for those
        of lanes that are to join it. What was asked before is not asked again."""
        if not self._readers:
            return
        first, *others = self._state.lanes
        for lane, reader in self._readers.items():
            ahead, slots = ahead_of(reader), set(lane.slots)
            wanted = ahead.wanted_slots
            assert wanted is not None, "a lane is read for its slots"
            if lane is first:
                for other in others:
                    if other.slots.keys() <= wanted or self._is_near(ahead, other):
                        slots |= other.slots.keys()
            if slots and slots != wanted:
                ahead_bytes = self._read_ahead_bytes(len(slots))
                ahead.ask_for(sorted(slots), self._slot_count, ahead_bytes)

    def _is_near(self, ahead: ReadAhead, lane: Lane) -> bool:
        """Whether the newest answers of that read and of the lane's overlap, or touch."""
        reader = self._readers.get(lane)
        one, other = ahead.newest, None if reader is None else ahead_of(reader).newest
        if one is None or other is None:
            return False
        return max(one[0], other[0]) <= min(one[1], other[1])

    def _join_lanes(self) -> None:
        """Lanes that have caught up with the first one continue with it. Its read goes on: when it
        has asked for their slots as well, from a place that they have reached, theirs end."""
        if len(self._state.lanes) < 2:
            return
        self._join_unread()
        first, *others = self._state.lanes
        reader = self._readers.get(first)
        if others and reader is not None:
            for lane in self._state.lanes:
                if lane in self._readers and lane not in self._arrived:
                    self._pass(lane, self._readers[lane])
            for lane in others:
                if (
                    not self._arrived.keys() & {first, lane}
                    and reader.position is not None
                    and ahead_of(reader).has_all_of(lane.slots.keys())
                ):
                    self._state.merge(first, lane)
        self._drop_readers()
        self._ask_for_what_it_has()

    def _join_unread(self) -> None:
        """Lanes that begin at the same offset, and are not read yet."""
        unread = [lane for lane in self._state.lanes if lane not in self._readers]
        for lane in unread[1:]:
            if lane.done == unread[0].done:
                self._state.merge(unread[0], lane)

    def _join_if_many(self) -> None:
        """Lanes that are equally far begin one new read: there are too many to wait for each
        other."""
        lanes = self._state.lanes
        if len(lanes) <= MOST_LANES:
            return
        first, *others = sorted(lanes, key=lambda lane: -lane.done)
        for lane in others:
            arrived = self._arrived.get(lane)
            if arrived is not None and not lane.in_hand:
                self._state.passed(lane, min(arrived.next_offset, first.done))
            if lane.done == first.done and self._state.merge(first, lane):
                # What had arrived for the others had no records of these slots.
                self._arrived.pop(first, None)
                reader = self._readers.pop(first, None)
                if reader is not None:
                    self._unread.append(reader)
        self._drop_readers()

    # --- commits ---

    def _commit_is_due(self, now: float) -> bool:
        one = self._settings
        if one.every is not None and self._uncounted >= one.every:
            return True
        if self._commit_at is None and one.interval is not None:
            self._commit_at = now + one.interval
        return self._commit_at is not None and now >= self._commit_at

    @property
    def _has_run_ahead(self) -> bool:
        """Whether as many records were returned since the commit under way as are committed at
        once: the iteration waits for it now."""
        return self._settings.every is not None and self._uncounted >= self._settings.every

    def _begin_commit(self) -> dict[int, int]:
        self._uncounted, self._commit_at = 0, None
        return self._state.uncommitted()

    def _begin_storing(self) -> list[Message]:
        """What is to be said, one after the other, so that what was processed is stored, and others
        get the slots that move; these may have to wait for a record that the caller has."""
        offsets = self._begin_commit()
        finished = self._state.finished(offsets)
        messages: list[Message] = []
        if offsets:
            messages.append(self._commit_request(offsets))
        if finished:
            messages.append(self._beat_request(0.0, without=finished))
        if messages:
            self._storing = _Storing(self._state.joined, offsets, finished)
        return messages

    def _has_stored(self, storing: _Storing, requests: Sequence[Answered]) -> None:
        """The daemon has answered. Raises the error if it has refused one of them."""
        state = self._state
        for message, answer, sent in requests:
            if storing.joined != state.joined:
                return
            if isinstance(answer, LiftlogError):
                raise answer
            if isinstance(message, CommitGroup):
                state.committed(storing.joined, storing.offsets, sent)
            elif isinstance(answer, AssignmentAnswer):
                state.give_up(storing.finished)
                self._told(answer, sent)
