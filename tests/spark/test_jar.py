"""The connector of `spark-connector/` against the Python source: the same rows, the same errors."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from crc32c import crc32c
from pyspark.errors import IllegalArgumentException
from support.disks.simfs import SimFileSystem
from support.disks.stored_logs import batch_positions, flip
from support.repository import REPOSITORY
from support.spark.spark_jar import (
    ALL_COLUMNS,
    executed_plan,
    hadoop_of,
    jar_rows,
    partition_count,
    python_rows,
)
from support.worlds.rewriting import (
    DIRECTORY,
    Row,
    add,
    compact_once,
    keyed,
    rebatch_file,
    sketch_segments,
)

from liftlog.errors import InvalidArgument, LiftlogError
from liftlog.records.format import HEADER_SIZE
from liftlog.spark.options import parse_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("jar")]

NS = 1_700_000_000_000_000_000
GOLDEN = REPOSITORY / "tests/golden/records"
METRICS = ("liftlogBatches", "liftlogBytes", "liftlogRecords", "liftlogLostOffsets")
CODECS = ("none", "lz4", "zstd")


def random_row(rng: random.Random, stamp: int) -> Row:
    subject = rng.choice(["orders.eu", "orders.us", "wages", "größe.ü", "a.b.c.d"])
    key = rng.choice([None, b"", b"k%d" % rng.randrange(30), rng.randbytes(rng.randrange(40))])
    value = rng.choice(
        [
            None if key is not None else b"x",
            b"",
            bytes(rng.randrange(200)),
            rng.randbytes(rng.randrange(100)),
            b"text " * rng.randrange(60),
            b"\0" * rng.randrange(20_000) if rng.random() < 0.05 else b"1",
        ]
    )
    headers = rng.choice(
        [
            b"",
            b"",
            b"NATS/1.0\r\n\r\n",
            b"NATS/1.0\r\nTrace: 1\r\nTrace:\xff2 \r\nempty:\r\n: none\r\nno colon\r\n\r\n",
            b"NATS/1.0 503\r\na\xff\xfeb:\t v:w \r\n\r\n",
        ]
    )
    return Row(stamp, subject, key, value, headers)


def random_log(rng: random.Random, target: Path, *, sketched: bool = False) -> Path:
    """A stream's directory with sealed segments of all kinds of batches; some were compacted or
    batched again. Returns it."""
    fs = SimFileSystem()
    log = keyed(fs)
    stamp = NS
    for _ in range(rng.randrange(1, 5)):
        for _ in range(rng.randrange(1, 6)):
            rows = []
            for _ in range(rng.choice([1, 1, 3, 17, 200])):
                stamp += rng.choice([0, 0, 1000, 7_000, 3_600_000_000_000])
                rows.append(random_row(rng, stamp - rng.choice([0, 0, 500_000])))
            add(log, [rows], compression=rng.choice(CODECS))
        log.writer.roll()
        if rng.random() < 0.4:
            compact_once(log, fs, compression=rng.choice(CODECS))
        elif rng.random() < 0.5:
            rebatch_file(log, fs, 0, compression=rng.choice(CODECS))
    if sketched:
        sketch_segments(log, fs)
    return written(fs, target)


def written(fs: SimFileSystem, target: Path) -> Path:
    """The stream's files, on the disk. Returns their directory."""
    target.mkdir(parents=True)
    for name in fs.list_directory(DIRECTORY):
        (target / name).write_bytes(fs.read(DIRECTORY / name))
    return target


def test_random_histories_give_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    seen = 0
    for seed in range(8):
        rng = random.Random(seed)
        where = {"path": str(random_log(rng, tmp_path / f"s{seed}")), "columns": ALL_COLUMNS}
        size = rng.choice(["1MiB", "64KiB", "2000"])
        found = jar_rows(spark, **where, targetPartitionBytes=size)
        assert found == python_rows(**where)
        seen += len(found)
    assert seen > 1000


def test_the_golden_directory(spark: SparkSession) -> None:
    where = {"path": str(GOLDEN / "data/streams/orders"), "columns": ALL_COLUMNS}
    with pytest.raises(LiftlogError) as expected:
        python_rows(**where)
    with pytest.raises(Exception, match=expected.value.name) as raised:
        jar_rows(spark, **where)
    assert str(expected.value) in str(raised.value)
    left = python_rows(**where, failOnDataLoss="false")
    assert left
    assert jar_rows(spark, **where, failOnDataLoss="false") == left


