"""How one stream writes a commit group: laid out as batches, compressed, appended."""

from __future__ import annotations

from liftlog.log import EncodedBatch, Log
from liftlog.records.codecs import codec_named, compress_batch
from liftlog.settings import StreamSettings
from liftlog.stream import CommitGroup

_INLINE_BYTES = 64 * 1024
"""A group larger than this is compressed in a writer thread, not on the event loop."""


def compressed(batches: list[EncodedBatch], compression: str) -> list[EncodedBatch]:
    """Each batch compressed, or unchanged if compression would not make it smaller.

    Runs at about 100 MB/s and releases the GIL.
    """
    codec = codec_named(compression)
    if codec is None:
        return batches
    return [batch._replace(data=compress_batch(batch.data, codec)) for batch in batches]


class GroupWriter:
    """Made again when the settings change. Its methods use only the log, so `write` may run in a
    thread."""

    def __init__(self, log: Log, settings: StreamSettings) -> None:
        self._log = log
        self._settings = settings
        self._acks_early = settings.durability != "fsync"
        self.written: list[EncodedBatch] = []
        """What the last `write` appended."""

    def encode(self, group: CommitGroup) -> list[EncodedBatch]:
        batch = self._settings.batch
        encoded = group.encode(
            leader_epoch=self._log.leader_epoch,
            commit_group=self._log.commit_group,
            max_records=batch.max_records,
            max_bytes=batch.max_bytes,
        )
        return list(map(EncodedBatch._make, encoded))

    def takes_long(self, size_bytes: int) -> bool:
        """Whether compressing so much would block the event loop for too long."""
        return self._settings.compression != "none" and size_bytes > _INLINE_BYTES

    def must_sync(self, unsynced: int) -> bool:
        """Whether a group is synced that brings the records without a sync to `unsynced`."""
        if self._settings.durability == "interval":
            return unsynced >= self._settings.flush.messages
        return self._settings.durability == "fsync"

    def write(self, batches: list[EncodedBatch]) -> None:
        """Append them; they are not synced."""
        batches = compressed(batches, self._settings.compression)
        if self._acks_early:
            # The acks of this group may leave before it is durable; the manifest must say so first.
            self._log.admit_early_acks()
        self._log.append(batches)
        self.written = batches
