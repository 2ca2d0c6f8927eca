"""Runs the tasks of an export in this process."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from liftlog.spark.export.tasks import Task, TaskResult, Tell, perform, results

Row = dict[str, object]


class LocalEngine:
    """Runs tasks after pickling, as on another host, and in another order."""

    def __init__(self) -> None:
        self.cancelled = False

    def run(self, phase: str, tasks: Sequence[Task], tell: Tell) -> list[TaskResult]:
        arrived = enumerate(pickle.loads(pickle.dumps(list(tasks))))
        return results(tasks, [perform(*one) for one in reversed(list(arrived))])

    def cancel(self) -> None:
        self.cancelled = True


def rows_of(paths: Sequence[str | Path]) -> list[Row]:
    """Read rows by code that is independent of the code that wrote them."""
    return [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]
