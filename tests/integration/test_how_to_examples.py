"""The Python examples of the how-to pages run as they stand, but for the addresses."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.clients.command_line import Cli
from support.clients.ingesting import until
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.repository import REPOSITORY

from liftlog.client import GroupInfo, connect_sync

pytestmark = pytest.mark.integration

STREAMS = {"orders": {"subject": "orders.>"}, "ledger": {"subject": "ledger"}}


def examples(page: str) -> list[str]:
    text = (REPOSITORY / "docs/how-to" / page).read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[NatsServer, Daemon]]:
    with NatsServer() as server, Daemon(server.url, {"streams": STREAMS}) as daemon:
        yield server, daemon


def run(
    code: str, servers: tuple[NatsServer, Daemon], directory: Path, said: str = ""
) -> list[str]:
    """What it printed; `said` is what it says on stderr."""
    server, daemon = servers
    script = directory / "example.py"
    script.write_text(
        code.replace("nats://127.0.0.1:4222", server.url).replace(
            "tcp://127.0.0.1:9292", daemon.pull_address
        )
    )
    command = [sys.executable, "-W", "error", str(script)]
    environment = {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=environment, cwd=directory
    )
    assert (done.returncode, done.stderr) == (0, said)
    return done.stdout.splitlines()


@contextmanager
def started(
    code: str, servers: tuple[NatsServer, Daemon], directory: Path, *arguments: str
) -> Iterator[subprocess.Popen[str]]:
    """The example as a process, killed at the end unless it has ended."""
    server, daemon = servers
    script = directory / "worker.py"
    script.write_text(
        code.replace("nats://127.0.0.1:4222", server.url).replace(
            "tcp://127.0.0.1:9292", daemon.pull_address
        )
    )
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(REPOSITORY)},
        cwd=directory,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.long
def test_consume(tmp_path: Path) -> None:
    """The examples of the page, and each a second time: it finds where it was."""
    with NatsServer() as server, Daemon(server.url, {"streams": STREAMS}) as daemon:
        servers = (server, daemon)
        publishing = examples("publish.md")[0]
        run(publishing, servers, tmp_path)
        at_least_once, reset, once = examples("consume.md")
        assert run(at_least_once, servers, tmp_path) == ["1 b'{\"total\": 12}'", "2 None"]
        assert run(at_least_once, servers, tmp_path) == []
        assert run(reset, servers, tmp_path) == ["2 records, the checkpoint was 3"]
        assert run(once, servers, tmp_path) == ["orders.new 2 13"]
        run(publishing, servers, tmp_path)
        assert run(once, servers, tmp_path) == ["orders.new 4 26"]
        assert run(at_least_once, servers, tmp_path) == ["3 b'{\"total\": 12}'", "4 None"]
        with connect_sync(daemon.pull_address) as client:
            found = {one.consumer: (one.offset, one.lag) for one in client.list_checkpoints()}
            assert found == {"audit": (3, 2), "billing": (5, 0), "totals": (5, 0)}
            client.truncate_prefix("orders", 5)
        said = "position-reset stream=orders from_offset=3 to_offset=5 reason=OFFSET_OUT_OF_RANGE\n"
        assert run(reset, servers, tmp_path, said) == [
            "OFFSET_OUT_OF_RANGE: from 3 to 5",
            "0 records, the checkpoint was 5",
        ]


@pytest.mark.long
def test_dead_letters(tmp_path: Path) -> None:
    streams = {"orders": {"subject": "orders.>"}, "dead": {"subject": "dead.>"}}
    with NatsServer() as server, Daemon(server.url, {"streams": streams}) as daemon:
        worker, blocking, again = examples("dead-letters.md")
        publish = Cli(daemon, server).ok
        for value in ("1", "x", "3"):
            publish("pub", "orders.new", value, "--key", "k")
        worker = worker.replace("retries=3", "retries=1")  # 3.5 s are a long time
        with started(worker, (server, daemon), tmp_path) as process:
            with connect_sync(daemon.pull_address) as client:
                until(lambda: (client.describe_group("billing", "orders") or GroupInfo()).lag == 0)
                process.terminate()
                printed, said = process.communicate(timeout=60)
                assert (process.returncode, printed.split("\n")[:-1]) == (
                    0,
                    ["billed 1", "billed 3"],
                )
                assert "dead-letter group=billing stream=orders offset=2 attempts=2" in said
                assert run(again, (server, daemon), tmp_path) == []
                found = [
                    (one.subject, one.key, one.value) for one in client.read("orders", 4, "end")
                ]
        assert found == [("orders.new", b"k", b"x")]
        publish("pub", "orders.new", "5", "--key", "k")
        blocking = blocking.replace("(ValueError,)", "(ValueError,), retries=0")
        with started(blocking, (server, daemon), tmp_path) as process:
            with connect_sync(daemon.pull_address) as client:
                until(lambda: (client.describe_group("billing", "orders") or GroupInfo()).lag == 0)
            process.terminate()
            printed, said = process.communicate(timeout=60)
            assert (process.returncode, printed) == (0, "billed 5\n")
            assert "dead-letter group=billing stream=orders offset=4 attempts=1" in said


def test_exactly_once_with_kills_in_the_middle(tmp_path: Path) -> None:
    """Each time a worker is killed, records that it had counted were not committed yet."""
    with NatsServer() as server, Daemon(server.url, {"streams": STREAMS}) as daemon:
        [worker] = examples("exactly-once.md")
        worker = worker.replace("member=sys.argv[1]", "member=sys.argv[1], commit_interval=None")
        publish = Cli(daemon, server).ok
        counted = "SELECT coalesce(sum(total), 0) FROM totals"
        again = 0
        for part in (1, 2):
            publish("pub", "orders.new", "1", "--key", "k{n}", "--count", "20")
            with started(worker, (server, daemon), tmp_path, "w1") as process:
                # The publisher is ahead of what is counted when the worker is killed.
                publish("pub", "orders.new", "1", "--key", "k{n}", "--count", "10")
                until(lambda goal=part * 30 - 15: asked(tmp_path, counted) >= goal)
                assert process.poll() is None
            with connect_sync(daemon.pull_address) as client:
                offsets = (client.describe_group("billing", "orders") or GroupInfo()).offsets
            again += sum(
                offset
                < asked(tmp_path, f"SELECT coalesce(max(next), 0) FROM done WHERE slot={slot}")
                for slot, offset in enumerate(offsets)
            )
        with started(worker, (server, daemon), tmp_path, "w1") as process:
            until(lambda: asked(tmp_path, counted) == 60)
            publish("pub", "orders.new", "1", "--key", "last")
            until(lambda: asked(tmp_path, counted) == 61)  # it works, and so heeds signals
            process.terminate()
            assert process.wait(60) == 0
        with connect_sync(daemon.pull_address) as client:
            info = client.describe_group("billing", "orders")
    assert info is not None
    assert info.lag == 0
    assert again > 0, "nothing came twice: the example was not put to the test"
    assert asked(tmp_path, "SELECT count(*) FROM totals WHERE total = 4") == 10
    assert asked(tmp_path, "SELECT count(*) FROM totals WHERE total = 2") == 10


def asked(directory: Path, question: str) -> int:
    """The number that the database of the example answers with; 0 before it has its tables."""
    with closing(sqlite3.connect(directory / "totals.db", timeout=60)) as database:
        try:
            return int(database.execute(question).fetchone()[0])
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            return 0


@pytest.mark.long
def test_publish_and_read_into_arrow(servers: tuple[NatsServer, Daemon], tmp_path: Path) -> None:
    [into_arrow] = examples("read-into-arrow.md")
    assert run(into_arrow, servers, tmp_path) == [
        "0 records, None bytes of values",
        "the last one: []",
    ]
    printed = [run(code, servers, tmp_path) for code in examples("publish.md")]
    assert printed[0] == ["stored at offset 1", "and marked as deleted"]
    assert printed[1] == ["1000 messages stored at 1000 offsets"]
    assert printed[2][0].startswith("not stored: no one listens on invoices.new")
    assert printed[3] == ["in order: True"]
    assert printed[4:] == [[]]  # only defines a function

    printed_of_all = run(into_arrow, servers, tmp_path)
    numbers = sum(len(str(i)) for i in range(1000))
    size = len('{"total": 12}') + numbers + len("{}")
    assert printed_of_all[0] == f"1003 records, {size} bytes of values"
    assert "'offset': 1003, " in printed_of_all[1]
    [told] = run(examples("tls-and-compression.md")[-1], servers, tmp_path)
    leaves = re.fullmatch(r"lz4 leaves (\d+)%, zstd (\d+)% of (\d+) bytes", told)
    assert leaves is not None
    assert 0 < int(leaves[2]) < int(leaves[1]) < 100
    assert "'value': b'{}'" in printed_of_all[1]
