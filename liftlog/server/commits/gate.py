"""When a group that is stored here counts as committed: with one copy at once, with several when
the others have it too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from liftlog.log import EncodedBatch
from liftlog.stream.refusals import RefusalReason


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
