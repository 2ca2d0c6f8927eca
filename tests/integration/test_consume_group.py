"""`liftlog consume --group`: processes share a stream; how they end, and what is committed then."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clients.command_line import Cli
from support.clients.ingesting import assert_no_traceback, until
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.cli.consuming import consume_exec
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.client import GroupInfo, connect_sync

pytestmark = pytest.mark.integration

KEYS = 40
PATIENCE = 60.0


@pytest.fixture(scope="module")
def liftlog(server: NatsServer) -> Iterator[Cli]:
    with Daemon(server.url, {"streams": {"orders": {"subject": "orders.>"}}}) as daemon:
        command = Cli(daemon, server)
        publish(command, 1)
        yield command
        assert_no_traceback(daemon)


def publish(liftlog: Cli, rounds: int) -> None:
    """Each round has a message of each key."""
    for _ in range(rounds):
        liftlog.ok("pub", "orders.x", "{n}", "--key", "k{n}", "--count", str(KEYS))


def described(liftlog: Cli, group: str) -> GroupInfo:
    with connect_sync(liftlog.daemon.pull_address) as client:
        return client.describe_group(group, "orders") or GroupInfo()


def shares(liftlog: Cli, group: str) -> list[int]:
    return sorted(one["slots"] for one in described(liftlog, group).members)


class Worker:
    """`liftlog consume orders --group GROUP -o jsonl`, and what it has printed."""

    def __init__(self, liftlog: Cli, group: str, *more: str) -> None:
        self.records: list[dict[str, Any]] = []
        self.said: list[str] = []
        self.process = liftlog.spawn("consume", "orders", "--group", group, "-o", "jsonl", *more)
        self._threads = [
            threading.Thread(target=self._read, args=(self.process.stdout, self._take)),
            threading.Thread(target=self._read, args=(self.process.stderr, self.said.append)),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, pipe: Any, take: Any) -> None:
        with pipe:
            for line in pipe:
                take(line.decode())

    def _take(self, line: str) -> None:
        self.records.append(json.loads(line))

    def end(self, number: int) -> int:
        """Its exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(PATIENCE)
        for thread in self._threads:
            thread.join()
        assert "Traceback" not in "".join(self.said)
        return code

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.wait()


def test_two_share_one_is_interrupted_and_the_other_continues(liftlog: Cli) -> None:
    long = ("--session", "600")  # so that nothing is read again because the machine is busy
    with (
        Worker(liftlog, "two", *long) as one,
        Worker(liftlog, "two", "--member", "w2", *long) as two,
    ):
        until(lambda: shares(liftlog, "two") == [32, 32], PATIENCE, "they share")
        publish(liftlog, 2)
        until(lambda: len(one.records) + len(two.records) >= 3 * KEYS, PATIENCE, "all is printed")
        assert one.records
        assert two.records
        assert one.end(signal.SIGINT) == ExitCode.INTERRUPTED
        until(lambda: shares(liftlog, "two") == [64], PATIENCE, "it has left")
        publish(liftlog, 1)
        until(lambda: len(one.records) + len(two.records) >= 4 * KEYS, PATIENCE, "the rest")
        assert two.end(signal.SIGINT) == ExitCode.INTERRUPTED
    end = described(liftlog, "two")
    assert (end.members, end.lag) == ([], 0)
    # Both were told to stop, so nothing comes twice: each key is in order, and whole.
    offsets: dict[str, list[int]] = defaultdict(list)
    for record in [*one.records, *two.records]:
        offsets[record["key"]].append(record["offset"])
    assert len(offsets) == KEYS
    assert all(len(set(found)) == len(found) for found in offsets.values())
    assert {record["offset"] for record in one.records + two.records} == set(range(1, 4 * KEYS + 1))
    for worker in (one, two):
        for key in offsets:
            own = [record["offset"] for record in worker.records if record["key"] == key]
            assert own == sorted(own)
    assert any("w2 has 32 slots now" in line for line in two.said)


def test_after_sigterm_a_named_member_keeps_its_slots(liftlog: Cli) -> None:
    more = ("--member", "w1", "--from", "end", "--session", "600")
    with Worker(liftlog, "kept", *more) as worker:
        until(lambda: shares(liftlog, "kept") == [64], PATIENCE, "it is a member")
        generation = described(liftlog, "kept").generation
        assert worker.end(signal.SIGTERM) == ExitCode.INTERRUPTED
    assert shares(liftlog, "kept") == [64]
    assert described(liftlog, "kept").generation == generation
    with Worker(liftlog, "kept", "--session", "600", "--member", "w1") as worker:
        publish(liftlog, 1)
        until(lambda: len(worker.records) >= KEYS, PATIENCE, "it goes on")
        assert len(worker.records) == KEYS  # from the end of the stream, as it was then
        assert worker.end(signal.SIGINT) == ExitCode.INTERRUPTED
    assert shares(liftlog, "kept") == []


