"""The connector of `spark-connector/` and a daemon: the pull socket, leases, micro-batches."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import IllegalArgumentException
from support.clients.ingesting import publish
from support.clients.nkey_seeds import seed_of
from support.clients.raw_nats import RawNats
from support.daemons.certificates import Authority
from support.daemons.cluster import Cluster
from support.daemons.cutting_proxy import CuttingProxy, cutting_proxy
from support.daemons.loop_thread import LoopThread
from support.daemons.nats_server import NatsServer
from support.daemons.ports import free_port
from support.daemons.served_logs import ServedLogs
from support.disks.stored_logs import batch_positions, flip
from support.spark.exporting import ExportedStreams, Put
from support.spark.session import run_to_end
from support.spark.spark_jar import (
    ALL_COLUMNS,
    JarOfSession,
    executed_plan,
    jar_rows,
    partition_count,
    python_rows,
)
from support.worlds.rewriting import sketch_segments

from acl.nkeys import SigningKey, find_seed
from acl.policy import Policy
from acl.tokens import hash_token
from liftlog.errors import LiftlogError
from liftlog.log.erased import ErasedSet
from liftlog.log.files.filesystem import OsFileSystem
from liftlog.tls import server_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("jar")]

NS = 1_700_000_000_000_000_000
SEED = seed_of(b"s" * 32)
SECRET = "a-secret-that-is-long-enough"
ACL = f"""
principals:
  bob: {{token_hash: "{hash_token(SECRET)}"}}
  ops: {{nkey: {SigningKey(find_seed(SEED.encode())).public_key}}}
roles:
  reader: [{{allow: [read], streams: [orders]}}]
