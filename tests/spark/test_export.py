"""Exports on Spark: its tasks there, what the session reads, and the command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from support.daemons.processes import group_of
from support.spark.exporting import ExportedStreams, Put, table
from support.spark.session import patiently, spark_environment

from liftlog.client import connect_sync
from liftlog.errors import CorruptRange, StorageError
from liftlog.server.vitals.child_processes import tied_to_parent
from liftlog.spark.columns import schema_of
from liftlog.spark.export import newest, query, read
from liftlog.spark.export.job import ExportJob, Summary
from liftlog.spark.export.planning import ExportRequest
from liftlog.spark.options import parse_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[ExportedStreams]:
    with ExportedStreams(tmp_path / "data") as streams:
        streams.create("in")
        yield streams


def export(spark: SparkSession, streams: ExportedStreams, lake: str, **asked: Any) -> Summary:
    from liftlog.spark.export.engine import SparkEngine

    request = ExportRequest("in", lake, **asked)
    options = parse_options({"stream": "in", "server": streams.server})
    told: list[str] = []

    def tell(phase: str, done: int, total: int) -> None:
        assert 0 <= done <= total
        told.append(phase)

    def run() -> Summary:
        return ExportJob(request, options, lambda: SparkEngine(spark), tell=tell).run()

    return patiently(run)


def fill(streams: ExportedStreams, turn: int) -> dict[bytes, bytes | None]:
    """400 messages of 60 keys in groups of 20; every third group without keys."""
    newest: dict[bytes, bytes | None] = {}
    for group in range(20):
        puts = []
        for n in range(20):
            key = None if group % 3 == 0 else f"k{(turn * 7 + group * 13 + n * n) % 60}"
            gone = key is not None and (turn + group + n) % 11 == 0
            puts.append(Put(key, None if gone else b"%d/%d/%d" % (turn, group, n)))
            if key is not None:
                newest[key.encode()] = puts[-1].value
        streams.put("in", puts)
    return newest


@pytest.mark.long
def test_runs_of_many_tasks(spark: SparkSession, streams: ExportedStreams, tmp_path: Path) -> None:
    lake = str(tmp_path / "a lake [of {ours}], 100%*")
    expected: dict[bytes, bytes | None] = {}
    for turn in range(3):
        expected |= fill(streams, turn)
        summary = export(spark, streams, lake, partition_bytes=4096)
        assert summary.full == (turn == 0)
    found = table(lake)
    keyed = {key: value for _, key, value in found if key is not None}
    assert keyed == {key: value for key, value in expected.items() if value is not None}
    assert len([key for _, key, _ in found if key is None]) == 3 * 7 * 20
    frame = read(spark, lake)
    assert frame.columns == ["offset", "timestamp", "subject", "key", "headers", "value"]
    assert frame.count() == len(found) == summary.table_rows
    seen = {row.offset: (row.subject, row.value) for row in frame.collect()}
    assert seen == {offset: ("in", value) for offset, _, value in found}
    files = newest(lake).files
    assert len([file for file in files if file.kind == "keyless"]) > 3
    # Spark pointed at the directory itself finds nothing, instead of every snapshot at once.
    with pytest.raises(Exception, match="UNABLE_TO_INFER_SCHEMA"):
        spark.read.parquet("file://" + str(Path(lake)).replace("[", "\\[").replace("{", "\\{"))


def test_a_thread_that_made_no_session(
    spark: SparkSession, streams: ExportedStreams, tmp_path: Path
) -> None:
    fill(streams, 0)
    lake = str(tmp_path / "lake")
    done: list[Summary] = []
    another = spark.newSession()  # which is not what Java takes where none is active
    thread = threading.Thread(
        target=lambda: done.append(export(another, streams, lake, partition_bytes=4096))
    )
    thread.start()
    thread.join()
    assert done
    assert done[0].table_rows == len(table(lake)) > 0


def test_tasks_on_spark_do_what_they_do_here(
    spark: SparkSession, streams: ExportedStreams, tmp_path: Path
) -> None:
    from support.spark.exporting import Export

    plain = Export(streams, "in", str(tmp_path / "plain"))
    lake = str(tmp_path / "lake")
    for turn, partition_bytes in enumerate((None, 4096, 2048)):
        fill(streams, turn)
        export(spark, streams, lake, partition_bytes=partition_bytes)
        plain()
        assert table(lake) == table(plain.to)
    assert len([file for file in newest(lake).files if file.kind == "keyed"]) > 2
    streams.truncate("in", 500)
    export(spark, streams, lake)
    plain()
    assert table(lake) == table(plain.to)
    assert min(offset for offset, _, _ in table(lake)) >= 500


@pytest.mark.long
def test_what_is_merged_on_read(
    spark: SparkSession, streams: ExportedStreams, tmp_path: Path
) -> None:
    """By tasks on Spark, read by Spark, and by the SQL with its names for the same things."""
    lake = str(tmp_path / "lake")
    values = {f"k{n}": b"first %d" % n for n in range(200)}
    streams.put("in", [Put(key, value) for key, value in values.items()])
    export(spark, streams, lake, layout="merge-on-read", partition_bytes=1024)
    streams.put("in", [Put("k3", b"again"), Put("k5", None), Put(None, b"x")])
    export(spark, streams, lake, partition_bytes=1024)
    assert newest(lake).has_changes
    frame = read(spark, lake)
    assert frame.columns == list(newest(lake).columns)
    rows = [(row.offset, row.key, row.value) for row in frame.collect()]
    assert sorted(rows) == [(n, k and bytes(k), v and bytes(v)) for n, k, v in table(lake)]
    assert len(rows) == 200
    text = re.sub(
        r"read_parquet\(\[(.*?)\], hive_partitioning = false\)",
        lambda found: (
            "("
            + " UNION ALL ".join(
                f"SELECT * FROM parquet.`{name}`" for name in re.findall("'(.*?)'", found[1])
            )
            + ")"
        ),
        query(lake),
    )
    selected = spark.sql(text.replace('"', "`"))
    assert sorted(row.offset for row in selected.collect()) == sorted(row[0] for row in rows)


def test_an_append_of_many_tasks_and_its_errors(
    spark: SparkSession, streams: ExportedStreams, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    fill(streams, 0)
    export(spark, streams, lake, mode="append", partition_bytes=4096)
    assert [offset for offset, _, _ in table(lake)] == list(range(1, 401))
    with connect_sync(f"tcp://{streams.server}") as client:
        client.erase("in", [(5, 6), (300, 310)])
    told = export(spark, streams, lake, partition_bytes=4096)
    assert (told.erased_rows, told.table_rows) == (11, 389)
    assert not {5, 300, 309} & {offset for offset, _, _ in table(lake)}
    streams.damage("in", 190)
    with pytest.raises(CorruptRange) as raised:
        export(spark, streams, lake + "2", mode="append", partition_bytes=4096)
    assert raised.value.first_offset <= 190 < raised.value.next_offset


def test_an_empty_table_is_read(
    spark: SparkSession, streams: ExportedStreams, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    export(spark, streams, lake)
    assert read(spark, lake).count() == 0
    streams.put("in", [Put("a", b"1"), Put("a", None)])
    export(spark, streams, lake)
    assert read(spark, lake).count() == 0


def test_delta(spark: SparkSession, streams: ExportedStreams, tmp_path: Path) -> None:
    lake = str(tmp_path / "a lake")
    expected = fill(streams, 0)
    export(spark, streams, lake, format="delta", partition_bytes=4096)
    expected |= fill(streams, 1)
    export(spark, streams, lake, format="delta", partition_bytes=4096)
    rows = read(spark, lake).where("key IS NOT NULL").collect()
    found = {bytes(row.key): bytes(row.value) for row in rows}
    assert found == {key: value for key, value in expected.items() if value is not None}


def test_a_task_that_fails(spark: SparkSession, tmp_path: Path) -> None:
    """An error in a Python worker, and one in the JVM, is told in one line."""
    from liftlog.errors import LiftlogError, StorageError
    from liftlog.spark.export.buckets import ALL_KEYS
    from liftlog.spark.export.engine import SparkEngine, as_liftlog_error, read_files
    from liftlog.spark.export.merging import MergeTask, MergeWork
    from liftlog.spark.export.snapshot import DataFile

    bad = tmp_path / "keyed-bad.parquet"
    bad.write_bytes(b"PAR1 is not all that it takes PAR1")
    work = MergeWork(str(tmp_path), "runs", ("offset", "key", "value"), 0)
    file = DataFile(bad.name, "keyed", 1, 34, 1, 1)
    gone = replace(file, path="no-such-file")
    for found, said in ((file, "keyed-bad.parquet: Parquet"), (gone, "no-such-file is not there")):
        tasks = [MergeTask(work, ALL_KEYS, (found,), ())] * 2
        with pytest.raises(StorageError, match=said) as raised:
            SparkEngine(spark).run("merge", tasks, lambda phase, done, total: None)
        assert "\n" not in raised.value.message
    lenient = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")
    for name in lenient:
        spark.conf.set(name, "true")
    try:
        with pytest.raises(Exception, match="corrupted file") as corrupted:
            read_files(spark, [str(bad)], work.columns).collect()
    finally:
        for name in lenient:
            spark.conf.unset(name)
    error = as_liftlog_error(corrupted.value)
    assert isinstance(error, LiftlogError)
    assert "\n" not in error.message
    assert "corrupted file" in error.message  # the cause, not only what was called


def test_the_how_to_page(
    spark: SparkSession,
    streams: ExportedStreams,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from support.pages import blocks
    from support.spark.exporting import Export

    lake = Export(streams, "in", str(tmp_path / "orders"))
    streams.put("in", [Put("1", b"{}"), Put("1", b'{"total": 3}'), Put(None, b"x")])
    lake()
    scope: dict[str, Any] = {}
    for example in blocks("how-to/export.md", "python"):
        exec(example.replace("lake/orders", lake.to), scope)
    told = capfd.readouterr().out
    assert '{"total": 3}' in told
    assert "4 2\n" in told


# --- the command ---


def command(*arguments: str) -> list[str]:
    return tied_to_parent([sys.executable, "-m", "liftlog", "export", *arguments])


def environment() -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("LIFTLOG")}
    return {**plain, **spark_environment()}


@pytest.mark.long
def test_kill_9_of_the_command(
    spark: SparkSession, streams: ExportedStreams, tmp_path: Path
) -> None:
    """Between scan and commit; the next run does what the first one would have done."""
    lake = str(tmp_path / "lake")
    fill(streams, 0)
    arguments = ["in", "--to", lake, "--server", f"tcp://{streams.server}", "--master", "local[1]"]
    arguments += ["--partition-size", "1KiB"]  # many tasks, which Spark runs one after another
    process = subprocess.Popen(
        command(*arguments),
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 300
        while not list(Path(lake).glob("_runs/*/staged/*.arrow")):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the driver, its JVM and Python workers
        process.communicate()
    assert newest(lake) is None
    summary = export(spark, streams, lake)
    assert (summary.full, summary.sequence) == (True, 1)
    assert len(os.listdir(f"{lake}/_runs")) == 1
    whole = str(tmp_path / "whole")
    export(spark, streams, whole)
    assert table(lake) == table(whole)


class Interrupted:
    """A real export of many tasks, with its own group of processes."""

    def __init__(self, streams: ExportedStreams, directory: Path) -> None:
        self.lake = directory / "lake"
        self.errors = directory / "errors"
        fill(streams, 0)
        arguments = ["in", "--to", str(self.lake), "--server", f"tcp://{streams.server}"]
        with self.errors.open("wb") as errors:  # a pipe would wait for a JVM that stays
            self.process = subprocess.Popen(
                command(*arguments, "--master", "local[1]", "--partition-size", "1KiB"),
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )

    def wait_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 280
        while not condition():
            assert self.process.poll() is None, self.errors.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def interrupt(self, number: int = signal.SIGINT) -> int:
        """As a terminal does. Returns the exit code when no process of the group is left."""
        try:
            os.killpg(self.process.pid, number)
            code = self.process.wait(60)
            deadline = time.monotonic() + 30
            while left := group_of(self.process.pid):
                assert time.monotonic() < deadline, left
                time.sleep(0.05)
            return code
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def runs_spark(pid: int) -> bool:
    """Before that, the command asks `java` for its version."""
    try:
        return b"org.apache.spark" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seconds", [0, 0.3, 0.8, 2])
def test_a_jvm_that_starts_does_not_stay(
    streams: ExportedStreams, tmp_path: Path, seconds: float, number: signal.Signals
) -> None:
    run = Interrupted(streams, tmp_path)
    run.wait_until(lambda: any(map(runs_spark, group_of(run.process.pid))))
    time.sleep(seconds)  # the moments of its start that are tried
    code = run.interrupt(number)
    assert "Traceback" not in run.errors.read_text()
    assert code == (130 if number == signal.SIGINT else -signal.SIGTERM)
    assert newest(str(run.lake)) is None


@pytest.mark.long
def test_ctrl_c_while_a_job_runs(streams: ExportedStreams, tmp_path: Path) -> None:
    run = Interrupted(streams, tmp_path)
    run.wait_until(lambda: list(run.lake.glob("_runs/*/staged/*.arrow")))
    said = run.errors.read_text()
    assert run.interrupt() == 130
    told = run.errors.read_text().removeprefix(said)
    assert told == "The table is whole. Run the export again to continue.\n"
    assert newest(str(run.lake)) is None
    assert os.listdir(run.lake / "_runs") == []


def test_a_job_is_cancelled_from_another_thread(
    spark: SparkSession, streams: ExportedStreams, tmp_path: Path
) -> None:
    """As when the lease is gone: the session knows tags by thread."""
    from liftlog.spark.export.engine import SparkEngine

    engine = SparkEngine(spark)
    lake = tmp_path / "lake"
    fill(streams, 0)
    request = ExportRequest("in", str(lake), partition_bytes=64)
    options = parse_options({"stream": "in", "server": streams.server})

    def cancel() -> None:
        while not list(lake.glob("_runs/*/staged/*.arrow")):
            time.sleep(0.005)
        engine.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(StorageError, match=r"(?i)cancel"):
        ExportJob(request, options, lambda: engine).run()
    thread.join()
    assert newest(str(lake)) is None


def test_the_command(streams: ExportedStreams, tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    streams.put("in", [Put("a", b"1"), Put("a", b"2"), Put(None, b"3")])
    arguments = ["in", "--to", lake, "--server", f"tcp://{streams.server}", "--json"]
    done = subprocess.run(
        command(*arguments, "--master", "local[1]"),
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["committed"], summary["table_rows"], summary["to_offset"]) == (True, 2, 4)
    assert table(lake) == [(2, b"a", b"2"), (3, None, b"3")]


def test_the_schema_in_the_files(streams: ExportedStreams, tmp_path: Path) -> None:
    import pyarrow.parquet as pq
    from support.spark.exporting import Export

    lake = Export(streams, "in", str(tmp_path / "lake"))
    streams.put("in", [Put("a", b"1")])
    lake()
    (file,) = newest(lake.to).files
    schema = pq.read_schema(Path(lake.to, file.path))
    wanted = schema_of(("offset", "timestamp", "subject", "key", "headers", "value"))
    assert schema.equals(wanted) or pa.unify_schemas([schema, wanted]).equals(wanted)
