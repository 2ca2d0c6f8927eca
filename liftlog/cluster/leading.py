"""What the leader of a stream decides: what is committed, what followers get, who is in sync.

One `Leader` exists per stream and epoch. The shell appends and syncs the log, serves the followers,
changes the record, and tells the leader about each; it needs no rule to do so.

    log:        written(end, now) -> followers to wake     local(end) -> high watermark
    followers:  fetched(request, now) -> verdict           expired(node, now)   lost(node)
    record:     propose(now) -> change to commit           adopt(record)

The high watermark is the end of what is committed, exclusive; so are all ends.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from liftlog.cluster import side_state, transitions
from liftlog.cluster.epochs import NO_EPOCH, EpochTable, begin_epoch, between, end_of_epoch
from liftlog.cluster.record import Mark, StreamRecord


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A follower asks for what follows `offset`. All below it is durable in its log."""

    node: str
    start: int
    epoch: int
    offset: int
    last_epoch: int
    """The epoch of its last record; NO_EPOCH if its log is empty."""
    side_version: int = 0
    """The side state that it has stored."""
    mark: Mark | None = None
    """Of the record that it knows, durably. None from a node of a version that does not tell: its
    confirmations count all the same."""
    leader_mark: Mark | None = None
    """The version of this leader's record that it was told last, and the checksum which that has in
    the history that it knows; 0: none. None from a node that does not tell."""
    is_full: bool = False
    """Its disk was too full for what it was sent last."""


class Kind(enum.Enum):
    SEND = "send"
    """Answer now, with what the log has from the offset on."""
    PARK = "park"
    """There is nothing yet: keep the request until `written` or `untold` names the follower."""
    DIVERGING = "diverging"
    """Answer with `epoch` and `end`: the logs agree at most up to there."""
    FENCED_EPOCH = "fenced epoch"
    """The follower is behind the record: it knows an older epoch, or has started again since."""
    UNKNOWN_EPOCH = "unknown epoch"
    """The leader is behind the record, which its node then reads again."""
    NOT_LEADER = "not leader"
    """This leader has resigned, or the node has no copy."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a follower's request is answered with."""

    kind: Kind
    epoch: int = NO_EPOCH
    end: int = 0


_SEND = Verdict(Kind.SEND)
_PARK = Verdict(Kind.PARK)
_FENCED_EPOCH = Verdict(Kind.FENCED_EPOCH)
_UNKNOWN_EPOCH = Verdict(Kind.UNKNOWN_EPOCH)
_NOT_LEADER = Verdict(Kind.NOT_LEADER)


@dataclass(frozen=True, slots=True)
class Change:
    """A record to commit by compare-and-set, at the revision under which `before` was read."""

    before: StreamRecord
    after: StreamRecord


@dataclass(slots=True)
class FollowerState:
    """What the leader knows of one life of a follower."""

    node: str
    start: int
    offset: int = -1
    """Everything below is durable there; -1 before it has confirmed anything in this epoch."""
    side_version: int = 0
    mark: Mark | None = None
    leader_mark: Mark | None = None
    agrees: bool = True
    """Whether it knows the in-sync set that acks are given by."""
    heard: float = -math.inf
    """When it last asked; -inf before it has."""
    caught_up: float = 0.0
    """When it last had all that the leader had."""
    leader_end: int = 0
    """The leader's log end when it last asked."""
    told: int = 0
    """The high watermark in the last answer."""
    parked: bool = False
    lost: bool = False
    """Its connection is gone, and it did not ask since."""
    is_full: bool = False
    """It could not store what it was sent: to wait for it would be to wait for its operator."""