bindings: {{bob: [reader], ops: [reader]}}
"""


def fill(logs: ServedLogs, count: int = 30, size: int = 20) -> int:
    """`count` batches of 25 records, all sealed; returns the end."""
    stream = logs.add("orders")
    for i in range(count):
        keys: list[bytes | None] = [b"k%d" % (j % 7) if j % 5 else None for j in range(25)]
        values: list[bytes | None] = [
            b"%d/%d" % (i, j) * size if j % 6 else None for j in range(25)
        ]
        headers = [b"NATS/1.0\r\nN: %d\r\n\r\n" % j if j % 3 else b"" for j in range(25)]
        stamp = NS + 1_000_000_000 * i
        logs.append(
            "orders",
            values,
            keys=keys,
            headers=headers,
            timestamp_ns=stamp,
            subject=b"orders.%d" % (i % 3),
        )
    logs.call(stream.real_log.writer.roll)
    return stream.real_log.log_end_offset


def test_the_socket_gives_the_same_rows(spark: SparkSession, logs: ServedLogs) -> None:
    end = fill(logs)
    where = {"server": logs.server, "stream": "orders", "targetPartitionBytes": "8KiB"}
    everything = python_rows(**where, columns=ALL_COLUMNS)
    assert len(everything) == end - 1
    frame = spark.read.format("liftlog").options(**where, columns=ALL_COLUMNS).load()
    assert frame.rdd.getNumPartitions() > 3
    assert jar_rows(spark, **where, columns=ALL_COLUMNS) == everything
    assert frame.count() == end - 1
    for options in (
        {"subject": "*.1"},
        {"subject": "*.1", "filterInDaemon": "true"},
        {"compact": "true"},
        {"startingOffset": 100, "endingOffset": 120},
        {"startTimestamp": "2023-11-14T22:13:30Z", "endTimestamp": 1700000020000},
    ):
        assert jar_rows(spark, **where, **options) == python_rows(**where, **options), options
    where["columns"] = "offset,key,subject"
    rows = python_rows(**where)
    for condition, chosen in (
        ("key = X'6B33'", [row for row in rows if row["key"] == b"k3"]),
        (
            "subject = 'orders.2' AND offset > 300",
            [row for row in rows if row["subject"] == "orders.2" and row["offset"] > 300],
        ),
    ):
        assert chosen
        assert jar_rows(spark, condition, **where) == chosen


@pytest.mark.parametrize("sketched", [False, True])
def test_erased_records_are_not_among_the_rows(
    spark: SparkSession, logs: ServedLogs, sketched: bool
) -> None:
    """They are cut out of stored batches, or left out of answers with few columns or subjects."""
    end = fill(logs, count=60, size=200)
    log = logs.broker.stream("orders").real_log
    if sketched:
        sketch_segments(log, OsFileSystem())
    where: dict[str, Any] = {"server": logs.server, "stream": "orders"}
    before = python_rows(**where, columns=ALL_COLUMNS)
    gone = {1, end - 1, *random.Random(1).sample(range(1, end), 60), *range(76, 101)}
    ranges = [(offset, offset + 1) for offset in sorted(gone)]
    logs.call(lambda: log.structure.erase(ErasedSet.of_ranges(ranges)))
    left = [row for row in before if row["offset"] not in gone]
    assert len(left) == end - 1 - len(gone)
    assert python_rows(**where, columns=ALL_COLUMNS) == left
    assert jar_rows(spark, **where, columns=ALL_COLUMNS) == left
    frame = spark.read.format("liftlog").options(**where).load()
    assert frame.count() == len(left)
    assert [row.offset for row in frame.select("offset").collect()] == [r["offset"] for r in left]
    for options in ({"subject": "*.1"}, {"subject": "*.1", "filterInDaemon": "true"}):
        wanted = [row for row in left if row["subject"] == "orders.1"]
        assert jar_rows(spark, **where, columns=ALL_COLUMNS, **options) == wanted, options


def test_a_daemon_with_sketches_is_asked_for_few_records(
    spark: SparkSession, logs: ServedLogs
) -> None:
    end = fill(logs, count=120, size=400)
    where: dict[str, Any] = {"server": logs.server, "stream": "orders"}
    everything = python_rows(**where)
    assert len(everything) == end - 1
    sketch_segments(logs.broker.stream("orders").real_log, OsFileSystem())
    logs.append("orders", [b"in the active segment"], keys=[b"k3"], subject=b"orders.0")
    everything = python_rows(**where)
    frame: Any = spark.read.format("liftlog").options(**where).load()
    stamp = everything[1500]["timestamp"]
    moment = f"timestamp_micros({round(stamp.timestamp() * 1_000_000)})"
    for condition, chosen in (
        ("key = X'6B33'", [row for row in everything if row["key"] == b"k3"]),
        ("subject = 'orders.2'", [row for row in everything if row["subject"] == "orders.2"]),
        (f"timestamp = {moment}", [row for row in everything if row["timestamp"] == stamp]),
        (
            "key IN (X'6B33', X'6B34', X'6E6F6E65')",
            [row for row in everything if row["key"] in (b"k3", b"k4")],
        ),
        (
            "subject IN ('orders.2', 'orders.0') AND key IN (X'6B33', X'6B34')",
            [
                row
                for row in everything
                if row["key"] in (b"k3", b"k4") and row["subject"] in ("orders.0", "orders.2")
            ],
        ),
        ("subject LIKE 'orders.%' AND key = X'6B33'", [r for r in everything if r["key"] == b"k3"]),
        ("subject LIKE 'ord%' AND key = X'6B33'", [r for r in everything if r["key"] == b"k3"]),
        ("key IN (X'6E6F6E65', X'6E6F')", []),
        ("key = X'6E6F6E65'", []),
        (f"key = X'{'6B' * 70_000}'", []),  # longer than what a daemon takes
        (f"subject = '{'o' * 2000}'", []),
    ):
        assert bool(chosen) == (
            len(condition) < 100 and "X'6E6F" not in condition.replace(", X'6E6F6E65'", "")
        )
        for more in ({}, {"filterInDaemon": "true"}):
            assert jar_rows(spark, condition, **where, **more) == chosen, condition[:100]
    # Of what is sealed nothing is planned; of the active segment no daemon can say it.
    [last] = frame.where("key = X'6E6F6E65'").selectExpr("count(*)").collect()
    assert last[0] == 0
    few = frame.where(f"timestamp < {moment} AND key = X'6E6F6E65'")
    assert partition_count(few) <= 1


def test_conditions_beyond_what_a_daemon_takes(spark: SparkSession, logs: ServedLogs) -> None:
    stream = logs.add("orders")
    odd = ("a\u00a0b", "a\u200bb", "a\u00adb", "a\ue000b")
    for one in (*odd, "größe.x"):
        logs.append("orders", [b"v"], subject=one.encode(), timestamp_ns=NS)
    logs.call(stream.real_log.writer.roll)
    where = {"server": logs.server, "stream": "orders"}
    for asked in ("false", "true"):
        for one in (*odd, "größe.x"):
            rows = jar_rows(spark, f"subject = '{one}'", **where, filterInDaemon=asked)
            assert [row["subject"] for row in rows] == [one]
    for condition, count in (
        ("timestamp <= timestamp'9999-12-31'", 5),
        ("timestamp > timestamp'9999-12-31'", 0),
        ("timestamp >= timestamp'0001-01-01'", 5),
        ("timestamp < timestamp'0001-01-02'", 0),
    ):
        assert len(jar_rows(spark, condition, **where)) == count, condition
    assert len(jar_rows(spark, **where, startTimestamp="9999-12-31")) == 0


def test_damage_on_the_daemons_disk(spark: SparkSession, logs: ServedLogs) -> None:
    end = fill(logs)
    path = logs.broker.stream("orders").real_log.segments[0].path
    rng = random.Random(5)
    for position, header in rng.sample(batch_positions(path), 4):
        flip(path, position + rng.choice([4, 8, 20, 70, header.length - 9]))
    where = {"server": logs.server, "stream": "orders", "columns": "offset,value"}
    left = python_rows(**where, failOnDataLoss="false")
    assert end - 1 - 4 * 25 <= len(left) < end - 1
    assert jar_rows(spark, **where, failOnDataLoss="false") == left
    with pytest.raises(Exception, match=r"CORRUPT_RANGE: .*failOnDataLoss=false"):
        jar_rows(spark, **where)


def test_values_that_a_query_does_not_use_are_not_sent(
    spark: SparkSession, logs: ServedLogs
) -> None:
    end = fill(logs, count=120, size=400)
    log = logs.broker.stream("orders").real_log
    where: dict[str, Any] = {"server": logs.server, "stream": "orders"}
    everything = python_rows(**where, columns=ALL_COLUMNS)
    for columns in ("offset", "timestamp,subject", "key,stream", "headers"):
        found = jar_rows(spark, **where, columns=columns)
        names = columns.split(",")
        assert sorted(map(str, found)) == sorted(
            str({name: row[name] for name in names}) for row in everything
        )
    newest = jar_rows(spark, **where, columns="offset,key", compact="true")
    assert newest == python_rows(**where, columns="offset,key", compact="true")
    frame: Any = spark.read.format("liftlog").options(**where).load()
    assert frame.where("subject = 'orders.1'").count() == 40 * 25
    counted = frame.selectExpr("count(*)", "sum(offset)")
    assert counted.collect()[0] == (end - 1, end * (end - 1) // 2)
    slim = frame.select("offset")
    slim.collect()
    plan = executed_plan(slim)
    while plan.children().size():
        plan = plan.children().apply(0)
    # Some batches are fetched as they are stored, to see how large they are.
    assert plan.metrics().apply("liftlogBytes").value() < log.view.size_bytes / 2

    [*_, (position, header), _] = batch_positions(log.segments[0].path)
    flip(log.segments[0].path, position + header.length - 9)  # of a value
    lost = f"\\[{header.base_offset}, {header.next_offset}\\)"
    for ask in (frame.count, frame.selectExpr("max(offset)").collect, frame.collect):
        with pytest.raises(Exception, match=f"CORRUPT_RANGE: .*{lost}"):
            ask()
    left: Any = spark.read.format("liftlog").options(**where, failOnDataLoss="false").load()
    assert left.count() == end - 1 - 25


def test_a_daemon_sends_few_records_where_few_subjects_are_wanted(
    spark: SparkSession, logs: ServedLogs
) -> None:
    """A sealed segment with parts, one without, damaged records, and the active segment."""
    stream = logs.add("orders")
    log, rng = stream.real_log, random.Random(3)

    def publish(batches: int, size: int) -> None:
        for i in range(batches):
            subject = b"orders.rare" if i % 20 == 3 else b"orders.%d" % (i % 3)
            values = [rng.randbytes(size) for _ in range(40)]
            stamp = NS + log.log_end_offset * 1_000_000_000
            logs.append("orders", values, keys=[b"k"] * 40, subject=subject, timestamp_ns=stamp)

    publish(100, 800)
    logs.call(log.writer.roll)
    first = log.segments[0]
    whole = log.view.size_bytes
    publish(60, 20)
    logs.call(log.writer.roll)
    sketch_segments(log, OsFileSystem())
    publish(30, 100)
    where: dict[str, Any] = {"server": logs.server, "stream": "orders", "columns": ALL_COLUMNS}
    conditions = {
        "subject = 'orders.rare'": lambda row: row["subject"] == "orders.rare",
        "subject IN ('orders.rare', 'orders.none')": lambda row: row["subject"] == "orders.rare",
        "subject LIKE 'orders.r%'": lambda row: row["subject"].startswith("orders.r"),
        "subject = 'orders.1' AND offset > 100": lambda row: (
            row["subject"] == "orders.1" and row["offset"] > 100
        ),
    }
    observed = stream.observed
    for is_damaged in (False, True):
        if is_damaged:
            positions = batch_positions(first.path)
            flip(first.path, positions[23][0] + 30_000)  # of the rare ones
            flip(first.path, positions[30][0] + 100)  # a head
            where["failOnDataLoss"] = "false"
        everything = python_rows(**where)
        for condition, holds in conditions.items():
            before = observed.read_bytes
            expected = [row for row in everything if holds(row)]
            assert expected
            assert jar_rows(spark, condition, **where) == expected, condition
            if not is_damaged and condition.startswith("subject ="):
                few = "rare" in condition
                assert (observed.read_bytes - before < whole / 4) is few
        option = {"subject": "*.rare"}
        assert jar_rows(spark, **where, **option) == python_rows(**where, **option)


def test_a_daemon_that_leaves_out_records_is_asked_by_fewer_tasks(
    spark: SparkSession, logs: ServedLogs
) -> None:
    """It reads about a quarter then. With `compact` the size of a range bounds keys; and with
    `filterInDaemon` each record is decoded."""
    log = logs.add("orders").real_log
    for i in range(120):
        logs.append("orders", [bytes(30_000)] * 2, keys=[b"k"] * 2, subject=b"orders.%d" % (i % 3))
    logs.call(log.writer.roll)
    sketch_segments(log, OsFileSystem())
    where = {"server": logs.server, "stream": "orders"}
    where["targetPartitionBytes"] = str(log.view.size_bytes // 12 + 1)

    def tasks(condition: str = "", **more: str) -> int:
        frame: Any = spark.read.format("liftlog").options(**where, **more).load()
        chosen = frame.where(condition) if condition else frame
        return partition_count(chosen)

    whole = tasks()
    assert whole in (12, 14), "a multiple of the two that run at once"
    condition = "subject IN ('orders.0', 'orders.1', 'orders.2')"
    assert tasks(condition) == 4, "a quarter is 3, and with them one of two would end with nothing"
    assert tasks(condition, compact="true") == tasks(condition, filterInDaemon="true") == whole
    found = jar_rows(spark, condition, **where)
    assert found == python_rows(**where)


def test_compact_with_many_keys(spark: SparkSession, logs: ServedLogs) -> None:
    stream = logs.add("orders")
    for first in (0, 2000, 4000, 1000):
        numbers = range(first, first + 2000)
        logs.append(
            "orders", [b"%d" % first] * 2000, keys=[b"k%d" % n for n in numbers], timestamp_ns=NS
        )
    logs.call(stream.real_log.writer.roll)
    where = {"server": logs.server, "stream": "orders", "compact": "true"}
    rows = jar_rows(spark, **where)
    assert rows == python_rows(**where)
    assert len(rows) == len({row["key"] for row in rows}) == 6000


def test_refusals_and_logins(spark: SparkSession, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("daemon")
    token, seed = tmp_path / "token", tmp_path / "ops.nk"
    token.write_text(f"bob.{SECRET}\n")
    seed.write_text(f"-----BEGIN USER NKEY SEED-----\n{SEED}\n------END USER NKEY SEED------\n")
    policy = Policy.load(ACL)
    for listen, tls in (
        ("tcp://127.0.0.1:0", None),
        ("tls://127.0.0.1:0", server_context(pair.cert, pair.key)),
        (f"unix://{tmp_path}/pull.sock", None),
    ):
        secure = {"tlsCaFile": str(authority.ca)} if tls else {}
        directory = tmp_path / listen.partition(":")[0]
        with ServedLogs(directory, policy=policy, listen=listen, tls=tls) as logs:
            fill(logs, 4)
            where = {"server": logs.address, "stream": "orders", **secure}
            for login in ({"tokenFile": str(token)}, {"nkeyFile": str(seed)}):
                assert jar_rows(spark, **where, **login) == python_rows(**where, **login)
            if listen.startswith("unix"):
                continue
            wrong = [
                ({}, "UNAUTHENTICATED"),
                ({"tokenFile": str(tmp_path / "none")}, "INVALID_ARGUMENT: tokenFile="),
                ({"tokenFile": str(token), "stream": "wages"}, "FORBIDDEN|STREAM_NOT_FOUND"),
            ]
            for options, name in wrong:
                with pytest.raises(Exception, match=name) as raised:
                    jar_rows(spark, **{**where, **options})
                assert SECRET not in str(raised.value)
                with pytest.raises(LiftlogError):
                    python_rows(**{**where, **options})
            if tls:
                with pytest.raises(Exception, match=r"CONNECTION_LOST: cannot connect to tls://"):
                    jar_rows(spark, **{**where, "tlsCaFile": str(Authority(tmp_path, "other").ca)})


@pytest.mark.long
def test_a_wrong_address_is_told_with_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    """Of another protocol, of a host that is not there, with TLS and without, and of another CA."""
    authority = Authority(tmp_path)
    pair = authority.issue("daemon")
    ca = {"tlsCaFile": str(authority.ca)}
    with (
        ServedLogs(tmp_path / "plain", listen="tcp://127.0.0.1:0") as plain,
        ServedLogs(
            tmp_path / "tls",
            listen="tls://127.0.0.1:0",
            tls=server_context(pair.cert, pair.key),
        ) as secure,
        ServedLogs(
            tmp_path / "other",
            listen="tls://127.0.0.2:0",
            tls=server_context(pair.cert, pair.key),
        ) as other,
        NatsServer(tmp_path / "nats") as nats,
        answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as http,
    ):
        port = secure.address.rpartition(":")[2]
        for server, more, name, hint in (
            (f"127.0.0.1:{nats.port}", {}, "PROTOCOL_VIOLATION", "not of the NATS server"),
            (f"127.0.0.1:{http}", {}, "PROTOCOL_VIOLATION", "not of http.listen"),
            (f"127.0.0.1:{port}", {}, "PROTOCOL_VIOLATION", "use tls://"),
            (plain.address.replace("tcp:", "tls:"), ca, "CONNECTION_LOST", "try tcp://"),
            (secure.address, {}, "CONNECTION_LOST", "certificate as tlsCaFile"),
            (other.address, ca, "CONNECTION_LOST", "connect by a name or address"),
            (secure.address, {"tlsCaFile": "/none.pem"}, "INVALID_ARGUMENT", "no such file"),
            ("nowhere.invalid:9292", {}, "CONNECTION_LOST", "check the name"),
        ):
            with pytest.raises(IllegalArgumentException) as raised:
                jar_rows(spark, server=server, stream="orders", **more)
            said = str(raised.value)
            assert said.startswith(f"{name}: "), (server, said)
            assert hint in said, (server, said)
            assert "\n" not in said


@contextmanager
def answering(what: bytes) -> Iterator[int]:
    """A server that answers every connection so; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    one, _ = listening.accept()
                    with one:
                        one.recv(100)
                        one.sendall(what)

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]


