"""The checkpoints in memory. Loads them from the log when the daemon starts."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from liftlog.errors import CorruptBatch, CorruptRange, OffsetOutOfRange
from liftlog.groups.state import KEY_PREFIX
from liftlog.log import Log
from liftlog.log.files.filesystem import storage_errors
from liftlog.records import Place, decode_batch, parse_header
from liftlog.server.checkpoints.checkpoint import (
    CheckpointKey,
    Stored,
    decode_key,
    decode_value,
    encode_key,
)
from liftlog.server.checkpoints.newer import in_words, is_newer
from liftlog.server.commits.damage import quarantine_found

logger = logging.getLogger("liftlog.server.checkpoints")

_READ_BYTES = 4 * 1024 * 1024
_MAX_SETTLED = 100_000


class CheckpointTable:
    """The checkpoints, for lookup by consumer and stream, and listing in that order. Not
    thread-safe.

    Contains only durable checkpoints. A checkpoint that still waits for the disk is not in the
    table.

    `losses` is the number of ranges of `_offsets` that were lost because of damage. The keys in
    these ranges are unknown. `settled` contains the keys that were written after the last loss.
    """

    def __init__(
        self,
        entries: Mapping[CheckpointKey, Stored] | None = None,
        *,
        losses: int = 0,
        settled: Iterable[CheckpointKey] = (),
        groups: Mapping[bytes, bytes] | None = None,
        newer: Iterable[bytes] = (),
    ) -> None:
        self.losses = losses
        self.newer = set(newer)
        """The keys of records that only a newer version can read."""
        self.groups = dict(groups or {})
        """The records of consumer groups as they were read; only `groups.py` decodes them."""
        self._settled = set(settled)
        self._entries: dict[CheckpointKey, Stored] = dict(entries or {})
        self._order = sorted(self._entries)
        self._consumers_of: dict[str, list[str]] = {}
        """Maps each stream to its consumers, in order."""
        for consumer, stream in self._order:
            self._consumers_of.setdefault(stream, []).append(consumer)
        self._owned = Counter([one.owner for one in self._entries.values()])

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: CheckpointKey) -> Stored | None:
        return self._entries.get(key)

    def apply(self, changes: Mapping[CheckpointKey, Stored | None]) -> None:
        """Store new checkpoints. A value of None deletes the checkpoint."""
        if self.losses:
            self._settled.update(changes)
            if len(self._settled) > len(self._entries) + _MAX_SETTLED:
                # Drops deleted keys if there are too many of them.
                self._settled &= self._entries.keys()
        for key, stored in changes.items():
            self.newer.discard(encode_key(key))
            before = self._entries.get(key)
            if before is not None:
                self._disown(before.owner)
            if stored is not None:
                if before is None:
                    self._insert(key)
                self._entries[key] = stored
                self._owned[stored.owner] += 1
            elif before is not None:
                del self._entries[key]
                self._remove(key)

    def _insert(self, key: CheckpointKey) -> None:
        consumer, stream = key
        insort(self._order, key)
        insort(self._consumers_of.setdefault(stream, []), consumer)

    def _remove(self, key: CheckpointKey) -> None:
        consumer, stream = key
        del self._order[bisect_left(self._order, key)]
        consumers = self._consumers_of[stream]
        del consumers[bisect_left(consumers, consumer)]
        if not consumers:
            del self._consumers_of[stream]

    def owned_count(self, owner: str) -> int:
        return self._owned[owner]

    def _disown(self, owner: str) -> None:
        self._owned[owner] -= 1
        if not self._owned[owner]:
            del self._owned[owner]

    def is_newer(self, key: CheckpointKey) -> bool:
        """Return True if the checkpoint exists in a form that only a newer version can read."""
        return bool(self.newer) and encode_key(key) in self.newer

    def is_uncertain(self, key: CheckpointKey) -> bool:
        """Return True if a newer checkpoint of this key, or its deletion, may have been lost
        because of damage. If the key has no checkpoint, True means that its only checkpoint may
        have been lost."""
        return self.losses > 0 and key not in self._settled

    @property
    def uncertain_count(self) -> int:
        """Number of existing checkpoints that are uncertain."""
        return len(self._entries.keys() - self._settled) if self.losses else 0

    def items(self) -> list[tuple[CheckpointKey, Stored]]:
        return list(self._entries.items())

    def after(
        self, key: CheckpointKey | None, *, consumer: str | None = None, stream: str | None = None
    ) -> Iterator[tuple[CheckpointKey, Stored]]:
        """Yield the checkpoints after `key`, sorted by consumer and stream. If `consumer` or
        `stream` is given, yield only the checkpoints of that consumer or on that stream. The table
        must not change during the iteration."""
        if stream is None:
            found = _between(self._order, key, consumer)
        else:
            found = ((one, stream) for one in _of_stream(self._consumers_of, key, consumer, stream))
        for one in found:
            yield one, self._entries[one]


def _between(
    order: list[CheckpointKey], after: CheckpointKey | None, consumer: str | None
) -> Iterator[CheckpointKey]:
    start = 0 if after is None else bisect_right(order, after)
    if consumer is not None:
        start = max(start, bisect_left(order, (consumer, "")))
    for position in range(start, len(order)):
        if consumer is not None and order[position][0] != consumer:
            return
        yield order[position]


def _of_stream(
    consumers_of: Mapping[str, list[str]],
    after: CheckpointKey | None,
    consumer: str | None,
    stream: str,
) -> Iterator[str]:
    """Yield, in order, the consumers of a stream that come after the key `after`. If `consumer` is
    given, yield at most this consumer."""
    consumers = consumers_of.get(stream, [])
    start = 0
    if after is not None:
        is_behind = stream <= after[1]
        start = (bisect_right if is_behind else bisect_left)(consumers, after[0])
    if consumer is not None:
        start = max(start, bisect_left(consumers, consumer))
    for position in range(start, len(consumers)):
        if consumer is not None and consumers[position] != consumer:
            return
        yield consumers[position]


def load_table(log: Log) -> CheckpointTable:
    """Load all committed checkpoints of `_offsets`.

    Only the records in a damaged range are lost. If the newest checkpoint of a key is lost, an
    older checkpoint becomes valid again, and the consumer reads some records twice. The table
    stores the keys whose newest checkpoint may be lost. Each loss is logged as an ERROR. Raises
    StorageError if the files cannot be read, because a failed read must not look like "no
    checkpoint".
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
            reached = piece.next_offset  # the batch was damaged after `read` had examined it
            found.lose(offset, reached, "a damaged batch header")
        offset = reached
    if found.newer:
        logger.warning("records-of-a-newer-version stream=_offsets found=%s", in_words(found.newer))
    return CheckpointTable(
        found.entries,
        losses=found.losses,
        settled=found.settled,
        groups=found.groups,
        newer=found.newer,
    )


class _Rebuilding:
    """The table while `load_table` reads the log."""

    def __init__(self) -> None:
        self.entries: dict[CheckpointKey, Stored] = {}
        self.losses = 0
        self.settled: set[CheckpointKey] = set()
        self.groups: dict[bytes, bytes] = {}
        self.newer: set[bytes] = set()

    def learn(self, raw: bytes, offset: int, place: Place) -> int:
        """Add the batches in `raw` from `offset` on. Returns the offset to read next. If damage
        follows the batches, a read from that offset shows how far the damage extends."""
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
        if raw_key is not None:
            self.newer.discard(raw_key)
            if raw_value is not None and is_newer(raw_key, raw_value):
                self.newer.add(raw_key)
                self._forget(raw_key)
                return
        if raw_key is not None and raw_key.startswith(KEY_PREFIX):
            if raw_value is None:
                self.groups.pop(raw_key, None)
            else:
                self.groups[raw_key] = raw_value
            return
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

    def _forget(self, raw_key: bytes) -> None:
        """Drop the state of an older record of the key."""
        self.groups.pop(raw_key, None)
        with suppress(CorruptBatch):
            key = decode_key(raw_key)
            self.entries.pop(key, None)
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
