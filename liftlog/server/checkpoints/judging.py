"""Whether a stream can be read from a stored position, given its current state. Pure."""

from __future__ import annotations

from liftlog.errors import (
    Diverged,
    InvalidArgument,
    LiftlogError,
    OffsetOutOfRange,
    StaleIncarnation,
)
from liftlog.log import Log


def why_not_readable(
    log: Log, stream: str, offset: int, incarnation: str, epoch: int
) -> LiftlogError | None:
    """The error that a reader gets at `offset` after reading that incarnation and epoch; None if it
    can continue.

    An offset below the log start is an error here: records that the reader has not seen are gone.
    """
    error = why_not_storable(log, stream, offset, incarnation, epoch)
    if error is None and offset < log.log_start_offset:
        return _out_of_range(log, stream, offset)
    return error


def why_not_storable(
    log: Log, stream: str, offset: int, incarnation: str | None, epoch: int | None
) -> LiftlogError | None:
    """The error of a commit that claims to have read the stream up to `offset`; None if it is
    plausible. `incarnation` and `epoch` None stand for the current ones."""
    if offset < 1:
        return InvalidArgument("a checkpoint is the offset to read next, which is at least 1")
    if incarnation not in (None, log.incarnation):
        return StaleIncarnation(
            f"stream {stream} was deleted and recreated since it was read",
            incarnation=log.incarnation,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
        )
    if epoch is not None:
        if epoch > log.leader_epoch:
            return Diverged(
                f"stream {stream} has not reached the leader epoch {epoch}",
                leader_epoch=log.leader_epoch,
            )
        end = log.epoch_end(epoch)
        if offset > end and epoch < log.leader_epoch:
            return Diverged(
                f"leader epoch {epoch} of stream {stream} ended at offset {end}, before {offset}",
                leader_epoch=log.leader_epoch,
                epoch_end_offset=end,
            )
    if offset > log.log_end_offset:
        return _out_of_range(log, stream, offset)
    return None


def _out_of_range(log: Log, stream: str, offset: int) -> OffsetOutOfRange:
    start, end = log.log_start_offset, log.log_end_offset
    return OffsetOutOfRange(
        f"the checkpoint {offset} is outside [{start}, {end}] of stream {stream}",
        hint="choose a new position, `earliest` or `latest`, and commit it",
        log_start_offset=start,
        log_end_offset=end,
    )
