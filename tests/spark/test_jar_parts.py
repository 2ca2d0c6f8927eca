"""The connector reads parts of batches, by the checksums that sketches have of them: the same rows
as from whole batches, and every byte that is used is checked."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.disks.logs import create
from support.disks.logs import flip as sim_flip
from support.disks.simfs import SimFileSystem
from support.disks.small_runs import index_small_segments
from support.disks.stored_logs import batch_positions, flip
from support.spark.spark_jar import ALL_COLUMNS, hadoop_of, jar_rows, partition_count, python_rows
from support.worlds.rewriting import (
    DIRECTORY,
    Row,
    add,
    compact_once,
    keyed,
    rebatch_file,
    sketch_segments,
)

from liftlog.log import EncodedBatch, LogConfig
from liftlog.records import decode_batch, encode_batch, iter_batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("jar")]

NS = 1_700_000_000_000_000_000
BLOCK = b"NATS/1.0\r\nTrace: 0123456789abcdef\r\n\r\n"
SUBJECTS = [f"sensor.{number}" for number in range(40)]
RARE = "sensor.rare"
HEAD = 64
FEW = ("offset", "subject", "key")


def sketched_log(
    rng: random.Random,
    target: Path,
    *,
    codecs: tuple[str, ...] = ("none",),
    batches: int = 7,
    with_subjects: bool = False,
) -> Path:
    """Segments of batches with values of all sizes, in most of which one subject is rare."""
    fs = SimFileSystem()
    log = keyed(fs)
    stamp = NS
    for _ in range(rng.randrange(1, 4)):
        sizes = rng.choice([(0, 40), (0, 300), (200, 900), (3000, 9000)])
        for _ in range(rng.randrange(batches // 3, batches)):
            with_keys, with_headers, with_none = (rng.random() < 0.7 for _ in range(3))
            rows = []
            for _ in range(rng.choice([1, 3, 40, 150])):
                stamp += rng.choice([0, 1000, 60_000_000_000])
                key = rng.choice([None, b"", b"k%d" % rng.randrange(40)]) if with_keys else None
                value = (
                    None
                    if with_none and rng.random() < 0.1
                    else rng.randbytes(rng.randrange(*sizes))
                )
                subject = RARE if rng.random() < 0.02 else rng.choice(SUBJECTS)
                headers = BLOCK if with_headers and rng.random() < 0.3 else b""
                rows.append(Row(stamp, subject, key, value, headers))
            add(log, [rows], compression=rng.choice(codecs))
        log.writer.roll()
        if rng.random() < 0.4:
            compact_once(log, fs, compression=rng.choice(codecs))
        elif rng.random() < 0.3:
            rebatch_file(log, fs, 0, compression=rng.choice(codecs))
    sketch_segments(log, fs, with_subjects=with_subjects)
    target.mkdir(parents=True)
    for name in fs.list_directory(DIRECTORY):
        (target / name).write_bytes(fs.read(DIRECTORY / name))
    return target


def one_segment(
    target: Path,
    *,
    records: int = 200,
    batches: int = 5,
    quarantined: int | None = None,
    with_subjects: bool = False,
) -> Path:
    """Batches in which every fiftieth record is of the rare subject; values of 300 bytes. Damage in
    the batch with the number `quarantined` was found after the sketch was made."""
    fs = SimFileSystem()
    log = keyed(fs)
    for number in range(batches):
        rows = [
            Row(
                NS + number,
                RARE if i % 50 == 7 else SUBJECTS[i % 9],
                b"k%d" % i,
                b"%d.%d." % (number, i) + b"v" * 300,
                b"",
            )
            for i in range(records)
        ]
        add(log, [rows])
    log.writer.roll()
    sketch_segments(log, fs, with_subjects=with_subjects)
    if quarantined is not None:
        first, path = 1 + records * quarantined, log.segments[0].path
        sim_flip(fs, path, place_of_batch(fs.read(path), quarantined) + 20_000)
        log.quarantine_damage(first, first + records)
        assert log.view.manifest.quarantined
    target.mkdir(parents=True)
    for name in fs.list_directory(DIRECTORY):
        (target / name).write_bytes(fs.read(DIRECTORY / name))
    return target


def first_segment(directory: Path) -> Path:
    return min(directory.glob("*.log"))


def place_of_batch(raw: bytes, number: int) -> int:
    return sum(
        one.header.length
        for one, _ in zip(iter_batches(raw, verify=False), range(number), strict=False)
    )


def place_of_value(raw: bytes, position: int, record: int) -> int:
    """Where the bytes of a value begin, of the batch at a position."""
    found = decode_batch(raw, position)
    data, ends = found.value_column()
    return position + len(found.raw) - len(data) + ends[record]


def test_random_histories_give_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    selected = 0
    for seed in range(3):
        rng = random.Random(seed)
        codecs = ("none",) if seed % 2 else ("none", "none", "none", "lz4", "zstd")
        where = {"path": str(sketched_log(rng, tmp_path / f"s{seed}", codecs=codecs))}
        size = {"targetPartitionBytes": rng.choice(["1MiB", "20000"])}
        rows = python_rows(**where, columns=ALL_COLUMNS)
        for columns in ("offset,timestamp", "offset,subject", "offset,key,headers"):
            expected = [{name: row[name] for name in columns.split(",")} for row in rows]
            assert jar_rows(spark, **where, **size, columns=columns) == expected, (seed, columns)
        frame = spark.read.format("liftlog").options(**where, **size).load()
        assert frame.count() == len(rows)
        for condition, holds in (
            (f"subject = '{RARE}'", lambda row: row["subject"] == RARE),
            ("key = X'6B37'", lambda row: row["key"] == b"k7"),
            ("key = X''", lambda row: row["key"] == b""),
            (f"subject IN ('{RARE}', 'none')", lambda row: row["subject"] == RARE),
            (f"subject LIKE '{RARE[:-1]}%'", lambda row: row["subject"].startswith(RARE[:-1])),
            (
                f"subject = '{RARE}' OR key = X'6B37'",
                lambda row: row["subject"] == RARE or row["key"] == b"k7",
            ),
        ):
            expected = [row for row in rows if holds(row)]
            assert jar_rows(spark, condition, **where, **size, columns=ALL_COLUMNS) == expected
            selected += len(expected)
        for options in (
            {"subject": "sensor.*"},
            {"compact": "true"},
            {"compact": "true", "subject": "sensor.3", "columns": "offset,key"},
            {"startingOffset": len(rows) // 3 + 1, "subject": RARE},
        ):
            assert jar_rows(spark, **where, **options) == python_rows(**where, **options), options
    assert selected > 10


@pytest.fixture
def any_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Subject indexes of small segments, too, with short runs."""
    index_small_segments(monkeypatch)


