"""What a read does about records that it was to read and cannot: `failOnDataLoss`."""

from __future__ import annotations

import logging

from liftlog.errors import CorruptRange, OffsetOutOfRange

logger = logging.getLogger("liftlog.spark")

_HINT = "set failOnDataLoss=false to go on without them"


class Losses:
    """Fails, or logs a warning and lets the read go on."""

    def __init__(self, stream: str, *, fail: bool) -> None:
        self._stream = stream
        self._fail = fail

    def removed(self, first_offset: int, next_offset: int) -> None:
        """Raises OffsetOutOfRange."""
        if self._fail:
            raise OffsetOutOfRange(
                f"retention has removed the records [{first_offset}, {next_offset}) of "
                f"{self._stream!r}",
                hint=_HINT,
                log_start_offset=next_offset,
            )
        self._warn("removed", first_offset, next_offset)

    def damaged(self, error: CorruptRange) -> None:
        """Raises CorruptRange."""
        if self._fail:
            raise CorruptRange(
                error.message,
                hint=_HINT,
                first_offset=error.first_offset,
                next_offset=error.next_offset,
            ) from error
        self._warn("damaged", error.first_offset, error.next_offset)

    def _warn(self, what: str, first_offset: int, next_offset: int) -> None:
        logger.warning(
            "%s-range-skipped stream=%s first_offset=%d next_offset=%d",
            what,
            self._stream,
            first_offset,
            next_offset,
        )
