"""Decides what a follower does next: fetch, append, truncate its log, or start again.

One `Follower` exists per stream and process run of the node. Each event returns at most one effect.
The caller reports the outcome of this effect before it changes the log in any other way:

    assigned(record), resumed()          -> Fetch
    answered(answer)                     -> Append, Truncate, Gap, Resync, Fetch or Fail
    stored(...)  (an effect is durable)  -> Fetch
    failed(...)  (it is not), lost()     nothing: pause, then `resumed`

A `Fetch` confirms that all records below its offset are durable on this node. The leader relies on
this confirmation. Therefore the follower never drops records that it has confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass

from liftlog.cluster import side_state
from liftlog.cluster.epochs import NO_EPOCH, EpochTable, end_of_epoch, last_epoch
from liftlog.cluster.record import Mark, StreamMetadata


@dataclass(frozen=True, slots=True)
class Fetch:
    """Request the records from `offset` on from `leader`."""

    leader: str
    epoch: int
    offset: int
    last_epoch: int
    side_version: int
    mark: Mark
    """Mark of the record that this node has."""
    leader_mark: Mark
    """Version of the metadata record that the leader sent last, and the checksum of this version in
    this node's history (0 if the history lacks the version)."""
    damaged: bool = False
    """True if the last answer failed its checks. The leader should then verify its records at this
    offset."""


@dataclass(frozen=True, slots=True)
class Append:
    """Append the body of the answer, fdatasync, store its side state; then call `stored`."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """Durably truncate the log at `end`, or at the beginning of the batch that contains `end`; then
    call `stored`."""

    end: int
    below_high_watermark: bool = False
    """True if the truncation also drops committed records, after an unclean recovery."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Durably note that the leader has no records from the log's end to `next_offset`, and continue
    there; then call `stored`.

    `epochs` are the entries of the leader's epoch table for these offsets. The follower adds them
    to its own table. Otherwise the next request would contain an epoch that had already ended.
    """

    next_offset: int
    epochs: EpochTable


@dataclass(frozen=True, slots=True)
class Resync:
    """Delete the whole log and begin an empty one at `offset`; then call `stored`.

    The new copy lacks tombstones below `tombstones_removed_below`. The log must store this limit,
    because other nodes may later copy from this log.
    """

    offset: int
    tombstones_removed_below: int = 0


@dataclass(frozen=True, slots=True)
class Fail:
    """Copying cannot continue without losing records that must be kept. The stream fails on this
    node until an operator has looked at it."""

    reason: str


Effect = Fetch | Append | Truncate | Gap | Resync | Fail


@dataclass(frozen=True, slots=True)
class Answer:
    """The leader's answer to a fetch, without the body."""

    epoch: int
    offset: int
    last_epoch: int
    """Repeats a field of the request. The next two fields also repeat fields of the request."""
    version: int
    """Version of the record that the leader currently obeys."""
    high_watermark: int = 0
    first_stored: int = 0
    """First offset that the leader still has."""
    tombstones_removed_below: int = 0
    """Offset below which tombstones of a compacted stream were removed. A log that ends below this
    offset may hold keys that were deleted later."""
    diverging: tuple[int, int] | None = None
    """Epoch and end up to which the logs may agree."""
    gap: Gap | None = None
    """A range of offsets, from `offset` on, in which the leader has no records; None if there is no
    such range."""
    has_content: bool = False
    """True if the answer contains a body or a side state."""
    side_version: int | None = None
    """Version of the side state in the answer."""
    brings_record: bool = False
    """True if the answer contains the leader's record."""
    checksum: int = 0
    """Checksum of the record of `version`; 0 if the leader's version of liftlog does not send
    it."""


