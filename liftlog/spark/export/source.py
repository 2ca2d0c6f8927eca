"""What Spark runs to get tasks done: a source whose rows are what they tell.

Spark pickles these classes by their names: every host of a cluster needs liftlog installed. What
passes to them are options, which are text.
"""

from __future__ import annotations

import pickle
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StringType, StructField, StructType

from liftlog.spark.export.tasks import Task, perform

TOLD = "told"

_ROWS = pa.schema([pa.field(TOLD, pa.utf8())])


def pack(tasks: Sequence[Task]) -> str:
    """For an option; unpacked by the same liftlog in the same job."""
    return b64encode(pickle.dumps(list(tasks))).decode()


class TasksSource(DataSource):
    """Runs each task of the option `tasks`, packed."""

    @classmethod
    def name(cls) -> str:
        return "liftlog_export_tasks"

    def schema(self) -> StructType:
        return StructType([StructField(TOLD, StringType())])

    def reader(self, schema: StructType) -> TasksReader:
        # Made by `pack`, on the driver of this job.
        return TasksReader(pickle.loads(b64decode(self.options["tasks"])))


@dataclass
class OneTask(InputPartition):
    number: int
    task: Task


class TasksReader(DataSourceReader):
    def __init__(self, tasks: Sequence[Task]) -> None:
        self._partitions: list[InputPartition] = [
            OneTask(number, task) for number, task in enumerate(tasks)
        ]

    def __reduce__(self) -> tuple[type[TasksReader], tuple[Sequence[Task]]]:
        """Without the tasks, of which Spark sends one beside it."""
        return TasksReader, ((),)

    def partitions(self) -> list[InputPartition]:
        return self._partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, OneTask):
            told = perform(partition.number, partition.task)
            yield pa.RecordBatch.from_pydict({TOLD: [told]}, schema=_ROWS)