@pytest.mark.long
@pytest.mark.usefixtures("any_index")
def test_the_subject_index_gives_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    selected = 0
    for seed in range(4):
        rng = random.Random(seed)
        codecs = ("none",) if seed % 2 else ("none", "none", "none", "none", "lz4")
        target = tmp_path / f"s{seed}"
        directory = sketched_log(rng, target, codecs=codecs, batches=40, with_subjects=True)
        where = {"path": str(directory)}
        size = {"targetPartitionBytes": rng.choice(["1MiB", "20000"])}
        rows = python_rows(**where, columns=ALL_COLUMNS)
        middle = len(rows) // 3 + 1
        for subject in (RARE, SUBJECTS[3], "sensor.none"):
            for more in ("", "key = X'6B37'", f"offset > {middle} AND offset < {2 * middle}"):
                condition = f"subject = '{subject}'" + (f" AND {more}" if more else "")
                expected = [
                    row
                    for row in rows
                    if row["subject"] == subject
                    and (not more.startswith("key") or row["key"] == b"k7")
                    and (not more.startswith("offset") or middle < row["offset"] < 2 * middle)
                ]
                found = jar_rows(spark, condition, **where, **size, columns=ALL_COLUMNS)
                assert found == expected, (seed, condition)
                few = [{name: row[name] for name in FEW} for row in expected]
                columns = ",".join(FEW)
                assert jar_rows(spark, condition, **where, **size, columns=columns) == few
                frame = spark.read.format("liftlog").options(**where, **size).load()
                assert frame.where(condition).count() == len(expected)
                selected += len(expected)
        for options in (
            {"subject": RARE},
            {"compact": "true", "subject": SUBJECTS[3], "columns": "offset,key"},
            {"startingOffset": middle, "endingOffset": 2 * middle, "subject": RARE},
        ):
            assert jar_rows(spark, **where, **options) == python_rows(**where, **options), options
    assert selected > 50


