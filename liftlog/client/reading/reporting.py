"""Reports of a read to the application: damaged records, and jumps to another position."""

from __future__ import annotations

import logging

from liftlog.client.reading.read_options import OnCorrupt, Reset, ResetCallback
from liftlog.errors import CorruptRange

logger = logging.getLogger("liftlog.client")


class Reports:
    """Applies the options `on_corrupt` and `reset_callback` of one read."""

    def __init__(
        self, stream: str, on_corrupt: OnCorrupt, reset_callback: ResetCallback | None
    ) -> None:
        self._stream = stream
        self._on_corrupt = on_corrupt
        self._reset_callback = reset_callback

    def damage(self, error: CorruptRange) -> None:
        """Report damaged records. If the read must not continue after these records, raises
        `error`, or the error of the callable."""
        on_corrupt = self._on_corrupt
        if on_corrupt == "raise":
            raise error
        if not isinstance(on_corrupt, str):
            on_corrupt(error)
            return
        logger.warning(
            "corrupt-range-skipped stream=%s first_offset=%d next_offset=%d",
            self._stream,
            error.first_offset,
            error.next_offset,
        )

    def reset(self, reset: Reset) -> None:
        """Report a jump. Raises the error of the callback if the read must not continue."""
        logger.warning(
            "position-reset stream=%s from_offset=%s to_offset=%d reason=%s",
            reset.stream,
            reset.from_offset,
            reset.to_offset,
            reset.error.name,
        )
        if self._reset_callback is not None:
            self._reset_callback(reset)
