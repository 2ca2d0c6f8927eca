"""The exit codes: one table, printed by `--help` and by docs/reference/cli.md."""

from __future__ import annotations

from enum import IntEnum

from liftlog import errors


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    CONFIG = 3
    CANNOT_CONNECT = 4
    NOT_FOUND = 5
    CONFLICT = 6
    OUT_OF_RANGE = 7
    DAMAGED = 8
    DENIED = 9
    NOT_ACKED = 10
    TRY_AGAIN = 11
    BEHIND = 12
    INTERRUPTED = 130
    PIPE_CLOSED = 141


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "failed for any other reason",
    ExitCode.USAGE: "invalid command line, or a value that the daemon refuses",
    ExitCode.CONFIG: "the configuration is invalid; all findings are listed",
    ExitCode.CANNOT_CONNECT: "no connection to the daemon or to NATS, or the connection was lost",
    ExitCode.NOT_FOUND: "no such stream, record, consumer, checkpoint, lease, file or directory",
    ExitCode.CONFLICT: "the stream exists with other settings or was created again, another "
    "process moved the checkpoint, another export finished first, or another process uses the name "
    "of this member",
    ExitCode.OUT_OF_RANGE: "the offset is below the log's start or beyond its end",
    ExitCode.DAMAGED: "damaged records or files were found",
    ExitCode.DENIED: "not authenticated, or not allowed by the ACL or by NATS",
    ExitCode.NOT_ACKED: "a published message was refused, or no ack came in time",
    ExitCode.TRY_AGAIN: "not possible right now: no answer in time, disk full, directory in use",
    ExitCode.BEHIND: "the backup is complete, except that it may lack the last acked messages",
    ExitCode.INTERRUPTED: "interrupted (Ctrl-C)",
    ExitCode.PIPE_CLOSED: "the program that reads the output has closed the pipe",
}

_BY_ERROR: dict[type[errors.LiftlogError], ExitCode] = {
    errors.InvalidArgument: ExitCode.USAGE,
    errors.ConfigError: ExitCode.CONFIG,
    errors.ConnectionLost: ExitCode.CANNOT_CONNECT,
    errors.ProtocolViolation: ExitCode.CANNOT_CONNECT,
    errors.UnsupportedVersion: ExitCode.CANNOT_CONNECT,
    errors.StreamNotFound: ExitCode.NOT_FOUND,
    errors.ConsumerNotFound: ExitCode.NOT_FOUND,
    errors.LeaseGone: ExitCode.NOT_FOUND,
    errors.Conflict: ExitCode.CONFLICT,
    errors.CheckpointMoved: ExitCode.CONFLICT,
    errors.GroupFenced: ExitCode.CONFLICT,
    errors.StaleIncarnation: ExitCode.CONFLICT,
    errors.Diverged: ExitCode.CONFLICT,
    errors.OffsetOutOfRange: ExitCode.OUT_OF_RANGE,
    errors.CorruptRange: ExitCode.DAMAGED,
    errors.CheckpointUncertain: ExitCode.DAMAGED,
    errors.CorruptBatch: ExitCode.DAMAGED,
    errors.CorruptMetadata: ExitCode.DAMAGED,
    errors.Unauthenticated: ExitCode.DENIED,
    errors.Forbidden: ExitCode.DENIED,
    errors.NatsRefused: ExitCode.DENIED,
    errors.RequestTimeout: ExitCode.TRY_AGAIN,
    errors.StreamUnavailable: ExitCode.TRY_AGAIN,
    errors.DiskFull: ExitCode.TRY_AGAIN,
    errors.ShuttingDown: ExitCode.TRY_AGAIN,
    errors.NatsUnavailable: ExitCode.TRY_AGAIN,
    errors.DataDirLocked: ExitCode.TRY_AGAIN,
    errors.NotLeader: ExitCode.TRY_AGAIN,
    errors.UnknownEpoch: ExitCode.TRY_AGAIN,
    errors.NotEnoughReplicas: ExitCode.TRY_AGAIN,
    errors.NotReady: ExitCode.TRY_AGAIN,
    errors.MetadataUnavailable: ExitCode.TRY_AGAIN,
}


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code of a command that ends with `error`."""
    return exit_code_of_kind(type(error))


def exit_code_of_kind(kind: type[BaseException]) -> ExitCode:
    """Return the exit code of a command that ends with an error of this class."""
    for base in kind.__mro__:
        code = _BY_ERROR.get(base)
        if code is not None:
            return code
    if issubclass(kind, FileNotFoundError):
        return ExitCode.NOT_FOUND
    return ExitCode.FAILED


def table_lines() -> list[str]:
    """Return the table for `--help`, one line per code."""
    return [f"{code.value:>3}  {meaning}" for code, meaning in MEANINGS.items()]
