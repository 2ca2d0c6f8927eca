"""Message ids seen within the window, by record stamp. In memory; rebuilt from the log."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from liftlog.records.decode import RecordBatch
from liftlog.records.message_headers import header_lines
from liftlog.stream.control import MESSAGE_ID


class DedupeWindow:
    """Remembers which offset each id got, for `window_ns` and at most `max_ids` of them.

    Ids are added speculatively when a message is judged; `forget_newest` takes them back when
    their group could not be committed.
    """

    def __init__(self, window_ns: int, max_ids: int) -> None:
        self.window_ns = window_ns
        self.max_ids = max_ids
        self.evicted_early = 0
        self._offsets: dict[bytes, int] = {}
        self._order: deque[tuple[int, bytes]] = deque()

    def resize(self, window_ns: int, max_ids: int) -> None:
        """Other limits from now on. Ids that a smaller window had let go do not come back, so a
        larger one is full only after it has passed once."""
        self.window_ns = window_ns
        self.max_ids = max_ids
        while self._order and (not window_ns or len(self._order) > max_ids):
            self._drop_oldest()

    def __len__(self) -> int:
        return len(self._offsets)

    def lookup(self, message_id: bytes) -> int | None:
        """The offset of the original, or None."""
        return self._offsets.get(message_id)

    def add(self, message_id: bytes, offset: int, timestamp_ns: int) -> bool:
        """Remember an id; False when it is remembered already: the original keeps its place."""
        if message_id in self._offsets:
            return False
        self._offsets[message_id] = offset
        self._order.append((timestamp_ns, message_id))
        if len(self._order) > self.max_ids:
            self.evicted_early += 1
            self._drop_oldest()
        return True

    def expire(self, now_ns: int) -> None:
        """Forget what is older than the window."""
        limit = now_ns - self.window_ns
        while self._order and self._order[0][0] < limit:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, message_id = self._order.popleft()
        del self._offsets[message_id]

    def forget_newest(self, message_ids: Iterable[bytes]) -> None:
        """Take back ids that were added last; `message_ids` in the order of their adding."""
        for message_id in reversed(list(message_ids)):
            if self._order and self._order[-1][1] == message_id:
                self._order.pop()
                del self._offsets[message_id]

    # --- rebuilding ---

    def add_batch(self, batch: RecordBatch) -> None:
        """Learn the ids of a stored batch; batches come in the order of the log.

        Each id is judged at its own stamp, as when it came: an id may have been used again after
        its window, and then the later record is the original.
        """
        for offset, stamp, message_id in message_ids(batch):
            self.expire(stamp)
            self.add(message_id, offset, stamp)

    def snapshot(self) -> list[list[Any]]:
        """Everything, as JSON can hold it (ids as Latin-1 text)."""
        offsets = self._offsets
        return [
            [stamp, message_id.decode("latin-1"), offsets[message_id]]
            for stamp, message_id in self._order
        ]

    def restore(self, entries: Iterable[Iterable[Any]]) -> None:
        for stamp, text, offset in entries:
            self.add(text.encode("latin-1"), offset, stamp)


def message_ids(batch: RecordBatch) -> list[tuple[int, int, bytes]]:
    """(offset, timestamp_ns, id) of every record in the batch that has a message id."""
    blocks = batch.headers()
    if not any(MESSAGE_ID in block for block in blocks):
        return []
    found = []
    rows = zip(batch.offsets(), batch.timestamps_ns(), blocks, strict=True)
    for offset, stamp, block in rows:
        if MESSAGE_ID in block:
            for name, value in header_lines(block):
                if name == MESSAGE_ID:
                    if value:
                        found.append((offset, stamp, value))
                    break
    return found
