"""What a read does about records that it was to read and cannot: `failOnDataLoss`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from liftlog.errors import CorruptRange, OffsetOutOfRange

logger = logging.getLogger("liftlog.spark")

_HINT = "set failOnDataLoss=false to go on without them"


OnLoss: TypeAlias = Callable[[int, int, str], None]
"""Is told of the records [first offset, next offset), and why they were skipped."""


class Losses:
    """Fails, or logs a warning, tells `on_loss` and lets the read go on."""

    def __init__(self, stream: str, *, fail: bool, on_loss: OnLoss | None = None) -> None:
        self._stream = stream
        self._fail = fail
        self._on_loss = on_loss

    def removed(self, first_offset: int, next_offset: int) -> None:
        """Raises OffsetOutOfRange."""
        if self._fail:
            raise OffsetOutOfRange(
                f"retention has removed the records [{first_offset}, {next_offset}) of "
                f"{self._stream!r}",
                hint=_HINT,
                log_start_offset=next_offset,
            )
        self._skip("removed", first_offset, next_offset, "removed by retention before it was read")

    def damaged(self, error: CorruptRange) -> None:
        """Raises CorruptRange."""
        if self._fail:
            raise CorruptRange(
                error.message,
                hint=_HINT,
                first_offset=error.first_offset,
                next_offset=error.next_offset,
            ) from error
        self._skip("damaged", error.first_offset, error.next_offset, "damaged")

    def _skip(self, what: str, first_offset: int, next_offset: int, reason: str) -> None:
        logger.warning(
            "%s-range-skipped stream=%s first_offset=%d next_offset=%d",
            what,
            self._stream,
            first_offset,
            next_offset,
        )
        if self._on_loss is not None:
            self._on_loss(first_offset, next_offset, reason)
