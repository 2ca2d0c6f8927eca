"""The tasks of an export: any host can run them, in any order, and more than once.

A task writes files and returns their names and sizes, which reach the driver as text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from liftlog import errors
from liftlog.errors import LiftlogError, StorageError
from liftlog.spark.export.files import StagedFile
from liftlog.spark.export.snapshot import DataFile, Lost, file_from

Tell = Callable[[str, int, int], None]
"""Reports progress: phase ("erase", "scan", "fold", "merge", "optimize"), number of finished tasks,
number of tasks."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task.

    `files` become part of the table, and `staged` is input of the merge. `lost` are records that
    could not be read. `removed` maps older files to the number of their rows with offsets in the
    new file of kind "removed", or to the number of their erased rows.
    """

    files: tuple[DataFile, ...] = ()
    staged: tuple[StagedFile, ...] = ()
    lost: tuple[Lost, ...] = ()
    removed: tuple[tuple[str, int], ...] = ()


class Task(Protocol):
    """One task, which can be pickled."""

    def run(self) -> TaskResult:
        """Run the task. Raises LiftlogError."""
        ...


class Engine(Protocol):
    """Runs the tasks. Methods raise LiftlogError."""

    def run(self, phase: str, tasks: Sequence[Task], tell: Tell) -> list[TaskResult]:
        """Run each task at least once. Returns one result for each task, in their order."""
        ...

    def cancel(self) -> None:
        """Make the running tasks fail soon. Another thread calls this."""
        ...


def perform(number: int, task: Task) -> str:
    """Run a task, and return its number and result as text. Raises LiftlogError only if another
    attempt may succeed, because Spark then retries. Any other error becomes a part of the result,
    so that it arrives unchanged, and Spark does not retry."""
    content: dict[str, Any] = {"task": number}
    try:
        content |= asdict(task.run())
    except LiftlogError as error:
        if error.retriable:
            raise
        plain = {k: v for k, v in error.details.items() if isinstance(v, (int, str))}
        content["error"] = [type(error).__name__, error.message, error.hint, plain]
    return json.dumps(content)


def results(tasks: Sequence[Task], told: Iterable[str]) -> list[TaskResult]:
    """Parse the texts that `perform` returned, and return the results in the order of the tasks.
    Raises the first error of a task, and StorageError unless each task has exactly one result."""
    found = sorted(map(json.loads, told), key=lambda content: content["task"])
    for content in found:
        if "error" in content:
            raise _error(*content["error"])
    if [content["task"] for content in found] != list(range(len(tasks))):
        raise StorageError("not every task of the export came back; run it again")
    return [
        TaskResult(
            tuple(map(file_from, content["files"])),
            tuple([StagedFile(**one | {"rows": tuple(one["rows"])}) for one in content["staged"]]),
            tuple([Lost(**one) for one in content["lost"]]),
            tuple([(path, rows) for path, rows in content["removed"]]),
        )
        for content in found
    ]


def _error(kind: str, message: str, hint: str, details: dict[str, Any]) -> LiftlogError:
    found = getattr(errors, kind, LiftlogError)
    return found(message, hint=hint, **details)