def test_a_read_survives_lost_connections(spark: SparkSession, logs: ServedLogs) -> None:
    end = fill(logs, 40, size=4000)  # some answers long
    with LoopThread[CuttingProxy]("proxy", lambda: cutting_proxy(logs.address)) as thread:
        proxy = thread.served
        where = {"server": proxy.address, "stream": "orders", "columns": "offset,value"}
        expected = python_rows(**{**where, "server": logs.server})
        # The first connection plans. Tasks connect, and lose them after so many bytes.
        thread.call(lambda: proxy.budgets.extend([1 << 30, 100_000, 900, 700_000, 1_500_000]))
        assert jar_rows(spark, **where) == expected
        assert not proxy.budgets
        assert len(expected) == end - 1


def test_the_lease_of_a_read_ends_with_its_job(spark: SparkSession, tmp_path: Path) -> None:
    with ExportedStreams(tmp_path / "data") as streams:
        streams.create("in")
        for n in range(20):
            streams.put("in", [Put(f"k{n % 7}", b"v" * 500)] * 10)
        leases = streams.cleaning.running.broker.administration.leases
        options = {"server": streams.server, "stream": "in", "targetPartitionBytes": "20000"}
        for more in ({}, {"compact": "true"}):
            frame = spark.read.format("liftlog").options(**options, **more).load()
            assert frame.rdd.getNumPartitions() > 3
            for _ in range(2):
                found = frame.collect()
                assert {bytes(row.key) for row in found} == {b"k%d" % n for n in range(7)}
                assert leases.live("in") == []
        # A plan that is used again after compaction has moved on may miss keys, so it fails.
        frame = spark.read.format("liftlog").options(**options, compact="true").load()
        assert len(frame.collect()) < 200
        streams.run(streams.log("in").writer.roll)
        streams.put("in", [Put(f"k{n % 7}", b"newer") for n in range(70)])
        streams.run(streams.log("in").writer.roll)
        streams.compact("in")
        with pytest.raises(Exception, match=r"LEASE_GONE|SEGMENTS_CHANGED"):
            frame.collect()
        assert len(spark.read.format("liftlog").options(**options).load().collect()) == 7


