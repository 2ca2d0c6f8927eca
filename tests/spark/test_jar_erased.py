"""The connector in Java leaves erased records out of every read from files, as the Python source
does: before the bytes are removed, after some of them are, and after all are."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.disks.simfs import SimFileSystem
from support.disks.small_runs import index_small_segments
from support.spark.spark_jar import ALL_COLUMNS, jar_rows, python_rows
from support.worlds.rewriting import (
    DIRECTORY,
    Row,
    add,
    compact_once,
    keyed,
    rebatch_file,
    sketch_segments,
)

from liftlog.errors import CorruptMetadata
from liftlog.log import Log
from liftlog.log.erased import ErasedSet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("jar")]

NS = 1_700_000_000_000_000_000
RARE = "sensor.rare"
SUBJECTS = [f"sensor.{number}" for number in range(12)]
CODECS = ("none", "none", "none", "lz4", "zstd")


@pytest.fixture(autouse=True)
def any_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Subject indexes of small segments, too, with short runs."""
    index_small_segments(monkeypatch)


def filled(rng: random.Random, fs: SimFileSystem) -> Log:
    """Sealed segments of batches of all kinds. The first one may have holes of a compaction."""
    log = keyed(fs)
    stamp = NS
    for number in range(rng.randrange(2, 5)):
        for _ in range(rng.randrange(2, 9)):
            with_keys = rng.random() < 0.8
            rows = []
            for _ in range(rng.choice([1, 5, 60, 200])):
                stamp += rng.choice([0, 1000, 60_000_000_000])
                rows.append(
                    Row(
                        stamp,
                        RARE if rng.random() < 0.03 else rng.choice(SUBJECTS),
                        b"k%d" % rng.randrange(40) if with_keys else None,
                        rng.randbytes(rng.choice([0, 20, 400])),
                        b"NATS/1.0\r\nTrace: 1\r\n\r\n" if rng.random() < 0.2 else b"",
                    )
                )
            add(log, [rows], compression=rng.choice(CODECS))
        log.writer.roll()
        if not number and rng.random() < 0.5:
            compact_once(log, fs)
    return log


def erase_some(rng: random.Random, log: Log) -> int:
    """Erase ranges and single records in several steps. Returns how many records are erased."""
    first, end = log.log_start_offset, log.log_end_offset
    for _ in range(rng.randrange(1, 6)):
        ranges = []
        for _ in range(rng.choice([1, 1, 30])):
            at = rng.randrange(first, end)
            ranges.append((at, min(at + rng.choice([1, 1, 1, 7, 120]), end)))
        log.structure.erase(ErasedSet.of_ranges(ranges))
    return len(log.view.erased or ())


def stored(fs: SimFileSystem, log: Log, target: Path) -> str:
    """The stream `orders` below `target`, with fresh sketches and subject indexes."""
    sketch_segments(log, fs, with_subjects=True)
    directory = target / "orders"
    directory.mkdir(parents=True)
    for name in fs.list_directory(DIRECTORY):
        (directory / name).write_bytes(fs.read(DIRECTORY / name))
    return str(directory)


def version(directory: str) -> bytes:
    return (Path(directory) / "manifest").read_bytes().split()[2]


