"""Every error of liftlog, one class per wire code.

The first paragraph of a class's docstring explains the error, and the second paragraph gives the
remedy; docs/reference/errors.md is made from these docstrings.

Errors that cross the pull socket carry a number (`code`), a name, a message, a `hint` for the next
step, and `retriable`: true if the same request may succeed later. Errors that never cross the
socket have code 0.
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

    Find the traceback in the daemon's log, and report the defect. The daemon still answers other
    requests.
    """

    code = 1
    name = "INTERNAL"
    default_hint = "the daemon's log has the cause"


class BadRequest(LiftlogError):
    """The frame or the request is malformed.

    Correct the client. The message names the mistake.
    """

    code = 2
    name = "BAD_REQUEST"


class UnsupportedVersion(LiftlogError):
    """Client and daemon have no common protocol version, or the daemon is too old for the request.
    `details["supported"]` lists the daemon's versions.

    Upgrade the older program.
    """

    code = 3
    name = "UNSUPPORTED_VERSION"


class UnknownRequest(LiftlogError):
    """The daemon does not support this kind of request.

    The daemon is older than the client. Upgrade the daemon, or do not use the request.
    """

    code = 4
    name = "UNKNOWN_REQUEST"


class Unauthenticated(LiftlogError):
    """The client did not prove its identity.

    Pass the token, nkey or certificate of a principal that the ACL file names.
    """

    code = 5
    name = "UNAUTHENTICATED"
    default_hint = "pass the token of a principal named in the ACL file"


class Forbidden(LiftlogError):
    """The ACL does not allow the request. The message names the missing rule.

    Ask the administrator of the ACL file. `liftlog acl explain` explains a decision.
    """

    code = 6
    name = "FORBIDDEN"


class LimitExceeded(LiftlogError):
    """A limit is exceeded, for example the size of a frame, or the number of requests, connections,
    leases or checkpoints. The message names the limit.

    Send a smaller request, or raise the limit in the settings. If the hint suggests it, try again
    later.
    """

    code = 7
    name = "LIMIT_EXCEEDED"


class RequestTimeout(LiftlogError):
    """No answer, no hello or no complete request arrived in time.

    Try again. If the call changes something, first check whether it has taken effect.
    """

    code = 8
    name = "TIMEOUT"
    retriable = True


class Cancelled(LiftlogError):
    """The client cancelled the request.

    No action is needed: this is the answer to a cancelled request.
    """

    code = 9
    name = "CANCELLED"


class StreamNotFound(LiftlogError):
    """No stream has this name, or the principal may not see the stream.

    List the streams with `liftlog stream ls`, or create the stream.
    """

    code = 10
    name = "STREAM_NOT_FOUND"
    default_hint = "`liftlog stream ls` lists the streams"


class Conflict(LiftlogError):
    """The request conflicts with the present state. For example, the stream exists with other
    settings (`details["differences"]` lists them), the configuration file defines the stream, or a
    lease protects its records.

    Read the message. Use the stream as it is, or change it with `liftlog stream update`.
    """

    code = 11
    name = "CONFLICT"


class InvalidArgument(LiftlogError):
    """A name, a subject, a setting or another value is wrong.

    Correct the value that the message names.
    """

    code = 12
    name = "INVALID_ARGUMENT"


class OffsetOutOfRange(LiftlogError):
    """The offset is below the log start or beyond the log end. `details` has both bounds,
    `log_start_offset` and `log_end_offset`.

    Decide where to continue: retention has deleted records, or the position belongs to another
    stream. Reads have the option `on_reset` for this decision.
    """

    code = 13
    name = "OFFSET_OUT_OF_RANGE"


class StreamUnavailable(LiftlogError):
    """The storage of the stream failed or could not be opened, or the stream is closing. Other
    streams are not affected.

    Try again: in a cluster another node may lead soon. If the error persists, look at `liftlog
    stream info` and the daemon's log. `liftlog log repair` repairs a damaged stream.
    """

    code = 14
    name = "STREAM_UNAVAILABLE"
    retriable = True


