"""Checks that a batch is at the right place in a log.

If a disk loses a write or writes it to the wrong place, complete batches with correct checksums can
replace acked batches. Only the batch headers show such an error: in a log, batches cover the
offsets without gaps, and leader epochs never decrease. Every walk over batches makes this check,
and treats a batch that fails it as damage.

This check does not detect a batch of another stream with the same offsets and a matching epoch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from liftlog.errors import CorruptBatch
from liftlog.records.header import BatchHeader

_NO_END = 2**64

Epochs = Sequence[tuple[int, int]]
"""Pairs of a leader epoch and its first offset, both ascending."""


class Place:
    """The expected place of the next batch: at `offset`, in leader epoch `epoch` or a later one.

    No batch of the walk may extend beyond `end_offset`. `epochs` are the epochs of the manifest:
    from the first offset of an epoch on, no batch has an older epoch.
    """

    __slots__ = ("_end", "_epoch_end", "_epochs", "epoch", "offset")

    def __init__(self, offset: int, end_offset: int | None = None, *, epochs: Epochs = ()) -> None:
        self._end = _NO_END if end_offset is None else end_offset
        self._epochs = epochs
        self._epoch_end = _NO_END
        self.go_on_at(offset)

    @property
    def sure_epoch(self) -> int:
        """The epoch at `offset` according to `epochs`; without `epochs`, the epoch of the previous
        batch."""
        return self._listed_epoch() if self._epochs else self.epoch

    def go_on_at(self, offset: int) -> None:
        """Continue the walk at `offset`, after damage. The epoch of the batches before the damage
        is no longer used."""
        self.offset = offset
        self.epoch = self._listed_epoch() if self._epochs else 0

    @property
    def sure_until(self) -> int:
        """The first offset of the next epoch in `epochs`; the walk reaches no later epoch before
        this offset."""
        return min(self._end, self._epoch_end)

    def holds(self, header: BatchHeader) -> bool:
        """Return True if this batch belongs to this place."""
        return (
            header.base_offset == self.offset
            and header.leader_epoch >= self.epoch
            and header.base_offset + header.last_offset_delta < self._end
        )

    def pass_by(self, header: BatchHeader) -> None:
        """Move to the end of this batch, where the next batch begins."""
        self.go_on_behind(header.base_offset + header.last_offset_delta + 1, header.leader_epoch)

    def go_on_behind(self, offset: int, epoch: int) -> None:
        """Move past several batches that belong to this place. The batches end at `offset`, and the
        last batch has `epoch`."""
        self.offset = offset
        self.epoch = epoch
        if offset >= self._epoch_end:
            self.epoch = max(epoch, self._listed_epoch())

    def accept(self, header: BatchHeader) -> bool:
        """Call `holds` and, if it returns True, `pass_by`. The two calls are one method for speed,
        because every read calls it for each batch."""
        base_offset, epoch = header.base_offset, header.leader_epoch
        following = base_offset + header.last_offset_delta + 1
        if base_offset != self.offset or epoch < self.epoch or following > self._end:
            return False
        self.offset = following
        self.epoch = epoch
        if following >= self._epoch_end:
            self.epoch = max(epoch, self._listed_epoch())
        return True

    def take(self, header: BatchHeader) -> None:
        """Call `accept`; raise CorruptBatch if it returns False."""
        if not self.accept(header):
            raise CorruptBatch(self.problem(header))

    def check_end(self) -> None:
        """Raise CorruptBatch unless the walk has reached its end offset."""
        if self.offset != self._end:
            raise CorruptBatch(f"the batches end at offset {self.offset}, not at {self._end}")

    def problem(self, header: BatchHeader) -> str:
        """Describe a batch that does not belong to this place."""
        found = f"a batch of offsets {header.base_offset} to {header.last_offset}"
        if header.base_offset != self.offset or header.leader_epoch < self.epoch:
            due = f"where offset {self.offset}, epoch {self.epoch} is expected"
            return f"{found}, epoch {header.leader_epoch} stands {due}"
        return f"{found} stands where offset {self._end} is the end"

    def _listed_epoch(self) -> int:
        epochs = self._epochs
        at = bisect_right(epochs, self.offset, key=_first_offset)
        self._epoch_end = epochs[at][1] if at < len(epochs) else _NO_END
        return epochs[at - 1][0] if at else 0


def _first_offset(entry: tuple[int, int]) -> int:
    return entry[1]
