"""Every error of liftlog, one class per wire code.

The first paragraph of a class's docstring says what the error means, the second what to do;
docs/reference/errors.md is made from them.

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
    """A defect of the daemon.

    Look for the traceback in the daemon's log, and report it; other requests are served.
    """

    code = 1
    name = "INTERNAL"
    default_hint = "the daemon's log has the cause"


class BadRequest(LiftlogError):
    """The frame or the request is malformed.

    Mend the client: the message names what is wrong.
    """

    code = 2
    name = "BAD_REQUEST"


class UnsupportedVersion(LiftlogError):
    """Client and daemon have no protocol version in common (`details["supported"]` lists the
    daemon's), or the daemon is older than what was asked for.

    Upgrade whichever is older.
    """

    code = 3
    name = "UNSUPPORTED_VERSION"


class UnknownRequest(LiftlogError):
    """The daemon does not know this kind of request.

    Upgrade the daemon, or do without: it is older than the client.
    """

    code = 4
    name = "UNKNOWN_REQUEST"


class Unauthenticated(LiftlogError):
    """No proof of who asks, or a wrong one.

    Pass the token, nkey or certificate of a principal that the ACL file names.
    """

    code = 5
    name = "UNAUTHENTICATED"
    default_hint = "pass the token of a principal named in the ACL file"


class Forbidden(LiftlogError):
    """The ACL does not allow it; the hint says which rule is missing.

    Ask whoever keeps the ACL file; `liftlog acl explain` tries a decision.
    """

    code = 6
    name = "FORBIDDEN"


class LimitExceeded(LiftlogError):
    """A frame, a body, or a number of requests, connections, leases or checkpoints is over the
    limit, which the message names.

    Ask for less, or raise the setting; where the hint says so, try again later.
    """

    code = 7
    name = "LIMIT_EXCEEDED"


class RequestTimeout(LiftlogError):
    """No answer, no hello or no complete request came in time.

    Try again; first look whether a call that changes something has taken effect.
    """

    code = 8
    name = "TIMEOUT"
    retriable = True


class Cancelled(LiftlogError):
    """The client cancelled the request.

    Nothing: it is the answer to a cancelled request.
    """

    code = 9
    name = "CANCELLED"


class StreamNotFound(LiftlogError):
    """There is no stream of that name, or the principal may not know of it.

    Look at `liftlog stream ls`; make the stream.
    """

    code = 10
    name = "STREAM_NOT_FOUND"
    default_hint = "`liftlog stream ls` lists the streams"


class Conflict(LiftlogError):
    """It contradicts what is there: the stream exists with other settings (`details["differences"]`
    lists them), belongs to the configuration file, or is held by a lease.

    Read the message: use what is there, or change it with `liftlog stream update`.
    """

    code = 11
    name = "CONFLICT"


class InvalidArgument(LiftlogError):
    """A name, a subject, a setting or another value is wrong.

    Mend the value that the message names.
    """

    code = 12
    name = "INVALID_ARGUMENT"


class OffsetOutOfRange(LiftlogError):
    """The offset is below the log start or beyond the log end; `details` holds both,
    `log_start_offset` and `log_end_offset`.

    Decide where to go on: retention has deleted records, or the position is of another stream.
    Reads can be told with `on_reset`.
    """

    code = 13
    name = "OFFSET_OUT_OF_RANGE"


class StreamUnavailable(LiftlogError):
    """The stream's storage failed or could not be opened, or the stream is closing; others are not
    affected.

    Look at `liftlog stream info` and the daemon's log; a damaged stream is mended by
    `liftlog log repair`.
    """

    code = 14
    name = "STREAM_UNAVAILABLE"


class CorruptRange(LiftlogError):
    """Records in [`first_offset`, `next_offset`) are damaged or lost.

    Read on at `next_offset`, or let `on_corrupt` and `--skip-damaged` do so.
    """

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
    """What the reader has read is not this stream's history any more: its end was lost.

    Go back to the end of the common history (`details["epoch_end_offset"]`, where it is known),
    or start anew.
    """

    code = 16
    name = "DIVERGED"


class StaleIncarnation(LiftlogError):
    """The stream was deleted and created anew since the caller last saw it.

    Start anew: offsets of the old stream mean nothing in this one.
    """

    code = 17
    name = "STALE_INCARNATION"


class DiskFull(LiftlogError):
    """The data directory's file system is full: nothing is stored, everything is read.

    Free space, or let retention remove more; the daemon goes on by itself.
    """

    code = 18
    name = "DISK_FULL"
    retriable = True
    default_hint = "free space on the data directory's file system; liftlog goes on by itself"


class ShuttingDown(LiftlogError):
    """The daemon is being stopped.

    Try again: clients do so by themselves.
    """

    code = 19
    name = "SHUTTING_DOWN"
    retriable = True


class NatsUnavailable(LiftlogError):
    """The daemon, or the publisher, has no connection to NATS.

    Check `nats.servers` and the NATS server; the daemon keeps trying.
    """

    code = 20
    name = "NATS_UNAVAILABLE"
    retriable = True
    default_hint = "check `nats.servers` and that the server is up; liftlog keeps trying"


class LeaseGone(LiftlogError):
    """A lease has expired, was released, or is void since the disk was full: what it held may have
    changed since.

    Take a new lease, and look again where the stream begins.
    """

    code = 21
    name = "LEASE_GONE"
    default_hint = "take a new lease, and look again where the stream begins"


class CheckpointMoved(LiftlogError):
    """The checkpoint is not what the caller expected; `details["offset"]` is what is stored, 0 for
    none.

    Find the other process that commits under this name, or whoever moved it.
    """

    code = 22
    name = "CHECKPOINT_MOVED"
    default_hint = "another process commits as the same consumer, or did since"


class CheckpointUncertain(LiftlogError):
    """There is no checkpoint, but damage has cost the daemon some, and this one may have been among
    them.

    Look how far the consumer has come, and say where it goes on: `liftlog offsets seek`.
    """

    code = 23
    name = "CHECKPOINT_UNCERTAIN"
    default_hint = "look how far it has come, and commit that: `liftlog offsets seek`"


class NatsRefused(LiftlogError):
    """NATS does not let the daemon's user subscribe to the stream's subject, or has another reason
    to refuse the subscription; or it refuses what a publisher sends without asking for acks. The
    message has its words.

    Give the user in the daemon's `nats` settings the permission, see docs/how-to/nats.md. A stream
    that was to be created does not exist then.
    """

    code = 24
    name = "NATS_REFUSED"
    default_hint = "give the daemon's NATS user permission to subscribe there"


# --- errors that stay inside one process -------------------------------------


class ConfigError(LiftlogError):
    """The configuration is wrong; the message lists every finding with its path.

    Mend the findings; the settings page lists every setting.
    """

    name = "CONFIG_ERROR"


class DataDirLocked(LiftlogError):
    """Another process uses this data directory.

    Stop it, or choose another `data_dir`.
    """

    name = "DATA_DIR_LOCKED"
    default_hint = "another daemon uses this data directory; stop it or choose another `data_dir`"


class StorageError(LiftlogError):
    """A file operation failed; `__cause__` is the OSError.

    Look at the disk, its room and its permissions.
    """

    name = "STORAGE_ERROR"


class SyncFailed(StorageError):
    """An fdatasync failed: nothing written since the last successful one can be trusted.

    Look at the disk: the stream goes on in a new segment, and its publishers were refused.
    """

    name = "SYNC_FAILED"


class SegmentsChanged(LiftlogError):
    """Segments were to be replaced that the log no longer consists of; nothing happened.

    Nothing: the next pass begins anew. A reader of files reads the manifest again.
    """

    name = "SEGMENTS_CHANGED"


class MissingDependency(LiftlogError):
    """Something that has to be installed first.

    Install what the message names.
    """

    name = "MISSING_DEPENDENCY"


class UnsupportedFormat(LiftlogError):
    """Bytes written by a newer liftlog, or using a feature that this one lacks.

    Upgrade, or install the extra that the message names.
    """

    name = "UNSUPPORTED_FORMAT"


class CorruptBatch(LiftlogError):
    """A record batch whose bytes fail a check.

    Run `liftlog log verify DIR`; it lists everything that is damaged.
    """

    name = "CORRUPT_BATCH"


class CorruptMetadata(LiftlogError):
    """A manifest or checkpoint file is missing or fails its check while data exists.

    Stop the daemon and run `liftlog log repair`; the files were left untouched.
    """

    name = "CORRUPT_METADATA"
    default_hint = "the files were left untouched; `liftlog log verify` shows what is readable"


class ProtocolViolation(LiftlogError):
    """The peer broke the framing; the connection cannot go on.

    Check that the address is a daemon's pull socket, and that nothing in between changes bytes.
    """

    name = "PROTOCOL_VIOLATION"


class ConnectionLost(LiftlogError):
    """There is no connection to the daemon, or it ended before an answer came.

    Check the address and the daemon. If `undecided` is true the call may have taken effect: look
    before you repeat it.
    """

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