@pytest.mark.usefixtures("any_index")
def test_with_the_subject_index_only_the_wanted_values_are_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    directory = one_segment(tmp_path / "orders", with_subjects=True)
    path = first_segment(directory)
    where: dict[str, Any] = {"path": str(directory)}
    rows = [row for row in python_rows(**where) if row["subject"] == RARE]
    batch = [position for position, _ in batch_positions(path)][2]
    whole, condition = path.read_bytes(), f"subject = '{RARE}'"
    for position in (place_of_value(whole, batch, 100), batch + HEAD + 20, batch + 9):
        path.write_bytes(whole)
        flip(path, position)
        assert jar_rows(spark, condition, **where) == rows
        with pytest.raises(Exception, match=r"CORRUPT_RANGE.*\[401, 601\)"):
            jar_rows(spark, **where)
    path.write_bytes(whole)
    flip(path, place_of_value(whole, batch, 57))
    with pytest.raises(Exception, match=r"CORRUPT_RANGE.*\[401, 601\)"):
        jar_rows(spark, condition, **where)
    assert jar_rows(spark, condition, **where, columns=",".join(FEW)) == [
        {name: row[name] for name in FEW} for row in rows
    ]
    skipped = jar_rows(spark, condition, **where, failOnDataLoss="false")
    assert skipped == [row for row in rows if not 401 <= row["offset"] < 601]


@pytest.mark.usefixtures("any_index")
def test_the_subject_index_is_not_used_for_few_blocks_of_a_segment(
    spark: SparkSession, tmp_path: Path
) -> None:
    """With a key, too, the sketch leaves two blocks; all records on the subject would be more."""
    fs = SimFileSystem()
    log = create(fs, config=LogConfig(segment_max_bytes=1 << 28, segment_max_age_ns=None))
    for number in range(80):
        rows = [
            Row(
                NS + number,
                RARE if i % 50 == 7 else SUBJECTS[i % 39],
                b"needle" if number in (3, 70) and i == 57 else b"k%d.%d" % (number, i),
                b"%d.%d." % (number, i) + b"v" * 300,
                b"",
            )
            for i in range(200)
        ]
        add(log, [rows])
    log.writer.roll()
    assert len(log.segments) == 2
    sketch_segments(log, fs, with_subjects=True)
    directory = tmp_path / "orders"
    directory.mkdir()
    for name in fs.list_directory(DIRECTORY):
        (directory / name).write_bytes(fs.read(DIRECTORY / name))
    where, path = {"path": str(directory)}, first_segment(directory)
    condition = f"subject = '{RARE}'"
    found = jar_rows(spark, f"{condition} AND key = X'6E6565646C65'", **where)
    assert [row["offset"] for row in found] == [658, 14_058]
    batch = batch_positions(path)[40][0]
    flip(path, place_of_value(path.read_bytes(), batch, 107))
    assert jar_rows(spark, f"{condition} AND key = X'6E6565646C65'", **where) == found
    with pytest.raises(Exception, match=r"CORRUPT_RANGE.*\[8001, 8201\)"):
        jar_rows(spark, condition, **where)
    rows = jar_rows(spark, condition, **where, failOnDataLoss="false")
    assert [row["offset"] for row in rows] == [
        offset for offset in range(1, 16_001) if offset % 50 == 8 and not 8001 <= offset < 8201
    ]