class Leader:
    """One leader of one stream in one epoch.

    `log_end` is the log's end when the epoch begins. The entry (epoch, log_end) must be durable in
    the log's epoch table before the first append. `durable_end` and `high_watermark` are what this
    node knew as a follower or found at its start. `side_version` names the side state that it
    begins with, as `side_state.begin` says. Times are monotonic seconds.
    """

    def __init__(
        self,
        record: StreamRecord,
        node: str,
        epochs: EpochTable,
        *,
        log_end: int,
        durable_end: int,
        high_watermark: int,
        now: float,
        lag_max: float = 10.0,
        side_version: int = 0,
        stirred: Callable[[], None] = lambda: None,
    ) -> None:
        """`stirred` is called whenever this is settled no longer."""
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
        """The newest side state that all whom the high watermark waits for have stored."""
        self.resigned = False
        self.pending: Change | None = None
        self._lag_max = lag_max
        self._stirred = stirred
        self._began = now
        self._followers: dict[str, FollowerState] = {}
        # When followers last asked in lives that have ended: tombstones wait for the next one.
        self._heard_before: dict[str, float] = {}
        self.is_settled = False
        """Nothing is to be proposed before a follower or the record is heard of: most streams are
        idle most of the time, and it is asked ten times a second."""
        # Of the record, for what is asked with each request.
        self._agreed_from = record.version
        self._can_commit = False
        self._others: frozenset[str] = frozenset()
        self._waits_for: tuple[str, ...] = ()
        self._see(record)

    @property
    def is_ready(self) -> bool:
        """Whether the high watermark has reached what the log had when the epoch began.

        Before that it may be lower than what the previous leader has shown, so the newest offset,
        times, leases and checkpoints are answered with "not ready": clients ask again.
        """
        return self.high_watermark >= self.begin_offset

    @property
    def can_commit(self) -> bool:
        """Whether the ISR is large enough to ack."""
        return self._can_commit

    # --- the log -----------------------------------------------------------------

    def written(self, log_end: int, now: float) -> list[str]:
        """Records below `log_end` can be read, and may not be durable yet: followers get them while
        the leader syncs. Returns the followers whose parked requests are to be answered now."""
        self.log_end = log_end
        return self._wake(now, lambda follower: follower.offset < log_end)

    def local(self, durable_end: int) -> int:
        """All below `durable_end` is durable here. Returns the high watermark."""
        self.durable_end = durable_end
        return self._advance()

    def side_changed(self, version: int, now: float) -> list[str]:
        """Side state `version` is durable here and is to be copied. Returns the followers to answer
        now. It is `side_confirmed` when those have it that a record's high watermark waits for."""
        self.side_version = version
        self._advance()
        return self._wake(now, lambda follower: follower.side_version != version)

    def resign(self) -> None:
        """Nothing more is committed in this epoch, whatever the record says.

        Needed when an fdatasync failed: followers may have records that this log gave up, and an
        offset never gets a second record in the same epoch.
        """
        self.resigned = True

    # --- followers ---------------------------------------------------------------

    def fetched(self, request: FetchRequest, now: float) -> Verdict:
        """A follower's request. Its offset counts as a confirmation, unless its log diverges."""
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        follower = self._followers.get(request.node)
        if follower is None or follower.start != request.start:
            follower = FollowerState(request.node, request.start, caught_up=self._began)
            self._followers[request.node] = follower
        self._stir()
        if request.mark != follower.mark or request.leader_mark != follower.leader_mark:
            follower.mark, follower.leader_mark = request.mark, request.leader_mark
            follower.agrees = self._has_agreed(follower)
        asked_before, leader_end_before = follower.heard, follower.leader_end
        follower.heard, follower.leader_end = now, self.log_end
        follower.lost = follower.parked = False
        follower.is_full = request.is_full
        diverging = self._diverging(request)
        if diverging is not None:
            return diverging
        follower.offset = request.offset
        follower.side_version = side_state.confirmed(self.epoch, request.side_version)
        if not follower.agrees:
            pass  # acks wait for it to hear of the record, but not for ever
        elif request.offset >= self.log_end:
            follower.caught_up = now
        elif request.offset >= leader_end_before:
            # It has all that there was when it asked before: under load it is never quite level.
            follower.caught_up = max(follower.caught_up, asked_before)
        self._advance()
        if (
            request.offset < self.log_end
            or request.side_version != self.side_version
            or self._is_uninformed(request.mark, request.leader_mark)
        ):
            follower.told = self.high_watermark
            return _SEND
        follower.parked = True
        return _PARK

    def untold(self, now: float) -> list[str]:
        """Parked followers that have been told a lower high watermark: answer them now. The shell
        asks a little after the high watermark moved, when no data has carried it."""
        return self._wake(now, lambda follower: follower.told < self.high_watermark)

    def disagreeing(self, now: float) -> list[str]:
        """Parked followers that do not know the in-sync set that acks are given by: answer them
        now."""
        return self._wake(now, lambda follower: not follower.agrees)

    def tells_record(self, mark: Mark | None, leader_mark: Mark | None) -> bool:
        """Whether the answer to a request with these marks is to carry the record: acks wait for
        the follower to know it, and the metadata store may be out of its reach. It gets each
        version once."""
        is_old = mark is not None and mark[0] < self.record.version
        return is_old and self._is_uninformed(mark, leader_mark)

    def expired(self, node: str, now: float) -> list[str]:
        """The request of `node` was parked for long: it is answered without news, if it still is
        parked, and the follower asks again."""
        return self._wake(now, lambda follower: follower.node == node)

    def epochs_of_gap(self, first: int, end: int) -> EpochTable:
        """What a follower must know of offsets without records; it goes with the answer."""
        return between(self.epochs, first, end)

    def lost(self, node: str) -> None:
        """The connection of `node` is gone, or it answers no ping: stop waiting for it."""
        follower = self._followers.get(node)
        if follower is None:
            follower = self._followers[node] = FollowerState(node, self.record.starts.get(node, 0))
        follower.lost = True
        follower.parked = False
        self._stir()

    def heard_by_majority(self, now: float, within: float) -> bool:
        """Whether most replicas, this one included, asked within that many seconds. If so, no other
        node can have been elected that long ago, even if the metadata store is out of reach."""
        recent = [
            one
            for one in self._followers.values()
            if one.node in self.record.replicas and now - one.heard <= within
        ]
        return 2 * (len(recent) + 1) > len(self.record.replicas)

    def lags(self) -> dict[str, int]:
        """How many records each other member lacks, of those that have asked in this epoch."""
        return {
            one.node: max(0, self.log_end - one.offset)
            for one in self._followers.values()
            if one.offset >= 0 and one.node in self._others
        }

    def confirmed_by_all(self, now: float, forget_after: float, known: int) -> int:
        """Below this end every replica has everything durable, except those that did not ask for
        `forget_after` seconds: tombstones below it may be deleted. `known` is the last such end.

        It falls when a replica has lost its disk: deleting more of what that one copies now would
        make it begin again. It stands still while one that has started again has not asked yet.
        """
        end = self.high_watermark
        for node in self.record.members:
            if node == self.node:
                continue
            follower = self._followers.get(node)
            if follower is not None and now - follower.heard <= forget_after:
                end = min(end, max(follower.offset, 0))
            elif now - self._heard_before.get(node, self._began) <= forget_after:
                end = min(end, known)
        return end

    # --- the record --------------------------------------------------------------

    def propose(self, now: float, stopping: Collection[str] = ()) -> Change | None:
        """A change of the ISR that is due, or the end of a reassignment, to be committed by
        compare-and-set. Nodes that are `stopping` are not taken in: one may still ask after it has
        left, and acks would wait for it again.

        From now on the high watermark waits for the nodes of both records, until `adopt` brings a
        newer version: either the change was made, or it cannot be made any more. Until then this
        returns the same change: repeating it is how an unknown outcome becomes known.
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
        """Whether acks wait for a change that is under way: it takes out one that lags. One that
        has come back meanwhile is waited for as before, and acks go on without the change."""
        return self.pending is not None and any(self._lags(one, now) for one in self._waits_for)

    def adopt(self, record: StreamRecord) -> int:
        """A newer record; an older one changes nothing. If this epoch has ended in it, the leader
        has resigned. Returns the high watermark."""
        if record.version > self.record.version:
            self.pending = None
            if not _whole(self.record) <= _whole(record):
                self._agreed_from = record.version
            if record.leader != self.node or record.leader_epoch != self.epoch:
                self.resign()
            self._see(record)
        return self._advance()

    # --- rules -------------------------------------------------------------------

    def _refusal(self, request: FetchRequest) -> Verdict | None:
        """Fencing. A request of another epoch says nothing about this one. A life of a follower
        ends when the next one is known: what it confirmed may be lost since."""
        if self.resigned or request.node not in self._others:
            return _NOT_LEADER
        if request.epoch > self.epoch:
            return _UNKNOWN_EPOCH
        if request.epoch < self.epoch or request.start < self._newest_start(request.node):
            return _FENCED_EPOCH
        return None

    def _newest_start(self, node: str) -> int:
        follower = self._followers.get(node)
        return max(self.record.starts.get(node, 0), follower.start if follower else 0)

    def _diverging(self, request: FetchRequest) -> Verdict | None:
        """Whether the follower's log leaves this one before its end. If so, its offset confirms
        nothing. An empty log cannot diverge."""
        if request.last_epoch == NO_EPOCH:
            if request.offset > self.log_end:
                return Verdict(Kind.DIVERGING, NO_EPOCH, self.log_end)
            return None
        epoch, end = end_of_epoch(self.epochs, request.last_epoch, self.log_end)
        if epoch == NO_EPOCH and self._must_keep(request.node):
            # Retention here has deleted all that the follower's last epoch had. The follower has
            # all that is committed, and only what is committed is deleted, so they agree there.
            epoch = request.last_epoch
        if epoch < request.last_epoch or end < request.offset:
            return Verdict(Kind.DIVERGING, epoch, end)
        return None

    def _advance(self) -> int:
        """The high watermark is the least durable end of all whom it waits for. It never falls, and
        stands still while the ISR is too small: then replicas leave it that stay eligible."""
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

    def _see(self, record: StreamRecord) -> None:
        """The high watermark waits for the ISR and for all that a change under way may bring into
        it or may not have taken out of it: another leader may be elected from either."""
        self.record = record
        self._stir()
        self._can_commit = record.can_commit
        self._others = frozenset(record.members) - {self.node}
        nodes = {*record.isr, *(self.pending.after.isr if self.pending else ())}
        self._waits_for = tuple(sorted(nodes - {self.node}))
        for node, follower in list(self._followers.items()):
            if follower.start < record.starts.get(node, 0) or node not in self._others:
                before = self._heard_before.get(node, self._began)
                self._heard_before[node] = max(follower.heard, before)
                del self._followers[node]
            else:
                follower.agrees = self._has_agreed(follower)

    def _has_agreed(self, follower: FollowerState) -> bool:
        """Who knows a newer record than this leader says which version of the leader's that has
        come from: it acts only by what comes from there."""
        told = follower.leader_mark
        return self._agrees(follower.mark) or (told is not None and self._agrees(told))

    def _is_uninformed(self, mark: Mark | None, leader_mark: Mark | None) -> bool:
        """Whether acks wait for a follower that has not been told of the present record."""
        if leader_mark is None or leader_mark[0] == self.record.version:
            return False
        return not (self._agrees(mark) or self._agrees(leader_mark))

    def _agrees(self, mark: Mark | None) -> bool:
        """Whether who knows this record knows that those are gone who have left the in-sync set.

        What is acked without them must not be forgotten with the metadata store. If all that ack
        it know that, none of them acts by an older record again. So it takes nodes that have not
        acked it to go on from there, and those are too few to ack anything.
        """
        return mark is None or (mark[0] >= self._agreed_from and self.record.has(mark))

    def _must_keep(self, node: str) -> bool:
        """Whether the follower may have the last copy of something that is committed."""
        joins = self.pending is not None and node in self.pending.after.isr
        return joins or self.record.must_keep(node)

    def _shrunk(self, now: float) -> StreamRecord | None:
        behind = [node for node in self.record.isr if node != self.node and self._lags(node, now)]
        return transitions.fence(self.record, behind) if behind else None

    def _lags(self, node: str, now: float) -> bool:
        follower = self._followers.get(node)
        if follower is None:
            return now - self._began > self._lag_max
        if follower.parked and follower.agrees and follower.offset >= self.log_end:
            return False
        is_stuck = follower.lost or follower.is_full
        return is_stuck or now - follower.caught_up > self._lag_max

    def _waits_idly(self) -> bool:
        """Whether no follower in sync can begin to lag without an event: each has all, and waits
        for more. Others can join only by asking."""
        followers = (self._followers.get(node) for node in self._waits_for)
        is_moving = self.record.adding or self.record.removing
        return not is_moving and all(
            one is not None and one.parked and one.agrees and one.offset >= self.log_end
            for one in followers
        )

    def _expanded(self, stopping: Collection[str]) -> StreamRecord | None:
        for node, follower in self._followers.items():
            joins = node in self.record.replicas and node not in self.record.isr
            if joins and node not in stopping and self._has_caught_up(follower):
                return transitions.expand(self.record, node, follower.start)
        return None

    def _moved(self) -> StreamRecord | None:
        """Elections may bring a leader that stays when all new replicas are in sync already."""
        moves = self.record.adding or self.record.removing
        return transitions.complete(self.record) if moves else None

    def _has_caught_up(self, follower: FollowerState) -> bool:
        """It has all that is committed, and all that may have been committed under former leaders:
        both this high watermark and the log's end when the epoch began; the same with the side
        state. It must have said so in this epoch, in the life that the record knows."""
        return (
            not follower.lost
            and not follower.is_full
            and follower.agrees
            and follower.start == self.record.starts.get(follower.node)
            and follower.offset >= max(self.high_watermark, self.begin_offset)
            and follower.side_version >= max(self.side_confirmed, self._begin_side_version)
        )

    # --- parts -------------------------------------------------------------------

    def _stir(self) -> None:
        if self.is_settled:
            self.is_settled = False
            self._stirred()

    def _wake(self, now: float, wants: Callable[[FollowerState], bool]) -> list[str]:
        woken = []
        for follower in self._followers.values():
            if follower.parked and wants(follower):
                follower.parked = False
                self._stir()
                if follower.agrees:
                    follower.caught_up = now  # up to here it had everything
                follower.told = self.high_watermark
                woken.append(follower.node)
        return woken


def _whole(record: StreamRecord) -> set[str]:
    """Those who have everything that was acked by this record, or before it."""
    return {*record.isr, *record.eligible}
