"""Every error of liftlog, one class per wire code.

Errors that cross the pull socket carry a number (`code`), a name, a message,
whether the same request may succeed later (`retriable`), and a `hint` that says
what to do next. Errors that stay inside one process have code 0.
"""

from __future__ import annotations

from typing import Any, ClassVar


class LiftlogError(Exception):
    """Root of the hierarchy.

    `details` holds values for programs (offsets, limits); the message is for people.
    """

    code: ClassVar[int] = 0
    name: ClassVar[str] = "LIFTLOG_ERROR"
    retriable: ClassVar[bool] = False
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str = "", **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.default_hint
        self.details = details

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


# --- errors with a wire code -------------------------------------------------


class InternalError(LiftlogError):
    code = 1
    name = "INTERNAL"
    default_hint = "the daemon's log has the cause"


class BadRequest(LiftlogError):
    code = 2
    name = "BAD_REQUEST"


class UnsupportedVersion(LiftlogError):
    code = 3
    name = "UNSUPPORTED_VERSION"


class UnknownRequest(LiftlogError):
    code = 4
    name = "UNKNOWN_REQUEST"


class Unauthenticated(LiftlogError):
    code = 5
    name = "UNAUTHENTICATED"
    default_hint = "pass the token of a principal named in the ACL file"


class Forbidden(LiftlogError):
    code = 6
    name = "FORBIDDEN"


class LimitExceeded(LiftlogError):
    """A frame, a number of requests or an amount of unsent bytes is over the announced limit."""

    code = 7
    name = "LIMIT_EXCEEDED"


class RequestTimeout(LiftlogError):
    code = 8
    name = "TIMEOUT"
    retriable = True


class Cancelled(LiftlogError):
    code = 9
    name = "CANCELLED"


class StreamNotFound(LiftlogError):
    code = 10
    name = "STREAM_NOT_FOUND"
    default_hint = "`liftlog stream ls` lists the streams"


class Conflict(LiftlogError):
    """The stream exists with other settings; `details["differences"]` lists them."""

    code = 11
    name = "CONFLICT"


class InvalidArgument(LiftlogError):
    code = 12
    name = "INVALID_ARGUMENT"


class OffsetOutOfRange(LiftlogError):
    """`details` holds `log_start_offset` and `log_end_offset`."""

    code = 13
    name = "OFFSET_OUT_OF_RANGE"


class StreamUnavailable(LiftlogError):
    """The stream's storage failed or could not be opened; others are not affected."""

    code = 14
    name = "STREAM_UNAVAILABLE"


class CorruptRange(LiftlogError):
    """Records in [first_offset, next_offset) are damaged; reading can go on at `next_offset`."""

    code = 15
    name = "CORRUPT_RANGE"

    def __init__(
        self, message: str, *, first_offset: int, next_offset: int, hint: str = "", **details: Any
    ) -> None:
        super().__init__(
            message, hint=hint, first_offset=first_offset, next_offset=next_offset, **details
        )
        self.first_offset = first_offset
        self.next_offset = next_offset


class Diverged(LiftlogError):
    code = 16
    name = "DIVERGED"


class StaleIncarnation(LiftlogError):
    """The stream was deleted and created anew since the caller last saw it."""

    code = 17
    name = "STALE_INCARNATION"


class DiskFull(LiftlogError):
    code = 18
    name = "DISK_FULL"
    retriable = True
    default_hint = "free space on the data directory's file system; liftlog goes on by itself"


class ShuttingDown(LiftlogError):
    code = 19
    name = "SHUTTING_DOWN"
    retriable = True


class NatsUnavailable(LiftlogError):
    code = 20
    name = "NATS_UNAVAILABLE"
    retriable = True
    default_hint = "check `nats.servers` and that the server is up; liftlog keeps trying"


class LeaseGone(LiftlogError):
    """A lease has expired, was released, or is void since the disk was full: what it held may have
    changed since."""

    code = 21
    name = "LEASE_GONE"
    default_hint = "take a new lease, and look again where the stream begins"


class CheckpointMoved(LiftlogError):
    """The checkpoint is not what the caller expected; `details["offset"]` is what is stored, 0 for
    none."""

    code = 22
    name = "CHECKPOINT_MOVED"
    default_hint = "another process commits as the same consumer, or did since"


# --- errors that stay inside one process -------------------------------------


class ConfigError(LiftlogError):
    """The configuration is wrong; the message lists every finding with its path."""

    name = "CONFIG_ERROR"


class DataDirLocked(LiftlogError):
    name = "DATA_DIR_LOCKED"
    default_hint = "another daemon uses this data directory; stop it or choose another `data_dir`"


class StorageError(LiftlogError):
    """A file operation failed; `__cause__` is the OSError."""

    name = "STORAGE_ERROR"


class SyncFailed(StorageError):
    """fdatasync failed: nothing written since the last successful one can be trusted."""

    name = "SYNC_FAILED"


class SegmentsChanged(LiftlogError):
    """Segments were to be replaced that the log no longer consists of; nothing happened."""

    name = "SEGMENTS_CHANGED"


class UnsupportedFormat(LiftlogError):
    """Bytes written by a newer liftlog, or using a feature that this one lacks."""

    name = "UNSUPPORTED_FORMAT"


class CorruptBatch(LiftlogError):
    """A record batch whose bytes fail a check."""

    name = "CORRUPT_BATCH"


class CorruptMetadata(LiftlogError):
    """A manifest or checkpoint file is missing or fails its check while data exists."""

    name = "CORRUPT_METADATA"
    default_hint = "the files were left untouched; `liftlog log verify` shows what is readable"


class ProtocolViolation(LiftlogError):
    """The peer broke the framing; the connection cannot go on."""

    name = "PROTOCOL_VIOLATION"


class ConnectionLost(LiftlogError):
    """There is no connection to the daemon, or it ended before an answer came."""

    name = "CONNECTION_LOST"
    retriable = True

    @property
    def undecided(self) -> bool:
        """Whether the request may have taken effect."""
        return bool(self.details.get("undecided"))


def _wire_classes() -> dict[int, type[LiftlogError]]:
    found: dict[int, type[LiftlogError]] = {}
    for cls in LiftlogError.__subclasses__():
        if cls.code:
            if cls.code in found:
                raise AssertionError(f"wire code {cls.code} is used twice")
            found[cls.code] = cls
    return found


WIRE_ERRORS: dict[int, type[LiftlogError]] = _wire_classes()
"""Wire code -> class; a code that is not here is raised as plain LiftlogError by clients."""
