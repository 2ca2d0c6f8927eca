"""Checks the limits of a stream that refuses new messages at a limit, instead of deleting old ones.

Messages that are judged but not written yet also count. So each message of a group gets the same
verdict as if it had arrived alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from liftlog.sequencing.commit_group import CommitGroup
from liftlog.sequencing.refusals import FULL_OF_BYTES, FULL_OF_MESSAGES, RefusalReason


class Stored(NamedTuple):
    """The content of the log at this moment."""

    log_start: int
    log_end: int
    size_bytes: int


class Room:
    """Checks the limits of one stream. Call `look` before `why_full`, without an await in
    between."""

    def __init__(
        self, max_messages: int | None, max_bytes: int | None, stored: Callable[[], Stored]
    ) -> None:
        self._max_messages, self._max_bytes = max_messages, max_bytes
        self._stored = stored
        self._end = 0
        """The first offset that is beyond the limit of messages."""
        self._left_bytes = 0

    def look(self, unwritten: Iterable[CommitGroup]) -> None:
        """Read the state of the log. `unwritten` are the groups before the open group. The log may
        already contain some of them."""
        start, end, size_bytes = self._stored()
        if self._max_messages is not None:
            self._end = start + self._max_messages
        if self._max_bytes is not None:
            waiting = sum(group.size_bytes for group in unwritten if group.base_offset >= end)
            self._left_bytes = self._max_bytes - size_bytes - waiting

    def why_full(self, next_offset: int, size_bytes: int) -> RefusalReason | None:
        """Return the reason to refuse the message at `next_offset` because the stream is full; None
        if it has room. `size_bytes` is the size of the open group, including this message."""
        if self._max_messages is not None and next_offset >= self._end:
            return FULL_OF_MESSAGES
        if self._max_bytes is not None and size_bytes > self._left_bytes:
            return FULL_OF_BYTES
        return None
