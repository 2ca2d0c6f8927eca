"""Reads one record by its offset, for the log API and the web page."""

from __future__ import annotations

import logging

from acl.subjects import matches
from liftlog.errors import (
    CorruptBatch,
    CorruptRange,
    LiftlogError,
    StorageError,
    StreamUnavailable,
    UnsupportedFormat,
)
from liftlog.log import Log
from liftlog.records.decode import Record, decode_batch
from liftlog.server.access.gate import Gate
from liftlog.server.commits.damage import quarantine_damage

logger = logging.getLogger("liftlog.server.http")


class NoRecord(LiftlogError):
    """Raised if no record has the offset. Either compaction has removed the record, or it is not
    written yet."""

    name = "NO_RECORD"


def read_record(log: Log, offset: int) -> tuple[Record, bytes]:
    """Return the record at `offset`, and the exact bytes of its header block. Blocking.

    Raises NoRecord, OffsetOutOfRange, CorruptRange; raises StreamUnavailable if the file cannot be
    read.
    """
    first = following = offset
    try:
        piece = log.read(offset, 1, 1)
        if piece is None:
            raise NoRecord(
                f"there is no record at offset {offset} yet", high_watermark=log.high_watermark
            )
        first, following = piece.first_offset, piece.next_offset
        try:
            data = piece.pread()
        finally:
            piece.release()
        if first <= offset:
            batch = decode_batch(data).trim(offset, offset + 1)
            following = batch.next_offset
            if len(batch):
                return batch.records()[0], batch.headers()[0]
    except CorruptRange as damage:
        _quarantine(log, damage.first_offset, damage.next_offset)
        raise
    except CorruptBatch as error:
        _quarantine(log, first, following)
        logger.error("record-damaged offset=%d error=%s", offset, error)  # noqa: TRY400
        raise CorruptRange(
            f"the record at offset {offset} is damaged", first_offset=first, next_offset=following
        ) from error
    except UnsupportedFormat as error:
        raise StreamUnavailable(f"the record cannot be decoded: {error.message}") from error
    except (StorageError, OSError) as error:
        logger.error("record-not-read offset=%d error=%s", offset, error)  # noqa: TRY400
        raise StreamUnavailable(
            f"the record at offset {offset} cannot be read from the disk",
            first_offset=first,
            next_offset=max(following, offset + 1),
        ) from error
    raise NoRecord(
        f"the record at offset {offset} was removed by compaction",
        next_offset=first if first > offset else following,
    )


def _quarantine(log: Log, first_offset: int, next_offset: int) -> None:
    try:
        quarantine_damage(log, first_offset, next_offset)
    except StorageError as error:
        raise StreamUnavailable(
            f"the records [{first_offset}, {next_offset}) are damaged, which cannot be recorded: "
            f"{error.message}"
        ) from error


def check_readable(
    gate: Gate, record: Record, principal: str | None, stream: str, *, peer: str
) -> None:
    """Raise NoRecord if the principal may not read the record's subject, and Forbidden if it may
    not read the stream."""
    readable = gate.readable_subjects(principal, stream, peer=peer)
    if readable is not None and not any(matches(one, record.subject) for one in readable):
        raise NoRecord(
            f"there is no record at offset {record.offset} that {principal} may read",
            next_offset=record.offset + 1,
        )
