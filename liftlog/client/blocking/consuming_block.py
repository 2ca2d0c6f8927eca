# Made from liftlog/client/aio/consuming_block.py by `make blocking`: edit that one.
"""Common part of both consumers of the blocking client: closing at the end of their `with`
block, and iteration by batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Generic, Self, TypeVar

from liftlog.errors import LiftlogError

Batch = TypeVar("Batch")


class ConsumingBlock(ABC, Generic[Batch]):
    """A consumer that is closed at the end of its `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Stop reading and store the progress. Raises LiftlogError if the progress could not be
        stored."""

    @abstractmethod
    def _take_batch(self) -> Batch:
        """Return the next batch. Ends the iteration if there is no further batch."""

    @abstractmethod
    def _log_failure(self, failure: LiftlogError) -> None:
        """Log an error of `close` that is not raised to the caller."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except LiftlogError as failure:
            if error is None:
                raise
            self._log_failure(failure)  # the caller gets the exception that ended the block


class Batches(Generic[Batch]):
    """Iterates over the batches of a consumer, as the result of `batches`. It is not a generator,
    because a generator ends with the first exception that passes through it."""

    def __init__(self, consumer: ConsumingBlock[Batch]) -> None:
        self._consumer = consumer

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        return self._consumer._take_batch()
