"""What a follower of a stream does next: ask its leader, append, cut its log, or start again.

One `Follower` exists per stream and life of the node. Each event returns at most one effect, and
the shell reports the outcome of an effect before anything else is done to the log:

    assigned(record), resumed()          -> Fetch
    answered(answer)                     -> Append, Truncate, Gap, Resync, Fetch or Fail
    stored(...)  (an effect is durable)  -> Fetch
    failed(...)  (it is not), lost()     nothing: pause, then `resumed`

A `Fetch` confirms that all below its offset is durable here, and its leader may count on that for
ever after. This is why the log only ever loses what it did not confirm.
"""

from __future__ import annotations

from dataclasses import dataclass

from liftlog.cluster import side_state
from liftlog.cluster.epochs import NO_EPOCH, EpochTable, end_of_epoch, last_epoch
from liftlog.cluster.record import Mark, StreamRecord


@dataclass(frozen=True, slots=True)
class Fetch:
    """Ask `leader` for what follows `offset`."""

    leader: str
    epoch: int
    offset: int
    last_epoch: int
    side_version: int
    mark: Mark
    """Of the record that this node knows."""
    leader_mark: Mark
    """The version of the leader's record that this node was told last, and the checksum which that
    version has in the history that is known here; 0: none."""
    damaged: bool = False
    """The last answer could not be used: the leader should check what it has there."""


@dataclass(frozen=True, slots=True)
class Append:
    """Append the body of the answer, fdatasync, store its side state; then `stored`."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log at `end`, or where the batch that holds it begins, durably; then `stored`."""

    end: int
    below_high_watermark: bool = False
    """What was committed is given up, too, after an unclean recovery."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Note durably that the leader has nothing from the log's end to `next_offset`, and continue
    there; then `stored`.

    `epochs` is what the leader's epoch table says about these offsets. It goes into the table here,
    or the next request would tell of an epoch that had ended before.
    """

    next_offset: int
    epochs: EpochTable


@dataclass(frozen=True, slots=True)
class Resync:
    """Delete all of the log and begin an empty one at `offset`; then `stored`.

    What is copied from there on lacks tombstones below `tombstones_removed_below`: the log must
    remember that, for those that copy it in turn.
    """

    offset: int
    tombstones_removed_below: int = 0


@dataclass(frozen=True, slots=True)
class Fail:
    """Copying cannot continue without losing what must be kept. The stream fails here until an
    operator has looked at it."""

    reason: str


Effect = Fetch | Append | Truncate | Gap | Resync | Fail


@dataclass(frozen=True, slots=True)
class Answer:
    """The leader's answer to a fetch, without the body."""

    epoch: int
    offset: int
    last_epoch: int
    """These three repeat the request."""
    version: int
    """The version of the record by which the leader answers."""
    high_watermark: int = 0
    first_stored: int = 0
    """The first offset that the leader still has."""
    tombstones_removed_below: int = 0
    """For a compacted stream: a log that ends lower may hold keys that have been deleted since."""
    diverging: tuple[int, int] | None = None
    """Epoch and end up to which the logs may agree."""
    gap: Gap | None = None
    """The leader has nothing from `offset` on, up to the end of the gap."""
    has_content: bool = False
    """Whether a body or a side state came along."""
    side_version: int | None = None
    """Of the side state that came along."""
    brings_record: bool = False
    """Whether the leader's record came along."""
    checksum: int = 0
    """Of the record of `version`; 0 from a leader that does not tell it."""