def add(logs: ServedLogs, batches: int) -> None:
    for _ in range(batches):
        logs.append("orders", [b"value"] * 10)


def test_micro_batches(spark: SparkSession, logs: ServedLogs, tmp_path: Path) -> None:
    logs.add("orders")
    add(logs, 12)
    assert run_to_end(spark, logs, tmp_path, maxOffsetsPerTrigger="50") == [50, 50, 20]
    add(logs, 1)
    assert sum(run_to_end(spark, logs, tmp_path, maxBytesPerTrigger="200")) == 10
    lake: Any = spark.read.parquet(str(tmp_path / "lake")).select("offset").toArrow()
    assert sorted(lake.column(0).to_pylist()) == list(range(1, 131))
    with pytest.raises(Exception, match="compact makes no sense for readStream"):
        run_to_end(spark, logs, tmp_path, compact="true")
    logs.delete("orders")
    (logs.directory / "orders").rename(logs.directory / "old")
    logs.add("orders")
    with pytest.raises(Exception, match=r"STALE_INCARNATION.*created again"):
        run_to_end(spark, logs, tmp_path)


@pytest.mark.long
def test_either_source_continues_the_query_of_the_other(
    spark: SparkSession, jar: JarOfSession, logs: ServedLogs, tmp_path: Path
) -> None:
    logs.add("orders")
    add(logs, 2)
    assert run_to_end(spark, logs, tmp_path) == [20]
    add(logs, 3)
    with jar.unused():
        assert run_to_end(spark, logs, tmp_path) == [30]
    add(logs, 1)
    assert run_to_end(spark, logs, tmp_path) == [10]
    lake: Any = spark.read.parquet(str(tmp_path / "lake")).select("offset").toArrow()
    assert sorted(lake.column(0).to_pylist()) == list(range(1, 61))


