"""The example `orders_into_a_lake`, and its page in the tutorial: they do what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from orders_into_a_lake import queries, scenario
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.repository import REPOSITORY

from liftlog.cli.exports.export import export
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.client import Record, connect_sync

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A session takes long to start on a busy machine, and the first test waits for it.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PAGE = (REPOSITORY / "docs/tutorial/spark.md").read_text()


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


def test_the_demo_succeeds(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    chart = tmp_path / "pictures" / "orders.png"
    code = scenario.run_demo(800, chart=chart, keep=False, spark=spark)
    out = capsys.readouterr().out
    assert code == ExitCode.OK, out
    assert list(tmp_path.iterdir()) == [chart.parent]  # nothing but the chart is left
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert out.count("$ liftlog export orders --to lake/orders") == 3
    (changes,) = re.findall(r"([\d,]+) more changes", out)
    spans = re.findall(r"offsets +\[(\d+), (\d+)\)", out)
    assert [int(first) for first, _ in spans] == [1, int(spans[0][1]), 1]
    assert int(spans[1][1]) - int(spans[1][0]) == int(changes.replace(",", ""))
    assert "were cancelled and are gone" in " ".join(out.split())  # the text is wrapped
    assert "Yes, row by row." in out
    assert re.search(r"de +[\d,]+\.\d\d EUR", out)
    assert spark.range(3).count() == 3  # the session stays


@pytest.mark.long
def test_an_order_that_is_missing_makes_it_fail(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ask = queries.ask

    def lossy(session: SparkSession, lake: DataFrame) -> queries.Findings:
        return ask(session, lake.where("key != 'A-1001'"))

    monkeypatch.setattr(scenario, "ask", lossy)
    assert scenario.run_demo(300, chart=None, keep=False, spark=spark) == ExitCode.FAILED
    out = capsys.readouterr().out
    assert "MISSING  order A-1001 is missing from the lake" in out
    assert "FAILED" in out
    assert list(tmp_path.iterdir()) == []


def test_the_tutorial(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Its Python as it stands, its commands, and what it says that they print."""
    monkeypatch.chdir(tmp_path)
    commands = [block for block in blocks("") if block.startswith("liftlog export")]
    assert commands == ["liftlog export orders --to lake/orders\n"] * 2
    publish, query, change = blocks("python")
    told = [block for block in blocks("") if block.startswith(("stream ", "offsets ", "+---"))]
    summary, table, again = told
    streams = {"orders": {"subject": "orders.>", "compaction": {}}}
    assert 'streams={orders: {subject: "orders.>", compaction: {}}}' in PAGE
    with NatsServer() as server, Daemon(server.url, {"streams": streams}) as daemon:

        def run(code: str) -> None:
            environment = {"NATS_URL": server.url, "PATH": "/usr/bin:/bin"}
            subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=60)

        def exported() -> str:
            arguments = ["orders", "--to", "lake/orders", "--server", daemon.pull_address]
            export.main(arguments, standalone_mode=False)
            return capfd.readouterr().out

        run(publish)
        assert "A-3 paid is stored at offset 4" in capfd.readouterr().out
        shown = exported()
        assert re.findall(r"^offsets.*", summary, re.MULTILINE)[0] in shown
        assert re.search(r"^written     3 rows in \d", summary, re.MULTILINE)
        assert "3 rows in" in shown
        exec(query, {})
        shown = capfd.readouterr().out
        assert table in shown
        assert re.search(r"\| +de\|52\.9\|", shown)
        run(change)
        assert again.strip() in exported()
        exec(query, {})
        rows = re.findall(r"\| +(A-\d)\| +(\w+)\| *(\w+)\| *(\d+)\|", capfd.readouterr().out)
        assert rows == [("A-1", "de", "paid", "4990"), ("A-3", "de", "shipped", "300")]
        with connect_sync(daemon.pull_address) as client:
            records: list[Record] = list(client.read("orders", until="end"))
    assert [record.key for record in records] == [b"A-1", b"A-2", b"A-1", b"A-3", b"A-2", b"A-3"]