@pytest.mark.usefixtures("any_index")
def test_a_damaged_or_wrong_subject_index_changes_no_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    directory = one_segment(tmp_path / "orders", with_subjects=True)
    where: dict[str, Any] = {"path": str(directory)}
    rows = [row for row in python_rows(**where) if row["subject"] == RARE]
    [index] = directory.glob("*.subjects")
    good, condition = index.read_bytes(), f"subject = '{RARE}'"
    rng = random.Random(5)
    places = [1, 5, 9, 13, 17, 25, 33, 37, 41, 45, *rng.sample(range(48, len(good)), 12)]
    contents = [good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :] for at in places]
    contents += [good[:47], good[:100], good[:-3], b""]
    for field in range(2, 8):
        contents += [with_run_field(good, field, wrong) for wrong in (0, 64, 1 << 30, 0xFFFF_FFFF)]
    for raw in contents:
        index.write_bytes(raw)
        assert jar_rows(spark, condition, **where) == rows
    index.unlink()
    assert jar_rows(spark, condition, **where) == rows


def with_run_field(raw: bytes, field: int, value: int) -> bytes:
    """The index with another number in the entries of all runs."""
    from crc32c import crc32c

    subjects, runs, names = (struct.unpack_from("<I", raw, at)[0] for at in (8, 32, 36))
    made = bytearray(raw)
    for run in range(runs):
        struct.pack_into("<I", made, 48 + 16 * subjects + 32 * run + 4 * field, value)
    end = 48 + 16 * subjects + 32 * runs + names
    struct.pack_into("<I", made, 44, crc32c(bytes(made[48:end]), crc32c(bytes(made[:44]))))
    return bytes(made)