def check_all_reads(spark: SparkSession, rng: random.Random, path: str) -> list[dict[str, Any]]:
    """The jar shows what the Python source shows, by every way of reading. Returns the rows."""
    where = {"path": path, "targetPartitionBytes": rng.choice(["1MiB", "20000"])}
    rows = python_rows(**where, columns=ALL_COLUMNS)
    assert jar_rows(spark, **where, columns=ALL_COLUMNS) == rows
    for columns in ("offset,timestamp", "offset,subject", "offset,key,headers", "offset,value"):
        expected = [{name: row[name] for name in columns.split(",")} for row in rows]
        assert jar_rows(spark, **where, columns=columns) == expected, columns
    frame = spark.read.format("liftlog").options(**where).load()
    assert frame.count() == len(rows)
    middle = rows[len(rows) // 2]["offset"]
    for condition, holds in (
        (f"subject = '{RARE}'", lambda row: row["subject"] == RARE),
        (f"subject = '{SUBJECTS[3]}'", lambda row: row["subject"] == SUBJECTS[3]),
        ("key = X'6B37'", lambda row: row["key"] == b"k7"),
        (f"offset >= {middle}", lambda row: row["offset"] >= middle),
        (
            f"subject IN ('{RARE}', '{SUBJECTS[1]}') AND offset < {middle}",
            lambda row: row["subject"] in (RARE, SUBJECTS[1]) and row["offset"] < middle,
        ),
    ):
        expected = [row for row in rows if holds(row)]
        assert jar_rows(spark, condition, **where, columns=ALL_COLUMNS) == expected, condition
        assert frame.where(condition).count() == len(expected), condition
    stamp = rows[len(rows) // 2]["timestamp"].isoformat()
    for options in (
        {"subject": "sensor.*"},
        {"subject": RARE, "columns": "offset,key"},
        {"compact": "true"},
        {"compact": "true", "subject": SUBJECTS[2]},
        {"startTimestamp": stamp},
        {"startingOffset": middle, "columns": "offset,timestamp"},
    ):
        # In one range: each task of `compact` keeps the newest records of its own range.
        assert jar_rows(spark, path=path, **options) == python_rows(path=path, **options), options
    return rows


@pytest.mark.parametrize(
    "seed", [0, *[pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3)]]
)
def test_random_erasures_before_and_after_the_bytes_are_removed(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    fs = SimFileSystem()
    log = filled(rng, fs)
    all_rows = python_rows(path=stored(fs, log, tmp_path / "all"), columns=ALL_COLUMNS)
    assert erase_some(rng, log) > 5
    erased = log.view.erased
    assert erased is not None
    gone = {offset for first, end in erased.ranges() for offset in range(first, end)}
    left = [row for row in all_rows if row["offset"] not in gone]
    for step in ("hidden", "partly removed", "removed"):
        if step == "partly removed":
            rebatch_file(log, fs, 0, compression=rng.choice(CODECS))
        elif step == "removed":
            for number in range(1, len(log.segments) - 1):
                rebatch_file(log, fs, number, compression=rng.choice(CODECS))
        directory = stored(fs, log, tmp_path / step)
        assert version(directory) == (b"1" if step == "removed" else b"2"), step
        assert check_all_reads(spark, rng, directory) == left, step


def test_micro_batches(spark: SparkSession, tmp_path: Path) -> None:
    fs = SimFileSystem()
    rng = random.Random(5)
    log = filled(rng, fs)
    assert erase_some(rng, log)
    path = stored(fs, log, tmp_path)
    query = (
        spark.readStream.format("liftlog")
        .options(path=path, startingOffset="earliest", maxOffsetsPerTrigger="70")
        .load()
        .writeStream.format("memory")
        .queryName("erased")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    shown = sorted(row.offset for row in spark.table("erased").collect())
    assert shown == [row["offset"] for row in python_rows(path=path)]
    assert len(query.recentProgress) > 2


def test_damaged_erased_files(spark: SparkSession, tmp_path: Path) -> None:
    """One half is enough. Without both, no read shows a record of the range."""
    fs = SimFileSystem()
    log = keyed(fs)
    for number in range(10):
        add(log, [[Row(NS, RARE, b"k%d" % i, b"%d" % number * 50, b"") for i in range(10)]])
    log.writer.roll()
    log.structure.erase(ErasedSet.of_ranges([(42, 43), (47, 49)]))
    path = stored(fs, log, tmp_path)
    [file] = Path(path).glob("*.erased")
    good = file.read_bytes()
    where = {"path": path, "columns": "offset,subject"}
    rows = python_rows(**where)
    assert len(rows) == 97
    for at in (70, 4096 + 70):
        file.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        assert jar_rows(spark, **where) == rows
    file.write_bytes(bytes(len(good)))
    for fail in ("true", "false"):
        with pytest.raises(CorruptMetadata) as expected:
            python_rows(**where, failOnDataLoss=fail)
        with pytest.raises(Exception, match="CORRUPT_METADATA") as found:
            jar_rows(spark, **where, failOnDataLoss=fail)
        assert str(expected.value) in str(found.value)
        with pytest.raises(Exception, match=r"CORRUPT_METADATA.*\[42, 49\)"):
            jar_rows(spark, f"subject = '{RARE}'", **where, failOnDataLoss=fail)
    assert jar_rows(spark, "offset < 41", **where) == [one for one in rows if one["offset"] < 41]
    file.unlink()
    with pytest.raises(Exception, match=r"CORRUPT_METADATA.*\[42, 49\)"):
        jar_rows(spark, **where)
