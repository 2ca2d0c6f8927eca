"""Runs the tasks of an export on Spark: local or on a cluster, with or without Connect.

Spark runs the tasks as a data source: each row is the result of one task. Spark pickles the
source's classes by their names, so liftlog must be installed on every host of a cluster. The tasks
are passed in an option, as text.
"""

from __future__ import annotations

import pickle
import re
import threading
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.functions import broadcast
from pyspark.sql.types import StringType, StructField, StructType

from liftlog import errors
from liftlog.errors import LiftlogError, StorageError
from liftlog.spark.batch import calm_garbage_collector
from liftlog.spark.columns import OFFSET
from liftlog.spark.export.interrupts import run_cancellable
from liftlog.spark.export.opening import newest, nothing_in, paths_of
from liftlog.spark.export.store import is_url
from liftlog.spark.export.tasks import Task, TaskResult, Tell, perform, results
from liftlog.spark.options import parse_options
from liftlog.spark.source import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOLD = "told"

_BROADCAST_ROWS = 4_000_000
"""Maximum number of offsets that are broadcast to each executor (about 100 MiB). More offsets are
shuffled."""

_ROWS = pa.schema([pa.field(TOLD, pa.utf8())])
_PROGRESS_SECONDS = 0.2
_FAILURES = (PySparkException, Py4JError, ConnectionError)
"""Errors of Spark, of its JVM, and of the connection to a JVM that has ended."""


class SparkEngine:
    """Runs tasks on the session's executors, one job at a time. Ctrl-C cancels the job."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._tag = f"liftlog-export-{uuid.uuid4().hex}"
        self._registered = False

    def run(self, phase: str, tasks: Sequence[Task], tell: Tell) -> list[TaskResult]:
        return run_cancellable(lambda: self._run(phase, tasks, tell), self.cancel)

    def _run(self, phase: str, tasks: Sequence[Task], tell: Tell) -> list[TaskResult]:
        with self._watched(phase, tell):
            if not self._registered:  # done only once, because Spark starts Python processes for it
                self._spark.dataSource.register(TasksSource)
                self._registered = True
            reader = self._spark.read.format(TasksSource.name())
            rows = reader.options(tasks=pack(tasks)).load().collect()
        return results(tasks, [row[0] for row in rows])

    def cancel(self) -> None:
        """Cancel the running job. Any thread may call this. A job that begins after this call is
        not affected."""
        context = _context_of(self._spark)
        with suppress(*_FAILURES):  # in this case the job fails by itself
            if context is None:
                self._spark.interruptTag(self._tag)
            else:  # over Connect, a session only knows the tags of the calling thread
                context.cancelJobsWithTag(self._tag)

    @contextmanager
    def _watched(self, phase: str, tell: Tell) -> Iterator[None]:
        """Tag the job in the block, so that it can be cancelled. Reports finished tasks, and
        converts Spark's errors."""
        over = threading.Event()
        watch = threading.Thread(
            target=_tell_progress, args=(self._spark, phase, tell, over), daemon=True
        )
        try:
            # Spark looks up data sources in the session of the calling thread. Only the thread that
            # created the session has this setting, so this call sets it for the present thread.
            self._spark.createDataFrame([], "nothing int")
            self._add_tag()
            watch.start()
            try:
                yield
            finally:
                over.set()
                watch.join()
                with suppress(*_FAILURES):  # the JVM has ended, and the cause is already reported
                    self._remove_tag()
        except _FAILURES as error:
            raise as_liftlog_error(error) from error

    def _add_tag(self) -> None:
        context = _context_of(self._spark)
        if context is None:
            self._spark.addTag(self._tag)
        else:
            context.addJobTag(self._tag)
            context.setInterruptOnCancel(True)  # when tasks are cancelled, they write nothing more

    def _remove_tag(self) -> None:
        context = _context_of(self._spark)
        if context is None:
            self._spark.removeTag(self._tag)
        else:
            context.removeJobTag(self._tag)
            context.setInterruptOnCancel(False)


def pack(tasks: Sequence[Task]) -> str:
    """Return the tasks as text for an option. The same version of liftlog unpacks them in the same
    job."""
    return b64encode(pickle.dumps(list(tasks))).decode()


