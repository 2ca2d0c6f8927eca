"""Spark over a stream: scans, an export, and what the data source needs beside them.

One session, warm: short queries ran 20 times before they are measured, scans of the long stream
three times. The ways take turns in each round.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.daemons.processes import cpu_seconds
from support.spark.session import spark_environment, spark_settings
from support.spark.spark_jar import JarOfSession

from liftlog.server.cleaning.next_segments import SKETCHED_BYTES
from liftlog.spark.export.planning import ExportRequest
from liftlog.spark.options import parse_options

from . import micro_batches
from .budget import Rounds
from .figures import FILES, JAR, JAR_FILES, PARQUET, TUPLES, UNIX, WINDOW, Measurements
from .incremental import incremental
from .lake import SUBJECT
from .processes import TESTS, WorkerFailed, run_worker, settle_disk
from .progress import Progress
from .systems import LIFTLOG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STREAM, _SMALL, _LONG = "orders", "fewer", "long"
_TIMES_LONGER = 8
"""Factor of the stream's length for searches of few records, because a Spark job itself takes a
tenth of a second."""
_SETTLING_RUNS = 20
"""Number of unmeasured runs before short queries are measured. The JVM continues to compile the
code that Spark generates for each query. In the first ten or so queries, this took half of the
processor time."""
_SKETCH_SECONDS = 300.0
_JAVA_OPTIONS = (
    "-XX:+UseParallelGC -Xmn256m "
    "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
)
_COLUMNS = "offset,timestamp,subject,key,value"
_QUERIES = ("scans", "parts", "selections", "streaming", "exports")
PARTS = ("incremental", "decoder", "memory", *_QUERIES, "own-settings")
"""The measured parts, in this order."""


@contextmanager
def session(directory: Path, *, fast: bool = True) -> Iterator[SparkSession]:
    """Yield a session local[2], without the options that make tests start faster but run slower.
    With `fast` it has the settings that docs/how-to/spark.md recommends, otherwise Spark's default
    settings."""
    from pyspark.sql import SparkSession

    path = os.pathsep.join((str(TESTS), spark_environment()["PYTHONPATH"]))
    os.environ.update(spark_environment() | {"PYTHONPATH": path})
    settings = spark_settings(directory) | {
        "spark.driver.memory": "4g",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={directory}",
    }
    if fast:
        settings["spark.python.unix.domain.socket.enabled"] = "true"
        settings["spark.driver.extraJavaOptions"] += f" {_JAVA_OPTIONS}"
    builder = SparkSession.builder.master("local[2]").appName("liftlog benchmark")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def measure(
    directory: Path,
    measured: Measurements,
    progress: Progress,
    *,
    rounds: Rounds,
    records: int,
    only: Collection[str] = PARTS,
) -> None:
    data_dir = directory / "daemon" / "data"
    streams = {_STREAM: records}
    if "memory" in only:
        streams[_SMALL] = records // 4
    if "selections" in only:
        streams[_LONG] = _TIMES_LONGER * records
    sizes = run_worker("lake", _spec("fill", data_dir, streams=streams))["bytes"]
    progress.say(f"{records:,} records in {sizes[_STREAM] / 2**20:,.0f} MiB")
    if "incremental" in only:
        incremental(directory / "changes", measured, progress)
    settle_disk()
    if "decoder" in only:
        decoder(data_dir, measured, progress, rounds=rounds)
    with NatsServer(directory / "nats") as nats:
        socket = directory / "pull.sock"
        listen = {"pull": {"listen": ["tcp://127.0.0.1:0", f"unix://{socket}"]}}
        with Daemon(nats.url, listen, directory=directory / "daemon") as daemon:
            address = daemon.pull_address
            if "memory" in only:
                memory(address, sizes[_SMALL], measured, progress)
            places = _Places(address, f"unix://{socket}", data_dir, directory / "lake", nats.port)
            with session(directory / "spark") as spark:
                queries = _Queries(spark, places, records)
                queries.write_parquet()
                for what in _QUERIES:
                    if what in only:
                        getattr(queries, what)(measured, progress, rounds=rounds)
            if "own-settings" not in only:
                return
            progress.say("once more with Spark's own settings")
            spec = {"places": [str(place) for place in places], "records": records}
            found = run_worker(
                "default_scans",
                spec
                | {
                    "rounds": rounds.most,
                    "seconds": rounds.seconds_left,
                    "directory": str(directory / "plain"),
                },
                timeout=1800,
            )
            for who, what, samples in found["samples"]:
                for sample in samples:
                    measured.add(who, f"{what}-default", sample)


def scan_with_own_settings(spec: dict[str, Any]) -> dict[str, Any]:
    """Run the scans in a separate process, because a JVM keeps the options of its start."""
    tcp, unix, files, lake, nats_port = spec["places"]
    directory = Path(spec["directory"])
    directory.mkdir()
    measured = Measurements()
    with session(directory, fast=False) as spark:
        queries = _Queries(
            spark, _Places(tcp, unix, Path(files), Path(lake), int(nats_port)), spec["records"]
        )
        rounds = Rounds(spec["rounds"], spec["seconds"])
        queries.scans(measured, Progress(quiet=True), rounds=rounds)
    return {"samples": [[who, what, found] for (who, what), found in measured.samples.items()]}


def _spec(mode: str, data_dir: Path, **more: Any) -> dict[str, Any]:
    return {"mode": mode, "data_dir": str(data_dir), **more}


def decoder(data_dir: Path, measured: Measurements, progress: Progress, *, rounds: Rounds) -> None:
    told = run_worker("lake", _spec("decode", data_dir, stream=_STREAM, rounds=2 * rounds.most + 1))
    for way, who, what in (
        ("arrow", LIFTLOG, "decoder"),
        ("tuples", TUPLES, "decoder"),
        ("bare", TUPLES, "decoder-bare"),
    ):
        for seconds in told["seconds"][way]:
            measured.add(who, what, told["records"] / seconds / 1e6)
    progress.say(
        f"decoder {measured.median((LIFTLOG, 'decoder')):.2f} M records/s of CPU time, tuples "
        f"{measured.median((TUPLES, 'decoder')):.2f}, with numbers for timestamps "
        f"{measured.median((TUPLES, 'decoder-bare')):.2f}"
    )


def memory(address: str, small_bytes: int, measured: Measurements, progress: Progress) -> None:
    """Measure tasks that read equal parts: half of the small stream, an eighth of the other
    stream."""
    for compact in (False, True):
        what = "memory-compact" if compact else "memory"
        for stream, name in ((_SMALL, f"{what}-small"), (_STREAM, what)):
            options = {
                "stream": stream,
                "server": address,
                "compact": str(compact).lower(),
                "targetPartitionBytes": str(small_bytes // 2 + 1024),
            }
            told = run_worker("lake", {"mode": "memory", "options": options})
            measured.add(LIFTLOG, name, told["peak_bytes"] / 2**20)
            progress.say(
                f"{what}: {told['peak_bytes'] / 2**20:.0f} MiB for {told['offsets']:,} records, "
                f"one of {told['ranges']} parts"
            )


class _Places(NamedTuple):
    tcp: str
    unix: str
    files: Path
    lake: Path
    nats_port: int


class _Queries:
    def __init__(self, spark: SparkSession, places: _Places, records: int) -> None:
        from .tuples import TupleSource

        self._spark, self._places, self._records = spark, places, records
        self._lake = places.lake
        self._parquet = f"file://{places.lake}/parquet"
        spark.dataSource.register(TupleSource)
        self._jar = JarOfSession(spark)

    def _frame(self, name: str = "liftlog", **where: str) -> DataFrame:
        reader = self._spark.read.format(name)
        where = {"stream": _STREAM, **(where or {"server": self._places.tcp})}
        return reader.options(**where).load()

    def _by_jar(self, **where: str) -> DataFrame:
        with self._jar.used():
            return self._frame(**where)

    def write_parquet(self) -> None:
        self._frame().write.option("compression", "zstd").parquet(self._parquet)

    def scans(self, measured: Measurements, progress: Progress, *, rounds: Rounds) -> None:
        """Read all rows and columns, and drop them."""
        ways: dict[str, Callable[[], DataFrame]] = {
            LIFTLOG: self._frame,
            UNIX: lambda: self._frame(server=self._places.unix),
            FILES: lambda: self._frame(path=str(self._places.files)),
            PARQUET: lambda: self._spark.read.parquet(self._parquet),
            TUPLES: lambda: self._frame("liftlog-tuples"),
            JAR: self._by_jar,
            JAR_FILES: lambda: self._by_jar(path=str(self._places.files)),
        }
        sums = {who: _fingerprint(frame()) for who, frame in ways.items()}
        if len(set(sums.values())) > 1 or sums[LIFTLOG][0] != self._records:
            raise WorkerFailed(f"not all ways give the same rows: {sums}")

        timed = {who: partial(_to_nowhere, frame) for who, frame in ways.items()}
        self._take_turns("scan", timed, measured, progress, rounds)

    def parts(self, measured: Measurements, progress: Progress, *, rounds: Rounds) -> None:
        """Run queries that need few columns or none."""
        ways: dict[str, Callable[[], DataFrame]] = {
            JAR: self._by_jar,
            JAR_FILES: lambda: self._by_jar(path=str(self._places.files)),
            PARQUET: lambda: self._spark.read.parquet(self._parquet),
        }
        for what, ask in (
            ("count", lambda frame: frame.count()),
            ("column", lambda frame: frame.selectExpr("sum(offset)").collect()),
        ):
            timed = {who: partial(_run, ask, frame) for who, frame in ways.items()}
            self._take_turns(what, timed, measured, progress, rounds, settling=_SETTLING_RUNS)

    def selections(self, measured: Measurements, progress: Progress, *, rounds: Rounds) -> None:
        """Select few of many records with all columns, and compare with a read of all records."""
        await_sketches(self._places.files / "streams" / _LONG)
        places = {
            JAR: {"server": self._places.tcp},
            JAR_FILES: {"path": str(self._places.files)},
        }
        with self._jar.used():
            whole = self._frame(**places[JAR_FILES], stream=_LONG)
            [edges] = whole.selectExpr("min(timestamp)", "max(timestamp)").collect()
        hour = edges[0] + (edges[1] - edges[0]) / 24 * 23
        found = {}
        for what, ask in (
            ("long", lambda frame: frame),
            ("long-subject", lambda frame: frame.where(f"subject = '{SUBJECT % 7}'")),
            ("long-hour", lambda frame: frame.where(frame.timestamp >= hour)),
            (
                "long-key",
                lambda frame: frame.where("key = X'637573746F6D65722D3030303031323334'"),
            ),
        ):

            def select(
                where: dict[str, str], ask: Callable[[DataFrame], DataFrame] = ask
            ) -> DataFrame:
                with self._jar.used():
                    return ask(self._frame(**where, stream=_LONG))

            found[what] = {who: select(where).count() for who, where in places.items()}
            timed = {who: partial(_to_nowhere, select, where) for who, where in places.items()}
            self._take_turns(
                what,
                timed,
                measured,
                progress,
                rounds,
                records=_TIMES_LONGER * self._records,
                settling=_SETTLING_RUNS if what != "long" else 3,
            )
        if any(
            len(set(counts.values())) > 1 or not min(counts.values()) for counts in found.values()
        ):
            raise WorkerFailed(f"not both ways give the same rows: {found}")

    def streaming(self, measured: Measurements, progress: Progress, *, rounds: Rounds) -> None:
        directory = self._lake / "queries"

        def stream() -> DataFrame:
            options = {"server": self._places.tcp, "stream": _STREAM}
            options["maxOffsetsPerTrigger"] = str(micro_batches.PER_BATCH)
            return self._spark.readStream.format("liftlog").options(**options).load()

        with self._jar.used():
            micro_batches.throughput(stream, directory, measured, progress, rounds=rounds)
            micro_batches.lag(
                self._spark,
                self._places.tcp,
                self._places.nats_port,
                directory,
                measured,
                progress,
                rounds=rounds,
            )

    def exports(self, measured: Measurements, progress: Progress, *, rounds: Rounds) -> None:
        """Export the newest value of each key as Parquet: by the export job, and by a simple
        query."""
        ways = {LIFTLOG: self._export, WINDOW: self._window}
        sums = {}
        for who, run in ways.items():
            run()
            found = self._spark.read.parquet(*self._written()).select(_COLUMNS.split(","))
            sums[who] = _fingerprint(found)
        if len(set(sums.values())) > 1:
            raise WorkerFailed(f"the exports differ: {sums}")
        self._take_turns("export", ways, measured, progress, rounds, settling=3)

    def _fresh(self) -> Path:
        target = self._lake / "export"
        shutil.rmtree(target, ignore_errors=True)
        return target

    def _written(self) -> list[str]:
        from liftlog.spark.export import paths

        target = self._lake / "export"
        found = paths(str(target)) or [str(target)]
        return [f"file://{one.removeprefix('file://')}" for one in found]

    def _export(self) -> None:
        from liftlog.spark.export.engine import SparkEngine
        from liftlog.spark.export.job import ExportJob

        request = ExportRequest(stream=_STREAM, to=str(self._fresh()), headers=False)
        options = parse_options({"stream": _STREAM, "server": self._places.tcp})
        ExportJob(request, options, lambda: SparkEngine(self._spark)).run()

    def _window(self) -> None:
        from pyspark.sql import Window
        from pyspark.sql import functions as F  # noqa: N812

        alone = F.when(F.col("key").isNull(), F.col("offset"))
        window = Window.partitionBy("key", alone).orderBy(F.col("offset").desc())
        (
            self._frame()
            .withColumn("place", F.row_number().over(window))
            .where("place = 1 AND (key IS NULL OR value IS NOT NULL)")
            .drop("place")
            .write.option("compression", "zstd")
            .parquet(f"file://{self._fresh()}")
        )

    def _take_turns(
        self,
        what: str,
        ways: Mapping[str, Callable[[], None]],
        measured: Measurements,
        progress: Progress,
        rounds: Rounds,
        records: int | None = None,
        settling: int = 1,
    ) -> None:
        for _ in range(settling):
            for run in ways.values():
                run()
        for number in rounds:
            order = list(ways.items())
            for who, run in order if number % 2 else reversed(order):
                started, cpu = time.perf_counter(), cpu_seconds(os.getpid())
                run()
                seconds = time.perf_counter() - started
                measured.add(who, what, (records or self._records) / seconds / 1e6)
                # The JVM and its Python workers are children of this process.
                measured.add(who, f"{what}-cpu", cpu_seconds(os.getpid()) - cpu)
            told = ", ".join(f"{who} {measured.samples[who, what][-1]:.2f}" for who in ways)
            progress.say(f"round {number + 1}/{rounds.most} {what}, M records/s: {told}")


def _run(ask: Callable[[DataFrame], Any], frame: Callable[[], DataFrame]) -> None:
    ask(frame())


def _to_nowhere(frame: Callable[..., DataFrame], *where: dict[str, str]) -> None:
    frame(*where).write.format("noop").mode("overwrite").save()


def await_sketches(directory: Path) -> None:
    """Wait for the sketches, which the daemon makes some seconds after it has found the
    segments."""
    deadline = time.monotonic() + _SKETCH_SECONDS
    newest = max(directory.glob("*.log"))
    while missing := [
        path
        for path in directory.glob("*.log")
        if path != newest
        and path.stat().st_size >= SKETCHED_BYTES
        and not path.with_suffix(".subjects").exists()
    ]:
        if time.monotonic() > deadline:
            raise WorkerFailed(f"the daemon made no sketch or no subject index of {missing}")
        time.sleep(0.1)


def _fingerprint(frame: DataFrame) -> tuple[int, int]:
    [row] = frame.selectExpr("count(*)", f"bit_xor(xxhash64({_COLUMNS}))").collect()
    return row[0], row[1]