def test_damage_is_told_or_skipped_as_by_python(spark: SparkSession, tmp_path: Path) -> None:
    skipped = 0
    for seed in range(8):
        rng = random.Random(1000 + seed)
        directory = random_log(rng, tmp_path / f"s{seed}")
        where: dict[str, Any] = {"path": str(directory), "columns": "offset,key,value"}
        whole = python_rows(**where)
        for path in rng.sample(sorted(directory.glob("*.log")), 1):
            places = batch_positions(path)
            for position, header in rng.sample(places, min(2, len(places))):
                flip(path, position + rng.choice([8, 20, 40, 64, header.length - 1]))
        if rng.random() < 0.3:
            for index in directory.glob("*.index"):
                index.unlink()
        left = python_rows(**where, failOnDataLoss="false")
        assert jar_rows(spark, **where, failOnDataLoss="false") == left
        if len(left) == len(whole):  # the active segment, or a batch without records
            continue
        skipped += 1
        with pytest.raises(Exception, match="CORRUPT_RANGE") as raised:
            jar_rows(spark, **where)
        with pytest.raises(Exception, match=r"\[\d+, \d+\)") as expected:
            python_rows(**where)
        assert str(expected.value) in str(raised.value)
    assert skipped > 2


def test_hints_of_neighbours_mislead_no_one(spark: SparkSession, tmp_path: Path) -> None:
    """Each segment gets the derived files of the next one, and then directories of these names."""
    directory = random_log(random.Random(5), tmp_path / "orders")
    where: dict[str, Any] = {"path": str(directory), "columns": ALL_COLUMNS}
    whole = python_rows(**where)
    stamp = whole[len(whole) // 2]["timestamp"].isoformat()
    asked: list[dict[str, Any]] = [{}, {"targetPartitionBytes": "2000"}, {"startTimestamp": stamp}]
    expected = [python_rows(**where, **more) for more in asked]
    for suffix in (".index", ".sketch", ".subjects"):
        paths = sorted(directory.glob(f"*{suffix}"))
        contents = [path.read_bytes() for path in paths]
        for path, content in zip(paths, contents[1:] + contents[:1], strict=True):
            path.write_bytes(content)
    for more, rows in zip(asked, expected, strict=True):
        assert jar_rows(spark, **where, **more) == rows
        assert python_rows(**where, **more) == rows
    for path in [*directory.glob("*.index"), *directory.glob("*.sketch")]:
        path.unlink()
        path.mkdir()
    for more, rows in zip(asked, expected, strict=True):
        assert jar_rows(spark, **where, **more) == rows
        assert python_rows(**where, **more) == rows


def test_conditions(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(11)
    where: dict[str, Any] = {"path": str(random_log(rng, tmp_path / "orders"))}
    everything = python_rows(**where)
    assert len(everything) > 300
    middle = everything[len(everything) // 2]["offset"]
    stamp = everything[len(everything) // 2]["timestamp"]
    moment = f"timestamp_micros({round(stamp.timestamp() * 1_000_000)})"
    for condition, holds in (
        (f"offset >= {middle} AND offset < {middle + 40}", lambda o: middle <= o < middle + 40),
        (f"{middle} < offset", lambda o: o > middle),
        (f"offset = {middle}", lambda o: o == middle),
        (f"offset <= {middle} AND offset > 9223372036854775806", lambda o: False),
    ):
        expected = [row for row in everything if holds(row["offset"])]
        assert jar_rows(spark, condition, **where) == expected
    for condition, chosen in (
        ("subject = 'wages'", [row for row in everything if row["subject"] == "wages"]),
        ("subject = 'größe.ü'", [row for row in everything if row["subject"] == "größe.ü"]),
        ("subject = 'orders.*'", []),
        ("key = X'6B33'", [row for row in everything if row["key"] == b"k3"]),
        ("key = X''", [row for row in everything if row["key"] == b""]),
        (
            f"timestamp >= {moment}",
            [r for r in everything if r["timestamp"] >= stamp],
        ),
        (
            f"timestamp < {moment}",
            [r for r in everything if r["timestamp"] < stamp],
        ),
        (
            f"timestamp = {moment}",
            [r for r in everything if r["timestamp"] == stamp],
        ),
    ):
        assert jar_rows(spark, condition, **where) == chosen, condition
    in_names = ("wages", "größe.ü")
    for condition, holds_of in (
        ("subject IN ('wages', 'größe.ü', 'none')", lambda row: row["subject"] in in_names),
        ("key IN (X'6B33', X'6B34', X'')", lambda row: row["key"] in (b"k3", b"k4", b"")),
        ("key IN (NULL, X'6B33')", lambda row: row["key"] == b"k3"),
        (
            "subject = 'wages' OR subject = 'größe.ü' OR key = X'6B33'",
            lambda row: row["subject"] in in_names or row["key"] == b"k3",
        ),
        (
            f"subject = 'wages' OR offset IN ({middle}, {middle + 3})",
            lambda row: row["subject"] == "wages" or row["offset"] in (middle, middle + 3),
        ),
        (
            f"offset IN ({middle}, {middle + 3}) OR timestamp = {moment}",
            lambda row: row["offset"] in (middle, middle + 3) or row["timestamp"] == stamp,
        ),
        ("subject LIKE 'ord%'", lambda row: row["subject"].startswith("ord")),
        ("subject LIKE 'gr%' OR subject = 'wages'", lambda row: row["subject"] in in_names),
        (
            "subject IN ('wages', 'größe.ü') AND subject LIKE 'w%' AND key IS NOT NULL",
            lambda row: row["subject"] == "wages" and row["key"] is not None,
        ),
        ("NOT (subject = 'wages')", lambda row: row["subject"] != "wages"),
    ):
        rows = [row for row in everything if holds_of(row)]
        assert rows, condition
        assert jar_rows(spark, condition, **where) == rows, condition


def test_columns_compact_sql_and_another_file_system(spark: SparkSession, tmp_path: Path) -> None:
    where: dict[str, Any] = {"path": str(random_log(random.Random(11), tmp_path / "orders"))}
    everything = python_rows(**where)
    middle = everything[len(everything) // 2]["offset"]
    stamp = everything[len(everything) // 2]["timestamp"]
    for options in (
        {"subject": "orders.*"},
        {"subject": "*.b.>", "columns": "offset,value"},
        {"columns": "stream,offset"},
        {"startingOffset": middle, "endingOffset": middle + 10},
        {"startTimestamp": stamp.isoformat()},
        {"compact": "true"},
        {"compact": "true", "subject": "orders.eu"},
    ):
        assert jar_rows(spark, **where, **options) == python_rows(**where, **options), options
    frame = spark.read.format("liftlog").options(**where).load()
    assert frame.count() == len(everything)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW by_jar USING liftlog OPTIONS (path '{where['path']}')"
    )
    plan = spark.sql("EXPLAIN SELECT key FROM by_jar WHERE offset > 5").collect()[0][0]
    assert "columns=offset,key" in plan
    assert "Python" not in plan
    assert spark.sql("SELECT count(*) FROM by_jar").collect()[0][0] == len(everything)
    # Another file system, as far as Hadoop knows.
    hadoop = hadoop_of(spark)
    hadoop.set("fs.viewfs.mounttable.elsewhere.link./logs", tmp_path.as_uri())
    assert jar_rows(spark, path="viewfs://elsewhere/logs/orders") == everything
    with pytest.raises(Exception, match=r"INVALID_ARGUMENT.*is not a directory on this host"):
        jar_rows(spark, path="viewfs://elsewhere/logs/none")
    assert frame.selectExpr("count(value)").collect()[0][0] == sum(
        row["value"] is not None for row in everything
    )


def test_one_subject_of_many_in_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Up to 40,000 subjects, each of which has a record at any place of four."""
    fs = SimFileSystem()
    log = keyed(fs)
    for count in (1, 3, 4, 6, 40_000):
        rows = [Row(NS, f"s.{i}", b"k", b"%d" % i, b"") for i in range(count)]
        again = [i for i in (0, 2, 5, 32_768, 39_999) if i < count]
        rows += [Row(NS, f"s.{i}", b"k", b"again", b"") for i in again]
        add(log, [rows])
    log.writer.roll()
    target = written(fs, tmp_path / "orders")
    where: dict[str, Any] = {"path": str(target), "columns": "offset,subject,value"}
    everything = python_rows(**where)
    for number in (0, 1, 2, 3, 5, 6, 32_767, 32_768, 39_998, 39_999, 40_000):
        expected = [row for row in everything if row["subject"] == f"s.{number}"]
        assert bool(expected) == (number < 40_000)
        assert jar_rows(spark, f"subject = 's.{number}'", **where) == expected
    for some in (("s.2", "s.5"), ("s.39999", "s.1", "none"), ("s.4", "s")):
        expected = [row for row in everything if row["subject"] in some]
        assert jar_rows(spark, f"subject IN {some}", **where) == expected


@pytest.mark.parametrize("count", [3, 4, 9, 40_000])
def test_a_subject_id_beyond_the_dictionary(
    spark: SparkSession, tmp_path: Path, count: int
) -> None:
    """Of a writer that was wrong: the checksums fit."""
    fs = SimFileSystem()
    log = keyed(fs)
    add(log, [[Row(NS, f"s.{i % 3 if count < 10 else i}", b"k", b"", b"") for i in range(count)]])
    log.writer.roll()
    target = written(fs, tmp_path / "orders")
    [path] = [one for one in target.glob("*.log") if one.stat().st_size]
    entries = min(count, 3) if count < 10 else count
    where: dict[str, Any] = {"path": str(target), "columns": "offset,subject"}
    good = path.read_bytes()
    ids = [i % 3 if count < 10 else i for i in range(count)]
    at = good.index(struct.pack(f"<{count}H", *ids))
    for record in {0, count // 2, count - 1}:
        bad = bytearray(good)
        struct.pack_into("<H", bad, at + 2 * record, entries)
        path.write_bytes(sealed(bad))
        for condition in ("", "subject = 's.1'", "subject IN ('s.1', 's.2')"):
            with pytest.raises(Exception, match="outside the dictionary"):
                jar_rows(spark, condition, **where)
    path.write_bytes(good)
    assert len(jar_rows(spark, **where)) == count


def sealed(raw: bytearray) -> bytes:
    """One batch, with checksums that are right, whatever the rest says."""
    struct.pack_into("<I", raw, 56, crc32c(raw[HEADER_SIZE:]))
    struct.pack_into("<I", raw, 60, crc32c(raw[:60]))
    return bytes(raw)


@pytest.mark.long
def test_sketches_leave_no_row_out(spark: SparkSession, tmp_path: Path) -> None:
    for seed in range(4):
        rng = random.Random(500 + seed)
        where = {"path": str(random_log(rng, tmp_path / f"s{seed}", sketched=True))}
        everything = python_rows(**where)
        for one in rng.sample(everything, 2):
            moment = f"timestamp_micros({round(one['timestamp'].timestamp() * 1_000_000)})"
            for column, condition in (
                ("subject", f"subject = '{one['subject']}'"),
                ("key", f"key = X'{(one['key'] or b'').hex()}'"),
                ("timestamp", f"timestamp = {moment}"),
                ("subject", f"subject IN ('none', '{one['subject']}')"),
                ("key", f"key IN (X'6E6F', X'{(one['key'] or b'').hex()}')"),
            ):
                wanted = b"" if column == "key" and one["key"] is None else one[column]
                expected = [row for row in everything if row[column] == wanted]
                assert jar_rows(spark, condition, **where) == expected, condition
            expected = [row for row in everything if row["timestamp"] <= one["timestamp"]]
            assert jar_rows(spark, f"timestamp <= {moment}", **where) == expected
        literal = {"subject": "wages", "compact": "true"}
        assert jar_rows(spark, **where, **literal) == python_rows(**where, **literal)
        frame: Any = spark.read.format("liftlog").options(**where).load()
        for condition in (
            "key = X'6E6F6E65'",
            "key IN (X'6E6F6E65', X'6E6F')",
            "subject = 'none'",
            "subject IN ('none', 'neither')",
            "subject = 'none' OR key = X'6E6F6E65' AND subject = 'neither'",
            "timestamp < '2000-01-01'",
        ):
            assert partition_count(frame.where(condition)) == 0, condition


def test_metrics_of_a_read(spark: SparkSession, tmp_path: Path) -> None:
    where = {"path": str(random_log(random.Random(21), tmp_path / "orders"))}
    count = len(python_rows(**where))
    frame: Any = spark.read.format("liftlog").options(**where).load().where("value IS NULL")
    frame.collect()
    plan = executed_plan(frame)
    while plan.children().size():
        plan = plan.children().apply(0)
    metrics = plan.metrics()
    found = {name: metrics.apply(name).value() for name in METRICS if metrics.contains(name)}
    assert found["liftlogRecords"] == count
    assert 0 < found["liftlogBatches"] <= count
    assert found["liftlogBytes"] > 64 * found["liftlogBatches"]
    assert found["liftlogLostOffsets"] == 0


TIMES = (
    "2023-11-14",
    "2023-11-14T22:13",
    "2023-11-14 22:13:21",
    "2023-11-14T22:13:21.5Z",
    " 2023-11-14T22:13:20.123456789+00:00 ",
    "2023-11-15T15:13:20+17:00",
    "1700000000123",
    "0001-01-01",
    "9999-12-31T23:59:59Z",
)
NO_TIMES = (
    "yesterday",
    "20260131",
    "2026-01-31T12",
    "2026-01-31T12:00:00+0100",
    "2026-01-31T12:00:00,5",
    "2026-01-31 12:00:00 Z",
    "2026-W05-6",
    "2026-02-03_23:59:06",
    "2026-01-31T12:00:00+20:00",
    "2026-01-31t12:00:00z",
    "2026-02-30",
    "2026-01-31T24:00:00",
    "0000-01-01",
    "+10000-01-01T00:00:00Z",
    "999999999999999",
    "\u0661" * 10,
)


def test_mistakes_are_told_as_by_python(spark: SparkSession, tmp_path: Path) -> None:
    directory = str(random_log(random.Random(3), tmp_path / "orders"))
    for options in (
        {"startingOffsets": "1", "stream": "s"},
        {"compact": "yes", "path": directory},
        {"columns": "vlaue", "path": directory},
        {"columns": "value,value", "path": directory},
        {"path": directory, "server": "x:1"},
        {},
        {"stream": "a b"},
        {"token": "secret", "stream": "s"},
        {"path": directory, "startingOffset": "first"},
        {"path": directory, "endingOffset": "earliest"},
        {"path": directory, "startingOffset": "1", "startTimestamp": "2026-01-01"},
        *({"path": directory, "startTimestamp": one} for one in NO_TIMES),
        {"stream": "s", "tokenFile": "a", "nkeyFile": "b"},
        {"path": directory, "subject": "a..b"},
        {"path": directory, "subject": "a*"},
        {"path": directory, "rowsPerBatch": "0"},
        {"path": directory, "targetPartitionBytes": "many"},
        {"path": directory, "leaseSeconds": "99999"},
        {"path": directory, "compact": "true", "pushdown": "true"},
        {"path": directory, "startingOffset": "999999"},
        {"path": directory, "endingOffset": "999999"},
        {"path": directory, "startingOffset": "5", "endingOffset": "2"},
        {"path": directory + "/none"},
        {"path": "/"},
    ):
        with pytest.raises(InvalidArgument) as expected:
            parse_options(options)
            python_rows(**options)
        with pytest.raises(Exception, match="INVALID_ARGUMENT") as raised:
            jar_rows(spark, **options)
        said = str(raised.value)
        assert expected.value.message.replace("pickled into", "part of") in said
        assert expected.value.hint in said
    # One line, as PySpark has it for what is wrong with a query, and without the JVM's stack.
    with pytest.raises(IllegalArgumentException, match=r"^INVALID_ARGUMENT: path='/' holds"):
        jar_rows(spark, path="/")
    for one in TIMES:
        some = {"path": directory, "startTimestamp": one}
        assert jar_rows(spark, **some) == python_rows(**some), one
    with pytest.raises(Exception, match="Spark does not write to streams"):
        spark.range(3).write.format("liftlog").option("path", directory).mode("append").save()
    with pytest.raises(Exception, match=r"\.schema\(\.\.\.\) cannot change it"):
        spark.read.format("liftlog").schema("offset int").option("path", directory).load().count()
