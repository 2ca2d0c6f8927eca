"""Jobs on a real standalone cluster: the same files as on one machine, through spark-submit."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.clients.raw_nats import RawNats, header_block, hpub_frame, pub_frame
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.repository import REPOSITORY
from support.spark.session import patiently, require_spark
from support.spark.spark_cluster import Done, SparkCluster

import liftlog.spark
from acl.tokens import hash_token, new_secret
from liftlog.cli.root import cli
from liftlog.client import connect_sync
from liftlog.spark.export import newest, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Seven JVMs have to start, and the first test waits for most of them.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

GONE = {"Liftlog-Tombstone": "true"}
JOB = REPOSITORY / "docs/examples/orders_by_country.py"

ACL = """
principals:
  spark: {{token_hash: "{}"}}
roles:
  reader:
    - {{allow: [read], streams: ["orders"]}}
bindings:
  spark: [reader]
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    require_spark()
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer() as running:
        yield running


def publish(server: NatsServer, numbers: range) -> list[tuple[str, bytes]]:
    """Orders of some countries; returns what the stream must hold, in order."""
    messages = [
        (f"orders.{('de', 'fr', 'nl')[i % 3]}.{'new' if i % 5 else 'paid'}", order(i))
        for i in numbers
    ]
    with RawNats(server.port) as raw:
        for first in range(0, len(messages), 1000):
            raw.send(b"".join(pub_frame(*one) for one in messages[first : first + 1000]))
        closing = ("orders.be.paid", b"{}")
        assert raw.request(*closing).json()["seq"] == numbers.stop + 1
    return [*messages, closing]


def order(number: int) -> bytes:
    note = f"order {number} ".ljust(200, "-")
    return json.dumps({"order": number, "cents": 100 + number % 977, "note": note}).encode()


def put(server: NatsServer, values: dict[str, bytes | None]) -> int:
    """Publish them under their keys, None as a tombstone; returns the last offset."""
    with RawNats(server.port) as raw:
        frames, ack = [], raw.new_reply()
        for key, value in values.items():
            block = header_block({"Liftlog-Key": key, **({} if value else GONE)})
            frames.append(hpub_frame("orders.de.new", block, value or b"", reply=ack))
        raw.send(b"".join(frames))
        acked = [raw.next_message().json()["seq"] for _ in frames]
    assert acked == sorted(acked)
    return int(acked[-1])


def living(known: dict[str, bytes | None]) -> dict[str, bytes]:
    return {key: value for key, value in known.items() if value is not None}


def submit(cluster: SparkCluster, *command: str | Path, **options: Any) -> Done:
    def run() -> Done:
        done = cluster.submit(*command, **options)
        assert done.exit_code == 0, done.out + done.err
        return done

    return patiently(run)


def by_country(published: list[tuple[str, bytes]]) -> list[tuple[str, int, int]]:
    counts: Counter[str] = Counter()
    cents: Counter[str] = Counter()
    for subject, value in published:
        _, country, what = subject.split(".")
        if what == "new":
            counts[country] += 1
            cents[country] += json.loads(value)["cents"]
    return [(country, counts[country], cents[country]) for country in sorted(counts)]


def table(spark: SparkSession, lake: Path) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in spark.read.parquet(str(lake / "by_country")).collect()]


def records(spark: SparkSession, lake: Path) -> list[tuple[str, bytes]]:
    """In the order of their offsets, which have no gaps."""
    rows = spark.read.parquet(str(lake / "orders")).orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(1, len(rows) + 1))
    return [(row.subject, bytes(row.value)) for row in rows]


def rows(spark: SparkSession, lake: Path) -> dict[str, bytes]:
    found = read(spark, str(lake)).collect()
    return {bytes(row.key).decode(): bytes(row.value) for row in found}


