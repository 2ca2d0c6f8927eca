"""The next fetch of a read: its start, its end, and the number of bytes that it requests."""

from __future__ import annotations

from typing import Any

from liftlog.client.reading.read_options import Start, Until, start_fields
from liftlog.protocol.described import StreamInfo
from liftlog.protocol.limits import KIB, MIB
from liftlog.protocol.messages import LATEST, Fetch, FetchHeader

FIRST_FETCH_BYTES = 512 * KIB
DEFAULT_FETCH_BYTES = 1 * MIB
SMALLEST_FETCH_BYTES = 4 * KIB
POLL_MS = 20_000


class NextFetch:
    """Makes the fetches of one read; each continues the previous answer.

    Invariants:

    - The start is an offset, an end of the log, or a time. After the first answer it is an offset,
      or None if the read has lost its position.
    - The start belongs to `incarnation` and `epoch`. Each fetch contains them, so a daemon with
      another history reports an error and sends no records.
    - No fetch requests records from `stop_offset` on.
    - Fetches grow: each requests twice as many bytes as the previous one, up to `fetch_bytes`.
    - The bound never decreases. (A copy must have reached the bound to answer.)
    """

    def __init__(
        self,
        stream: str,
        start: Start,
        until: Until,
        selection: dict[str, Any],
        *,
        fetch_bytes: int,
        incarnation: str | None,
        epoch: int | None,
        replica: str | None,
        poll_ms: int,
    ) -> None:
        """`selection` has the fields of a `Fetch` that select records and columns. Raises
        InvalidArgument."""
        self.incarnation = incarnation
        self.epoch = epoch
        self.stop_offset = until if type(until) is int else None
        self.slots: frozenset[int] | None = None
        """The slots of a group whose records are requested; None for all records."""
        self._stream = stream
        self._place = start_fields(start)
        self._selection = selection
        self._slot_fields: dict[str, Any] = {}
        self._replica = replica
        self._poll_ms = poll_ms
        self._at_least: int | None = None
        self._largest_bytes = max(fetch_bytes, SMALLEST_FETCH_BYTES)
        self._bytes = min(FIRST_FETCH_BYTES, self._largest_bytes)

    # --- the place ---

    @property
    def offset(self) -> int | None:
        """The offset at which the fetch starts; None if it is not known yet, or not known any
        more."""
        start = self._place.get("start")
        return start if type(start) is int else None

    @property
    def is_at_end(self) -> bool:
        """True if no records remain before `stop_offset`."""
        offset, stop = self.offset, self.stop_offset
        return offset is not None and stop is not None and offset >= stop

    def move_to(self, offset: int | None) -> None:
        """Start at another offset of the same history. An offset of None means that the position of
        the read is lost."""
        self._place = {"start": offset}

    def move_elsewhere(self, end_of_log: str) -> None:
        """Start at "earliest" or "latest", regardless of the history of the stream."""
        self._place = {"start": end_of_log}
        self.incarnation = self.epoch = None

    def move_behind(self, header: FetchHeader) -> None:
        """Start at the end of this answer."""
        self._place = {"start": header.next_offset}
        self.incarnation, self.epoch = header.incarnation, header.leader_epoch

    def take_bound(self, info: StreamInfo) -> None:
        """Accept answers only from copies that have reached the leader's high watermark. "latest"
        refers to this high watermark."""
        self._at_least = info.high_watermark
        if self._place.get("start") == LATEST:
            self._place = {"start": info.high_watermark}
        if self.incarnation is None:
            self.incarnation = info.incarnation

    # --- what it requests ---

    def ask_for(self, slots: list[int], slot_count: int) -> None:
        """Request only the records of these slots. The daemon may send other records, too."""
        self._slot_fields = {"filter_slots": slots, "slot_count": slot_count}
        self.slots = frozenset(slots)

    @property
    def selects(self) -> bool:
        """True if a filter or columns were given."""
        return bool(self._selection)

    def begin_small(self, max_bytes: int | None = None) -> None:
        """Request only a small number of bytes first, at most `max_bytes`. The following fetches
        grow."""
        self._bytes = (
            min(FIRST_FETCH_BYTES, self._largest_bytes) if max_bytes is None else max_bytes
        )

    def take(self, *, at_once: bool) -> Fetch:
        """Return the next fetch. With `at_once` the daemon answers it without waiting for
        records."""
        offset = self.offset
        max_records = None
        if self.stop_offset is not None and offset is not None:
            max_records = max(self.stop_offset - offset, 1)
        max_bytes = self._bytes
        self._bytes = min(max(2 * max_bytes, SMALLEST_FETCH_BYTES), self._largest_bytes)
        return Fetch(
            self._stream,
            max_bytes=max_bytes,
            max_records=max_records,
            max_wait_ms=0 if at_once else self._poll_ms,
            incarnation=self.incarnation,
            epoch=self.epoch,
            replica=self._replica,
            at_least=self._bound(),
            **self._place,
            **self._selection,
            **self._slot_fields,
        )

    def examine(self) -> Fetch:
        """Return a fetch for which the daemon has to check the records at the start."""
        return Fetch(
            self._stream,
            max_bytes=SMALLEST_FETCH_BYTES,
            columns=["offset"],
            incarnation=self.incarnation,
            epoch=self.epoch,
            replica=self._replica,
            at_least=self._bound(),
            **self._place,
        )

    def _bound(self) -> int | None:
        """Return the offset that a copy must have reached to answer this fetch. Without this bound,
        a copy that ends before the present position could answer."""
        offset = self.offset
        if self._at_least is not None and offset is not None:
            self._at_least = max(self._at_least, offset)
        return self._at_least