def test_a_second_ctrl_c_ends_it_although_the_daemon_hangs(liftlog: Cli) -> None:
    with Worker(liftlog, "hangs", "--session", "600") as worker:
        until(lambda: len(worker.records) >= KEYS, PATIENCE, "it prints")
        liftlog.daemon.process.send_signal(signal.SIGSTOP)
        try:
            worker.process.send_signal(signal.SIGINT)
            until(lambda: "Stopping" in "".join(worker.said), PATIENCE, "it was told")
            with pytest.raises(subprocess.TimeoutExpired):
                worker.process.wait(0.5)  # it waits for its commit
            assert worker.end(signal.SIGINT) == -signal.SIGINT  # 130 for a shell
        finally:
            liftlog.daemon.process.send_signal(signal.SIGCONT)


def test_a_limit_commits_exactly_what_was_printed(liftlog: Cli) -> None:
    found = [
        liftlog.objects("consume", "orders", "--group", "few", "-n", "7", "--session", "600")
        for _ in range(3)
    ]
    assert [one["offset"] for part in found for one in part] == list(range(1, 22))
    whole = json.loads(liftlog.ok("consume", "orders", "--group", "few", "-n", "2", "-o", "json"))
    assert [one["offset"] for one in whole] == [22, 23]
    table = liftlog.ok("consume", "orders", "--group", "few", "-n", "1")
    assert table.splitlines()[0].split() == ["OFFSET", "TIME", "SUBJECT", "KEY", "VALUE"]
    assert table.splitlines()[1].split()[0] == "24"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--member", "w1"), ExitCode.USAGE, "--member needs --group"),
        (("--group", "g", "--until-end"), ExitCode.USAGE, "--until-end cannot be combined"),
        (("--group", "g", "--key", "k"), ExitCode.USAGE, "--key cannot be combined"),
        (("--exec", "true"), ExitCode.USAGE, "--exec needs --group"),
        (("--group", "g", "--dead-letter", "d"), ExitCode.USAGE, "--dead-letter needs --exec"),
        (("--group", "g", "--retries", "1"), ExitCode.USAGE, "--retries needs --dead-letter"),
        (("--group", "g", "--from", ":end"), ExitCode.USAGE, "--from cannot have an end"),
        (("--group", "no spaces"), ExitCode.USAGE, "no spaces"),
        (("--group", "g", "--member", "a/b"), ExitCode.USAGE, "a/b"),
    ],
)
def test_what_is_refused(
    liftlog: Cli, arguments: tuple[str, ...], code: ExitCode, words: str
) -> None:
    result = liftlog("consume", "orders", *arguments)
    assert result.exit_code == code
    assert words in result.stderr
    assert result.stdout == ""


def test_a_name_that_is_taken_ends_the_older_one(liftlog: Cli) -> None:
    with Worker(liftlog, "taken", "--member", "w1") as older:
        until(lambda: shares(liftlog, "taken") == [64], PATIENCE, "it is a member")
        liftlog.ok("consume", "orders", "--group", "taken", "--member", "w1", "-n", "1")
        assert older.wait() == ExitCode.CONFLICT
    assert "another client has joined" in "".join(older.said)


# --- a command for each record ---------------------------------------------------------

BILL = 'read -r value; echo "$value" >> {file}; [ "$value" != 2 ] || exit 3'
"""It cannot bill the second record."""


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def test_a_command_for_each_record(liftlog: Cli, tmp_path: Path) -> None:
    file = tmp_path / "done"
    variables = "$RECORD_STREAM $RECORD_OFFSET $RECORD_SUBJECT $RECORD_KEY"
    command = f'cat >> {file}; echo " {variables}" >> {file}'
    arguments = ("consume", "orders", "--group", "each", "--exec", command)
    assert liftlog.ok(*arguments, "-n", "2") == ""
    assert lines(file) == ["1 orders 1 orders.x k1", "2 orders 2 orders.x k2"]
    assert liftlog.ok(*arguments[:-1], f"cat > {file}", "-n", "1", "-o", "json") == ""
    assert json.loads(file.read_text())["key"] == "k3"
    assert set(described(liftlog, "each").offsets) == {4}