class TasksSource(DataSource):
    """Runs each task of the option `tasks`, which `pack` made."""

    @classmethod
    def name(cls) -> str:
        return "liftlog_export_tasks"

    def schema(self) -> StructType:
        return StructType([StructField(TOLD, StringType())])

    def reader(self, schema: StructType) -> TasksReader:
        calm_garbage_collector()
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
        """Pickle the reader without its tasks, because Spark sends the task to run separately."""
        return TasksReader, ((),)

    def partitions(self) -> list[InputPartition]:
        return self._partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        calm_garbage_collector()
        if isinstance(partition, OneTask):
            told = perform(partition.number, partition.task)
            yield pa.RecordBatch.from_pydict({TOLD: [told]}, schema=_ROWS)


def read_snapshot(spark: SparkSession, directory: str) -> DataFrame:
    """Return the newest snapshot as a DataFrame: see `liftlog.spark.export.read`."""
    snapshot = newest(directory)
    if snapshot is None:
        raise nothing_in(directory)
    columns = snapshot.columns
    whole = [file for file in snapshot.files if not file.removed_rows]
    rest = [file for file in snapshot.files if file.removed_rows]
    if not rest:
        return read_files(spark, paths_of(directory, whole), columns)
    removed = read_files(spark, paths_of(directory, snapshot.removed), (OFFSET,))
    if sum(file.rows for file in snapshot.removed) <= _BROADCAST_ROWS:
        removed = broadcast(removed)
    live = read_files(spark, paths_of(directory, rest), columns).join(removed, OFFSET, "left_anti")
    live = live.select(*columns)
    return read_files(spark, paths_of(directory, whole), columns).unionAll(live) if whole else live


def read_files(spark: SparkSession, names: Sequence[str], columns: Sequence[str]) -> DataFrame:
    schema = spark_schema(parse_options({"stream": "any", "columns": ",".join(columns)}))
    if not names:
        return spark.createDataFrame([], schema)
    # Overrides settings of the session that skip unreadable files, because the rows of such files
    # would be missing.
    strict = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
    return spark.read.schema(schema).options(**strict).parquet(*map(hadoop_path, names))


def hadoop_path(name: str) -> str:
    """Return the path in the form that Spark needs: Spark treats paths as patterns, and looks for a
    path without a scheme in the cluster's file system."""
    name = re.sub(r"([\\{}\[\]*?,])", r"\\\1", name)
    if is_url(name):
        return re.sub("^s3://", "s3a://", name)
    return f"file://{name}"


def as_liftlog_error(error: Exception) -> LiftlogError:
    """Return the error of a task, parsed from the text of Spark's error."""
    text = str(error)
    told = re.findall(r"liftlog\.errors\.(\w+): ([^\n]+)", text)
    if told:
        kind, message = told[-1]
        found = getattr(errors, kind, LiftlogError)
        try:
            return found(message)
        except TypeError:  # its constructor needs offsets; the message contains them
            return LiftlogError(message)
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    cause = _deepest_cause(text)
    if cause not in first:
        first = f"{first.rstrip(':')}: {cause}"
    return StorageError(f"Spark failed: {first}", hint="see its log; --debug shows the whole error")


def _deepest_cause(text: str) -> str:
    """Return the most specific line of the stack traces of Java, and of Python inside them. Empty
    if the text has no such line."""
    found: list[str] = []
    for pattern in (
        r"^: (\S[^\n]*)",
        r"^\s*Caused by: ([^\n]*[^\s:])",
        r"^Traceback \(most recent call last\):\n(?:[ \t][^\n]*\n|\n)*(\S[^\n]*)",
    ):
        found += re.findall(pattern, text, re.MULTILINE)[-1:]
    return found[-1] if found else ""


def _tell_progress(spark: Any, phase: str, tell: Tell, over: threading.Event) -> None:
    """Report the number of finished tasks of all jobs of the session. Reports nothing over Connect,
    which does not provide this number."""
    count = _task_counter(spark)
    while count is not None and not over.wait(_PROGRESS_SECONDS):
        try:
            done, total = count()
        except _FAILURES:  # the job itself reports the error in more detail
            return
        if total:
            tell(phase, done, total)


def _context_of(spark: Any) -> Any:
    """Return the session's SparkContext; None over Connect, which has no SparkContext."""
    try:
        return spark.sparkContext
    except (PySparkException, AttributeError):
        return None


def _task_counter(spark: Any) -> Callable[[], tuple[int, int]] | None:
    context = _context_of(spark)
    if context is None:
        return None
    tracker = context.statusTracker()

    def count() -> tuple[int, int]:
        done = total = 0
        for job in tracker.getActiveJobsIds():
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info is not None else ():
                found = tracker.getStageInfo(stage)
                if found is not None:
                    done += found.numCompletedTasks
                    total += found.numTasks
        return done, total

    return count
