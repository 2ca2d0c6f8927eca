"""The part of a group's consumer that does not wait, for both clients. It chooses the next record,
counts processed records, decides when to commit, and makes the heartbeats."""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from liftlog.client.groups.arrived import Arrived, slots_of
from liftlog.client.groups.group_member import GroupMember, Lane
from liftlog.client.groups.group_settings import Answered, GroupSettings, SlotsCallback
from liftlog.client.reading.base_reader import ahead_of
from liftlog.client.reading.batches import take_records
from liftlog.client.reading.read_ahead import DEFAULT_READ_AHEAD_BYTES, ReadAhead
from liftlog.client.reading.read_options import ReadOptions, Start
from liftlog.errors import GroupFenced, LiftlogError
from liftlog.protocol.groups import AssignmentAnswer, BeatGroup, CommitGroup, JoinGroup, LeaveGroup
from liftlog.protocol.limits import MIB
from liftlog.records.decode import Record

if TYPE_CHECKING:
    from liftlog.protocol.messages import Message
    from liftlog.records.columns.positions import Batches

LONGEST_WAIT_SECONDS = 5.0
"""Longest time that the coordinator delays the answer to a heartbeat while nothing changes."""
MOST_LANES = 4
_READ_AHEAD_BYTES = 1 * MIB
"""Default read-ahead for a member with at most half of the slots. With a small value the members
read at nearly the same offsets, so that the daemon examines each piece of the log once for all of
them."""
_LONGEST_RUN_SECONDS = 0.05
"""Longest time for which records are returned without other checks."""

logger = logging.getLogger("liftlog.client")


class _Storing(NamedTuple):
    """Offsets that are being stored in the background, and the slots to release afterwards."""

    joined: int
    offsets: dict[int, int]
    finished: list[int]


