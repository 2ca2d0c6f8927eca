"""What a read does when the place where it was to go on is not in the stream any more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from liftlog.errors import (
    Diverged,
    InvalidArgument,
    LiftlogError,
    OffsetOutOfRange,
    StaleIncarnation,
)

OnReset: TypeAlias = Literal["error", "earliest", "latest"]
"""End with the error, or go on at the log start or at the high watermark."""

ResetCallback: TypeAlias = "Callable[[Reset], None]"

RESETTABLE = (OffsetOutOfRange, Diverged, StaleIncarnation)


@dataclass(frozen=True, slots=True)
class Reset:
    """A read has left the place where it was and goes on elsewhere.

    `error` says why. `from_offset` is where it was to go on, None when that was no offset;
    `to_offset`, of the stream's `incarnation`, is where it does.
    """

    stream: str
    error: LiftlogError
    from_offset: int | None
    to_offset: int
    incarnation: str


def check_on_reset(on_reset: OnReset, callback: ResetCallback | None) -> None:
    """Raises InvalidArgument."""
    if on_reset not in get_args(OnReset):
        raise InvalidArgument(f"on_reset={on_reset!r} is not 'error', 'earliest' or 'latest'")
    if callback is not None and not callable(callback):
        raise InvalidArgument(f"reset_callback={callback!r} is not callable")
