"""`liftlog export`: what it says and how it ends. The work is done without Spark."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.spark.exporting import Export, ExportedStreams, Put, table
from support.spark.local_engine import LocalEngine

from liftlog.cli.exports import export_run
from liftlog.cli.exports.export_run import token_file
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.root import cli
from liftlog.client import connect_sync
from liftlog.errors import InvalidArgument
from liftlog.spark import daemon_transport
from liftlog.spark.export import newest, session


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[ExportedStreams]:
    with ExportedStreams(tmp_path / "data") as streams:
        streams.create("in")
        yield streams


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    import liftlog.spark.export.engine as engine

    monkeypatch.setattr(engine, "SparkEngine", lambda spark: LocalEngine())
    monkeypatch.setattr(export_run, "open_session", lambda master: None)
    monkeypatch.setattr(session, "_check_java", lambda: None)
    for name in [name for name in os.environ if name.startswith("LIFTLOG_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


def run(streams: ExportedStreams, lake: str, *more: str, stream: str = "in") -> Result:
    arguments = ["export", stream, "--to", lake, "--server", f"tcp://{streams.server}", *more]
    return CliRunner().invoke(cli, arguments)


def test_for_people(streams: ExportedStreams, lake: str) -> None:
    streams.put("in", [Put("a", b"1"), Put("a", b"2"), Put(None, b"3")])
    told = run(streams, lake, "--dry-run")
    assert told.output == "would export offsets [1, 4) into a new snapshot: the first export\n"
    assert not Path(lake).exists()
    first = run(streams, lake)
    assert first.exit_code == ExitCode.OK
    lines = dict(line.split(maxsplit=1) for line in first.output.splitlines())
    assert lines["stream"] == "in"
    assert lines["table"] == f"{lake} (parquet, compacted)"
    assert lines["offsets"] == "[1, 4), the first export"
    assert lines["written"].startswith("2 rows in 2 files, ")
    assert lines["snapshot"].startswith("1: 2 rows in 2 files, ")
    assert lines["checkpoint"] == "export-lake"
    assert run(streams, lake).output == f"{lake} is up to date: it ends at offset 4\n"
    streams.put("in", [Put("b", b"4")])
    told = run(streams, lake, "--dry-run")
    assert told.output == "would export offsets [4, 5): new records since offset 4\n"


def test_what_is_lost_is_told(streams: ExportedStreams, lake: str) -> None:
    for n in range(2):
        streams.put("in", [Put("a", b"%d" % n), Put("b", b"%d" % n)])
    streams.damage("in", 3, noticed=False)
    assert run(streams, lake).exit_code == ExitCode.DAMAGED
    told = run(streams, lake, "--skip-lost")
    in_doubt = "in doubt    2 keys: a newer value may be among the lost records\n"
    # The reason is the daemon's, once it has stored what the first run found.
    reason = r"(damaged|the body checksum does not match)"
    assert re.search(rf"^lost        \[3, 5\): {reason}\n{in_doubt}", told.output, re.M)
    assert run(streams, lake).output.endswith(in_doubt.replace("    ", "  ", 1))


def test_a_full_run_that_would_remove_rows(streams: ExportedStreams, lake: str) -> None:
    streams.put("in", [Put("a", b"1"), Put("a", b"2")])
    run(streams, lake, "--mode", "append")
    streams.truncate("in", 2)
    for dry_run in ([], ["--dry-run"]):
        refused = run(streams, lake, "--full", *dry_run)
        assert refused.exit_code == ExitCode.CONFLICT
        assert "the table has 2 rows, and retention has removed the records below 2" in (
            refused.output
        )
    told = run(streams, lake, "--full", "--discard-rows", "--dry-run")
    assert "discards  the table has 2 rows" in told.output
    assert run(streams, lake, "--discard-rows").exit_code == ExitCode.USAGE


def test_for_programs(streams: ExportedStreams, lake: str) -> None:
    streams.put("in", [Put("a", b"1"), Put("a", b"2"), Put(None, b"3")])
    for option in (["--json"], ["--output", "jsonl"], ["-o", "json"]):
        told = json.loads(run(streams, lake, *option).stdout)
        assert (told["from_offset"], told["to_offset"]) == ((1, 4) if told["full"] else (4, 4))
        assert told["table_rows"] == 2
        assert told["warnings"] == []


def test_the_checkpoint(streams: ExportedStreams, lake: str) -> None:
    streams.put("in", [Put("a", b"1")])
    run(streams, lake)
    run(streams, lake, "--name", "nightly")
    streams.put("in", [Put("a", b"2"), Put("a", b"3")])
    with connect_sync(f"tcp://{streams.server}") as client:
        for name in ("export-lake", "export-nightly"):
            stored = client.fetch_checkpoint(name, "in")
            assert stored is not None
            assert (stored.offset, stored.lag) == (2, 2)
    wrong = run(streams, lake, "--name", "a b")
    assert wrong.exit_code == ExitCode.USAGE
    assert "consumer name" in wrong.output


def test_a_checkpoint_that_cannot_be_stored_is_only_told(
    streams: ExportedStreams, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from liftlog.client.blocking.calls import SyncCalls
    from liftlog.errors import Forbidden

    def refuse(*arguments: object, **named: object) -> None:
        raise Forbidden("bob may not commit")

    monkeypatch.setattr(SyncCalls, "commit_checkpoint", refuse)
    streams.put("in", [Put("a", b"1")])
    done = run(streams, lake)
    assert done.exit_code == ExitCode.OK
    assert "warning: the checkpoint export-lake was not stored: bob may not" in done.stderr
    assert table(lake) == [(1, b"a", b"1")]


def test_another_export_was_quicker(
    streams: ExportedStreams, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.put("in", [Put("a", b"1")])
    streams.put("in", [Put("b", b"2" * 100)])

    class Slow(LocalEngine):
        def run(self, phase: str, *arguments: Any) -> Any:
            if phase == "scan":
                Export(streams, "in", lake)()
            return super().run(phase, *arguments)

    import liftlog.spark.export.engine as engine

    monkeypatch.setattr(engine, "SparkEngine", lambda spark: Slow())
    lost = run(streams, lake, "--partition-size", "64")
    assert lost.exit_code == ExitCode.CONFLICT
    assert "was quicker: the table ends at offset 3 now (sequence 1)" in lost.stderr
    assert "this run has changed nothing" in lost.stderr
    assert newest(lake).sequence == 1


def test_what_else_goes_wrong(
    streams: ExportedStreams, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(daemon_transport.connect.__kwdefaults__, "patience_seconds", 0.2)
    cases: list[tuple[list[str], str, ExitCode, str]] = [
        ([], "nothing", ExitCode.NOT_FOUND, "nothing"),
        (["--to", "s3://bucket/x"], "in", ExitCode.USAGE, "--format delta"),
        (["--to", ""], "in", ExitCode.USAGE, "--to is empty"),
        (["--server", "tcp://127.0.0.1:1"], "in", ExitCode.CANNOT_CONNECT, "127.0.0.1:1"),
        (["--lease", "soon"], "in", ExitCode.USAGE, "--lease soon"),
        (["--lease", "2h"], "in", ExitCode.USAGE, "up to 3600 seconds"),
        (["--partition-size", "0"], "in", ExitCode.USAGE, "--partition-size"),
        (["--tls-cert", "x"], "in", ExitCode.USAGE, "client certificate"),
    ]
    for more, stream, code, said in cases:
        told = run(streams, lake, *more, stream=stream)
        assert (told.exit_code, said in told.stderr) == (code, True), told.stderr
        assert newest(lake) is None


def test_a_lease_that_ends_can_be_tried_again(
    streams: ExportedStreams, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from liftlog.errors import LeaseGone
    from liftlog.spark.export.job import ExportJob

    def fail(self: ExportJob) -> None:
        raise LeaseGone("the lease is gone", hint="run it again")

    monkeypatch.setattr(ExportJob, "run", fail)
    assert run(streams, lake).exit_code == ExitCode.TRY_AGAIN


@pytest.mark.parametrize("module", ["pyspark", "pyarrow", "deltalake"])
def test_what_has_to_be_installed(
    streams: ExportedStreams, lake: str, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    find = session.importlib.util.find_spec
    monkeypatch.setattr(
        session.importlib.util, "find_spec", lambda name: None if name == module else find(name)
    )
    told = run(streams, lake, "--format", "delta")
    assert told.exit_code == ExitCode.FAILED
    extra = "delta" if module == "deltalake" else "spark"
    assert f"{module}, which is not" in told.stderr or f"{module} is not installed" in told.stderr
    assert f"pip install 'liftlog[{extra}]'" in told.stderr


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "there is no java"),
        ("echo 'openjdk version \"1.8.0_392\"' >&2", "is 8, too old"),
        ("echo nonsense >&2", "of an unknown version"),
        ("echo 'openjdk version \"21.0.1\"' >&2", ""),
    ],
)
def test_java(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str | None, said: str
) -> None:
    monkeypatch.undo()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    if script is not None:
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if not said:
        session.check_installed()
        return
    with pytest.raises(session.MissingDependency, match=said) as raised:
        session.check_installed()
    assert "apt install openjdk-17" in raised.value.hint


def test_an_nkey(
    streams: ExportedStreams, lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every task reads the file; here it is not there."""
    monkeypatch.chdir(tmp_path)
    for more in (["--nkey", "ops.nk"], []):
        told = run(streams, lake, *more)
        assert told.exit_code != ExitCode.OK
        assert f"cannot read the nkey {tmp_path}/ops.nk" in told.output
        monkeypatch.setenv("LIFTLOG_NKEY", "ops.nk")


def test_tokens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import click

    with click.Context(cli):
        with token_file(None, None) as path:
            assert path is None
        with token_file("t", "yarn") as path:
            assert path == str(Path("t").absolute())
        monkeypatch.setenv("LIFTLOG_TOKEN", "bob.secret")
        with token_file(None, "local[2]") as path:
            assert path is not None
            assert Path(path).read_text() == "bob.secret"
            assert Path(path).stat().st_mode & 0o777 == 0o600
        assert not Path(path).exists()
        with pytest.raises(InvalidArgument, match="--token-file"):
            with token_file(None, "spark://host:7077"):
                pass
        monkeypatch.setenv("LIFTLOG_TOKEN_FILE", "/etc/token")
        with token_file(None, "spark://host:7077") as path:
            assert path == "/etc/token"
