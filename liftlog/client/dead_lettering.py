"""The part of `DeadLetters` and `SyncDeadLetters` that does not wait: decides when a failed record
is retried, and makes its dead letter."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from liftlog.client.publishing.results import PublishRefused
from liftlog.errors import InvalidArgument
from liftlog.records.decode import Record
from liftlog.records.message_headers import KEY, TOMBSTONE, HeaderLine, without

STREAM = "Liftlog-Dead-Stream"
OFFSET = "Liftlog-Dead-Offset"
SUBJECT = "Liftlog-Dead-Subject"
GROUP = "Liftlog-Dead-Group"
ERROR = "Liftlog-Dead-Error"
ATTEMPTS = "Liftlog-Dead-Attempts"
WAS_TOMBSTONE = "Liftlog-Dead-Tombstone"
LEFT_OUT = "Liftlog-Dead-Left-Out"
"""Header that names the parts of the record that are too large for the dead letter."""

_NOT_KEPT = (b"nats-", b"liftlog-dead-")
"""Prefixes of headers that are not copied: these headers were for the server that stored the
record, or come from an earlier dead letter."""
_TOO_LARGE = frozenset({10054, 10097})
"""Codes of the refusals of a message that is larger than `max_message_bytes`, or has a header block
that is too large."""
_MAX_ERROR_CHARACTERS = 500
_MAX_PAUSE_SECONDS = 30.0

logger = logging.getLogger("liftlog.client")

Work = Callable[[Record], Awaitable[object]]
SyncWork = Callable[[Record], object]


class Lettering:
    """Decides on retries, and makes the dead letter of a record after its last attempt has failed.
    `DeadLetters` and `SyncDeadLetters` add the waiting."""

    def __init__(
        self,
        subject: str,
        expect: Sequence[str],
        retries: int,
        pause: float,
        errors: tuple[type[Exception], ...],
    ) -> None:
        """Raises InvalidArgument."""
        if retries < 0 or not 0 <= pause <= _MAX_PAUSE_SECONDS:
            raise InvalidArgument(f"retries={retries!r} or pause={pause!r} is out of range")
        self.published = 0
        """Number of dead letters that were acked."""
        self._subject = subject
        self._expect = expect or None
        self._retries = retries
        self._pause = pause
        self._errors = errors

    def _pause_after(self, attempt: int, record: Record, error: Exception) -> float:
        """Log the failed attempt, and return the seconds until the next one."""
        logger.info("attempt-failed offset=%d error=%r", record.offset, error)
        doublings = min(attempt - 1, 64)
        return float(min(self._pause * 2**doublings, _MAX_PAUSE_SECONDS))

    def _letters(
        self, name: str, stream: str, record: Record, error: Exception, attempts: int
    ) -> Iterator[dict[str, Any]]:
        """Yield forms of the dead letter: first the complete letter, then forms with less and less
        of the record, in case the stream refuses the letter as too large. Yields nothing if the
        record is itself a dead letter on the same subject, because its new letter would also be
        read and fail."""
        reason = _one_line(f"{type(error).__name__}: {error}")
        logger.warning(
            "dead-letter group=%s stream=%s offset=%d attempts=%d error=%s",
            name,
            stream,
            record.offset,
            attempts,
            reason,
        )
        if record.subject == self._subject:
            return
        headers = {
            STREAM: stream,
            OFFSET: str(record.offset),
            SUBJECT: record.subject,
            GROUP: name,
            ERROR: reason,
            ATTEMPTS: str(attempts),
        }
        if record.value is None:
            headers[WAS_TOMBSTONE] = "true"
        message_id = f"{name}/{stream}/{record.offset}/{record.timestamp_ns}"
        for form in _forms(
            record, [(field.encode(), text.encode()) for field, text in headers.items()]
        ):
            yield form | {"message_id": message_id, "expect": self._expect}


def _forms(record: Record, ours: list[HeaderLine]) -> Iterator[dict[str, Any]]:
    """Yield the complete dead letter, then forms with less and less of its record."""
    value = record.value or b""
    own = [
        line
        for line in without(record.headers.lines, KEY, TOMBSTONE)
        if not line[0].lower().startswith(_NOT_KEPT)
    ]
    yield {"value": value, "key": record.key, "headers": own + ours}
    for left_out, kept, what in (
        ("key", own, value),
        ("key, headers", [], value),
        ("key, headers, value", [], b""),
    ):
        yield {"value": what, "headers": [*kept, *ours, (LEFT_OUT.encode(), left_out.encode())]}


def is_too_large(refusal: PublishRefused) -> bool:
    """Return True if the letter was refused as too large, so that the stream may store a smaller
    form of it."""
    return bool(refusal.refusals) and {one.err_code for one in refusal.refusals} <= _TOO_LARGE


def _one_line(text: str) -> str:
    """Return the text without characters that a header or a terminal would interpret."""
    shown = "".join([one if one.isprintable() else " " for one in text[:_MAX_ERROR_CHARACTERS]])
    return shown.strip()
