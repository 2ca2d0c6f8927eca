# Made from liftlog/client/aio/consuming_block.py by `make blocking`: edit that one.
"""Common part of both consumers of the blocking client: the end of their block, and batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Generic, Self, TypeVar

from liftlog.errors import LiftlogError

Batch = TypeVar("Batch")


class ConsumingBlock(ABC, Generic[Batch]):
    """A consumer that is closed at the end of its block."""

    @abstractmethod
    def close(self) -> None:
        """Raises LiftlogError if the processed records could not be stored."""

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
            self._log_failure(failure)  # the exception that ended the work is raised instead


class Batches(Generic[Batch]):
    """Returned by `batches` of a consumer. Not a generator, which would end with an exception."""

    def __init__(self, consumer: ConsumingBlock[Batch]) -> None:
        self._consumer = consumer

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        return self._consumer._take_batch()
