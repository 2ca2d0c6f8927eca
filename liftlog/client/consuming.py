"""What both kinds of consumer share: their settings, and where their read begins."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from liftlog.client.positions import Start, Until
from liftlog.client.progress import Progress
from liftlog.client.read_options import ReadOptions
from liftlog.client.resets import RESETTABLE, Reset
from liftlog.errors import CheckpointUncertain, LiftlogError
from liftlog.protocol.checkpoints import Checkpoint
from liftlog.protocol.messages import EARLIEST

logger = logging.getLogger("liftlog.client")

FIRST_OFFSET = 1


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The arguments of `consumer`."""

    name: str
    stream: str
    start: Start
    until: Until
    every: int | None
    interval: float | None
    exclusive: bool
    metadata: str
    options: ReadOptions = field(default_factory=ReadOptions)

    def may_go_on_after(self, error: LiftlogError) -> bool:
        """Whether the iteration goes on although a checkpoint could not be stored: the next one
        makes up for it, or the read is about to go on elsewhere."""
        resets = self.options.get("on_reset", "error") != "error"
        return error.retriable or (resets and isinstance(error, RESETTABLE))


def reads_from(settings: ConsumerSettings, found: Checkpoint | None) -> tuple[Start, ReadOptions]:
    """Where the read begins and its options: with a checkpoint, they state what was read before,
    so that the daemon tells when the place is gone or the stream is another one.

    Where the daemon has lost checkpoints to damage, an older one only means that records are read
    again. With none, a start behind the first record would skip what was never read: raises
    CheckpointUncertain then, unless `on_reset` says where to go on.
    """
    options = settings.options.copy()
    if found is None:
        return settings.start, options
    if found.uncertain:
        logger.warning(
            "checkpoint-uncertain consumer=%s stream=%s offset=%d: the daemon has lost checkpoints "
            "to damage, and records may be read again",
            settings.name,
            settings.stream,
            found.offset,
        )
    if found.offset:
        options["incarnation"], options["epoch"] = found.incarnation, found.epoch
        return found.offset, options
    if settings.start in (EARLIEST, FIRST_OFFSET):
        return settings.start, options
    on_reset = options.get("on_reset", "error")
    if on_reset == "error":
        raise CheckpointUncertain(
            f"the daemon has lost checkpoints to damage, maybe that of {settings.name} in stream "
            f"{settings.stream}: to begin at {settings.start!r} may skip records"
        )
    return on_reset, options


def with_reset_noted(options: ReadOptions, progress: Progress) -> ReadOptions:
    """A reset moves the consumer too, unless the caller's own callback raises: then the checkpoint
    stays where it was, and the next run comes upon the same."""
    callback = options.get("reset_callback")

    def moved(reset: Reset) -> None:
        if callback is not None:
            callback(reset)
        progress.move(reset.to_offset, reset.incarnation)

    options["reset_callback"] = moved
    return options