@pytest.mark.usefixtures("any_index")
def test_subjects_that_look_alike_are_told_apart_by_reading_all(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One is not UTF-8, and stored with an escape; the other has the text of that as its name."""
    fs = SimFileSystem()
    log = keyed(fs)
    names = [b"odd.\xff", rb"odd.\xff", b"sensor.1", b"sensor.2"]
    base = log.log_end_offset
    subjects = [*names, *[b"sensor.%d" % (i % 5) for i in range(196)]] * 5
    raw = encode_batch(
        base_offset=base,
        leader_epoch=log.leader_epoch,
        commit_group=log.writer.commit_group,
        stamps=[(NS, len(subjects))],
        subjects=subjects,
        values=[b"%d" % i * 100 for i in range(len(subjects))],
    )
    log.append([EncodedBatch(raw, base, base + len(subjects), len(subjects), NS, NS)])
    log.sync()
    log.writer.roll()
    sketch_segments(log, fs, with_subjects=True)
    directory = tmp_path / "orders"
    directory.mkdir()
    for name in fs.list_directory(DIRECTORY):
        (directory / name).write_bytes(fs.read(DIRECTORY / name))
    where = {"path": str(directory)}
    found = jar_rows(spark, r"subject = 'odd.\\xff'", **where)
    assert len(found) == 10
    assert found == [row for row in python_rows(**where) if row["subject"] == "odd.\\xff"]


def test_another_file_system(spark: SparkSession, tmp_path: Path) -> None:
    where = {"path": str(sketched_log(random.Random(77), tmp_path / "orders"))}
    rows = python_rows(**where)
    hadoop = hadoop_of(spark)
    hadoop.set("fs.viewfs.mounttable.parts.link./logs", tmp_path.as_uri())
    elsewhere = {"path": "viewfs://parts/logs/orders"}
    assert jar_rows(spark, f"subject = '{RARE}'", **elsewhere) == [
        row for row in rows if row["subject"] == RARE
    ]
    assert jar_rows(spark, **elsewhere, columns="offset,key") == [
        {"offset": row["offset"], "key": row["key"]} for row in rows
    ]


def test_what_is_not_used_may_be_damaged_and_what_is_used_may_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    directory = one_segment(tmp_path / "orders")
    path = first_segment(directory)
    where: dict[str, Any] = {"path": str(directory)}
    rows = python_rows(**where)
    rare = [row for row in rows if row["subject"] == RARE]
    batch = [position for position, _ in batch_positions(path)][2]
    of_batch = range(401, 601)
    left = [row for row in rows if row["offset"] not in of_batch]
    whole = path.read_bytes()
    condition = f"subject = '{RARE}'"
    skipping = {**where, "failOnDataLoss": "false"}

    flip(path, place_of_value(whole, batch, 100))  # of a value that is not wanted
    assert jar_rows(spark, condition, **where) == rare
    assert len(jar_rows(spark, **where, columns="offset,subject,key")) == len(rows)
    with pytest.raises(Exception, match=r"CORRUPT_RANGE.*\[401, 601\)"):
        jar_rows(spark, **where)
    for position in (
        place_of_value(whole, batch, 57),  # of one that is
        batch + HEAD + 20,
        batch + 9,
    ):
        path.write_bytes(whole)
        flip(path, position)
        with pytest.raises(Exception, match=r"CORRUPT_RANGE.*\[401, 601\)"):
            jar_rows(spark, condition, **where)
        assert jar_rows(spark, condition, **skipping) == [r for r in left if r["subject"] == RARE]
    for position in (batch + HEAD + 20, batch + 9):
        path.write_bytes(whole)
        flip(path, position)
        with pytest.raises(Exception, match=r"CORRUPT_RANGE.*\[401, 601\)"):
            jar_rows(spark, **where, columns="offset,subject")
        assert len(jar_rows(spark, **skipping, columns="offset,subject")) == len(left)


def test_a_damaged_or_wrong_sketch_changes_no_row(spark: SparkSession, tmp_path: Path) -> None:
    directory = one_segment(tmp_path / "orders")
    where: dict[str, Any] = {"path": str(directory)}
    rows = python_rows(**where)
    rare = [row for row in rows if row["subject"] == RARE]
    [sketch] = directory.glob("*.sketch")
    good = sketch.read_bytes()
    rng = random.Random(3)
    places = [5, 9, 33, 36, 41, 45, 50, *rng.sample(range(48, len(good)), 2)]
    damaged = [good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :] for at in places]
    damaged += [good[:30], good[:100], good[:-3], b""]
    for raw in damaged:
        sketch.write_bytes(raw)
        assert jar_rows(spark, f"subject = '{RARE}'", **where) == rare
        assert len(jar_rows(spark, **where, columns="offset,key")) == len(rows)
    # One with the right checksums, and wrong words about batches and values.
    for field, wrong in ((0, 8), (4, 72), (4, 1 << 30), (12, 7), (12, 1 << 31)):
        sketch.write_bytes(with_batch_field(good, 2, field, wrong))
        assert jar_rows(spark, f"subject = '{RARE}'", **where) == rare, (field, wrong)
        assert len(jar_rows(spark, **where, columns="offset,key")) == len(rows)
    path = first_segment(directory)
    flip(path, place_of_value(path.read_bytes(), batch_positions(path)[2][0], 57))
    for raw in (with_batch_field(good, 2, 12, 0xFFFFFFFF), good[:-1], b""):
        sketch.write_bytes(raw)
        with pytest.raises(Exception, match=r"CORRUPT_RANGE.*\[401, 601\)"):
            jar_rows(spark, f"subject = '{RARE}'", **where)


def with_batch_field(raw: bytes, batch: int, field: int, value: int) -> bytes:
    """The sketch with another number in the entry of a batch."""
    from crc32c import crc32c

    blocks, batches = struct.unpack_from("<I", raw, 8)[0], struct.unpack_from("<I", raw, 36)[0]
    start = 48 + 32 * blocks
    made = bytearray(raw)
    struct.pack_into("<I", made, start + 16 * batch + field, value)
    end = start + 16 * batches
    struct.pack_into("<I", made, 44, crc32c(bytes(made[48:end]), crc32c(bytes(made[:44]))))
    return bytes(made)


def test_there_are_as_many_tasks_as_bytes_are_read_for(spark: SparkSession, tmp_path: Path) -> None:
    """Of 66 KB of each batch, 6 KB are its head. With `compact` the size of a range bounds keys."""
    directory = one_segment(tmp_path / "orders", batches=40)
    size = sum(path.stat().st_size for path in directory.glob("*.log"))
    where = {"path": str(directory), "targetPartitionBytes": str(size // 12 + 1)}

    def tasks(condition: str = "", **more: str) -> int:
        frame: Any = spark.read.format("liftlog").options(**where, **more).load()
        return partition_count(frame.where(condition) if condition else frame)

    assert tasks() == tasks(subject=RARE, compact="true") == 12
    assert tasks(f"subject = '{RARE}'") == tasks(subject=RARE) == 2
    found = jar_rows(spark, f"subject = '{RARE}'", **where)
    assert found == [row for row in python_rows(path=str(directory)) if row["subject"] == RARE]


def test_no_parts_of_a_segment_with_quarantined_ranges(spark: SparkSession, tmp_path: Path) -> None:
    """Whoever reads it reads all, and finds what else is damaged in it."""
    directory = one_segment(tmp_path / "orders", quarantined=1)
    where: dict[str, Any] = {"path": str(directory), "failOnDataLoss": "false"}
    assert len(jar_rows(spark, **where, columns="offset,key")) == 800
    path = first_segment(directory)
    raw = path.read_bytes()
    flip(path, place_of_value(raw, place_of_batch(raw, 3), 100))
    left = [*range(1, 201), *range(401, 601), *range(801, 1001)]
    for condition in ("", f"subject = '{RARE}'"):
        rows = jar_rows(spark, condition, **where, columns="offset,subject,value")
        assert [row["offset"] for row in rows] == [
            offset for offset in left if not condition or (offset - 1) % 200 % 50 == 7
        ]
    rows = jar_rows(spark, **where, columns="offset,key")
    assert [row["offset"] for row in rows] == left


def test_the_sketch_of_small_batches_has_filters_alone(spark: SparkSession, tmp_path: Path) -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    add(log, [[Row(NS, RARE, b"k%d" % i, b"v" * 100, b"")] for i in range(1000)])
    log.writer.roll()
    sketch_segments(log, fs)
    directory = tmp_path / "orders"
    directory.mkdir()
    for name in fs.list_directory(DIRECTORY):
        (directory / name).write_bytes(fs.read(DIRECTORY / name))
    [sketch] = directory.glob("*.sketch")
    assert struct.unpack_from("<I", sketch.read_bytes(), 36) == (0,)
    where = {"path": str(directory)}
    rows = python_rows(**where)
    assert jar_rows(spark, f"subject = '{RARE}'", **where) == rows
    assert [row["key"] for row in jar_rows(spark, **where, columns="offset,key")] == [
        row["key"] for row in rows
    ]
    path = first_segment(directory)
    flip(path, batch_positions(path)[-1][0] + HEAD + 1)
    # The filters keep the last block out.
    assert jar_rows(spark, "key = X'6B37'", **where) == [rows[7]]
    with pytest.raises(Exception, match="CORRUPT_RANGE"):
        jar_rows(spark, **where)
