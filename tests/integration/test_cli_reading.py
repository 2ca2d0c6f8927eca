"""What an operator reads with: ranges, output formats, guesses, completion; all of the daemon."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.clients.command_line import COMMAND, Cli
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.repository import REPOSITORY

from liftlog.cli.lib.exit_codes import ExitCode

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def liftlog() -> Iterator[Cli]:
    """A daemon whose stream `orders` holds offsets 11 to 30; the values are the offsets."""
    streams = {
        "orders": {"subject": "orders.>"},
        "Invoices": {"subject": "invoices.>", "retention": {"max_messages": 7}},
    }
    with NatsServer() as nats, Daemon(nats.url, {"streams": streams}) as daemon:
        command = Cli(daemon, nats)
        command.ok("pub", "orders.x", "{n}", "--count", "15")
        lines = "".join(f"{number}\n" for number in range(16, 31))
        command.ok("pub", "orders.x", "-", stdin=lines.encode())
        command.ok("stream", "truncate", "orders", "11", "--yes")
        command.ok("offsets", "seek", "billing", "orders", "--yes", "--", "-5")
        yield command


def offsets(liftlog: Cli, wanted: str, *more: str) -> list[int]:
    found = liftlog.objects("consume", "orders", "--from", wanted, *more)
    assert [int(one["value"]) for one in found] == [one["offset"] for one in found]
    return [one["offset"] for one in found]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (":end", range(11, 31)),
        ("15:20", range(15, 20)),
        (":13", range(11, 13)),
        ("-3:end", range(28, 31)),
        ("-1000:end", range(11, 31)),
        ("+4:-10", range(15, 21)),
        ("@-1h:end", range(11, 31)),
        ("@2020-01-01:2020-01-02", range(0)),
    ],
)
def test_ranges(liftlog: Cli, wanted: str, expected: range) -> None:
    assert offsets(liftlog, wanted) == list(expected)


def test_a_range_between_two_times(liftlog: Cli) -> None:
    records = liftlog.objects("consume", "orders", "--from", ":end")
    first, last = records[0]["timestamp"], records[-1]["timestamp"]
    expected = [one["offset"] for one in records if first <= one["timestamp"] < last]
    assert 5 <= len(expected) < 20
    assert offsets(liftlog, f"@{first}:{last}") == expected


def test_an_end_of_its_own_and_until_end(liftlog: Cli) -> None:
    assert offsets(liftlog, "-2", "--until-end") == [29, 30]
    refused = liftlog("consume", "orders", "--from", "11:12", "--until-end")
    assert refused.exit_code == ExitCode.USAGE
    assert "--until-end" in refused.stderr
    result = liftlog("consume", "orders", "--offset", "1:12")
    assert result.exit_code == ExitCode.OUT_OF_RANGE
    assert result.stdout == ""


def test_grep_and_a_limit_count_what_is_printed(liftlog: Cli) -> None:
    assert offsets(liftlog, ":end", "--grep", "^2[0-4]$") == [20, 21, 22, 23, 24]
    assert offsets(liftlog, "start", "--grep", "5$", "-n", "2") == [15, 25]
    assert liftlog("consume", "orders", "--grep", "(").exit_code == ExitCode.USAGE


def test_fields_templates_and_csv_of_records(liftlog: Cli) -> None:
    def read(*more: str) -> str:
        return liftlog.ok("consume", "orders", "--from", "29:end", *more)

    assert read("--fields", "offset,subject") == (
        "OFFSET  SUBJECT\n29      orders.x\n30      orders.x\n"
    )
    assert read("--template", "{{.offset}}={{.value}}") == "29=29\n30=30\n"
    assert read("-o", "csv", "--fields", "value,key") == "value,key\n29,\n30,\n"


def test_a_subject_leads_to_its_stream(liftlog: Cli) -> None:
    found = liftlog.objects("consume", "orders.x", "--from", "-2:end")
    assert [one["offset"] for one in found] == [29, 30]
    assert liftlog.ok("consume", "orders.other", "--until-end") == ""
    assert liftlog("consume", "nothing.x", "--until-end").exit_code == ExitCode.NOT_FOUND
    both = liftlog("consume", "*.x", "--until-end")
    assert both.exit_code == ExitCode.USAGE
    assert "Invoices, orders" in both.stderr or "orders, Invoices" in both.stderr


def test_tail(liftlog: Cli) -> None:
    assert [one["offset"] for one in liftlog.objects("tail", "orders", "-n", "3")] == [28, 29, 30]
    assert len(liftlog.objects("tail", "orders")) == 10
    assert len(liftlog.objects("stream", "view", "orders")) == 20


def test_one_record(liftlog: Cli) -> None:
    for words in (("get",), ("stream", "get")):
        assert [one["offset"] for one in liftlog.objects(*words, "orders", "28")] == [28]
    assert liftlog.ok("get", "orders", "30", "--template", "{{.value}}") == "30\n"
    assert liftlog("get", "orders", "10").exit_code == ExitCode.OUT_OF_RANGE
    ahead = liftlog("get", "orders", "31")
    assert ahead.exit_code == ExitCode.OUT_OF_RANGE, "it does not wait for it"
    assert "it ends at 31" in ahead.stderr
    assert liftlog("get", "orders", "0").exit_code == ExitCode.USAGE
    key = liftlog("get", "orders", "order 17")
    assert key.exit_code == ExitCode.USAGE
    assert "liftlog consume orders --until-end --key 'order 17'" in " ".join(key.stderr.split())


def test_words_of_nats_for_a_consumer(liftlog: Cli) -> None:
    # Nothing is lost by the first checkpoint, so that nothing is asked.
    assert liftlog("offsets", "add", "replay", "orders", "1h").exit_code == 0
    assert liftlog.objects("offsets", "info", "replay", "orders")[0]["offset"] == 11
    assert liftlog.objects("offsets", "info", "replay")[0]["offset"] == 11
    again = liftlog("offsets", "add", "replay", "orders", "end")
    assert again.exit_code == ExitCode.USAGE
    assert "There is no terminal to ask on" in again.stderr
    swapped = liftlog("offsets", "info", "orders", "replay")
    assert swapped.exit_code == ExitCode.NOT_FOUND
    assert "the consumer comes first: liftlog offsets get replay orders" in swapped.stderr
    assert liftlog("offsets", "rm", "replay", "orders", "-f").exit_code == 0
    assert liftlog("offsets", "info", "replay").exit_code == ExitCode.NOT_FOUND


def test_checkpoints_of_a_stream(liftlog: Cli) -> None:
    assert liftlog.ok("offsets", "ls", "orders", "-q") == "billing orders\n"
    assert "no checkpoints in Invoices" in liftlog("offsets", "ls", "Invoices").stderr
    assert liftlog("offsets", "ls", "orders", "-s", "Invoices").exit_code == ExitCode.USAGE
    liftlog.ok("offsets", "add", "billing", "Invoices", "end")
    both = liftlog("offsets", "get", "billing")
    assert both.exit_code == ExitCode.USAGE
    assert "It has checkpoints in Invoices, orders" in both.stderr
    liftlog.ok("offsets", "rm", "billing", "Invoices", "-y")


def test_a_lease_by_another_word(liftlog: Cli) -> None:
    held = liftlog.objects("stream", "lease", "add", "orders")[0]
    assert liftlog("stream", "lease", "rm", "orders", held["lease_id"]).exit_code == 0


def test_streams_are_filtered(liftlog: Cli) -> None:
    def names(*more: str) -> list[str]:
        return liftlog.ok("stream", "ls", "-q", *more).splitlines()

    assert sorted(names()) == ["Invoices", "orders"]
    assert names("o*") == names("--subject", "orders.eu") == ["orders"]
    assert names("o*", "--subject", "invoices.>") == []
    assert names("--state", "paused") == []
    assert len(names("--state", "paused", "--state", "attached")) == 2
    assert "None of 2 streams" in liftlog("stream", "ls", "--state", "paused").stderr
    assert "liftlog stream for 'orders.>'" in liftlog("stream", "find", "orders.>").stderr


def test_checkpoints_are_filtered_by_lag(liftlog: Cli) -> None:
    assert liftlog.ok("offsets", "ls", "-q", "--lag", "5") == "billing orders\n"
    assert liftlog.objects("offsets", "ls", "--lag", "6") == []


def test_how_late_a_consumer_is(liftlog: Cli) -> None:
    shown = dict(
        line.split("  ", 1)
        for line in liftlog.ok("offsets", "get", "billing", "orders").splitlines()
    )
    unread = {name: text.strip() for name, text in shown.items()}["oldest unread"]
    (record,) = liftlog.objects("consume", "orders", "--from", "-5", "-n", "1")
    assert unread.startswith(record["timestamp"])
    assert unread.endswith(" ago)")
    liftlog.ok("offsets", "seek", "done", "orders", "end", "--yes")
    assert "oldest unread" not in liftlog.ok("offsets", "get", "done", "orders")
    liftlog.ok("offsets", "rm", "done", "orders", "--yes")


def test_quiet_commands_print_no_confirmations(liftlog: Cli) -> None:
    for words in (["pause", "Invoices"], ["resume", "Invoices"], ["truncate", "orders", "0"]):
        result = liftlog("stream", *words, "-q", *(["-y"] if "truncate" in words else []))
        assert (result.exit_code, result.output) == (0, "")


def test_a_stream_is_truncated_at_a_time(liftlog: Cli) -> None:
    shown = liftlog.ok("stream", "truncate", "orders", "end", "--dry-run")
    assert shown == "up to 20 records of orders below offset 31 would be deleted\n"
    shown = liftlog.ok("stream", "truncate", "orders", "@-1d", "--dry-run")
    assert shown == "up to 0 records of orders below offset 11 would be deleted\n"
    shown = liftlog.ok("stream", "truncate", "orders", "-n", "--", "-5")
    assert shown == "up to 15 records of orders below offset 26 would be deleted\n"


def test_a_checkpoint_before_the_last_five(liftlog: Cli) -> None:
    (found,) = liftlog.objects("offsets", "ls", "--consumer", "billing")
    assert (found["offset"], found["lag"]) == (26, 5)


def test_yaml_and_json_say_the_same(liftlog: Cli) -> None:
    for command in (
        ("stream", "info", "orders"),
        ("offsets", "ls"),
        ("consume", "orders", "--from", "15:20"),
        ("log", "verify", str(liftlog.daemon.data_dir)),
        ("log", "dump", str(liftlog.daemon.data_dir / "streams" / "orders"), "--values"),
    ):
        shown = yaml.safe_load(liftlog.ok(*command, "--output", "yaml"))
        assert shown == json.loads(liftlog.ok(*command, "--output", "json")), command
        assert shown


def test_wide_tables_hold_more(liftlog: Cli) -> None:
    narrow, wide = liftlog.ok("stream", "ls"), liftlog.ok("stream", "ls", "-o", "wide")
    assert "RETENTION" not in narrow
    heading, *rows = wide.splitlines()
    assert narrow.splitlines()[0].split() == heading.split()[: len(narrow.splitlines()[0].split())]
    (row,) = [row for row in rows if row.startswith("Invoices")]
    assert "max_messages=7" in row
    incarnation = liftlog.objects("offsets", "ls")[0]["incarnation"]
    assert incarnation in liftlog.ok("offsets", "ls", "-o", "wide")
    assert incarnation not in liftlog.ok("offsets", "ls")


@pytest.mark.parametrize(
    ("arguments", "guess"),
    [
        (("stream", "info", "ordesr"), "did you mean 'orders'?"),
        (("consume", "invoices"), "did you mean 'Invoices'?"),
        (("offsets", "seek", "billing", "order", "1", "--yes"), "did you mean 'orders'?"),
        (("stream", "info", "nothing-like-it"), "lists the streams"),
    ],
)
def test_a_misspelt_stream_is_guessed(liftlog: Cli, arguments: tuple[str, ...], guess: str) -> None:
    result = liftlog(*arguments)
    assert result.exit_code == ExitCode.NOT_FOUND
    assert guess in result.stderr


# --- health ---


def test_health_over_both_ports(liftlog: Cli) -> None:
    assert liftlog.ok("health").split()[:2] == ["ready", "yes"]
    found = json.loads(liftlog.ok("health", "--http", liftlog.daemon.http_address, "-o", "json"))
    assert found["ready"] is True
    assert found["checks"]["nats"]["ok"] is True
    shown = liftlog.ok("health", "--http", f"http://{liftlog.daemon.http_address}/")
    assert "disk" in shown
    assert "NOT OK" not in shown
    alive = liftlog.ok("health", "--http", liftlog.daemon.http_address, "--live")
    assert alive.split()[:2] == ["alive", "yes"]


def test_health_of_what_is_no_daemon(liftlog: Cli) -> None:
    for arguments in (
        ("--server", "tcp://127.0.0.1:1"),
        ("--http", "127.0.0.1:1"),
        ("--http", liftlog.daemon.pull_address.removeprefix("tcp://")),
    ):
        result = liftlog("health", *arguments, "--timeout", "2")
        assert result.exit_code == ExitCode.CANNOT_CONNECT, arguments
        assert result.stdout == ""
    assert liftlog("health", "--http", "nowhere").exit_code == ExitCode.USAGE
    assert liftlog("health", "--live").exit_code == ExitCode.USAGE


def test_health_without_nats() -> None:
    with NatsServer() as nats, Daemon(nats.url) as daemon:
        command = Cli(daemon, nats)
        nats.stop()
        for arguments in ((), ("--http", daemon.http_address)):
            deadline = time.monotonic() + 20
            while command("health", *arguments).exit_code == ExitCode.OK:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            result = command("health", *arguments)
            assert result.exit_code == ExitCode.TRY_AGAIN
            assert "not connected to NATS" in result.stdout


# --- completion ---


def complete(liftlog: Cli, *words: str, server: str | None = None) -> list[str]:
    """What bash is told for the last of `words`."""
    environ = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "LIFTLOG_SERVER": server or liftlog.daemon.pull_address,
        "_LIFTLOG_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("liftlog", *words)),
        "COMP_CWORD": str(len(words)),
    }
    code = "import sys; sys.argv[0] = 'liftlog'; from liftlog.cli.main import main; main()"
    done = subprocess.run(
        [COMMAND[0], "-c", code], env=environ, capture_output=True, text=True, timeout=30
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_completion_knows_streams_and_consumers(liftlog: Cli) -> None:
    assert complete(liftlog, "stream", "info", "or") == ["orders"]
    assert complete(liftlog, "consume", "I") == ["Invoices"]
    assert complete(liftlog, "offsets", "get", "b") == ["billing"]
    assert complete(liftlog, "cons") == ["consume", "consumer"]
    # A name for something new is not looked up, and without a daemon there is silence.
    assert complete(liftlog, "stream", "create", "or") == []
    assert complete(liftlog, "stream", "info", "or", server="tcp://127.0.0.1:1") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(liftlog: Cli, shell: str) -> None:
    assert f"_LIFTLOG_COMPLETE={shell}_complete" in liftlog.ok("completion", shell)


# --- doctor ---


def test_doctor_finds_what_answers_beside_a_stream(tmp_path: Path) -> None:
    import asyncio

    import nats as nats_py

    async def make_stream(url: str) -> None:
        client = await nats_py.connect(url)
        await client.jetstream().add_stream(name="JS", subjects=["orders.*"])
        await client.close()

    with NatsServer(jetstream=True) as nats:
        asyncio.run(make_stream(nats.url))
        streams = {
            "orders": {"subject": "orders.>", "max_message_bytes": "64KiB"},
            "quiet": {"subject": "orders.new", "acks": "off"},
        }
        with Daemon(nats.url, {"streams": streams}, directory=tmp_path) as daemon:
            command = Cli(daemon, nats)
            del command.environ["LIFTLOG_SERVER"]
            config = ("-c", str(daemon.config_path), "--set", f"pull.listen={daemon.pull_address}")
            found = command.objects("doctor", *config)
            shared = command.objects("doctor", *config, "--set", "streams.orders.acks=off")
    # The daemon's own conditions follow, also as `daemon`: it may have asked JetStream by now.
    conditions = [one for one in found if one["detail"].startswith("jetstream: ")]
    assert all("its stream JS" in one["detail"] for one in conditions)
    by_name = {one["check"]: one for one in found if one not in conditions}
    assert [one["check"] for one in found if one["status"] == "failed"] == []
    assert by_name["nats"]["status"] == by_name["daemon"]["status"] == "ok"
    assert by_name["streams"]["status"] == "ok"
    assert by_name["jetstream"]["status"] == "warning"
    assert "orders (orders.>) and JetStream's JS (orders.*)" in by_name["jetstream"]["detail"]
    [jetstream] = [one for one in shared if one["check"] == "jetstream"]
    assert jetstream["detail"] == "1 stream; the same messages, without acks: orders, quiet"
    assert "quiet" not in by_name["jetstream"]["detail"]
    assert "server 2." in by_name["nats"]["detail"], "a version, not an object"
    # Without --server it asks where the configuration listens.
    assert by_name["daemon"]["detail"].endswith("2 streams")
    assert by_name["nats permissions"]["status"] == "ok"
    assert by_name["max_payload"]["detail"].endswith("which is more than orders store")


# --- top ---


def test_top_prints_once_behind_a_pipe(liftlog: Cli) -> None:
    heading, *rows = liftlog.ok("top", "--interval", "0.1", "--sort", "lag").splitlines()
    assert heading.split()[:3] == ["STREAM", "STATE", "RECORDS/S"]
    assert rows[0].split()[0] == "orders"
    assert rows[0].split()[-2:] == ["5", "billing"]
    (found,) = [
        one for one in liftlog.objects("top", "--interval", "0.1") if one["name"] == "orders"
    ]
    assert (found["records"], found["lag"], found["slowest"]) == (20, 5, "billing")


@pytest.mark.parametrize(("key", "code"), [(b"q", 0), (b"\x03", ExitCode.INTERRUPTED)])
def test_top_on_a_terminal_ends_by_a_key(liftlog: Cli, key: bytes, code: int) -> None:
    import pty
    import termios

    controller, terminal = pty.openpty()
    try:
        before = termios.tcgetattr(terminal)
        process = subprocess.Popen(
            [*COMMAND, "top", "--interval", "0.2"],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TERM": "xterm", **liftlog.environ},
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            preexec_fn=lambda: __import__("fcntl").ioctl(0, termios.TIOCSCTTY, 0),
        )
        shown = b""
        deadline = time.monotonic() + 30
        while shown.count(b"orders") < 2:
            assert time.monotonic() < deadline
            shown += os.read(controller, 65_536)
        os.write(controller, key)
        while process.poll() is None:
            assert time.monotonic() < deadline
            if select.select([controller], [], [], 0.05)[0]:
                shown += os.read(controller, 65_536)
        assert process.returncode == code
        assert b"q: quit" in shown
        assert termios.tcgetattr(terminal) == before
    finally:
        os.close(controller)
        os.close(terminal)
