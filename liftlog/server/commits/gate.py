"""Decides when a group that is stored on this node counts as committed. If this is the only copy,
the group is committed at once. Otherwise it is committed when the other copies have it.

With several copies, `liftlog.cluster.leading` decides. `ReplicatedGate` reports events of this node
to that module, and passes the module's decisions on to the stream and the followers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from liftlog.cluster.followers import FetchRequest, Verdict
from liftlog.cluster.leading import Leader
from liftlog.cluster.record import StreamMetadata
from liftlog.log import EncodedBatch
from liftlog.sequencing.refusals import NOT_ENOUGH_REPLICAS, RefusalReason

_TELL_SECONDS = 0.005
"""If no record is sent to the followers within this time (in seconds), a new high watermark is sent
without a record."""


class LedStream(Protocol):
    """The methods of a stream that its gate calls when the high watermark has moved, or when this
    node no longer leads the stream. The gate never calls them during `written` and `local`."""

    def commit_up_to(self, offset: int) -> None: ...
    def step_down(self, reason: str) -> None: ...


class CommitGate(Protocol):
    """Decides the high watermark of one stream that this node leads. Belongs to the event loop."""

    has_followers: bool
    """True if other nodes may hold records that are not durable on this node yet. Such nodes may
    commit these records when this node no longer leads. In that case a failed sync ends the
    leadership, and written records get no answer."""

    @property
    def refuses(self) -> RefusalReason | None:
        """The reason why messages that ask for an ack of all copies are refused now: too few copies
        are in sync. None if such messages are accepted. All other messages are stored in any case,
        and can be read later."""
        ...

    def bind(self, stream: LedStream) -> None:
        """Set the stream. Called once, before any other method."""
        ...

    def written(self, batches: Sequence[EncodedBatch]) -> None:
        """Note that these batches were appended and are about to be synced. Followers may fetch
        them."""
        ...

    def local(self, end: int) -> int:
        """Note that all records below offset `end` are stored on this node, as durably as the
        stream requires. Returns the high watermark."""
        ...

    def stepped_down(self, reason: str) -> None:
        """Note that this node no longer leads the stream: `StreamHost.step_down` was called, by the
        gate itself or after a failed sync. The stream calls no further methods of the gate."""
        ...


class LocalGate:
    """The gate of a stream with its only copy on this node: stored records count as committed."""

    has_followers = False
    refuses: RefusalReason | None = None

    def bind(self, stream: LedStream) -> None:
        """Do nothing: a local gate sends the stream no events."""

    def written(self, batches: Sequence[EncodedBatch]) -> None:
        """Do nothing: there are no followers."""

    def local(self, end: int) -> int:
        return end

    def stepped_down(self, reason: str) -> None:
        """Do nothing, because no other node can lead the stream."""


class ReplicatedGate:
    """The gate of one stream that this node leads, in one epoch. Belongs to the event loop.

    Events of followers and of the stream's metadata arrive in `fetched`, `expired`, `lost` and
    `adopt`. If they commit messages, the messages are answered before these methods return.
    """

    has_followers = True

    def __init__(
        self,
        leader: Leader,
        *,
        log_end: Callable[[], int],
        keep: Callable[[Sequence[EncodedBatch]], None] = lambda batches: None,
        now: Callable[[], float],
        wake: Callable[[list[str]], None],
        ended: Callable[[str], None],
    ) -> None:
        """Callbacks:

        - `wake` is called with the followers whose parked requests can be answered now. If the
          write is inside the event loop, `wake` is called before its sync, so that the answers are
          sent earlier.
        - `keep` is called with the appended batches before `wake`.
        - `ended` is called once, with the reason why this node's leadership in this epoch ends.

        These callbacks must not block or raise. `now` returns monotonic seconds.
        """
        self.leader = leader
        self._log_end = log_end
        self._keep = keep
        self._now = now
        self._wake = wake
        self._ended = ended
        self._stream: LedStream | None = None
        self._telling: asyncio.TimerHandle | None = None
        self._was_told_at = 0.0
        self._is_over = False

    def bind(self, stream: LedStream) -> None:
        self._stream = stream

    @property
    def refuses(self) -> RefusalReason | None:
        return None if self.leader.can_commit else NOT_ENOUGH_REPLICAS

    # --- what happens here ---

    def written(self, batches: Sequence[EncodedBatch]) -> None:
        self._keep(batches)
        self._was_told_at = self._now()
        self._wake_all(self.leader.written(self._log_end(), self._now()))

    def local(self, end: int) -> int:
        before = self.leader.high_watermark
        high_watermark = self.leader.local(end)
        if high_watermark > before:
            self._tell_soon()
        return high_watermark

    def stepped_down(self, reason: str) -> None:
        if self._is_over:
            return
        self._is_over = True
        self.leader.resign()
        if self._telling is not None:
            self._telling.cancel()
        self._ended(reason)

    # --- events of followers and of the metadata ---

    def fetched(self, request: FetchRequest) -> Verdict:
        """Return the verdict on a follower's request. The request confirms the records that the
        follower has. See `Leader.fetched`."""
        before = self.leader.high_watermark
        verdict = self.leader.fetched(request, self._now())
        if self.leader.high_watermark > before:
            self._moved_from(before)
        return verdict

    def expired(self, node: str) -> None:
        """Answer a parked request without news, because it has waited for too long."""
        self._wake_all(self.leader.expired(node, self._now()))

    def tell_of_record(self) -> None:
        """Send the stream's metadata to the parked followers that do not have this version yet.
        Does so only if acks wait for these followers."""
        self._wake_all(self.leader.disagreeing(self._now()))

    def lost(self, node: str) -> None:
        """Note that a follower has disconnected, or answers no ping."""
        self.leader.lost(node)

    def adopt(self, record: StreamMetadata) -> None:
        """Adopt newer metadata. If the metadata end this epoch, this node no longer leads the
        stream when the call returns."""
        before = self.leader.high_watermark
        self.leader.adopt(record)
        self._moved_from(before)
        if self.leader.resigned and not self._is_over and self._stream is not None:
            self._stream.step_down(
                f"the record says that {record.leader or 'no one'} leads in epoch "
                f"{record.leader_epoch}"
            )

    # --- consequences ---

    def _moved_from(self, before: int) -> None:
        high_watermark = self.leader.high_watermark
        if high_watermark > before and self._stream is not None:
            self._tell_soon()
            self._stream.commit_up_to(high_watermark)

    def _tell_soon(self) -> None:
        if self._telling is None:
            loop = asyncio.get_running_loop()
            self._telling = loop.call_later(_TELL_SECONDS, self._tell)

    def _tell(self) -> None:
        self._telling = None
        if self._now() - self._was_told_at < _TELL_SECONDS:
            self._tell_soon()  # the answers that carry records have also carried the high watermark
            return
        self._wake_all(self.leader.untold(self._now()))

    def _wake_all(self, followers: list[str]) -> None:
        if followers:
            self._wake(followers)
