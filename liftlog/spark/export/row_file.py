"""Files that tasks write rows into: begun with the first row, durable when they are named."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from types import TracebackType
from typing import Any, BinaryIO, Self

import pyarrow as pa

from liftlog.spark.export.store import Store


class RowFile(ABC):
    """One file; in `with`. Rows are held until they make a portion, which is written at once.

    A subclass knows the format. What an exception leaves half written is named by nobody, and goes
    with its run.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        schema: pa.Schema,
        *,
        portion_bytes: int,
        portion_rows: int | None = None,
    ) -> None:
        self._store = store
        self._path = path
        self._schema = schema
        self._portion_bytes = portion_bytes
        self._portion_rows = portion_rows
        self._stack = ExitStack()
        self._writer: Any = None
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = self._held_rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        self._held_rows += batch.num_rows
        if self._held_bytes >= self._portion_bytes or (
            self._portion_rows is not None and self._held_rows >= self._portion_rows
        ):
            self._flush()

    @abstractmethod
    def _begin(self, file: BinaryIO) -> Any:
        """The writer of the format, which has a `close`."""

    @abstractmethod
    def _write(self, writer: Any, portion: pa.Table) -> None: ...

    def _finish(self) -> int | None:
        """The size of the file, durable on return; None: without rows there is none."""
        self._flush()
        if self._writer is None:
            return None
        self._writer.close()
        self._stack.close()
        size = self._store.size(self._path)
        assert size is not None
        return size

    def _flush(self) -> None:
        if not self._held:
            return
        if self._writer is None:
            self._writer = self._begin(self._stack.enter_context(self._store.writing(self._path)))
        self._write(self._writer, self._portion())

    def _portion(self) -> pa.Table:
        """What is held, which is not any more: only the caller keeps it in memory."""
        held, self._held = self._held, []
        self._held_bytes = self._held_rows = 0
        return pa.Table.from_batches(held, self._schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held = []
        self._stack.__exit__(kind, error, trace)