class Follower:
    """One node's copy of a stream that another node leads.

    `log_end`, `epochs`, `high_watermark` and `tombstones_removed_below` describe the log at the
    time when it was opened; all its records are durable. The side state of `side_version` is
    durable, too.
    """

    def __init__(
        self,
        record: StreamMetadata,
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
        """The open request. At most one request is open."""
        self.working: Effect | None = None
        """The effect that is being applied to the log. At most one effect is applied at a time."""
        self.failure = ""
        self.waits_for_version = 0
        """The follower sends no request until a record of this version has arrived."""
        self._told = (0, 0)  # epoch and high watermark of the answer that is being appended
        self._first_stored = 0

    @property
    def last_epoch(self) -> int:
        """Epoch of the last record in this log."""
        return last_epoch(self.epochs, self.log_end)

    # --- events ------------------------------------------------------------------

    def assigned(self, record: StreamMetadata) -> Effect | None:
        """Adopt a newer record; an older one changes nothing.

        Ignores the answer to the open request, and sends the request again: the leader may have
        changed, or may wait for the confirmation that this node has the record.
        """
        if record.version <= self.record.version:
            return None
        told = self._leader_mark[0] if record.leader_epoch == self.record.leader_epoch else 0
        self.record = record
        self._mark = record.mark
        self._leader_mark = (told, record.checksum_of(told))
        self.outstanding = None
        return self.resumed()

    def resumed(self, *, damaged: bool = False) -> Effect | None:
        """Return the next request; None if a request is already open, or the log is being
        changed."""
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
        """Return the effect of `answer`; None if the answer does not match the open request or is
        implausible.

        `first_stored` is the first offset of this node's copy. Local retention moves it
        independently of the leader.
        """
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
            self._told = (answer.epoch, answer.high_watermark)
        return effect

    def stored(
        self, log_end: int, epochs: EpochTable, side_version: int | None = None
    ) -> Effect | None:
        """Record that the effect is complete and durable, and return the next one. The log now ends
        at `log_end`.

        `side_version` is the version of the side state that was stored together with the effect, if
        there was one.
        """
        appended = isinstance(self.working, (Append, Gap))
        if isinstance(self.working, Resync):
            self.high_watermark = log_end  # everything below was committed, and is deleted
            self._tombstones_removed_below = self.working.tombstones_removed_below
        self._has(log_end, epochs)
        if side_version is not None:
            self.side_version = side_version
        epoch, high_watermark = self._told
        if appended and epoch >= self.record.unclean_epoch:
            # In an older epoch than the last unclean recovery, the value is ignored: the new leader
            # may have given up records that the former leader had committed.
            self._see(high_watermark)
        return self.resumed()

    def failed(self, log_end: int, epochs: EpochTable) -> None:
        """Record that the effect failed. The log has dropped the records that it could not make
        durable, and ends at `log_end`. None of the dropped records was confirmed."""
        self._has(log_end, epochs)

    def damaged(self) -> Effect | None:
        """Return the request to send again, because the body of the answer failed its checks and
        was not appended."""
        self.working = None
        return self.resumed(damaged=True)

    def lost(self) -> None:
        """Drop the open request, because the connection has ended or the leader refused the
        request."""
        self.outstanding = None

    # --- rules -------------------------------------------------------------------

    def _is_awaited(self, answer: Answer) -> bool:
        """Return True if this is an answer to the open request, in the present epoch, for the
        present end of the log.

        Without this check, a late copy of an older answer could truncate records that were
        confirmed later, or restore an older side state.
        """
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
        """Return True if this log may hold keys that were deleted, because it may lack the
        tombstone of the deletion. Either this leader has removed the tombstone, or the leader from
        which the copy began had removed it.

        A copy may come completely from one leader, from the leader's first record on. Such a copy
        needs no tombstone that this leader had already removed, because the leader had also removed
        the older values of the key. A leader that has removed fewer tombstones may still have such
        values. So the copy must not continue with records of that leader.
        """
        removed, known = answer.tombstones_removed_below, self._tombstones_removed_below
        return removed != known and self.log_end < max(removed, known)

    def _cut(self, answer: Answer, epoch: int, end: int) -> Effect | None:
        """Truncate the log where the two logs diverge: at the lower of the two ends of the newest
        epoch that both have.

        A truncation at the high watermark would be wrong: this node's high watermark may be old, so
        records above it may be committed. A truncation below the high watermark is wrong, too,
        unless an operator has accepted the loss of acked records.
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
            return self._resync(answer)  # retention has deleted all that the two logs share
        self.high_watermark = min(self.high_watermark, end)  # readers stop at this end at once
        return Truncate(end, below_high_watermark=gives_up)

    def _resync(self, answer: Answer) -> Effect | None:
        """Start the copy again, unless it may be the last one with an acked record; such a copy is
        never dropped.

        If the leader has a newer record, wait for that record: it may show that this copy is not
        needed. If the leader has another history of the record, the metadata store was restored to
        an older state. In this case, wait until a new version of the record has discarded one of
        the two histories.
        """
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
        """Advance the high watermark to `high_watermark`, but not beyond the log's end."""
        self.high_watermark = max(self.high_watermark, min(high_watermark, self.log_end))