def test_a_job_runs_unchanged(
    cluster: SparkCluster, spark: SparkSession, server: NatsServer, tmp_path: Path
) -> None:
    """By a token in a file that is shipped; again after more was published; and on one machine."""
    secret = new_secret()
    acl = tmp_path / "acl.yaml"
    acl.write_text(ACL.format(hash_token(secret)))
    token = tmp_path / "spark.token"
    token.write_text(f"spark.{secret}\n")
    shutil.copy(token, cluster.directory)  # where the driver runs; executors get it by --files
    settings = {"acl": {"file": str(acl)}, "streams": {"orders": {"subject": "orders.>"}}}
    with Daemon(server.url, settings, directory=tmp_path / "daemon") as daemon:
        address = f"127.0.0.1:{daemon.pull_port}"
        published = publish(server, range(20_000))
        lake = tmp_path / "lake"
        done = submit(cluster, JOB, address, lake, token.name, files=[token])
        assert "|     de|" in done.out
        assert table(spark, lake) == by_country(published)
        assert records(spark, lake) == published
        state = cluster.state()
        assert [(app["name"], app["state"]) for app in state["completedapps"]] == [
            ("orders by country", "FINISHED")
        ]
        assert state["completedapps"][0]["cores"] == len(state["workers"]) == 2

        # On one machine, from the same checkpoint on.
        published += publish(server, range(20_001, 20_501))
        main = runpy.run_path(str(JOB))["main"]
        patiently(lambda: main(address, str(lake), str(token)))
        assert table(spark, lake) == by_country(published)
        assert records(spark, lake) == published


@pytest.mark.usefixtures("jar")
def test_executors_with_the_jar_need_no_python(
    cluster: SparkCluster, spark: SparkSession, server: NatsServer, tmp_path: Path
) -> None:
    """Theirs cannot be run, as a job of Python functions shows. The same job as above, a batch and
    a stream, works with `--jars` alone."""
    tools = tmp_path / "tools"
    tools.mkdir()
    chmod = shutil.which("chmod")
    assert chmod is not None
    (tools / "chmod").symlink_to(chmod)  # Hadoop runs it to write a file
    settings = {
        "spark.pyspark.python": str(tools / "python"),
        "spark.pyspark.driver.python": sys.executable,
        "spark.executorEnv.PATH": str(tools),
    }
    functions = tmp_path / "functions.py"
    functions.write_text(
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "print(spark.sparkContext.parallelize(range(4)).map(abs).sum())\n"
    )
    done = cluster.submit(functions, settings=settings)
    assert done.exit_code != 0
    assert 'Cannot run program "' + settings["spark.pyspark.python"] in done.err
    streams = {"streams": {"orders": {"subject": "orders.>"}}}
    with Daemon(server.url, streams, directory=tmp_path / "daemon") as daemon:
        published = publish(server, range(20_000))
        lake = tmp_path / "lake"
        address = f"127.0.0.1:{daemon.pull_port}"
        settings["spark.jars"] = liftlog.spark.jar()
        submit(cluster, JOB, address, lake, settings=settings)
        assert table(spark, lake) == by_country(published)
        assert records(spark, lake) == published


def test_an_export_runs_unchanged(
    cluster: SparkCluster, spark: SparkSession, server: NatsServer, tmp_path: Path
) -> None:
    """`liftlog export` through spark-submit, and what came since by the command on one machine."""
    settings = {"streams": {"orders": {"subject": "orders.>", "compaction": {}}}}
    with Daemon(server.url, settings, directory=tmp_path / "daemon") as daemon:
        known: dict[str, bytes | None] = {f"k{i}": order(i) for i in range(2000)}
        put(server, known)
        changed: dict[str, bytes | None] = {
            f"k{i}": order(i + 1) if i % 2 else None for i in range(0, 2000, 3)
        }
        last = put(server, changed)
        known |= changed
        lake = tmp_path / "lake"
        arguments = ["orders", "--to", str(lake), "--server", daemon.pull_address]
        script = subprocess.run(
            [sys.executable, "-m", "liftlog.cli.export_job", "--path"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        done = submit(cluster, script, *arguments, "--partition-size", "64KiB", "--json")
        told = json.loads(done.out)
        assert (told["from_offset"], told["to_offset"]) == (1, last + 1)
        assert rows(spark, lake) == living(known)
        applications = cluster.state()["completedapps"]
        assert applications[-1]["name"] == "liftlog export"
        assert applications[-1]["state"] == "FINISHED"

        changed = {"k1": order(7), "k2": None, "new": order(8)}
        last = put(server, changed)
        known |= changed
        cli.main(["export", *arguments], standalone_mode=False)
        snapshot = newest(str(lake))
        assert snapshot is not None
        assert (snapshot.from_offset, snapshot.to_offset) == (told["to_offset"], last + 1)
        assert not snapshot.full
        assert rows(spark, lake) == living(known)
        with connect_sync(daemon.pull_address) as client:
            assert client.fetch_checkpoint("export-lake", "orders").offset == snapshot.to_offset