def test_the_leader_of_a_cluster_is_followed(spark: SparkSession) -> None:
    """Both sources get the address of a node that does not lead, alone or behind one where no one
    listens; the leader stops between two reads."""
    streams = {"orders": {"subject": "orders", "replicas": 3}}
    with NatsServer() as server, Cluster(server.url, streams) as cluster:
        cluster.wait_isr("orders")
        cluster.wait_recorded("orders")
        with RawNats(server.port, timeout=60) as raw:
            for number in range(50):
                publish(raw, "orders", b"%d" % number)
        cluster.wait_settled("orders")
        near = cluster.nodes[cluster.followers("orders")[0]].pull_address
        nowhere = f"127.0.0.1:{free_port()}"
        for addresses in (near, f"{nowhere},{near}"):
            rows = jar_rows(spark, server=addresses, stream="orders", columns="offset,value")
            assert [int(row["value"]) for row in rows] == list(range(50))
            assert rows == python_rows(server=addresses, stream="orders", columns="offset,value")
        gone = cluster.leader("orders")
        others = ",".join(one.pull_address for one in cluster.nodes.values())
        cluster.stop(gone)
        assert jar_rows(spark, server=others, stream="orders", columns="offset,value") == rows
        assert python_rows(server=others, stream="orders", columns="offset,value") == rows
