"""The part of the readers of both clients that does not wait."""

from __future__ import annotations

from liftlog.client.connecting.reconnecting import ReadPatience
from liftlog.client.reading.read_ahead import ReadAhead


class BaseReader:
    """The position and state of a reader."""

    def __init__(self, ahead: ReadAhead, reconnect_for: float | None) -> None:
        self._ahead = ahead
        self._take = ahead.next_batch
        self._patience = ReadPatience(reconnect_for)

    @property
    def high_watermark(self) -> int | None:
        """The stream's high watermark in the newest answer; None before the first answer."""
        return self._ahead.high_watermark

    @property
    def position(self) -> int | None:
        """The offset that follows all returned and skipped records; None until it is known."""
        return self._ahead.position

    @property
    def incarnation(self) -> str | None:
        """The incarnation of the stream. If you store a position, store the incarnation with it."""
        return self._ahead.incarnation

    @property
    def epoch(self) -> int | None:
        """The stream's leader epoch in the newest answer. If you store a position, store the epoch
        with it."""
        return self._ahead.epoch

    @property
    def divided_by(self) -> frozenset[int] | None:
        """The slots of a group by which the daemon has selected the records of the newest batch;
        None if the daemon has not selected by slots."""
        return self._ahead.divided_by


def ahead_of(reader: BaseReader) -> ReadAhead:
    """Return the `ReadAhead` of a reader: its fetches, and the batches that have arrived."""
    return reader._ahead