class Follower:
    """One node's copy of a stream that another node leads.

    `log_end`, `epochs`, `high_watermark` and `tombstones_removed_below` are of the log as it was
    opened: everything in it is durable. So is the side state of `side_version`.
    """

    def __init__(
        self,
        record: StreamRecord,
        node: str,
        epochs: EpochTable,
        *,
        log_end: int,
        high_watermark: int,
        side_version: int = 0,
        tombstones_removed_below: int = 0,
    ) -> None:
        self.node = node
        self.record = record
        self._mark = record.mark
        self._leader_mark: Mark = (0, 0)
        self.epochs = epochs
        self.log_end = log_end
        self.high_watermark = high_watermark
        self.side_version = side_version
        self._tombstones_removed_below = tombstones_removed_below
        self.outstanding: Fetch | None = None
        """The request whose answer is awaited: there is never a second one."""
        self.working: Effect | None = None
        """What is being done to the log: there is never a second thing."""
        self.failure = ""
        self.waits_for_version = 0
        """Nothing is asked before a record of this version is seen."""
        self._told = 0  # the high watermark in the answer that is being appended
        self._first_stored = 0

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record here."""
        return last_epoch(self.epochs, self.log_end)

    # --- events ------------------------------------------------------------------

    def assigned(self, record: StreamRecord) -> Effect | None:
        """A newer record; an older one changes nothing. The request that is out is forgotten, with
        whatever is answered to it, and made again: the leader may have changed, or wait to hear
        that the record is known here."""
        if record.version <= self.record.version:
            return None
        told = self._leader_mark[0] if record.leader_epoch == self.record.leader_epoch else 0
        self.record = record
        self._mark = record.mark
        self._leader_mark = (told, record.checksum_of(told))
        self.outstanding = None
        return self.resumed()

    def resumed(self, *, damaged: bool = False) -> Effect | None:
        """Asks, unless a request is out already or the log is being changed."""
        leader = self.record.leader
        if leader is None or leader == self.node or self.failure:
            return None
        if self.outstanding is not None or self.working is not None:
            return None
        if self.record.version < self.waits_for_version:
            return None
        self.outstanding = Fetch(
            leader,
            self.record.leader_epoch,
            self.log_end,
            self.last_epoch,
            self.side_version,
            self._mark,
            self._leader_mark,
            damaged,
        )
        return self.outstanding

    def answered(self, answer: Answer, *, first_stored: int = 0) -> Effect | None:
        """None if the answer is not to the request that is out, or cannot be right. Here
        `first_stored` is that of the own log: retention moves it without asking."""
        if not self._is_awaited(answer):
            return None
        self.outstanding = None
        self._first_stored = first_stored
        if answer.version != self._leader_mark[0] and (
            answer.brings_record or answer.version <= self.record.version
        ):
            self._leader_mark = (answer.version, self.record.checksum_of(answer.version))
        effect = self._effect_of(answer)
        if isinstance(effect, Fail):
            self.failure = effect.reason
        elif effect is None:
            if answer.diverging is None:
                self._see(answer.high_watermark)
            return self.resumed()
        else:
            self.working = effect
            self._told = answer.high_watermark
        return effect

    def stored(
        self, log_end: int, epochs: EpochTable, side_version: int | None = None
    ) -> Effect | None:
        """The effect is complete and durable; the log now ends at `log_end`. `side_version` names
        the side state that was stored with it, if there was one."""
        appended = isinstance(self.working, (Append, Gap))
        if isinstance(self.working, Resync):
            self.high_watermark = log_end  # what is before was committed, and is deleted
            self._tombstones_removed_below = self.working.tombstones_removed_below
        self._has(log_end, epochs)
        if side_version is not None:
            self.side_version = side_version
        if appended:
            self._see(self._told)
        return self.resumed()

    def failed(self, log_end: int, epochs: EpochTable) -> None:
        """The effect failed. The log has given up what it could not make durable and ends at
        `log_end`; nothing that it gave up was confirmed."""
        self._has(log_end, epochs)

    def damaged(self) -> Effect | None:
        """The body of an answer fails its checks, so nothing was appended: ask once more."""
        self.working = None
        return self.resumed(damaged=True)

    def lost(self) -> None:
        """The request will not be answered: the connection is gone, or it was refused."""
        self.outstanding = None

    # --- rules -------------------------------------------------------------------

    def _is_awaited(self, answer: Answer) -> bool:
        """Only an answer to the one request that is out, in the present epoch, and to the log as
        it ends now. A late copy of an older answer could cut off what was confirmed since, or bring
        back an older side state."""
        asked = self.outstanding
        return (
            asked is not None
            and answer.epoch == self.record.leader_epoch
            and (answer.offset, answer.last_epoch) == (self.log_end, self.last_epoch)
            and not side_state.is_outdated(answer.epoch, self.side_version, answer.side_version)
        )

    def _effect_of(self, answer: Answer) -> Effect | None:
        if self.log_end < answer.first_stored or self._may_keep_deleted_keys(answer):
            return self._resync(answer)
        if answer.diverging is not None:
            return self._cut(answer, *answer.diverging)
        if answer.gap is not None and answer.gap.next_offset > self.log_end:
            return answer.gap
        return Append() if answer.has_content else None

    def _may_keep_deleted_keys(self, answer: Answer) -> bool:
        """Whether a tombstone that this log never saw is gone at the leader, or at the next one.

        What is copied in one go from the leader's first record on needs none of those that were
        gone when it began: their keys were gone, too. Another leader that has removed fewer may
        still have values of such keys, so nothing of its log may follow.
        """
        removed, known = answer.tombstones_removed_below, self._tombstones_removed_below
        return removed != known and self.log_end < max(removed, known)

    def _cut(self, answer: Answer, epoch: int, end: int) -> Effect | None:
        """Where the logs part: at most where either of them ends the newest epoch that both have.

        The high watermark is the wrong place: a record above it may be committed. So is any place
        below it, unless acked records were given up on purpose.
        """
        if epoch == NO_EPOCH:
            return self._resync(answer)
        end = min(end, end_of_epoch(self.epochs, epoch, self.log_end)[1])
        if end >= self.log_end:
            return None
        gives_up = end < self.high_watermark
        if gives_up and self.record.unclean_epoch <= self.last_epoch:
            return Fail(
                f"the leader {self.record.leader} of epoch {answer.epoch} shares this log only up "
                f"to offset {end}, below what was committed here: {self.high_watermark}"
            )
        if end < self._first_stored:
            return self._resync(answer)  # what the logs share has been deleted here
        self.high_watermark = min(self.high_watermark, end)  # readers stop there at once
        return Truncate(end, below_high_watermark=gives_up)

    def _resync(self, answer: Answer) -> Effect | None:
        """A copy that may be the last one with an acked record is never dropped. If the leader
        knows a newer record, in which this copy may not matter any more, wait for that. If it knows
        another history of the record, the metadata store was set back: wait until one of the two is
        given up, which takes a new version."""
        if self.record.must_keep(self.node):
            if answer.version > self.record.version:
                self.waits_for_version = answer.version
                return None
            mark = answer.version, answer.checksum
            if answer.checksum and not self.record.may_come_from(mark):
                self.waits_for_version = self.record.version + 1
                return None
            return Fail(
                f"the leader {self.record.leader} of epoch {answer.epoch} has nothing in common "
                f"with this log, which ends at offset {self.log_end} and must be kept"
            )
        self.high_watermark = 0
        return Resync(answer.first_stored, answer.tombstones_removed_below)

    # --- parts -------------------------------------------------------------------

    def _has(self, log_end: int, epochs: EpochTable) -> None:
        self.working = None
        self.log_end = log_end
        self.epochs = epochs
        self.high_watermark = min(self.high_watermark, log_end)

    def _see(self, high_watermark: int) -> None:
        """What is committed, as far as it is here."""
        self.high_watermark = max(self.high_watermark, min(high_watermark, self.log_end))