class GroupReading:
    """Decides which record a member of a group returns next. The asyncio and the blocking consumer
    add the loops that wait. The `reader` of a lane is the read that fetches the lane's records."""

    def __init__(self, settings: GroupSettings) -> None:
        settings.check()
        self.group = settings.group
        self.stream = settings.stream
        self.member = settings.member
        self._settings = settings
        self._state = GroupMember(settings.session)
        self._readers: dict[Lane, Any] = {}
        self._arrived: dict[Lane, Arrived] = {}
        self._unread: list[Any] = []  # readers to close: their lanes no longer exist
        self._news: deque[tuple[AssignmentAnswer | LiftlogError, int, float]] = deque()
        self._slot_count = 0
        self._token = ""  # token of the join in flight
        self._had_joined: int | None = None  # `joined` of this client's newest membership
        self._incarnation, self._epoch = "", 0
        self._run: Arrived | None = None  # its records are returned without other checks
        self._run_end, self._run_until = 0, 0.0
        self._turn: Lane | None = None
        self._last_turn: Lane | None = None
        self._uncounted = 0
        self._commit_at: float | None = None
        self._storing: _Storing | None = None
        self._closed = False
        self._stopped = False

    def stop(self) -> None:
        """End the iteration at the next request for a record. A waiting iteration ends within 0.1
        s. All records returned until then count as processed, and `close` commits them.

        This method does no I/O, so signal handlers and other threads may call it.
        """
        self._stopped = True
        self._run_until = 0.0  # the next record needs a check of `_stopped`

    # --- its position ---

    @property
    def slots(self) -> list[int]:
        """The slots that the member reads at present."""
        return self._state.slots

    @property
    def generation(self) -> int:
        """The group's generation in the last answer; 0 if this consumer is not a member."""
        return self._state.generation

    def slot_of(self, record: Record) -> int:
        """Return the slot of a returned record. The slot is computed from the record's key, or from
        its subject if the record has no key. Within a slot, offsets increase."""
        return slots_of((record,), self._slot_count)[0]

    # --- its requests ---

    def _join_request(self, start: int) -> JoinGroup:
        """Return the request to join. All requests until the first answer have the same token: if
        an answer is lost, the token proves that this client owns the membership."""
        one = self._settings
        token = self._token = self._token or os.urandom(16).hex()
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
        """Return a heartbeat with the owned slots, except for `without`: slots that the member has
        finished and releases."""
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

    # --- its answers ---

    def _take_news(self) -> None:
        """Handle the coordinator's answers. Raises GroupFenced if another client has joined under
        this member's name, and errors that a retry cannot avoid."""
        while self._news:
            answer, joined, sent = self._news.popleft()
            if joined != self._state.joined:
                continue  # from an earlier membership, whose end was handled already
            if isinstance(answer, AssignmentAnswer):
                self._told(answer, sent)
            elif isinstance(answer, GroupFenced):
                self._lose(answer)
            else:
                raise answer

    def _told(self, answer: AssignmentAnswer, sent: float) -> None:
        if self._state.joined and answer.joined != self._state.joined:
            return  # from an earlier membership
        self._slot_count = answer.slot_count
        slots = zip(answer.slots, answer.since, answer.offsets, strict=True)
        if answer.incarnation and not self._incarnation:
            self._incarnation, self._epoch = answer.incarnation, answer.epoch
        lanes = set(self._state.lanes)
        gained, revoked = self._state.told(answer.joined, answer.generation, slots, sent)
        if answer.incarnation == self._incarnation:
            for lane in set(self._state.lanes) - lanes:
                lane.epoch = answer.epoch  # previous owners may have read in a newer epoch
        if revoked:
            for lane, arrived in self._arrived.items():
                arrived.keep(lane, self._slot_count)
            self._tell(self._settings.on_revoked, revoked)
        if gained:
            self._tell(self._settings.on_assigned, gained)
        self._drop_readers()
        self._ask_for_what_it_has()

    def _lose(self, error: LiftlogError) -> None:
        """End the membership. Raises the error if the member must not join again."""
        had = self._state.slots  # without slots being released: the caller has been notified
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
        """Drop the readers and batches of lanes that no longer exist."""
        lanes = set(self._state.lanes)
        for lane in [lane for lane in self._readers if lane not in lanes]:
            self._unread.append(self._readers.pop(lane))
        for lane in [lane for lane in self._arrived if lane not in lanes]:
            del self._arrived[lane]

    # --- records ---

    def _start_of(self, lane: Lane) -> tuple[Start, ReadOptions]:
        """Return the start position and the options for reading a lane."""
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
        """Take the lane's records of a batch that has arrived for it. Raises CorruptBatch."""
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
        """Note the incarnation and epoch that the lane reads. A commit covers the progress of all
        lanes, so it contains the newest of their epochs."""
        lane.epoch = reader.epoch
        is_same = reader.incarnation == self._incarnation
        self._epoch = max(self._epoch, reader.epoch) if is_same else reader.epoch
        self._incarnation = reader.incarnation

    def _next_at_once(self) -> Record | None:
        """Return the next record of the current batch. Returns None if something else must be done
        first. This path is fast because it leaves the update of the state to `_settle`."""
        run = self._run
        if run is None or self._news:
            return None
        index = run.index
        if index >= self._run_end or time.monotonic() >= self._run_until:
            return None
        run.index = index + 1
        return run.records[index]

    def _begin_run(self, arrived: Arrived, now: float) -> None:
        """Let `_next_at_once` return the batch's records until a commit or another check is due."""
        self._run = arrived
        self._run_end = len(arrived.records)
        one = self._settings
        if one.every is not None:
            self._run_end = min(self._run_end, arrived.index + one.every - self._uncounted)
        until = 0.0 if self._stopped else min(self._state.deadline, now + _LONGEST_RUN_SECONDS)
        self._run_until = until if self._commit_at is None else min(until, self._commit_at)

    def _settle(self) -> None:
        """Update the state for the records that `_next_at_once` has returned. The caller may still
        be processing the last record."""
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
        """Note that the stream has no more records for this lane below the position of its reader.
        Also note the stream's incarnation, which the commit of that position has to contain."""
        if reader.position is not None and reader.incarnation is not None:
            self._know(lane, reader)
            self._state.passed(lane, reader.position)

    def _next_record(self) -> Record | None:
        """Return the next record; None if none has arrived, or if the session has ended."""
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
        """Return the records of the next batch that has arrived; an empty list if there is none."""
        while (lane := self._lane_in_turn()) is not None:
            arrived = self._arrived[lane]
            first, end = arrived.index, len(arrived.records)
            if first < end:
                found = arrived.records[first:] if first else arrived.records
                slots: Collection[int] = lane.slots  # all, if not known
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
        """Return the lane whose records are returned next, if any. A lane keeps its turn until all
        records of its batch are returned. So the caller always has records of only one lane."""
        self._join_if_many()
        lanes = [lane for lane in self._state.lanes if lane in self._arrived]
        if not lanes or not self._state.may_return(time.monotonic()):
            return None
        if self._turn not in lanes:
            others = [lane for lane in lanes if lane is not self._last_turn] or lanes
            self._turn = self._last_turn = min(others, key=lambda lane: lane.done)
        return self._turn

    def _ask_for_what_it_has(self) -> None:
        """Make each reader request the slots that its lane has now. The first reader also requests
        the slots of lanes that will soon be merged into its own. Fetches in flight continue."""
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
        """Return True if the newest answer of `ahead` and the newest answer of the lane's read
        overlap or adjoin."""
        reader = self._readers.get(lane)
        one, other = ahead.newest, None if reader is None else ahead_of(reader).newest
        if one is None or other is None:
            return False
        return max(one[0], other[0]) <= min(one[1], other[1])

    def _join_lanes(self) -> None:
        """Merge into the first lane all lanes that have caught up with it. The read of the first
        lane then also requests the slots of the merged lanes, from an offset that these have
        reached. The reads of the merged lanes end."""
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
        """Merge lanes that begin at the same offset and have no reader yet."""
        unread = [lane for lane in self._state.lanes if lane not in self._readers]
        for lane in unread[1:]:
            if lane.done == unread[0].done:
                self._state.merge(unread[0], lane)

    def _join_if_many(self) -> None:
        """If there are more than MOST_LANES lanes, merge the lanes with the same progress at once,
        and begin one new read for them."""
        lanes = self._state.lanes
        if len(lanes) <= MOST_LANES:
            return
        first, *others = sorted(lanes, key=lambda lane: -lane.done)
        for lane in others:
            arrived = self._arrived.get(lane)
            if arrived is not None and not lane.in_hand:
                self._state.passed(lane, min(arrived.next_offset, first.done))
            if lane.done == first.done and self._state.merge(first, lane):
                # The batch that has arrived for `first` lacks the records of the merged slots.
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
        """True if `commit_every` records were returned since the commit in flight began. The
        iteration then waits for this commit."""
        return self._settings.every is not None and self._uncounted >= self._settings.every

    def _begin_commit(self) -> dict[int, int]:
        self._uncounted, self._commit_at = 0, None
        return self._state.uncommitted()

    def _begin_storing(self) -> list[Message]:
        """Return the requests, to send one after the other, that store the processed offsets and
        release finished slots. A slot is finished if the caller processes none of its records."""
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
        """Handle the daemon's answers. Raises the error if one of the requests has failed."""
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