class CorruptRange(LiftlogError):
    """Records in [`first_offset`, `next_offset`) are damaged or lost.

    Continue at `next_offset`. With `on_corrupt` or `--skip-damaged`, a read continues there without
    an error.
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
    """The reader has read records that no longer exist: the end of the stream was truncated.

    Continue at the end of the common history (`details["epoch_end_offset"]`, if present), or read
    the stream again from its start.
    """

    code = 16
    name = "DIVERGED"


class StaleIncarnation(LiftlogError):
    """The stream was deleted and created again after the caller stored its position or incarnation.

    Read the new stream from its start. Offsets of the old stream are not valid in the new stream.
    """

    code = 17
    name = "STALE_INCARNATION"


class StorageError(LiftlogError):
    """A file operation failed; `__cause__` is the OSError.

    Check the disk, its free space and the permissions.
    """

    name = "STORAGE_ERROR"


class DiskFull(StorageError):
    """The file system of the data directory is full. liftlog can read all records, but cannot store
    messages.

    Free space, or make retention delete more records. The daemon then continues without a restart.
    """

    code = 18
    name = "DISK_FULL"
    retriable = True
    default_hint = (
        "free space on the data directory's file system; liftlog then continues by itself"
    )


class ShuttingDown(LiftlogError):
    """The daemon is stopping.

    Try again. The clients of liftlog do this automatically.
    """

    code = 19
    name = "SHUTTING_DOWN"
    retriable = True


class NatsUnavailable(LiftlogError):
    """The daemon, or the publisher, has no connection to NATS.

    Check `nats.servers` and the NATS server. The daemon tries again until it has a connection.
    """

    code = 20
    name = "NATS_UNAVAILABLE"
    retriable = True
    default_hint = "check `nats.servers` and that the server is up; liftlog keeps trying"


class LeaseGone(LiftlogError):
    """A lease has expired, was released, or became invalid when the disk was full. The records that
    the lease protected may have changed since then.

    Acquire a new lease, and check again where the stream begins.
    """

    code = 21
    name = "LEASE_GONE"
    default_hint = "acquire a new lease, and check again where the stream begins"


class CheckpointMoved(LiftlogError):
    """The stored checkpoint differs from the expected checkpoint. `details["offset"]` is the stored
    offset, or 0 if no checkpoint is stored.

    Find the process that commits under the same name, or the person who moved the checkpoint.
    """

    code = 22
    name = "CHECKPOINT_MOVED"
    default_hint = "another process commits, or has committed, as the same consumer"


class CheckpointUncertain(LiftlogError):
    """The daemon has no checkpoint of the consumer. However, some stored checkpoints of the daemon
    are damaged and lost, and one of them may belong to this consumer.

    Determine which records the consumer has processed, and set its checkpoint with
    `liftlog offsets seek`.
    """

    code = 23
    name = "CHECKPOINT_UNCERTAIN"
    default_hint = "find its position and commit it: `liftlog offsets seek`"


class NatsRefused(LiftlogError):
    """NATS refuses the daemon's subscription to the stream's subject, usually because the daemon's
    user has no permission. Or NATS refuses a message that a publisher sent without a request for an
    ack. The text of the error quotes NATS.

    Give the user in the daemon's `nats` settings the permission, see `liftlog docs how-to/nats`. If
    the request was `create`, the daemon has removed the new stream, unless the stream has already
    received messages on other subjects.
    """

    code = 24
    name = "NATS_REFUSED"
    default_hint = "give the daemon's NATS user permission to subscribe there"


class NotLeader(LiftlogError):
    """The node does not lead this stream. `details` contains the name of the leader (`leader`,
    empty while the stream has no leader), its `address`, and the stream's `replicas` and leader
    `epoch`.

    Send the request to the leader. While the stream has no leader, try again.
    """

    code = 25
    name = "NOT_LEADER"
    retriable = True


class FencedEpoch(LiftlogError):
    """The leader epoch in the request is older than the leader epoch of the node. The sender has
    not yet received the latest change of the leader.

    Read the stream's metadata again.
    """

    code = 26
    name = "FENCED_EPOCH"


class UnknownEpoch(LiftlogError):
    """The leader epoch in the request is newer than the leader epoch of the node. The node has not
    yet received the latest change of the leader.

    Try again after a moment.
    """

    code = 27
    name = "UNKNOWN_EPOCH"
    retriable = True


class NotEnoughReplicas(LiftlogError):
    """The number of replicas in sync is less than `min_isr`, so the stream cannot commit messages
    that request an ack.

    Start the other nodes. The stream then continues without further action.
    """

    code = 28
    name = "NOT_ENOUGH_REPLICAS"
    retriable = True
    default_hint = "see `liftlog cluster status`; the stream continues when replicas are back"


class NotReady(LiftlogError):
    """The node has just become leader of the stream, and has not yet determined the high watermark.

    Try again. The leader determines the high watermark with the next requests of the followers.
    """

    code = 29
    name = "NOT_READY"
    retriable = True


class MetadataUnavailable(LiftlogError):
    """The metadata store of the cluster does not answer, or has lost changes that this node has
    already received.

    Check the store: `cluster.store` in the settings.
    """

    code = 30
    name = "METADATA_UNAVAILABLE"
    retriable = True


class GroupFenced(LiftlogError):
    """The caller is no longer a member of the consumer group: its session has ended, or another
    client has joined with the same name. Or the caller is a member, but another member owns the
    slot.

    The client joins again automatically. The new owner of a slot reads again all records after the
    last commit of this slot. If the error is frequent, the session is too short for the work
    between two records, or two processes use the same name.
    """

    code = 31
    name = "GROUP_FENCED"


class ConsumerNotFound(LiftlogError):
    """The stream has no consumer with acks of this name.

    The consumer was never created, or was deleted. The daemon also deletes an ephemeral consumer
    that has no worker for too long. Create the consumer again. `Client.worker` creates the
    consumer, unless its parameter `create` is False.
    """

    code = 32
    name = "CONSUMER_NOT_FOUND"


# --- errors that stay inside one process -------------------------------------


class ConfigError(LiftlogError):
    """The configuration has mistakes. The message lists each mistake with its path.

    Correct the settings. The settings page lists all settings.
    """

    name = "CONFIG_ERROR"


class DataDirLocked(LiftlogError):
    """Another process uses this data directory.

    Stop the other process, or choose another `data_dir`.
    """

    name = "DATA_DIR_LOCKED"
    default_hint = "another daemon uses this data directory; stop it or choose another `data_dir`"


class SyncFailed(StorageError):
    """An fdatasync failed. Data that was written after the last successful fdatasync may not be on
    the disk.

    Check the disk. The stream refuses the messages of the failed fdatasync, and continues in a new
    segment.
    """

    name = "SYNC_FAILED"


class SegmentsChanged(LiftlogError):
    """A job cannot replace segments that were already replaced or deleted. The log is unchanged.

    No action is needed: the next pass starts again. A reader of files reads the manifest again.
    """

    name = "SEGMENTS_CHANGED"


class MissingDependency(LiftlogError):
    """A required package is not installed.

    Install the package that the message names.
    """

    name = "MISSING_DEPENDENCY"


class UnsupportedFormat(LiftlogError):
    """The data was written by a newer liftlog, or uses a feature that is missing in this
    installation.

    Upgrade liftlog, or install the extra that the message names.
    """

    name = "UNSUPPORTED_FORMAT"


class NewerFormat(UnsupportedFormat):
    """The data was written by a newer liftlog, and uses a feature that this version does not
    support. The data stays unchanged.

    Upgrade this liftlog, or return to the version that wrote the data. See
    `liftlog docs how-to/upgrade`.
    """

    name = "NEWER_FORMAT"
    default_hint = "upgrade this liftlog: `liftlog docs how-to/upgrade`"


class CorruptBatch(LiftlogError):
    """The bytes of a record batch fail a check.

    Run `liftlog log verify DIR`, which lists all damage.
    """

    name = "CORRUPT_BATCH"


class CorruptMetadata(LiftlogError):
    """The data directory contains data, but a manifest or checkpoint file is missing or fails its
    check.

    Stop the daemon and run `liftlog log repair`. liftlog has not changed the files.
    """

    name = "CORRUPT_METADATA"
    default_hint = "the files are unchanged; `liftlog log verify` shows what is readable"


class CorruptState(LiftlogError):
    """The stored state of a consumer with acks fails its checks, or a stored change does not fit
    the state.

    No action is needed: the daemon uses an older state, and replicas fetch a snapshot.
    """

    name = "CORRUPT_STATE"


class ProtocolViolation(LiftlogError):
    """The peer sent bytes that are not a valid frame. The connection is closed.

    Check that the address is the pull socket of a daemon, and that no proxy changes the bytes.
    """

    name = "PROTOCOL_VIOLATION"


class ConnectionLost(LiftlogError):
    """The client has no connection to the daemon, or lost the connection before an answer arrived.

    Check the address and the daemon. If `undecided` is true, the call may have taken effect. Check
    its effect before you repeat the call.
    """

    name = "CONNECTION_LOST"
    retriable = True

    @property
    def undecided(self) -> bool:
        """True if the request may have taken effect."""
        return bool(self.details.get("undecided"))


def _wire_classes() -> dict[int, type[LiftlogError]]:
    found: dict[int, type[LiftlogError]] = {}
    kinds = LiftlogError.__subclasses__()
    for cls in kinds:
        kinds += cls.__subclasses__()
        if cls.code:
            if cls.code in found:
                raise AssertionError(f"wire code {cls.code} is used twice")
            found[cls.code] = cls
    return found


WIRE_ERRORS: dict[int, type[LiftlogError]] = _wire_classes()
"""Maps each wire code to its class. For any other code, clients raise a plain LiftlogError."""