def test_a_command_that_fails_ends_the_worker_and_the_record_comes_again(
    liftlog: Cli, tmp_path: Path
) -> None:
    file = tmp_path / "done"
    arguments = ("consume", "orders", "--group", "fails", "--exec", BILL.format(file=file))
    for _ in range(2):
        result = liftlog(*arguments)
        assert result.exit_code == ExitCode.FAILED
        assert "the command failed for offset 2 of orders: exit status 3" in result.stderr
        assert "--dead-letter" in result.stderr
    assert lines(file) == ["1", "2", "2"]


@pytest.fixture(scope="module")
def dead(liftlog: Cli) -> Cli:
    liftlog.ok("stream", "create", "dead", "--subject", "dead.>")
    return liftlog


def dead_letters(liftlog: Cli, group: str) -> list[dict[str, Any]]:
    found = liftlog.objects("consume", "dead", "--until-end")
    return [one for one in found if one["headers"]["Liftlog-Dead-Group"] == group]


def test_a_record_whose_command_fails_becomes_a_dead_letter(dead: Cli, tmp_path: Path) -> None:
    file = tmp_path / "done"
    more = ("--dead-letter", "dead.orders", "--retries", "1", "-n", "4", "-o", "table")
    with Worker(dead, "aside", "--exec", BILL.format(file=file), *more) as worker:
        assert worker.wait() == 0
    said = "".join(worker.said)
    assert "offset 2 of orders becomes a dead letter after 2 attempt(s)" in said
    assert worker.records == []
    assert lines(file) == ["1", "2", "2", "3", "4"]
    (letter,) = dead_letters(dead, "aside")
    assert (letter["subject"], letter["key"], letter["value"]) == ("dead.orders", "k2", "2")
    assert letter["headers"]["Liftlog-Dead-Error"] == "CommandFailed: exit status 3"
    assert letter["headers"]["Liftlog-Dead-Attempts"] == "2"
    assert set(described(dead, "aside").offsets) == {5}


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("exit 75", ExitCode.TRY_AGAIN, "it asks to be run again later"),
        ("no-such-command", ExitCode.FAILED, "the shell does not find it"),
    ],
)
def test_what_is_not_the_record_s_fault(dead: Cli, command: str, code: int, words: str) -> None:
    """A database that is down must not turn each record into a dead letter."""
    more = ("--dead-letter", "dead.orders") if code == ExitCode.TRY_AGAIN else ()
    result = dead("consume", "orders", "--group", "later", "--exec", command, *more)
    assert result.exit_code == code
    assert words in result.stderr
    assert dead_letters(dead, "later") == []
    assert max(described(dead, "later").offsets) <= 1


def test_ctrl_c_lets_the_command_of_the_record_in_hand_end(liftlog: Cli, tmp_path: Path) -> None:
    file, go_on = tmp_path / "done", tmp_path / "go-on"
    os.mkfifo(go_on)
    command = f"echo begun >> {file}; read -r _ < {go_on}; echo done >> {file}"
    with Worker(liftlog, "waits", "--exec", command) as worker:
        until(lambda: lines(file) == ["begun"], PATIENCE, "it works")
        os.killpg(worker.process.pid, signal.SIGINT)  # as a terminal does
        until(lambda: "Stopping" in "".join(worker.said), PATIENCE, "it was told")
        go_on.write_text("go on\n")  # for one command
        assert worker.wait() == ExitCode.INTERRUPTED
    assert lines(file) == ["begun", "done"]
    end = described(liftlog, "waits")
    assert (end.members, set(end.offsets)) == ([], {2})


def test_ctrl_c_ends_the_attempts_and_the_record_is_not_done(dead: Cli, tmp_path: Path) -> None:
    file = tmp_path / "tried"
    more = ("--dead-letter", "dead.orders", "--retries", "1000")
    with Worker(dead, "tries", "--exec", f"echo >> {file}; exit 1", *more) as worker:
        until(lambda: len(lines(file)) > 1, PATIENCE, "it tries again")
        assert worker.end(signal.SIGINT) == ExitCode.INTERRUPTED
    assert dead_letters(dead, "tries") == []
    end = described(dead, "tries")
    assert end.members == []
    assert max(end.offsets) <= 1


def test_dead_letters_need_nats_and_a_stream(liftlog: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_exec, "_CONNECT_SECONDS", 0.2)
    arguments = ("consume", "orders", "--exec", "false", "--dead-letter", "nowhere")
    result = liftlog(*arguments, "--group", "away", "--nats", "nats://127.0.0.1:1")
    assert result.exit_code == ExitCode.CANNOT_CONNECT
    assert "no stream that this login may read records nowhere" in result.stderr
    assert described(liftlog, "away") == GroupInfo(), "it became a member before"
