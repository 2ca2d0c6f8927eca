"""Loads the table of checkpoints from the log when the daemon starts. Blocking."""

from __future__ import annotations

import logging

from liftlog.errors import CorruptBatch, CorruptRange, OffsetOutOfRange
from liftlog.log import Log
from liftlog.log.filesystem import storage_errors
from liftlog.records import Place, decode_batch, parse_header
from liftlog.server.checkpoints.layout import (
    CheckpointKey,
    Stored,
    decode_key,
    decode_value,
)
from liftlog.server.checkpoints.table import CheckpointTable
from liftlog.server.commits.damage import quarantine_found

logger = logging.getLogger("liftlog.server.checkpoints")

_READ_BYTES = 4 * 1024 * 1024


def load_table(log: Log) -> CheckpointTable:
    """Everything that is committed in `_offsets`.

    Damage costs only the records in it. If a key has an older checkpoint, that one is valid again
    and its consumer reads some records twice; the table knows for which keys that is possible. Each
    loss is logged as an ERROR. Raises StorageError if the files cannot be read, which must not be
    taken for "no checkpoint".
    """
    found = _Rebuilding()
    offset = log.log_start_offset
    while offset < log.high_watermark:
        try:
            piece = log.read(offset, _READ_BYTES)
        except CorruptRange as error:
            quarantine_found(log, error)
            found.lose(offset, error.next_offset, error)
            offset = error.next_offset
            continue
        except OffsetOutOfRange as error:
            # The loss extends beyond the high watermark.
            found.lose(offset, log.high_watermark, error)
            break
        if piece is None:
            break
        with piece, storage_errors("reading the checkpoints"):
            place = Place(piece.first_offset, piece.next_offset)
            reached = found.learn(piece.pread(), offset, place)
        if reached == offset:
            reached = piece.next_offset  # it was damaged after `read` looked at it
            found.lose(offset, reached, "a damaged batch header")
        offset = reached
    return CheckpointTable(found.entries, losses=found.losses, settled=found.settled)


class _Rebuilding:
    """The result so far."""

    def __init__(self) -> None:
        self.entries: dict[CheckpointKey, Stored] = {}
        self.losses = 0
        self.settled: set[CheckpointKey] = set()

    def learn(self, raw: bytes, offset: int, place: Place) -> int:
        """Add the batches in `raw` from `offset` on. Returns the offset to read next; if the
        batches end in damage, reading there tells how far it extends."""
        reached, position = offset, 0
        while position < len(raw):
            try:
                header = parse_header(raw, position)
                place.take(header)
            except CorruptBatch:
                break
            try:
                batch = decode_batch(raw, position).trim(offset)
                for key, value in zip(batch.keys(), batch.values(), strict=True):
                    self._take(key, value)
            except CorruptBatch as error:
                self.lose(header.base_offset, header.next_offset, error)
            position += header.length
            reached = max(offset, header.next_offset)
        return reached

    def _take(self, raw_key: bytes | None, raw_value: bytes | None) -> None:
        try:
            key = decode_key(raw_key)
            stored = None if raw_value is None else decode_value(raw_value)
        except CorruptBatch as error:
            logger.error("checkpoint-not-understood error=%s", error)  # noqa: TRY400
            self._doubt()
            return
        if stored is None:
            self.entries.pop(key, None)
        else:
            self.entries[key] = stored
        if self.losses:
            self.settled.add(key)

    def lose(self, first_offset: int, next_offset: int, reason: object) -> None:
        logger.error(
            "checkpoints-lost first_offset=%d next_offset=%d reason=%s",
            first_offset,
            next_offset,
            reason,
        )
        self._doubt()

    def _doubt(self) -> None:
        self.losses += 1
        self.settled.clear()
