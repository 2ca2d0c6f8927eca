"""Decides when a group that is stored here counts as committed: with one copy at once, with several
when the others have it too.

`liftlog.cluster.leading` decides the latter. `ReplicatedGate` reports events of this node to it,
and passes its decisions on to the stream and the followers.
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
"""A high watermark that no record carries to the followers within this time is sent by itself."""


class LedStream(Protocol):
    """The calls of a gate to its stream, never from inside `written` and `local`: the high
    watermark has moved, or this node leads the stream no longer."""

    def commit_up_to(self, offset: int) -> None: ...
    def step_down(self, reason: str) -> None: ...


class CommitGate(Protocol):
    """Decides the high watermark of one stream that this node leads. Belongs to the event loop."""

    has_followers: bool
    """True if others may hold records before they are durable here, and may commit them when this
    node no longer leads. So a failed sync ends the lead, and written records get no answer."""

    @property
    def refuses(self) -> RefusalReason | None:
        """Return why messages that want an ack of all copies must be refused now: too few copies.
        The others are stored, and can be read later."""
        ...

    def bind(self, stream: LedStream) -> None:
        """Called once, before anything else."""
        ...

    def written(self, batches: Sequence[EncodedBatch]) -> None:
        """Note that these batches were appended and are about to be synced. Followers may fetch
        them."""
        ...

    def local(self, end: int) -> int:
        """Note that everything below offset `end` is stored here, as the stream's durability says.
        Returns the high watermark."""
        ...

    def stepped_down(self, reason: str) -> None:
        """Note that `StreamHost.step_down` was called, here or after a failed sync: this node no
        longer leads the stream. The gate is not called again."""
        ...


class LocalGate:
    """The gate of a stream with its only copy here: stored records are committed."""

    has_followers = False
    refuses: RefusalReason | None = None

    def bind(self, stream: LedStream) -> None:
        """Do nothing: a local gate sends the stream no events."""

    def written(self, batches: Sequence[EncodedBatch]) -> None:
        """Do nothing: there are no followers."""

    def local(self, end: int) -> int:
        return end

    def stepped_down(self, reason: str) -> None:
        """Do nothing: no other node could lead."""


class ReplicatedGate:
    """The gate of one stream that this node leads, in one epoch. Belongs to the event loop.

    Events of followers and of the record come in through `fetched`, `expired`, `lost` and `adopt`.
    Messages that they commit are answered before these return.
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
        """`wake` gets the followers whose parked requests are to be answered now. Inside the event
        loop it is called between a write and its sync, so that its answers leave before the sync.
        Before it, `keep` gets the appended batches. `ended` gets the reason why this epoch is over
        here, once. None of them blocks or raises. `now` is monotonic, in seconds."""
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

    # --- what followers and the record say ---

    def fetched(self, request: FetchRequest) -> Verdict:
        """Return the verdict on a follower's request, which confirms the records that it has. See
        `Leader.fetched`."""
        before = self.leader.high_watermark
        verdict = self.leader.fetched(request, self._now())
        if self.leader.high_watermark > before:
            self._moved_from(before)
        return verdict

    def expired(self, node: str) -> None:
        """Answer a request without news: it was parked for long."""
        self._wake_all(self.leader.expired(node, self._now()))

    def tell_of_record(self) -> None:
        """Send the record to the parked followers that acks wait for and that do not have it
        yet."""
        self._wake_all(self.leader.disagreeing(self._now()))

    def lost(self, node: str) -> None:
        """Note that the connection of a follower is gone, or that it answers no ping."""
        self.leader.lost(node)

    def adopt(self, record: StreamMetadata) -> None:
        """Adopt a newer record. If it ends this epoch, the stream has stepped down on return."""
        before = self.leader.high_watermark
        self.leader.adopt(record)
        self._moved_from(before)
        if self.leader.resigned and not self._is_over and self._stream is not None:
            self._stream.step_down(
                f"the record says that {record.leader or 'no one'} leads in epoch "
                f"{record.leader_epoch}"
            )

    # --- what comes of it ---

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
            self._tell_soon()  # records carry it while they arrive more often
            return
        self._wake_all(self.leader.untold(self._now()))

    def _wake_all(self, followers: list[str]) -> None:
        if followers:
            self._wake(followers)
