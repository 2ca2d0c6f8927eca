"""What both kinds of consumer share: their settings, and where their read begins."""

from __future__ import annotations

from dataclasses import dataclass, field

from liftlog.client.positions import Start, Until
from liftlog.client.progress import Progress
from liftlog.client.read_options import ReadOptions
from liftlog.client.resets import RESETTABLE, Reset
from liftlog.errors import LiftlogError
from liftlog.protocol.checkpoints import Checkpoint


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


def reads_from(settings: ConsumerSettings, stored: Checkpoint | None) -> tuple[Start, ReadOptions]:
    """Where the read begins and its options: with a checkpoint, they state what was read before,
    so that the daemon tells when the place is gone or the stream is another one."""
    options = settings.options.copy()
    if stored is None:
        return settings.start, options
    options["incarnation"], options["epoch"] = stored.incarnation, stored.epoch
    return stored.offset, options


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
