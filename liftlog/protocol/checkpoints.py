"""Requests about checkpoints, and their answers. Registered in `messages.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from liftlog.protocol.described import Described
from liftlog.protocol.wire import BOOL, LABEL, MAP, NAME, Message, array_of, text, uint
from liftlog.protocol.wire import wire as key

MAX_METADATA_CHARS = 4096

PAGE_CHECKPOINTS = 1000
"""Maximum number of checkpoints in one answer."""


@dataclass(frozen=True, slots=True)
class Checkpoint(Described):
    """Stored position of a consumer in a stream: `offset` is the next offset to read.

    `time_ns` is the time of the commit by the daemon's clock. `incarnation` and `epoch` are the
    stream's incarnation and epoch at this time. `lag` is the number of offsets up to the high
    watermark. If the stream cannot be read from the checkpoint, `lag` is None, and `problem` is the
    name of the error that a reader receives: STREAM_NOT_FOUND, STALE_INCARNATION,
    OFFSET_OUT_OF_RANGE, DIVERGED, STREAM_UNAVAILABLE, CHECKPOINT_UNCERTAIN.

    `uncertain` is True if stored checkpoints are damaged and lost, possibly also a newer checkpoint
    of this consumer. If the consumer continues at `offset`, it may read some records again. If
    `offset` is 0, no checkpoint is stored, but it may be one of the lost checkpoints.

    `owner` is the principal that committed the checkpoint. The checkpoint counts towards the quota
    of this principal. `owner` is empty if the daemon has no ACL or is too old.
    """

    consumer: str = ""
    stream: str = ""
    offset: int = 0
    epoch: int = 0
    incarnation: str = ""
    time_ns: int = 0
    metadata: str = ""
    lag: int | None = None
    problem: str = ""
    uncertain: bool = False
    owner: str = ""


# --- requests -------------------------------------------------------------------


class CommitCheckpoint(Message):
    """Stores a checkpoint; it is durable when the answer arrives. An `expected` of 0 means that no
    checkpoint may exist yet."""

    KIND: ClassVar[str] = "commit"
    stream: str = key("s", NAME)
    consumer: str = key("c", NAME)
    offset: int = key("o", uint())
    expected: int | None = key("p", uint(), default=None)
    metadata: str = key("m", text(MAX_METADATA_CHARS), default="")
    incarnation: str | None = key("x", LABEL, default=None)
    epoch: int | None = key("e", uint(2**32 - 1), default=None)

    @property
    def is_repeatable(self) -> bool:
        # If the first attempt has taken effect, `expected` no longer matches.
        return self.expected is None


class FetchCheckpoint(Message):
    """Asks for a checkpoint. With `unchecked`, the answer contains the checkpoint even if the
    stream cannot be read from it; otherwise such a checkpoint is an error."""

    KIND: ClassVar[str] = "checkpoint"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    consumer: str = key("c", NAME)
    unchecked: bool = key("u", BOOL, default=False)


class ListCheckpoints(Message):
    """Asks for one page of checkpoints. `after` comes from the answer with the previous page."""

    KIND: ClassVar[str] = "checkpoints"
    REPEATABLE: ClassVar[bool] = True
    stream: str | None = key("s", NAME, default=None)
    consumer: str | None = key("c", NAME, default=None)
    after: str | None = key("a", NAME, default=None)


class DeleteCheckpoint(Message):
    """Deletes a checkpoint. A missing checkpoint is an error only if `expected` is given."""

    KIND: ClassVar[str] = "forget"
    stream: str = key("s", NAME)
    consumer: str = key("c", NAME)
    expected: int | None = key("p", uint(), default=None)

    @property
    def is_repeatable(self) -> bool:
        return self.expected is None


# --- answers --------------------------------------------------------------------


class CheckpointAnswer(Message):
    """Answer to checkpoint; its fields are empty if there is no checkpoint."""

    KIND: ClassVar[str] = "position"
    checkpoint: dict[str, Any] = key("d", MAP, default_factory=dict)

    @property
    def info(self) -> Checkpoint | None:
        return Checkpoint.from_wire(self.checkpoint) if self.checkpoint else None


class CheckpointsAnswer(Message):
    """Answer to checkpoints. `after` is set if there may be more checkpoints."""

    KIND: ClassVar[str] = "positions"
    checkpoints: list[dict[str, Any]] = key("d", array_of(MAP, PAGE_CHECKPOINTS))
    after: str | None = key("n", NAME, default=None)

    @property
    def infos(self) -> list[Checkpoint]:
        return [Checkpoint.from_wire(one) for one in self.checkpoints]


REQUESTS: tuple[type[Message], ...] = (
    CommitCheckpoint,
    FetchCheckpoint,
    ListCheckpoints,
    DeleteCheckpoint,
)

ANSWERS: tuple[type[Message], ...] = (CheckpointAnswer, CheckpointsAnswer)
