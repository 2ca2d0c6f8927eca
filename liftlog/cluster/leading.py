"""Decides for the leader of a stream: commits, answers to followers, and the in-sync replicas.

One `Leader` exists per stream and epoch. The code around it (the shell) appends to the log, syncs
it, serves the followers, changes the record, and reports each of these events to the `Leader`. The
shell itself contains no rules.

    log:        written(end, now) -> followers to wake     local(end) -> high watermark
    followers:  fetched(request, now) -> verdict           expired(node, now)   lost(node)
    record:     propose(now) -> change to commit           adopt(record)

The high watermark is the exclusive end of the committed records. All other ends are exclusive too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from liftlog.cluster import side_state, transitions
from liftlog.cluster.consumer_states import LeaderStates, Position
from liftlog.cluster.epochs import EpochTable, begin_epoch, divergence
from liftlog.cluster.followers import (
    FENCED_EPOCH,
    NOT_LEADER,
    PARK,
    SEND,
    UNKNOWN_EPOCH,
    FetchRequest,
    FollowerState,
    Kind,
    Verdict,
    confirmed_by,
    is_majority,
)
from liftlog.cluster.record import Change, Mark, StreamMetadata


class Leader:
    """The leader of one stream in one epoch. Times are monotonic seconds.

    `log_end` is the log's end when the epoch begins. The entry (epoch, log_end) must be durable in
    the log's epoch table before the first append. `durable_end` and `high_watermark` are this
    node's values as a follower, or at its start. `side_version` is the result of
    `side_state.begin`.
    """

    def __init__(
        self,
        record: StreamMetadata,
        node: str,
        epochs: EpochTable,
        *,
        log_end: int,
        durable_end: int,
        high_watermark: int,
        now: float,
        lag_max: float = 10.0,
        side_version: int = 0,
        consumers: Collection[str] = (),
        stirred: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin the epoch. `consumers` are the names of the stream's consumers with acks. `stirred`
        is called whenever `is_settled` becomes False."""
        if record.leader != node:
            raise ValueError(f"the record of {record.name!r} has the leader {record.leader!r}")
        self.node = node
        self.record = record
        self.epoch = record.leader_epoch
        self.epochs = begin_epoch(epochs, self.epoch, log_end)
        self.begin_offset = log_end
        self.log_end = log_end
        self.durable_end = durable_end
        self.high_watermark = min(high_watermark, durable_end)
        self.side_version = self._begin_side_version = side_version
        self.side_confirmed = 0
        """Newest side state that all nodes of the high watermark have stored."""
        self.states = LeaderStates[Any](consumers)
        self.resigned = False
        self.pending: Change | None = None
        self._lag_max = lag_max
        self._stirred = stirred
        self._began = now
        self._followers: dict[str, FollowerState] = {}
        # Times of the last requests of followers that have restarted since and sent no request yet.
        self._heard_before: dict[str, float] = {}
        self.is_settled = False
        """True if `propose` has no result until the next event of a follower or of the record. With
        this flag the shell skips idle streams."""
        # Parts of the record that each request needs.
        self._agreed_from = record.version
        self._can_commit = False
        self._others: frozenset[str] = frozenset()
        self._waits_for: tuple[str, ...] = ()
        self._see(record)

    @property
    def is_ready(self) -> bool:
        """True if the high watermark has reached the end that the log had when the epoch began.
        Before that, the high watermark may be lower than the previous leader's. So requests about
        the newest offset, times, leases and checkpoints get "not ready", and clients retry them."""
        return self.high_watermark >= self.begin_offset

    @property
    def can_commit(self) -> bool:
        """True if the ISR is large enough to ack."""
        return self._can_commit

    # --- the log -----------------------------------------------------------------

    def written(self, log_end: int, now: float) -> list[str]:
        """Record that records below `log_end` can be read. The records may not be durable yet:
        followers fetch records while the leader syncs.

        Returns the followers whose parked requests must be answered now.
        """
        self.log_end = log_end
        return self._wake(now, lambda follower: follower.offset < log_end)

    def local(self, durable_end: int) -> int:
        """Record that all records below `durable_end` are durable on this node. Returns the high
        watermark."""
        self.durable_end = durable_end
        return self._advance()

    def side_changed(self, version: int, now: float) -> list[str]:
        """Record that version `version` of the side state is durable on this node and must be
        copied. Returns the followers whose parked requests must be answered now. `side_confirmed`
        reaches this version when all nodes for which the high watermark waits have stored it."""
        self.side_version = version
        self._advance()
        return self._wake(now, lambda follower: follower.side_version != version)

    def resign(self) -> None:
        """Commit nothing more in this epoch, even if the stream's metadata still names this leader.
        The leader must resign after a failed fdatasync: followers may have records that this log
        has dropped, and no offset may get a second record in the same epoch."""
        self.resigned = True

    # --- followers ---------------------------------------------------------------

    def fetched(self, request: FetchRequest, now: float) -> Verdict:
        """Return the verdict on a follower's request. The offset of the request counts as a
        confirmation, unless the follower's log diverges."""
        refusal = self._refusal(request.node, request.start, request.epoch)
        if refusal is not None:
            return refusal
        follower = self._followers.get(request.node)
        if follower is None or follower.start != request.start:
            follower = FollowerState(request.node, request.start, caught_up=self._began)
            self._followers[request.node] = follower
        self.stir()
        if request.mark != follower.mark or request.leader_mark != follower.leader_mark:
            follower.mark, follower.leader_mark = request.mark, request.leader_mark
            follower.agrees = self._has_agreed(follower)
        asked_before, leader_end_before = follower.heard, follower.leader_end
        follower.heard, follower.leader_end = now, self.log_end
        follower.lost = follower.parked = False
        follower.is_full = request.is_full
        follower.has_old_states = request.has_old_states
        diverging = self._diverging(request)
        if diverging is not None:
            return diverging
        follower.offset = request.offset
        follower.side_version = side_state.confirmed(self.epoch, request.side_version)
        if not follower.agrees:
            pass  # acks wait until the follower has the record, but not forever
        elif request.offset >= self.log_end:
            follower.caught_up = now
        elif request.offset >= leader_end_before:
            # The follower has all records that existed at its previous request. Under load it never
            # has the newest record.
            follower.caught_up = max(follower.caught_up, asked_before)
        self._advance()
        if (
            request.offset < self.log_end
            or request.side_version != self.side_version
            or self._is_uninformed(request.mark, request.leader_mark)
        ):
            follower.told = self.high_watermark
            return SEND
        follower.parked = True
        return PARK

    def states_fetched(
        self, node: str, start: int, epoch: int, has: Position | None, now: float
    ) -> Verdict:
        """Return the verdict on a follower's request for the states of consumers. `has` is the
        follower's position."""
        refusal = self._refusal(node, start, epoch)
        if refusal is not None:
            return refusal
        self.stir()
        follower = self._followers.get(node)
        if follower is not None and follower.start == start and has is not None:
            follower.has_old_states = False
        return SEND if self.states.fetched(node, start, has, now) else PARK

    def confirm_states(self) -> bool:
        """Advance the confirmed position of the states of consumers to the position that all nodes
        for which the high watermark waits have reached. Returns True if it has moved. The rules are
        those of `_advance`."""
        followers = [self._followers.get(node) for node in self._waits_for]
        can_confirm = self._can_commit and not self.resigned
        if not can_confirm or any(one is None or not one.agrees for one in followers):
            return False
        return self.states.confirm(self._waits_for)

    def untold(self, now: float) -> list[str]:
        """Return the parked followers that have an older high watermark and must be answered now.

        The shell calls this shortly after the high watermark has moved.
        """
        return self._wake(now, lambda follower: follower.told < self.high_watermark)

    def disagreeing(self, now: float) -> list[str]:
        """Return the parked followers that do not have the present in-sync set and must be answered
        now."""
        return self._wake(now, lambda follower: not follower.agrees)

    def tells_record(self, mark: Mark | None, leader_mark: Mark | None) -> bool:
        """Return True if the answer to a request with these marks must contain the record: acks
        wait for it, and the follower may be unable to reach the metadata store."""
        is_old = mark is not None and mark[0] < self.record.version
        return is_old and self._is_uninformed(mark, leader_mark)

    def expired(self, node: str, now: float) -> list[str]:
        """Record that the request of `node` has been parked for a long time. If the request is
        still parked, it gets an answer without records, and the follower sends the next request."""
        return self._wake(now, lambda follower: follower.node == node)

    def lost(self, node: str) -> None:
        """Stop waiting for `node`, because its connection is gone or it answers no ping."""
        follower = self._followers.get(node)
        if follower is None:
            follower = self._followers[node] = FollowerState(node, self.record.starts.get(node, 0))
        follower.lost = True
        follower.parked = False
        self.stir()

    def heard_by_majority(self, now: float, within: float) -> bool:
        """Return True if most replicas, including this one, sent a request within the last `within`
        seconds. In this case no other node can have been elected before those requests, even if the
        metadata store is unreachable."""
        return is_majority(self._followers.values(), self.record.replicas, now - within)

    def lags(self) -> dict[str, int]:
        """Return the number of missing records by node, for each other member that sent a request
        in this epoch."""
        return {
            one.node: max(0, self.log_end - one.offset)
            for one in self._followers.values()
            if one.offset >= 0 and one.node in self._others
        }

    def confirmed_by_all(self, now: float, forget_after: float, known: int) -> int:
        """Return the end up to which every replica has durable records; tombstones below it may be
        deleted.

        Replicas that sent no request for `forget_after` seconds do not count. `known` is the last
        result. If a replica has lost its disk, the end moves back. Otherwise compaction could
        remove tombstones that this replica has not copied yet, and the copy would have to start
        again. If a replica has restarted, the end does not move before its first request.
        """
        end = self.high_watermark
        for node in self.record.members:
            if node == self.node:
                continue
            heard = self._heard_before.get(node, self._began)
            follower = self._followers.get(node)
            end = confirmed_by(follower, end, known, now=now, heard=heard, within=forget_after)
        return end

    # --- the record --------------------------------------------------------------

    def propose(self, now: float, stopping: Collection[str] = ()) -> Change | None:
        """Return the change of the record that must be committed by compare-and-set: a change of
        the ISR, or the end of a reassignment; None if nothing is due. Nodes that are `stopping` are
        not added, because acks would wait for a node that is about to leave.

        From now on the high watermark waits for the nodes of the old and the new record, until
        `adopt` receives a newer version: the change was made, or can no longer be made. Until then
        the method returns the same change, because a second attempt settles an unknown outcome.
        """
        if self.resigned or self.is_settled:
            return None
        if self.pending is None:
            after = self._shrunk(now) or self._expanded(stopping) or self._moved()
            if after is None:
                self.is_settled = self._waits_idly()
                return None
            self.pending = Change(self.record, after)
            self._see(self.record)
        return self.pending

    def needs_change(self, now: float) -> bool:
        """Return True if acks wait for a pending change that removes a lagging node.

        If the node has caught up in the meantime, acks wait for its confirmations as before, and do
        not need the change.
        """
        return self.pending is not None and any(self._lags(one, now) for one in self._waits_for)

    def adopt(self, record: StreamMetadata) -> int:
        """Adopt a newer record; an older one changes nothing. Returns the high watermark.

        If this epoch has ended according to the record, the leader resigns.
        """
        if record.version > self.record.version:
            self.pending = None
            if not _whole(self.record) <= _whole(record):
                self._agreed_from = record.version
            if record.leader != self.node or record.leader_epoch != self.epoch:
                self.resign()
            self._see(record)
        return self._advance()

    # --- rules -------------------------------------------------------------------

    def _refusal(self, node: str, start: int, epoch: int) -> Verdict | None:
        """Return the verdict that fences a request; None if the request is valid.

        A request of another epoch has no meaning in this epoch. When a newer process run of a
        follower is known, requests of the previous run are fenced, because records that the
        previous run confirmed may be lost.
        """
        if self.resigned or node not in self._others:
            return NOT_LEADER
        if epoch > self.epoch:
            return UNKNOWN_EPOCH
        if epoch < self.epoch or start < self._newest_start(node):
            return FENCED_EPOCH
        return None

    def _newest_start(self, node: str) -> int:
        follower = self._followers.get(node)
        here = max(follower.start if follower else 0, self.states.start_of(node))
        return max(self.record.starts.get(node, 0), here)

    def _diverging(self, request: FetchRequest) -> Verdict | None:
        """Return a verdict if the follower's log contains records that differ from the leader's
        log; None otherwise. The offset of a diverging log confirms nothing."""
        found = divergence(
            self.epochs,
            self.log_end,
            request.last_epoch,
            request.offset,
            has_all=self._must_keep(request.node),
        )
        return None if found is None else Verdict(Kind.DIVERGING, *found)

    def _advance(self) -> int:
        """Advance the high watermark to the lowest durable end of the nodes for which it waits.

        The high watermark never falls. The high watermark does not move while the ISR is too small:
        replicas that then leave the ISR stay eligible, so they must have every acked record.
        """
        if self._can_commit and not self.resigned:
            end, side = self.durable_end, self.side_version
            for node in self._waits_for:
                follower = self._followers.get(node)
                if follower is None or not follower.agrees:
                    return self.high_watermark
                end = min(end, follower.offset)
                side = min(side, follower.side_version)
            self.high_watermark = max(self.high_watermark, end)
            self.side_confirmed = max(self.side_confirmed, side)
        return self.high_watermark

    def _see(self, record: StreamMetadata) -> None:
        """Determine from `record` the nodes that the high watermark waits for.

        These nodes are the ISR, and all nodes that a pending change may have added or may not have
        removed yet. The next leader may be elected from the set before or after the change.
        """
        self.record = record
        self.stir()
        self._can_commit = record.can_commit
        self._others = frozenset(record.members) - {self.node}
        nodes = {*record.isr, *(self.pending.after.isr if self.pending else ())}
        self._waits_for = tuple(sorted(nodes - {self.node}))
        self.states.forget(record.starts, self._others)
        for node, follower in list(self._followers.items()):
            if follower.start < record.starts.get(node, 0) or node not in self._others:
                before = self._heard_before.get(node, self._began)
                self._heard_before[node] = max(follower.heard, before)
                del self._followers[node]
            else:
                follower.agrees = self._has_agreed(follower)

    def _has_agreed(self, follower: FollowerState) -> bool:
        """Return True if the follower has received the in-sync set. If the follower's record is
        newer than the leader's, the follower's own mark is not sufficient. In this case
        `leader_mark` shows whether the newer record follows the leader's record."""
        told = follower.leader_mark
        return self._agrees(follower.mark) or (told is not None and self._agrees(told))

    def _is_uninformed(self, mark: Mark | None, leader_mark: Mark | None) -> bool:
        """Return True if acks wait for a follower that has not received the present record."""
        if leader_mark is None or leader_mark[0] == self.record.version:
            return False
        return not (self._agrees(mark) or self._agrees(leader_mark))

    def _agrees(self, mark: Mark | None) -> bool:
        """Return True if a node with the record of this mark has received all removals from the
        in-sync set.

        Messages that are acked without the removed nodes must survive a loss of changes in the
        metadata store. If every node that confirms acks has received the removals, no such node
        acts on an older record again. Only the other nodes could continue from an older record, and
        they are too few to ack anything.
        """
        return mark is None or (mark[0] >= self._agreed_from and self.record.has(mark))

    def _must_keep(self, node: str) -> bool:
        """Return True if the follower may have the last copy of a committed record."""
        joins = self.pending is not None and node in self.pending.after.isr
        return joins or self.record.must_keep(node)

    def _shrunk(self, now: float) -> StreamMetadata | None:
        behind = [node for node in self.record.isr if node != self.node and self._lags(node, now)]
        return transitions.fence(self.record, behind) if behind else None

    def _lags(self, node: str, now: float) -> bool:
        follower = self._followers.get(node)
        if follower is None:
            return now - self._began > self._lag_max
        if self.states.lags(node, now, self._lag_max):
            return True
        if follower.parked and follower.agrees and follower.offset >= self.log_end:
            return False
        is_stuck = follower.lost or follower.is_full
        return is_stuck or now - follower.caught_up > self._lag_max

    def _waits_idly(self) -> bool:
        """Return True if each in-sync follower has all records and waits for more, so that none
        begins to lag before the next event. Other replicas can join the ISR only by a request."""
        followers = (self._followers.get(node) for node in self._waits_for)
        is_moving = self.record.adding or self.record.removing
        is_idle = not is_moving and self.states.waits_idly(self._waits_for)
        return is_idle and all(
            one is not None and one.parked and one.agrees and one.offset >= self.log_end
            for one in followers
        )

    def _expanded(self, stopping: Collection[str]) -> StreamMetadata | None:
        for node, follower in self._followers.items():
            joins = node in self.record.replicas and node not in self.record.isr
            if joins and node not in stopping and self._has_caught_up(follower):
                return transitions.expand(self.record, node, follower.start)
        return None

    def _moved(self) -> StreamMetadata | None:
        """Return the record that completes the pending reassignment; None if the reassignment
        cannot be completed now."""
        moves = self.record.adding or self.record.removing
        return transitions.complete(self.record) if moves else None

    def _has_caught_up(self, follower: FollowerState) -> bool:
        """Return True if the follower has everything that is committed, and everything that former
        leaders may have committed.

        So the follower must have reached the high watermark, and the end that the log had when the
        epoch began. The same holds for the side state and the states of consumers. The follower
        must have confirmed all this in the present epoch, in the process run that the record names.
        """
        return (
            not follower.lost
            and not follower.is_full
            and follower.agrees
            and follower.start == self.record.starts.get(follower.node)
            and follower.offset >= max(self.high_watermark, self.begin_offset)
            and follower.side_version >= max(self.side_confirmed, self._begin_side_version)
            and not follower.has_old_states
            and self.states.has_all(follower.node)
        )

    # --- parts -------------------------------------------------------------------

    def stir(self) -> None:
        """Make `propose` check again, because a follower may begin to lag."""
        if self.is_settled:
            self.is_settled = False
            self._stirred()

    def _wake(self, now: float, wants: Callable[[FollowerState], bool]) -> list[str]:
        woken = []
        for follower in self._followers.values():
            if follower.parked and wants(follower):
                follower.parked = False
                self.stir()
                if follower.agrees:
                    follower.caught_up = now  # had all records at this time
                follower.told = self.high_watermark
                woken.append(follower.node)
        return woken


def _whole(record: StreamMetadata) -> set[str]:
    """Return the nodes that have all data that was acked under this record or an earlier record."""
    return {*record.isr, *record.eligible}
