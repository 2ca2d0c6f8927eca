"""The work of an export on Spark, local or on a cluster, with or without Connect."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812  # what everyone calls it

from liftlog import errors
from liftlog.errors import LiftlogError, StorageError, StreamNotFound
from liftlog.spark.columns import KEY, OFFSET, VALUE
from liftlog.spark.export.job import Tell
from liftlog.spark.export.merging import MergeWork, adopt
from liftlog.spark.export.reading import newest, paths_of
from liftlog.spark.export.scanning import RangeResult, ScanWork, decode_result
from liftlog.spark.export.snapshot import DataFile, Kind
from liftlog.spark.export.source import RangesSource, pack
from liftlog.spark.export.store import is_url, join, open_store
from liftlog.spark.options import parse_options
from liftlog.spark.source import spark_schema
from liftlog.spark.transport import ScanRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PROGRESS_SECONDS = 0.2
_FAILURES = (PySparkException, Py4JError, ConnectionError)
"""Of Spark, of its JVM, and of the way to a JVM that is gone."""


class SparkEngine:
    """Runs on the session's executors; one job at a time."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._tag = f"liftlog-export-{uuid.uuid4().hex}"
        self._registered = False

    def scan(self, work: ScanWork, ranges: Sequence[ScanRange], tell: Tell) -> list[RangeResult]:
        with self._watched("scan", tell):
            if not self._registered:  # Spark starts Python processes for that
                self._spark.dataSource.register(RangesSource)
                self._registered = True
            frame = (
                self._spark.read.format(RangesSource.name())
                .options(work=pack(work), ranges=pack(list(ranges)))
                .load()
            )
            return [decode_result(row[0]) for row in frame.collect()]

    def merge(self, work: MergeWork, tell: Tell) -> list[DataFile]:
        store = open_store(work.table)
        names = [join(store.uri, file.path) for file in work.inputs]
        # Most often all have keys; then it need not be asked.
        kinds: list[Kind] = ["keyed"]
        if any(file.kind != "keyed" for file in work.inputs):
            kinds.append("keyless")
        files: list[DataFile] = []
        with self._watched("merge", tell), _microseconds(self._spark):
            frame = newest_rows(read_files(self._spark, names, work.columns), work.log_start_offset)
            for kind in kinds:
                chosen = frame
                if len(kinds) > 1:
                    key = F.col(KEY)
                    chosen = frame.where(key.isNull() if kind == "keyless" else key.isNotNull())
                produced = join(work.directory, f"merged-{kind}")
                path = hadoop_path(join(store.uri, produced), is_pattern=False)
                chosen.write.option("compression", "zstd").parquet(path)
                files += adopt(store, produced, work.directory, kind)
        return files

    def cancel(self) -> None:
        self._spark.interruptTag(self._tag)

    @contextmanager
    def _watched(self, phase: str, tell: Tell) -> Iterator[None]:
        """Tagged, so that it can be cancelled; its tasks are counted; its errors are ours."""
        # Spark looks data sources up in the session of the calling thread, which has none unless
        # the session was made there; this says which.
        self._spark.createDataFrame([], "nothing int")
        self._spark.addTag(self._tag)
        over = threading.Event()
        watch = threading.Thread(
            target=_tell_progress, args=(self._spark, self._tag, phase, tell, over), daemon=True
        )
        watch.start()
        try:
            yield
        except _FAILURES as error:
            raise as_liftlog_error(error) from error
        finally:
            over.set()
            watch.join()
            self._spark.removeTag(self._tag)


def newest_rows(frame: DataFrame, log_start_offset: int) -> DataFrame:
    """The newest row of each key unless it is a tombstone, and all rows without a key."""
    from pyspark.sql import Window

    # Rows without a key would all be one group, in one task; so each is a group of its own.
    alone = F.when(F.col(KEY).isNull(), F.col(OFFSET))
    window = Window.partitionBy(F.col(KEY), alone).orderBy(F.col(OFFSET).desc())
    return (
        frame.where(F.col(OFFSET) >= log_start_offset)
        .withColumn("_place", F.row_number().over(window))
        .where("_place = 1")
        .drop("_place")
        .where(F.col(KEY).isNull() | F.col(VALUE).isNotNull())
    )


def read_snapshot(spark: SparkSession, directory: str) -> DataFrame:
    """See `liftlog.spark.export.read`."""
    snapshot = newest(directory)
    if snapshot is None:
        raise StreamNotFound(
            f"{directory} holds no export", hint="run `liftlog export STREAM --to DIR` first"
        )
    return read_files(spark, paths_of(directory, snapshot), snapshot.columns)


def read_files(spark: SparkSession, names: Sequence[str], columns: Sequence[str]) -> DataFrame:
    schema = spark_schema(parse_options({"stream": "any", "columns": ",".join(columns)}))
    if not names:
        return spark.createDataFrame([], schema)
    # Whatever the session says: a file that is passed over is rows that are lost.
    strict = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
    return spark.read.schema(schema).options(**strict).parquet(*map(hadoop_path, names))


def hadoop_path(name: str, *, is_pattern: bool = True) -> str:
    """Spark takes what it reads for patterns, and paths without a scheme for the cluster's file
    system."""
    if is_pattern:
        name = re.sub(r"([\\{}\[\]*?,])", r"\\\1", name)
    if is_url(name):
        return re.sub("^s3://", "s3a://", name)
    return f"file://{name}"


@contextmanager
def _microseconds(spark: SparkSession) -> Iterator[None]:
    """Stamps are written as everybody reads them, not as Hive once did."""
    name = "spark.sql.parquet.outputTimestampType"
    before = spark.conf.get(name)
    spark.conf.set(name, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        if before is not None:
            spark.conf.set(name, before)


def as_liftlog_error(error: Exception) -> LiftlogError:
    """What failed in a task, found in what Spark tells of it."""
    text = str(error)
    told = re.findall(r"liftlog\.errors\.(\w+): ([^\n]+)", text)
    if told:
        kind, message = told[-1]
        found = getattr(errors, kind, LiftlogError)
        try:
            return found(message)
        except TypeError:  # it wants offsets, which are in the message
            return LiftlogError(message)
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    cause = _deepest_cause(text)
    if cause not in first:
        first = f"{first.rstrip(':')}: {cause}"
    return StorageError(f"Spark failed: {first}", hint="its log has more; --debug shows all of it")


def _deepest_cause(text: str) -> str:
    """The line that says most, of Java's traces and of Python's in them; empty without one."""
    found: list[str] = []
    for pattern in (
        r"^: (\S[^\n]*)",
        r"^\s*Caused by: ([^\n]*[^\s:])",
        r"^Traceback \(most recent call last\):\n(?:[ \t][^\n]*\n|\n)*(\S[^\n]*)",
    ):
        found += re.findall(pattern, text, re.MULTILINE)[-1:]
    return found[-1] if found else ""


def _tell_progress(spark: Any, tag: str, phase: str, tell: Tell, over: threading.Event) -> None:
    """Tasks of the tagged jobs that are done; nothing over Connect, which has no such count."""
    count: Callable[[], tuple[int, int]] | None = _task_counter(spark, tag)
    while count is not None and not over.wait(_PROGRESS_SECONDS):
        try:
            done, total = count()
        except _FAILURES:  # the job tells better what is wrong
            return
        if total:
            tell(phase, done, total)


def _task_counter(spark: Any, tag: str) -> Callable[[], tuple[int, int]] | None:
    try:
        tracker = spark.sparkContext.statusTracker()
    except (PySparkException, AttributeError):
        return None

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
