"""`liftlog consumer` and `liftlog consume --worker`: what is acked, returned and buried."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.command_line import Cli
from support.clients.ingesting import assert_no_traceback, until
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.client import ConsumerInfo, connect_sync

pytestmark = pytest.mark.integration

STREAMS = {"jobs": {"subject": "jobs.>"}, "dead": {"subject": "dead.>"}}


@pytest.fixture
def liftlog() -> Iterator[Cli]:
    with NatsServer() as server, Daemon(server.url, {"streams": STREAMS}) as daemon:
        yield Cli(daemon, server)
        assert_no_traceback(daemon)


def publish(liftlog: Cli, *values: str) -> None:
    for value in values:
        liftlog.ok("pub", "jobs.a", value)


def info(liftlog: Cli, name: str = "c") -> ConsumerInfo:
    with connect_sync(liftlog.daemon.pull_address) as client:
        return client.describe_consumer("jobs", name)


def test_consumers_are_administered(liftlog: Cli) -> None:
    assert "no consumers with acks" in liftlog("consumer", "ls", "jobs").stderr
    (made,) = liftlog.objects("consumer", "add", "jobs", "c", "--ack-wait", "1m",
                              "--max-deliver", "4", "--subject", "jobs.a")  # fmt: skip
    assert made["config"]["ack_wait"] == 60 * 10**9
    assert (made["config"]["max_deliver"], made["config"]["filter_subjects"]) == (4, ["jobs.a"])
    assert liftlog.ok("consumer", "add", "jobs", "c", "--ack-wait", "60s", "-q") == "c\n"
    assert liftlog("consumer", "add", "jobs", "c", "--ack-wait", "2m").exit_code == (
        ExitCode.CONFLICT
    )
    publish(liftlog, "one")
    table = liftlog.ok("consumer", "ls", "jobs")
    assert table.splitlines()[1].split() == ["c", "1", "0", "0", "0", "1", "active"]
    assert liftlog.objects("consumer", "ls", "jobs")[0]["num_pending"] == 1
    changed = liftlog.ok(
        "consumer", "edit", "jobs", "c", "--backoff", "1s,5s", "--description", "x"
    )
    assert "1 s, 5 s" in changed
    assert "x" in changed
    assert "paused, 59m" in liftlog.ok("consumer", "pause", "jobs", "c", "1h")
    assert "active" in liftlog.ok("consumer", "resume", "jobs", "c")
    shown = liftlog.objects("consumer", "info", "jobs", "c")[0]
    assert shown["config"]["backoff"] == [10**9, 5 * 10**9]
    assert "next offset" in liftlog.ok("consumer", "reset", "jobs", "c", "end", "--yes")
    assert info(liftlog).next_offset == 2
    assert liftlog("consumer", "rm", "jobs", "c").exit_code == ExitCode.USAGE  # nobody to ask
    assert "deleted" in liftlog.ok("consumer", "rm", "jobs", "c", "--yes")
    gone = liftlog("consumer", "info", "jobs", "c")
    assert gone.exit_code == ExitCode.NOT_FOUND
    assert "no consumer 'c' with acks" in gone.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["consumer", "add", "jobs", "a.b"],
        ["consumer", "add", "jobs", "c", "--ack-wait", "soon"],
        ["consumer", "add", "jobs", "c", "--from", "whenever"],
        ["consumer", "edit", "jobs", "c"],
        ["consume", "jobs", "--worker", "c", "--group", "g"],
        ["consume", "jobs", "--worker", "c", "--grep", "x"],
        ["consume", "jobs", "--worker", "c", "--until-end"],
        ["consume", "jobs", "--exec", "true"],
        ["consume", "jobs", "--worker", "c", "--member", "m"],
    ],
)
def test_wrong_input_is_refused(liftlog: Cli, arguments: list[str]) -> None:
    assert liftlog(*arguments).exit_code == ExitCode.USAGE


def test_missing_streams_and_consumers(liftlog: Cli) -> None:
    for arguments in (
        ["consumer", "ls", "other"],
        ["consumer", "add", "other", "c"],
        ["consumer", "pause", "jobs", "c", "1h"],
        ["consumer", "rm", "jobs", "c", "--yes"],
        ["consume", "other", "--worker", "c"],
    ):
        assert liftlog(*arguments).exit_code == ExitCode.NOT_FOUND


def test_printed_messages_are_acked_and_the_others_returned(liftlog: Cli) -> None:
    publish(liftlog, "one", "two", "three")
    first = liftlog.objects("consume", "jobs", "--worker", "c", "-n", "2")
    assert [one["value"] for one in first] == ["one", "two"]
    there = info(liftlog)
    assert (there.ack_floor, there.num_ack_pending) == (3, 0)
    worker = liftlog.spawn("consume", "jobs", "--worker", "c", "-o", "jsonl")
    assert worker.stdout is not None
    assert json.loads(worker.stdout.readline())["value"] == "three"
    until(lambda: info(liftlog).ack_floor == 4)
    until(lambda: info(liftlog).num_waiting == 1)
    worker.send_signal(signal.SIGINT)
    _, stderr = worker.communicate(timeout=60)
    assert worker.returncode == ExitCode.INTERRUPTED, stderr
    assert b"unacked messages are returned" in stderr
    assert info(liftlog).num_waiting == 0


def test_a_command_acks_and_a_failed_one_comes_again(liftlog: Cli, tmp_path: Path) -> None:
    publish(liftlog, "good", "bad")
    script = f'read line; echo "$line $RECORD_OFFSET" >> {tmp_path}/out; test "$line" = good'
    command = ("consume", "jobs", "--worker", "c", "--exec", script)
    result = liftlog(*command, "--retries", "1", "--dead-letter", "dead.jobs", "-n", "3")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out").read_text().splitlines() == ["good 1", "bad 2", "bad 2"]
    assert "delivered again in 0.5 s" in result.stderr
    (dead,) = liftlog.objects("consume", "dead", "--until-end")
    assert dead["value"] == "bad"
    assert dead["headers"]["Liftlog-Dead-Attempts"] == "2"
    there = info(liftlog)
    assert (there.ack_floor, there.num_ack_pending) == (3, 0)


def test_a_command_that_cannot_work_now_ends_the_worker(liftlog: Cli) -> None:
    publish(liftlog, "one")
    result = liftlog("consume", "jobs", "--worker", "c", "--exec", "exit 75")
    assert result.exit_code == ExitCode.TRY_AGAIN
    (again,) = liftlog.objects("consume", "jobs", "--worker", "c", "-n", "1")
    assert again["value"] == "one"


def test_a_long_command_keeps_its_message(liftlog: Cli, tmp_path: Path) -> None:
    liftlog.ok("consumer", "add", "jobs", "c", "--ack-wait", "1s")
    publish(liftlog, "one")
    script = f"echo x >> {tmp_path}/out; sleep 3"
    worker = liftlog.spawn("consume", "jobs", "--worker", "c", "-n", "1", "--exec", script)
    other = liftlog.spawn("consume", "jobs", "--worker", "c", "--exec", script)
    try:
        until(lambda: info(liftlog).ack_floor == 2)
        there = info(liftlog)
        assert (there.deliveries, there.num_ack_pending) == (1, 0)
        assert (tmp_path / "out").read_text() == "x\n"
    finally:
        for one in (worker, other):
            one.send_signal(signal.SIGTERM)
            try:
                one.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                one.kill()
