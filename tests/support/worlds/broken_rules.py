"""Breaks each rule of replication. The simulator must detect every broken rule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from support.worlds.replica_disks import LogDisk
from support.worlds.replica_world import Faults, Rules, World

from liftlog.cluster.consumer_states import LeaderStates
from liftlog.cluster.followers import FetchRequest, FollowerState, Verdict
from liftlog.cluster.following import Answer, Effect, Follower, Resync
from liftlog.cluster.leading import Leader
from liftlog.cluster.record import Mark, StreamMetadata


class AnyEpochServed(Leader):
    """Serves requests of every epoch. Followers do not report their record, like those of an older
    version, because otherwise R16 would hide the defect."""

    def fetched(self, request: FetchRequest, now: float) -> Verdict:
        return super().fetched(replace(request, mark=None, leader_mark=None), now)

    def _refusal(self, node: str, start: int, epoch: int) -> Verdict | None:
        return super()._refusal(node, start, self.epoch)


class NothingDiverges(Leader):
    def _diverging(self, request: FetchRequest) -> Verdict | None:
        return None


class CommittedUnsynced(Leader):
    def written(self, log_end: int, now: float) -> list[str]:
        self.local(log_end)
        return super().written(log_end, now)


class CommittedBySmallIsr(Leader):
    def _see(self, record: StreamMetadata) -> None:
        super()._see(record)
        self._can_commit = True


class OnlyTheIsrOfTheRecord(Leader):
    def _see(self, record: StreamMetadata) -> None:
        pending, self.pending = self.pending, None
        super()._see(record)
        self.pending = pending


class CaughtUpWithTheHighWatermark(Leader):
    def _has_caught_up(self, follower: FollowerState) -> bool:
        begin, self.begin_offset = self.begin_offset, 0
        caught_up = super()._has_caught_up(follower)
        self.begin_offset = begin
        return caught_up


class CaughtUpAtOnce(Leader):
    def _has_caught_up(self, follower: FollowerState) -> bool:
        return super()._has_caught_up(replace(follower, offset=self.log_end))


class AnyStartServed(Leader):
    """Treats a late request of an earlier process run as a request of the present one."""

    def fetched(self, request: FetchRequest, now: float) -> Verdict:
        return super().fetched(replace(request, start=self._newest_start(request.node)), now)


class AckedByAnIsrThatOnlyTheLeaderKnows(Leader):
    def _agrees(self, mark: Mark | None) -> bool:
        return True


class TellsNoRecord(Leader):
    """Does not send the record. Followers get the in-sync set only from the metadata store."""

    def tells_record(self, mark: Mark | None, leader_mark: Mark | None) -> bool:
        return False


class KnowsBetterThanFollowers(Leader):
    """Ignores confirmations of a follower that has a newer record than the leader."""

    def _has_agreed(self, follower: FollowerState) -> bool:
        return self._agrees(follower.mark)


class LateAnswersUsed(Follower):
    def _is_awaited(self, answer: Answer) -> bool:
        if answer.diverging is None or self.working is not None:
            return super()._is_awaited(answer)
        return answer.epoch == self.record.leader_epoch


class AnyHistoryIsItsOwn(Follower):
    """Does not detect that its leader has a record that the metadata store has lost."""

    def answered(self, answer: Answer, *, first_stored: int = 0) -> Effect | None:
        return super().answered(replace(answer, checksum=0), first_stored=first_stored)


class AllIsCommitted(Follower):
    def _see(self, high_watermark: int) -> None:
        super()._see(self.log_end)


class AlwaysReady(Leader):
    @property
    def is_ready(self) -> bool:
        return True


class DropsInsteadOfCutting(Follower):
    def _cut(self, answer: Answer, epoch: int, end: int) -> Effect | None:
        return self._resync(answer)

    def _resync(self, answer: Answer) -> Effect | None:
        return Resync(answer.first_stored)


class CaughtUpWithoutSideState(Leader):
    def _has_caught_up(self, follower: FollowerState) -> bool:
        return super()._has_caught_up(replace(follower, side_version=self.side_version))


class CaughtUpWithoutConsumers(Leader):
    def _has_caught_up(self, follower: FollowerState) -> bool:
        states, self.states = self.states, LeaderStates[Any]()
        caught_up = super()._has_caught_up(replace(follower, has_old_states=False))
        self.states = states
        return caught_up


class ConfirmsConsumersForever(Leader):
    """Does not check that the in-sync set is large enough, and that the followers have received
    it."""

    def confirm_states(self) -> bool:
        return self.states.confirm(self._waits_for)


class SideStateConfirmedByLeader(Leader):
    def side_changed(self, version: int, now: float) -> list[str]:
        woken = super().side_changed(version, now)
        self.side_confirmed = version
        return woken


class KeepsDeletedKeys(Follower):
    """Continues below the tombstones that its leader has removed."""

    def answered(self, answer: Answer, *, first_stored: int = 0) -> Effect | None:
        answer = replace(answer, tombstones_removed_below=0)
        return super().answered(answer, first_stored=first_stored)


CALM = Faults(
    elections=4,
    crashes=0,
    power_cuts=0,
    blackouts=0,
    lost_disks=0,
    failing_syncs=0,
    planned=10,
    late_copies=8,
    reordered=0.1,
)
"""No faults, but the leadership moves often, and frames of two epochs ago arrive."""

FORGETFUL = Faults(
    elections=0.3,
    crashes=3,
    power_cuts=0,
    blackouts=0,
    lost_disks=30,
    failing_syncs=0,
    late_copies=4,
)
"""Followers start again with older disks, and frames of their earlier process runs arrive."""


STORE_CUT_OFF = Faults(store_cuts=1, lost_disks=0)
"""Nodes cannot reach the metadata store. Acks must continue if this is promised."""

OFTEN_SET_BACK = Faults(
    elections=0.2,
    planned=0,
    crashes=3,
    power_cuts=0,
    blackouts=0,
    lost_disks=0,
    failing_syncs=0,
    set_backs=3,
    store_cuts=1,
)
"""Nodes start with a record that is older than the record of their leader."""

STEADY = Faults(elections=0.5, crashes=0.5, power_cuts=0.3, blackouts=0.1, lost_disks=0.5)
"""Enough records are committed between faults, so that compaction has records to remove."""


@dataclass(frozen=True)
class Broken:
    """A rule that is switched off, and the settings of the runs that should detect it."""

    rules: Rules
    faults: Faults | None = None
    first_seed: int = 0
    """First seed of the search. If a defect occurs only once in hundreds of runs, it is the seed of
    a run that detects it."""
    compacted: bool = False
    """True if a compacted stream on real logs is needed."""
    consumers: bool = False
    """True if consumers with acks are needed."""

    def world(self, seed: int) -> World:
        faults = replace(self.faults or Faults(), consumers=float(self.consumers))
        if self.compacted:
            return World(
                seed,
                rules=self.rules,
                faults=faults,
                new_disk=partial(LogDisk, compacted=True),
                compacted=True,
            )
        return World(seed, rules=self.rules, faults=faults)


BROKEN: dict[str, Broken] = {
    "R1 requests of any epoch": Broken(
        Rules(leader=AnyEpochServed),
        replace(CALM, elections=8, late_copies=20, reordered=0.3),
        4695,
    ),
    "R2 nothing diverges": Broken(Rules(leader=NothingDiverges)),
    "R3 cut to the high watermark": Broken(Rules(mutations=frozenset({"R3"}))),
    "R4 committed before the leader synced": Broken(Rules(leader=CommittedUnsynced)),
    "R4 committed by too small an ISR": Broken(Rules(leader=CommittedBySmallIsr)),
    "R5 without changes under way": Broken(Rules(leader=OnlyTheIsrOfTheRecord)),
    "R5 guessing an outcome": Broken(Rules(mutations=frozenset({"R5"})), None, 198),
    "R6 caught up before it is": Broken(Rules(leader=CaughtUpAtOnce)),
    "R6 caught up with the high watermark only": Broken(Rules(leader=CaughtUpWithTheHighWatermark)),
    "R7 requests of former lives": Broken(Rules(leader=AnyStartServed), FORGETFUL, 3231),
    "R8 a damaged disk counts as whole": Broken(Rules(mutations=frozenset({"R8"}))),
    "R9 late answers": Broken(Rules(follower=LateAnswersUsed), None, 80),
    "R10 the store is believed": Broken(
        Rules(mutations=frozenset({"R10"})), Faults(set_backs=1, lost_disks=0), 54
    ),
    "R10 what may have been acked is given up": Broken(
        Rules(mutations=frozenset({"R10 given up"})), Faults(set_backs=2, lost_disks=0), 222
    ),
    "R10 a copy of another history is kept": Broken(
        Rules(mutations=frozenset({"R10 kept"})), Faults(set_backs=2, lost_disks=0), 344
    ),
    "R10 a leader of another history fails its followers": Broken(
        Rules(follower=AnyHistoryIsItsOwn), OFTEN_SET_BACK, 5824
    ),
    "R11 all is committed on followers": Broken(Rules(follower=AllIsCommitted)),
    "R12 offsets assigned twice": Broken(Rules(mutations=frozenset({"R12"})), None, 22),
    "R13 confirmed before the sync": Broken(Rules(mutations=frozenset({"R13"}))),
    "R14 always ready": Broken(Rules(leader=AlwaysReady)),
    "R15 dropping a log that is needed": Broken(Rules(follower=DropsInsteadOfCutting)),
    "R15 a copy is dropped in the epoch in which it counted": Broken(
        Rules(mutations=frozenset({"R15"})), Faults(discards=1)
    ),
    "R16 acked by an ISR that only the leader knows": Broken(
        Rules(leader=AckedByAnIsrThatOnlyTheLeaderKnows), Faults(set_backs=1, lost_disks=0), 327
    ),
    "R16 followers hear of the ISR from the store alone": Broken(
        Rules(leader=TellsNoRecord), STORE_CUT_OFF, 31
    ),
    "R16 followers know better than a leader without the store": Broken(
        Rules(leader=KnowsBetterThanFollowers), STORE_CUT_OFF, 529
    ),
    "side state confirmed before it is stored": Broken(Rules(mutations=frozenset({"side state"}))),
    "side state of two leaders under one version": Broken(
        Rules(mutations=frozenset({"side versions"})), None, 106
    ),
    "side state confirmed by the leader alone": Broken(Rules(leader=SideStateConfirmedByLeader)),
    "caught up without the side state": Broken(Rules(leader=CaughtUpWithoutSideState), None, 2542),
    "consumers confirmed before the sync": Broken(
        Rules(mutations=frozenset({"consumers confirmed before the sync"})), consumers=True
    ),
    "consumers confirmed by the leader alone": Broken(
        Rules(mutations=frozenset({"consumers confirmed by the leader alone"})), consumers=True
    ),
    "consumers of another epoch count": Broken(
        Rules(mutations=frozenset({"consumers of another epoch count"})), consumers=True
    ),
    "consumers that the leader lacks are kept": Broken(
        Rules(mutations=frozenset({"consumers that the leader lacks are kept"})), consumers=True
    ),
    "caught up without the consumers": Broken(
        Rules(leader=CaughtUpWithoutConsumers), consumers=True
    ),
    "consumers confirmed by too small an ISR": Broken(
        Rules(leader=ConfirmsConsumersForever), consumers=True
    ),
    "deleted keys come back": Broken(
        Rules(follower=KeepsDeletedKeys), STEADY, 3261, compacted=True
    ),
}
