"""When a group that is stored here counts as committed: with one copy at once, with several when
the others have it too. `liftlog.cluster.leading` decides the latter; `ReplicatedGate` tells it what
happens here, and tells the stream and the followers what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from liftlog.cluster.leading import FetchRequest, Leader, Verdict
from liftlog.cluster.record import StreamRecord
from liftlog.log import EncodedBatch
from liftlog.stream.refusals import NOT_ENOUGH_REPLICAS, RefusalReason

_TELL_SECONDS = 0.005
"""A high watermark that no record carries to the followers within this time is told to them by
itself."""


class LedStream(Protocol):
    """What a gate tells the stream that it is bound to, but never from inside `written` and
    `local`: that the high watermark has moved, or that this node leads it no longer."""

    def commit_up_to(self, offset: int) -> None: ...
    def step_down(self, reason: str) -> None: ...


class CommitGate(Protocol):
    """Decides the high watermark of one stream that is led here. Belongs to the event loop."""

    has_followers: bool
    """Others may hold what is written here before it is durable here, and may commit it when this
    node no longer leads. So a failed sync ends the lead, and what was written gets no answer."""

    @property
    def refuses(self) -> RefusalReason | None:
        """Why messages that want an ack of all copies are not to be stored now: too few copies. The
        others are stored, and can be read later."""
        ...

    def bind(self, stream: LedStream) -> None:
        """Called once, before anything else."""
        ...

    def written(self, batches: Sequence[EncodedBatch]) -> None:
        """These were appended; they are about to be synced. Followers may fetch them."""
        ...

    def local(self, end: int) -> int:
        """What is below offset `end` is stored here, as the stream's durability says. Returns the
        high watermark."""
        ...

    def stepped_down(self, reason: str) -> None:
        """`StreamHost.step_down` was called, here or after a failed sync: this stream is not led
        here any more. The gate is not called again."""
        ...


class LocalGate:
    """The only copy is here: what is stored is committed."""

    has_followers = False
    refuses: RefusalReason | None = None

    def bind(self, stream: LedStream) -> None:
        """There is nothing to tell it."""

    def written(self, batches: Sequence[EncodedBatch]) -> None:
        """No one waits for it."""

    def local(self, end: int) -> int:
        return end

    def stepped_down(self, reason: str) -> None:
        """No one else could lead."""


class ReplicatedGate:
    """One stream that is led here, in one epoch. Belongs to the event loop.

    Followers and the record come in through `fetched`, `expired`, `lost` and `adopt`. What they
    commit is answered before these return.
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
        """`wake` gets the followers whose parked requests are to be answered now; inside the event
        loop it is called between a write and its sync, so that what it sends leaves before the
        sync. Before it, `keep` gets what was appended. `ended` gets the reason why this epoch is
        over here, once. None of them blocks or raises. `now` is monotonic, in seconds.
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

    # --- what followers and the record say ---

    def fetched(self, request: FetchRequest) -> Verdict:
        """A follower asks for more, which confirms what it has. See `Leader.fetched`."""
        before = self.leader.high_watermark
        verdict = self.leader.fetched(request, self._now())
        if self.leader.high_watermark > before:
            self._moved_from(before)
        return verdict

    def expired(self, node: str) -> None:
        """A request was parked for long: it is answered without news."""
        self._wake_all(self.leader.expired(node, self._now()))

    def tell_of_record(self) -> None:
        """Acks wait for followers that have not heard of the record: those that wait hear now."""
        self._wake_all(self.leader.disagreeing(self._now()))

    def lost(self, node: str) -> None:
        """The connection of a follower is gone, or it answers no ping."""
        self.leader.lost(node)

    def adopt(self, record: StreamRecord) -> None:
        """A newer record. If it ends this epoch, the stream has stepped down on return."""
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
            self._tell_soon()  # records carry it, as long as they come so often
            return
        self._wake_all(self.leader.untold(self._now()))

    def _wake_all(self, followers: list[str]) -> None:
        if followers:
            self._wake(followers)
