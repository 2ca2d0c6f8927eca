"""Delivered messages: a batch in the form in which it arrived, and the messages in it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from liftlog.errors import CorruptBatch
from liftlog.protocol.workers import Run
from liftlog.records.decode import Record, RecordBatch, iter_batches
from liftlog.records.message_headers import MessageHeaders


class Held:
    """The messages of one delivery that are not done yet, as runs of offsets."""

    __slots__ = ("_done", "identity", "runs")

    def __init__(self, identity: str, runs: Sequence[Run]) -> None:
        self.identity = identity
        self.runs = runs
        self._done: set[int] = set()

    def done(self, offset: int) -> None:
        self._done.add(offset)

    def all_done(self) -> None:
        self.runs, self._done = (), set()

    @property
    def is_empty(self) -> bool:
        return len(self._done) >= sum([run.size for run in self.runs])

    def left(self) -> list[Run]:
        """Return the runs without the messages that are done."""
        if not self._done:
            return list(self.runs)
        return joined(
            (at, run.deliveries)
            for run in self.runs
            for at in range(run.first, run.end)
            if at not in self._done
        )


class WorkMessage(NamedTuple):
    """One delivered message. `deliveries` is the number of its deliveries, including this one."""

    record: Record
    deliveries: int
    held: Held

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def timestamp_ns(self) -> int:
        return self.record.timestamp_ns

    @property
    def subject(self) -> str:
        return self.record.subject

    @property
    def key(self) -> bytes | None:
        return self.record.key

    @property
    def value(self) -> bytes | None:
        return self.record.value

    @property
    def headers(self) -> MessageHeaders:
        return self.record.headers


class WorkBatch:
    """Messages that were delivered together. An iteration over the batch returns them, in the
    order of the delivery. `record_batches` returns the same records as columns, without an object
    for each record."""

    __slots__ = ("_batches", "_messages", "_runs", "consumer", "held", "pending", "stream")

    def __init__(
        self, stream: str, consumer: str, held: Held, pending: int, body: memoryview | bytes
    ) -> None:
        """Raises CorruptBatch if the body is damaged."""
        self.stream = stream
        self.consumer = consumer
        self.pending = pending
        """Number of messages that are still to be delivered for the first time."""
        self.held = held
        self._runs = tuple(held.runs)
        self._batches = [batch for batch in iter_batches(body) if len(batch)]
        self._messages: list[WorkMessage] | None = None

    def __len__(self) -> int:
        return sum([run.size for run in self._runs])

    def __iter__(self) -> Iterator[WorkMessage]:
        return iter(self.messages())

    def __repr__(self) -> str:
        return f"<WorkBatch stream={self.stream!r} consumer={self.consumer!r} len={len(self)}>"

    @property
    def runs(self) -> tuple[Run, ...]:
        """The delivered offsets, with their delivery counts."""
        return self._runs

    def record_batches(self) -> list[RecordBatch]:
        """Return the records in batches, without objects for each record."""
        return [batch for _, batch in self._parts()]

    def messages(self) -> list[WorkMessage]:
        """Return one object per message, in the order of the delivery."""
        if self._messages is None:
            held = self.held
            self._messages = [
                WorkMessage(record, run.deliveries, held)
                for run, batch in self._parts()
                for record in batch.records()
            ]
        return self._messages

    def _parts(self) -> Iterator[tuple[Run, RecordBatch]]:
        """Yield the part of a batch for each run. Raises CorruptBatch if a record is missing."""
        bases = [batch.header.base_offset for batch in self._batches]
        for run in self._runs:
            missing = run.size
            for batch in self._batches[max(bisect_right(bases, run.first) - 1, 0) :]:
                if batch.header.base_offset >= run.end:
                    break
                part = batch.trim(run.first, run.end)
                if len(part):
                    missing -= len(part)
                    yield run, part
            if missing:
                raise CorruptBatch(
                    f"{missing} of the messages {run.first} to {run.end - 1} of the stream "
                    f"{self.stream!r} did not arrive with their delivery"
                )


def joined(messages: Iterator[tuple[int, int]]) -> list[Run]:
    """Return runs for offsets with delivery counts."""
    runs: list[Run] = []
    for offset, deliveries in sorted(messages):
        if runs and runs[-1].end == offset and runs[-1].deliveries == deliveries:
            runs[-1] = Run(runs[-1].first, runs[-1].size + 1, deliveries)
        else:
            runs.append(Run(offset, 1, deliveries))
    return runs
