"""The table from the log, at the start of the daemon. Blocking."""

from __future__ import annotations

import logging

from liftlog.errors import CorruptBatch, CorruptRange, OffsetOutOfRange
from liftlog.log import Log
from liftlog.records import decode_batch, parse_header
from liftlog.server.checkpoints.layout import (
    CheckpointKey,
    Stored,
    decode_key,
    decode_value,
)
from liftlog.server.checkpoints.table import CheckpointTable

logger = logging.getLogger("liftlog.server.checkpoints")

_READ_BYTES = 4 * 1024 * 1024


def load_table(log: Log) -> CheckpointTable:
    """Everything that is committed in `_offsets`.

    What is damaged costs itself: of a key that was committed before, the older checkpoint holds
    again, and its consumer reads some records twice. Each loss is an ERROR in the log. Raises
    StorageError when the files cannot be read: nobody may take that for "no checkpoint".
    """
    entries: dict[CheckpointKey, Stored] = {}
    offset = log.log_start_offset
    while offset < log.high_watermark:
        try:
            found = log.read(offset, _READ_BYTES)
        except CorruptRange as error:
            _lost(offset, error.next_offset, error)
            offset = error.next_offset
            continue
        except OffsetOutOfRange:
            break  # a loss that reaches beyond the high watermark
        if found is None:
            break
        with found:
            reached = _learn(found.pread(), offset, entries)
        if reached == offset:
            reached = found.next_offset  # it rotted since `read` looked at it
            _lost(offset, reached, "a damaged batch header")
        offset = reached
    return CheckpointTable(entries)


def _learn(raw: bytes, offset: int, entries: dict[CheckpointKey, Stored]) -> int:
    """Add the batches in `raw` from `offset` on; returns the offset to read on at: reading there
    tells how far the damage goes, if there is some."""
    reached, position = offset, 0
    while position < len(raw):
        try:
            header = parse_header(raw, position)
        except CorruptBatch:
            break
        try:
            batch = decode_batch(raw, position).trim(offset)
            for key, value in zip(batch.keys(), batch.values(), strict=True):
                _take(key, value, entries)
        except CorruptBatch as error:
            _lost(header.base_offset, header.next_offset, error)
        position += header.length
        reached = header.next_offset
    return reached


def _take(
    raw_key: bytes | None, raw_value: bytes | None, entries: dict[CheckpointKey, Stored]
) -> None:
    try:
        key = decode_key(raw_key)
        if raw_value is None:
            entries.pop(key, None)
        else:
            entries[key] = decode_value(raw_value)
    except CorruptBatch as error:
        logger.error("checkpoint-not-understood error=%s", error)  # noqa: TRY400


def _lost(first_offset: int, next_offset: int, reason: object) -> None:
    logger.error(
        "checkpoints-lost first_offset=%d next_offset=%d reason=%s",
        first_offset,
        next_offset,
        reason,
    )
