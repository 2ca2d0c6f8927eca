"""Administration end to end: real NATS, the real daemon, the command line."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import nats.js.errors
import pytest
from click.testing import CliRunner, Result
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.repository import REPOSITORY

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.root import cli
from liftlog.client import connect

pytestmark = pytest.mark.integration

STREAMS = {"fixed": {"subject": "fixed", "dedupe_window": "0s"}}


@pytest.fixture(scope="module")
def nats_server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture(scope="module")
def daemon(nats_server: NatsServer) -> Iterator[Daemon]:
    with Daemon(nats_server.url, {"streams": STREAMS}) as running:
        yield running


class Cli:
    def __init__(self, daemon: Daemon, nats_server: NatsServer) -> None:
        self._environ = {"LIFTLOG_SERVER": daemon.pull_address, "NATS_URL": nats_server.url}

    def __call__(self, *arguments: str) -> Result:
        return CliRunner(env=self._environ).invoke(cli, arguments)

    def ok(self, *arguments: str) -> str:
        result = self(*arguments)
        assert result.exit_code == 0, result.output
        return result.output

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "-o", "json"))


@pytest.fixture
def liftlog(daemon: Daemon, nats_server: NatsServer) -> Cli:
    return Cli(daemon, nats_server)


@pytest.fixture
def stream(liftlog: Cli, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name.replace("_", "-")[:100].partition("[")[0]
    liftlog.ok("stream", "create", name, "-s", f"{name}.>", "--set", "dedupe_window=0s")
    for number in range(10):
        liftlog.ok("pub", f"{name}.a", str(number))
    yield name
    liftlog("stream", "rm", name, "--yes")


def test_update_shows_first_and_asks_before_records_go(liftlog: Cli, stream: str) -> None:
    preview = liftlog.ok("stream", "update", stream, "--set", "retention.max_messages=4", "-n")
    assert "would change" in preview
    assert "retention.max_messages  null  4" in preview
    assert "up to 6 records below offset 7" in preview
    asked = liftlog("stream", "update", stream, "--set", "retention.max_messages=4")
    assert asked.exit_code == ExitCode.USAGE
    assert "--yes" in asked.output
    assert liftlog.json("stream", "info", stream)["settings"]["retention"]["max_messages"] is None
    done = liftlog.json(
        "stream",
        "update",
        stream,
        "--set",
        "retention.max_messages=4",
        "--yes",
        "--set",
        "acks=off",
    )
    assert [one["setting"] for one in done["differences"]] == ["acks", "retention.max_messages"]
    assert (done["dry_run"], done["removal"]["records"], done["stream"]["acks"]) == (
        False,
        6,
        "off",
    )
    assert "already" in liftlog.ok("stream", "update", stream, "--set", "acks=off")
    for arguments, code in (
        (["--set", "queue_group=x"], ExitCode.USAGE),
        (["--set", "nothing=1"], ExitCode.USAGE),
        ([], ExitCode.USAGE),
    ):
        assert liftlog("stream", "update", stream, *arguments).exit_code == code
    assert liftlog("stream", "update", "fixed", "--set", "acks=off").exit_code == ExitCode.CONFLICT
    assert liftlog("stream", "update", "none", "--set", "acks=off").exit_code == ExitCode.NOT_FOUND


def test_what_undoes_one_refusal_tells_of_the_other(liftlog: Cli, stream: str) -> None:
    liftlog.ok("stream", "pause", stream)
    liftlog.ok("stream", "read-only", stream)
    resumed = liftlog.ok("stream", "resume", stream)
    assert "records again" not in resumed
    assert f"{stream} still refuses messages" in resumed
    assert f"liftlog stream read-only {stream} --off" in resumed
    assert liftlog("pub", f"{stream}.a", "x").exit_code == ExitCode.NOT_ACKED
    assert "records again" in liftlog.ok("stream", "read-only", stream, "--off")
    assert "11" in liftlog.ok("pub", f"{stream}.a", "x")
    liftlog.ok("stream", "read-only", stream)
    liftlog.ok("stream", "pause", stream)
    left = liftlog.ok("stream", "read-only", stream, "--off")
    assert f"liftlog stream resume {stream}" in left
    assert "records again" in liftlog.ok("stream", "resume", stream)


def test_a_pass_that_had_nothing_to_do_says_why(liftlog: Cli, stream: str) -> None:
    name = f"{stream[:90]}-young"
    liftlog.ok("stream", "create", name, "-s", f"{name}.>", "--set", "compaction={}")
    for _ in range(2):
        liftlog.ok("pub", f"{name}.a", "value", "--key", "k")
    said = liftlog.ok("stream", "compact", name, "--wait")
    assert f"{name} was not compacted: the dirty records are younger than dedupe_window" in said
    liftlog.ok("stream", "update", name, "--set", "dedupe_window=0s")
    said = liftlog.ok("stream", "compact", name, "--wait")
    assert f"{name} compacted: 1 record of 2 removed" in said
    said = liftlog.ok("stream", "compact", name, "--wait")
    assert f"{name} was not compacted: no record that may be compacted is dirty" in said
    liftlog.ok("stream", "rm", name, "--yes")


def test_records_are_counted_as_they_are(liftlog: Cli, stream: str) -> None:
    """Not as many as there are offsets, where compaction or a new log start took some away."""
    settings = ["compaction.min_dirty_ratio=1.0", "dedupe_window=0s"]
    name = f"{stream[:90]}-keyed"
    sets = [part for setting in settings for part in ("--set", setting)]
    liftlog.ok("stream", "create", name, "-s", f"{name}.>", *sets)
    key = ["--key", "k{n}", "--count", "10"]
    for _ in range(3):
        liftlog.ok("pub", f"{name}.a", "value", *key)
    assert liftlog.json("stream", "info", name)["record_count"] == 30
    liftlog.ok("stream", "compact", name, "--wait")
    found = liftlog.json("stream", "info", name)
    assert found["record_count"] == 10
    assert found["high_watermark"] - found["log_start_offset"] == 30
    [row] = [line for line in liftlog.ok("stream", "ls").splitlines() if line.startswith(name)]
    assert row.split()[3] == "10"
    assert "10 records at offsets 1 to 30" in liftlog.ok("stream", "info", name)
    liftlog.ok("stream", "truncate", stream, "5", "--yes")
    assert liftlog.json("stream", "info", stream)["record_count"] == 6
    assert liftlog.json("stream", "rm", name, "--yes")["records"] == 10


def test_a_paused_stream_is_paused_after_kill_9() -> None:
    """Of the configuration file and of the API; publishers are told, on the wire."""
    with NatsServer() as nats_server, Daemon(nats_server.url, {"streams": STREAMS}) as daemon:
        liftlog = Cli(daemon, nats_server)
        liftlog.ok("stream", "create", "mine", "-s", "mine")
        for name in ("mine", "fixed"):
            liftlog.ok("pub", name, "1")
            assert "paused" in liftlog.ok("stream", "pause", name)
        assert "read-only" in liftlog.ok("stream", "read-only", "mine")
        daemon.kill()
        daemon.start()
        liftlog = Cli(daemon, nats_server)
        states = {one["name"]: one["state"] for one in liftlog.json("stream", "ls")}
        assert states == {"mine": "read-only", "fixed": "paused"}
        for name, code, reason in (("mine", 400, "read-only"), ("fixed", 503, "paused")):
            told = asyncio.run(_refusal(nats_server.url, name))
            assert (told.code, reason in str(told.description)) == (code, True)
        assert daemon.metric("liftlog_refused_total", stream="fixed", reason="paused") == 1
        liftlog.ok("stream", "resume", "fixed")
        liftlog.ok("stream", "resume", "mine")
        assert liftlog("pub", "mine", "2").exit_code == ExitCode.NOT_ACKED
        liftlog.ok("stream", "read-only", "mine", "--off")
        for name in ("mine", "fixed"):
            assert "2" in liftlog.ok("pub", name, "2")
            assert liftlog.json("stream", "info", name)["high_watermark"] == 3


async def _refusal(url: str, subject: str) -> nats.js.errors.APIError:
    connection = await nats.connect(url)
    try:
        with pytest.raises(nats.js.errors.APIError) as raised:
            await connection.jetstream().publish(subject, b"x", timeout=5)
        return raised.value
    finally:
        await connection.close()


def test_publishers_see_a_pause_at_no_wrong_moment(
    daemon: Daemon, nats_server: NatsServer, liftlog: Cli, stream: str
) -> None:
    """While a stream is paused, resumed and updated, each message is either stored and acked or
    nacked: never both, never neither."""
    acked: list[int] = []
    refused = 0

    async def publish() -> None:
        nonlocal refused
        connection = await nats.connect(nats_server.url)
        context = connection.jetstream()
        while not done.is_set():
            answers = await asyncio.gather(
                *(context.publish(f"{stream}.p", b"x", timeout=10) for _ in range(20)),
                return_exceptions=True,
            )
            for answer in answers:
                if isinstance(answer, nats.js.errors.APIError):
                    assert answer.code == 503
                    refused += 1
                else:
                    assert not isinstance(answer, BaseException), answer
                    acked.append(answer.seq)
        await connection.close()

    async def change() -> None:
        async with connect(daemon.pull_address) as client:
            for durability in ("interval", "os", "fsync") * 2:
                stopped = await client.pause_stream(stream)
                await asyncio.gather(
                    client.update_stream(stream, durability=durability, flush={"interval": "10ms"}),
                    client.update_stream(stream, retention={"max_messages": 10_000}),
                )
                paused = await client.describe_stream(stream)
                assert paused.log_end_offset == stopped.log_end_offset, "nothing came in between"
                assert paused.high_watermark == paused.log_end_offset
                await client.resume_stream(stream)
                before = len(acked)
                while len(acked) < before + 20:
                    await asyncio.sleep(0.001)
        done.set()

    async def both() -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(publish(), change())

    done = asyncio.Event()
    asyncio.run(both())
    assert refused
    assert sorted(acked) == list(range(11, 11 + len(acked)))
    assert liftlog.json("stream", "info", stream)["log_end_offset"] == 11 + len(acked)


def test_truncate_and_leases(liftlog: Cli, stream: str) -> None:
    lease = liftlog.json(
        "stream", "lease", "acquire", stream, "--from", "3", "--ttl", "10m", "--holder", "night run"
    )
    assert (lease["low"], lease["high"], lease["holder"]) == (3, 11, "night run")
    table = liftlog.ok("stream", "lease", "ls", stream)
    assert "night run" in table
    assert lease["lease_id"] in table
    held = liftlog("stream", "truncate", stream, "8", "--yes")
    assert (held.exit_code, "night run" in held.output) == (ExitCode.CONFLICT, True)
    assert "holds" in liftlog.ok(
        "stream", "lease", "renew", stream, lease["lease_id"], "--from", "6"
    )
    assert "up to 2 records" in liftlog.ok("stream", "truncate", stream, "3", "-n")
    assert liftlog.json("stream", "info", stream)["log_start_offset"] == 1
    assert "released" in liftlog.ok("stream", "lease", "release", stream, lease["lease_id"])
    gone = liftlog("stream", "lease", "renew", stream, lease["lease_id"])
    assert gone.exit_code == ExitCode.NOT_FOUND
    assert liftlog("stream", "truncate", stream, "8").exit_code == ExitCode.USAGE, "no terminal"
    done = liftlog.json("stream", "truncate", stream, "8", "--yes")
    assert (done["records"], done["log_start_offset"], done["high_watermark"]) == (7, 8, 11)
    assert liftlog("stream", "truncate", stream, "12", "--yes").exit_code == ExitCode.OUT_OF_RANGE
    assert liftlog.json("stream", "lease", "ls", stream) == []
    for bad in (["acquire", stream, "--ttl", "2h"], ["acquire", stream, "--from", "latest"]):
        assert liftlog("stream", "lease", *bad).exit_code == ExitCode.USAGE


def test_streams_for_a_subject_and_info(daemon: Daemon, liftlog: Cli, stream: str) -> None:
    assert [one["name"] for one in liftlog.json("stream", "for", f"{stream}.x")] == [stream]
    assert stream in liftlog.ok("stream", "for", f"{stream}.>")
    assert "No stream records" in liftlog.ok("stream", "for", "nobody.records.this")
    assert liftlog("stream", "for", "a..b").exit_code == ExitCode.USAGE
    info = liftlog.json("info")
    assert info["nats"]["connected"] is True
    assert re.fullmatch(r"2\.\d+\.\d+.*", info["nats"]["server_version"])
    assert info["nats"]["url"].startswith("nats://127.0.0.1:")
    assert info["stream_count"] == len(liftlog.json("stream", "ls"))
    assert info["uptime_seconds"] > 0
    text = liftlog.ok("info")
    assert info["server_id"] in text
    assert daemon.pull_address in text


def test_the_example_of_the_how_to_page_runs(daemon: Daemon, liftlog: Cli, tmp_path: Path) -> None:
    liftlog.ok("stream", "create", "orders", "-s", "orders.>")
    for number in range(3):
        liftlog.ok("pub", "orders.new", str(number))
    page = (REPOSITORY / "docs/how-to/change-a-stream.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(code.replace("tcp://127.0.0.1:9292", daemon.pull_address))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(REPOSITORY)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "3 records, held from 4 to 4\n"
    assert liftlog.json("stream", "lease", "ls", "orders") == []
