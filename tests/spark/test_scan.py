"""Batch reads through Spark, from a daemon's socket and from files."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.daemons.served_logs import ServedLogs
from support.repository import REPOSITORY
from support.spark.exporting import ExportedStreams, Put
from support.spark.session import patiently
from support.spark.spark_jar import JarOfSession

from acl.policy import Policy
from acl.tokens import hash_token, new_secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A session takes long to start on a busy machine, and the first test waits for it.
pytestmark = pytest.mark.timeout(400)

NS = 1_700_000_000_000_000_000


def frame_of(spark: SparkSession, logs: ServedLogs, **options: Any) -> Any:
    where = {} if "path" in options else {"server": logs.server, "stream": "orders"}
    return spark.read.format("liftlog").options(**where, **options).load()


def fill(logs: ServedLogs, count: int = 20) -> int:
    """`count` batches of 100 records, all sealed; returns the end."""
    stream = logs.add("orders")
    for i in range(count):
        keys: list[bytes | None] = [b"k%d" % (j % 7) if j % 5 else None for j in range(100)]
        values: list[bytes | None] = [b"%d/%d" % (i, j) if j % 11 else None for j in range(100)]
        stamp = NS + 1_000_000_000 * i
        logs.append("orders", values, keys=keys, timestamp_ns=stamp, subject=b"orders.%d" % (i % 2))
    logs.call(stream.real_log.writer.roll)
    return stream.real_log.log_end_offset


def test_all_columns(spark: SparkSession, logs: ServedLogs) -> None:
    logs.add("orders")
    block = b"NATS/1.0\r\nTrace: 1\r\nTrace: \xff2\r\n\r\n"
    logs.append(
        "orders",
        [b"one", None, b""],
        timestamp_ns=NS,
        subject=b"orders.eu",
        keys=[b"k", b"l", None],
        headers=[block, b"", b""],
    )
    columns = ["stream", "value", "key", "headers", "subject", "timestamp", "offset"]
    frame = frame_of(spark, logs, columns=",".join(columns))
    assert frame.columns == columns
    rows = frame.selectExpr("*", "unix_micros(timestamp) as us").orderBy("offset").collect()
    assert [row.us for row in rows] == [NS // 1000] * 3
    assert [(row.stream, row.subject, row.offset) for row in rows] == [
        ("orders", "orders.eu", offset) for offset in (1, 2, 3)
    ]
    assert [(row.key, row.value) for row in rows] == [
        (bytearray(b"k"), bytearray(b"one")),
        (bytearray(b"l"), None),
        (None, bytearray(b"")),
    ]
    assert [[(h.key, bytes(h.value)) for h in row.headers] for row in rows] == [
        [("Trace", b"1"), ("Trace", b"\xff2")],
        [],
        [],
    ]


def test_socket_and_files_in_many_tasks(spark: SparkSession, logs: ServedLogs) -> None:
    end = fill(logs)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW over_socket USING liftlog "
        f"OPTIONS (server '{logs.server}', stream 'orders', targetPartitionBytes '8KiB')"
    )
    files = frame_of(spark, logs, path=str(logs.directory / "orders"), targetPartitionBytes="8KiB")
    assert files.rdd.getNumPartitions() > 3
    files.createOrReplaceTempView("from_files")
    question = "count(*), sum(offset), bit_xor(xxhash64(*)), count(key), count(value)"
    counts = [
        spark.sql(f"SELECT {question} FROM {view}").collect()[0]
        for view in ("over_socket", "from_files")
    ]
    assert counts[0] == counts[1]
    assert counts[0][:2] == (end - 1, sum(range(1, end)))
    assert counts[0][3:] == (20 * 80, 20 * 90)
    chosen = frame_of(spark, logs, subject="*.1", startingOffset="101", columns="offset")
    assert chosen.count() == 10 * 100


def test_compact_changes_no_newest_record(spark: SparkSession, logs: ServedLogs) -> None:
    fill(logs)
    frames = [
        frame_of(spark, logs, targetPartitionBytes="8KiB", columns="offset,key,value", **given)
        for given in ({}, {"compact": "true"})
    ]
    assert frames[1].rdd.getNumPartitions() > 3
    assert frames[1].where("key IS NULL").count() == 20 * 20
    keyed = [frame.where("key IS NOT NULL") for frame in frames]
    counts = [frame.count() for frame in keyed]
    assert counts[0] == 20 * 80
    assert 7 < counts[1] <= 7 * frames[1].rdd.getNumPartitions()
    newest = [sorted(frame.groupBy("key").agg({"offset": "max"}).collect()) for frame in keyed]
    assert newest[0] == newest[1]
    assert len(newest[0]) == 7


def test_conditions_narrow_the_read(spark: SparkSession, logs: ServedLogs) -> None:
    fill(logs)
    frame = frame_of(spark, logs, targetPartitionBytes="8KiB", pushdown="true")
    queries = (
        ("offset BETWEEN 150 AND 160", 11),
        ("timestamp >= timestamp_micros(1700000018000000) AND offset > 0", 200),
        ("subject = 'orders.1' AND offset <= 300", 100),
        ("key = X'6B33'", 0),
        ("timestamp < timestamp'9999-12-31' AND offset BETWEEN 150 AND 160", 11),
        ("timestamp >= timestamp'0001-01-02' AND offset BETWEEN 150 AND 160", 11),
        ("timestamp >= timestamp'9999-12-30'", 0),
    )
    plain = frame_of(spark, logs)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        tasks = frame.rdd.getNumPartitions()
        for condition, count in queries:
            found = frame.where(condition)
            rows = sorted(row.offset for row in found.collect())
            assert rows == sorted(row.offset for row in plain.where(condition).collect())
            assert len(rows) == count or not count
            if count:
                assert found.rdd.getNumPartitions() < tasks / 2
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    with pytest.raises(Exception, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
        frame_of(spark, logs, pushdown="true").where("offset = 1").count()


def test_an_empty_stream(spark: SparkSession, logs: ServedLogs) -> None:
    logs.add("orders")
    assert frame_of(spark, logs).count() == 0


def test_mistakes_are_told(spark: SparkSession, logs: ServedLogs) -> None:
    for options, said in (
        ({"startingOffsets": "1"}, "did you mean 'startingOffset'"),
        ({"compact": "yes"}, "neither true nor false"),
        ({"columns": "vlaue"}, "did you mean 'value'"),
        ({"endingOffset": "9"}, "there is no stream|has no stream 'orders'"),
    ):
        with pytest.raises(Exception, match=said):
            frame_of(spark, logs, **options).count()
    with pytest.raises(Exception, match=r"\.schema\(\.\.\.\) cannot change it"):
        chosen = spark.read.format("liftlog").schema("offset int").option("stream", "orders")
        chosen.load().count()


def test_damage_fails_the_job_or_is_skipped(spark: SparkSession, logs: ServedLogs) -> None:
    from support.disks.stored_logs import batch_positions, flip

    end = fill(logs)
    path = logs.broker.stream("orders").real_log.segments[0].path
    position, header = batch_positions(path)[2]
    flip(path, position + 100)
    with pytest.raises(Exception, match=r"records \[201, 301\).*failOnDataLoss=false"):
        frame_of(spark, logs).count()
    assert header.record_count == 100
    assert frame_of(spark, logs, failOnDataLoss="false").count() == end - 1 - 100


def test_the_how_to_page(
    spark: SparkSession, logs: ServedLogs, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The examples run as they stand, but for addresses and paths."""
    logs.add("orders")
    for country, totals in (("de", (5, 7)), ("fr", (11,))):
        subject = f"orders.{country}.new".encode()
        keys: list[bytes | None] = [country.encode()] * len(totals)
        logs.append("orders", [b'{"total": %d}' % n for n in totals], subject=subject, keys=keys)
    logs.append("orders", [None], subject=b"orders.fr.gone", keys=[b"fr"])
    page = (REPOSITORY / "docs/how-to/spark.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(examples) == 5
    scope: dict[str, Any] = {"spark": spark}
    for example in examples[:3]:
        code = example.replace("127.0.0.1:9292", logs.server).replace("lake/", f"{tmp_path}/")
        if "server" not in code:  # the default one
            code = code.replace(
                '"stream", "orders")', f'"stream", "orders").option("server", "{logs.server}")'
            )
        patiently(lambda code=code: exec(code, scope))
    told = capfd.readouterr().out
    assert re.search(r"\|\s*de\|\s*2\|\s*12\.0\|\s*\|\s*fr\|\s*1\|\s*11\.0\|", told)
    assert "1 keys" in told
    assert "4 orders in the lake" in told
    for example in examples[3:]:  # other hosts
        compile(example, "example", "exec")


ACL = """
principals:
  bob: {{token_hash: "{}"}}
roles:
  reader:
    - {{allow: [read], streams: ["orders"]}}
bindings:
  bob: [reader]
"""


def test_a_refusal_says_who_may_not_do_what(spark: SparkSession, tmp_path: Path) -> None:
    """In one line of what Spark tells."""
    from pyspark.errors import AnalysisException

    secret = new_secret()
    token = tmp_path / "bob.token"
    token.write_text(f"bob.{secret}\n")
    policy = Policy.load(ACL.format(hash_token(secret)))
    with ServedLogs(tmp_path / "streams", policy=policy) as logs:
        for name in ("orders", "wages"):
            logs.add(name)
            logs.append(name, [b"1"])

        def told(**options: Any) -> list[str]:
            frame = spark.read.format("liftlog").options(server=logs.server, **options).load()
            with pytest.raises(AnalysisException) as raised:
                frame.collect()
            return [line for line in str(raised.value).splitlines() if "liftlog.errors." in line]

        mine = {"server": logs.server, "stream": "orders", "tokenFile": str(token)}
        assert spark.read.format("liftlog").options(**mine).load().count() == 1
        (line,) = told(stream="wages", tokenFile=str(token))
        assert "Forbidden: 'bob' may not read the stream 'wages'" in line
        (line,) = told(stream="orders")
        assert "Unauthenticated: " in line
        token.write_text("bob.wrong\n")
        (line,) = told(stream="orders", tokenFile=str(token))
        assert "Unauthenticated: " in line
        assert "bob.wrong" not in line


def test_the_lease_of_a_read_ends_with_its_job(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reads each part to its end; and a second action on the same plan still works."""
    with ExportedStreams(tmp_path / "data") as streams:
        streams.create("in")
        for n in range(20):
            streams.put("in", [Put(f"k{n}", b"v" * 500)] * 10)
        leases = streams.cleaning.running.broker.administration.leases
        options = {"server": streams.server, "stream": "in", "targetPartitionBytes": "20000"}
        frame = spark.read.format("liftlog").options(**options).load()
        assert frame.rdd.getNumPartitions() > 3
        for _ in range(2):
            assert len(patiently(frame.collect)) == 200
            assert leases.live("in") == []


@pytest.mark.parametrize("source", ["java", "python"])
def test_a_table_of_a_catalog_names_the_statement_that_works(
    spark: SparkSession, logs: ServedLogs, source: str
) -> None:
    logs.add("orders")
    with JarOfSession(spark).used() if source == "java" else nullcontext():
        try:
            with pytest.raises(Exception, match="CREATE TEMPORARY VIEW <view> USING liftlog"):
                spark.sql(f"CREATE TABLE made USING liftlog OPTIONS (server '{logs.server}')")
                spark.sql("SELECT * FROM made").collect()
        finally:
            spark.sql("DROP TABLE IF EXISTS made")
