"""The commands against the real daemon and a real nats-server."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest
from click.testing import CliRunner
from nats.aio.msg import Msg
from support.clients.command_line import Cli
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from acl.tokens import hash_token, new_secret
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.root import cli

pytestmark = pytest.mark.integration

NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def liftlog() -> Iterator[Cli]:
    streams = {"orders": {"subject": "orders.>"}, "silent": {"subject": "silent", "acks": "off"}}
    with NatsServer() as nats, Daemon(nats.url, {"streams": streams}) as daemon:
        yield Cli(daemon, nats)


@pytest.fixture
def stream(liftlog: Cli) -> Iterator[str]:
    """A stream for one test; it records <name>.>"""
    name = f"test{next(NUMBERS)}"
    liftlog.ok("stream", "create", name, "--subject", f"{name}.>")
    yield name
    liftlog.ok("stream", "rm", name, "--yes")


# --- streams ---


def test_create_is_idempotent_and_conflicts_are_explained(liftlog: Cli) -> None:
    create = ("stream", "create", "jobs", "--subject", "jobs.*")
    settings = ("--set", "retention.max_messages=100", "--set", "acks=off")
    assert "jobs records jobs.* (attached)" in liftlog.ok(*create, *settings)
    (again,) = liftlog.objects(*create, *settings)
    assert again["settings"]["retention"]["max_messages"] == 100
    assert again["acks"] == "off"
    refused = liftlog(*create, "--set", "acks=off", "--set", "retention.max_messages=5")
    assert refused.exit_code == ExitCode.CONFLICT
    assert refused.stdout == ""
    assert "retention.max_messages" in refused.stderr
    liftlog.ok("stream", "delete", "jobs", "-y")


def test_wrong_settings_are_listed_all_at_once(liftlog: Cli) -> None:
    result = liftlog(
        "stream", "create", "x", "--subject", "a..b", "--set", "durability=maybe", "--set", "foo=1"
    )
    assert result.exit_code == ExitCode.USAGE
    for key in ("subject", "durability", "foo"):
        assert key in result.stderr
    assert liftlog("stream", "info", "x").exit_code == ExitCode.NOT_FOUND


def test_erase(liftlog: Cli, stream: str) -> None:
    for number in range(1, 8):
        liftlog.ok("pub", f"{stream}.a", f"secret {number}")
    asked = liftlog("erase", stream, "--offset", "2", "--offset", "5-6", stdin=b"n\n")
    assert asked.exit_code == ExitCode.USAGE  # nobody is there to be asked
    tried = liftlog.ok("erase", stream, "--offset", "2", "--offset", "5-6", "--dry-run")
    assert f"3 records of {stream} in 2 ranges from offset 2 to 6" in tried
    assert f"Subjects include: {stream}.a" in tried
    arguments = (
        "erase",
        stream,
        "--offset",
        "2",
        "--offset",
        "5-6",
        "--reason",
        "request 17",
        "--yes",
    )
    assert f"3 records of {stream} erased (" in liftlog.ok(*arguments)
    assert f"No record of {stream} matches" in liftlog.ok(*arguments)
    left = [
        one["offset"] for one in liftlog.objects("consume", stream, "--from", "1", "--until-end")
    ]
    assert left == [1, 3, 4, 7]
    assert liftlog("get", stream, "5").exit_code == ExitCode.NOT_FOUND
    for bad in ("x", "5-3", "-1", "1-"):
        assert liftlog("erase", stream, "--offset", bad, "-y").exit_code == ExitCode.USAGE
    past = liftlog("erase", stream, "--offset", "900-1000", "-y")
    assert (past.exit_code, past.stderr.strip()) == (0, "The stream has the offsets 1 to 7.")


def test_erase_what_matches(liftlog: Cli, stream: str) -> None:
    for number in range(1, 13):
        liftlog.ok(
            "pub", f"{stream}.{'ab'[number % 2]}", f"v{number}", "--header", f"N:{number % 3}"
        )
    began = [one["timestamp"] for one in liftlog.objects("consume", stream, "--until-end")]
    tried = liftlog.ok("erase", stream, "--subject", f"{stream}.a", "--header", "N=0", "--dry-run")
    assert f"2 records of {stream} in 2 ranges from offset 6 to 12" in tried
    assert f"Subjects include: {stream}.a" in tried
    shown = json.loads(
        liftlog.ok(
            "erase", stream, "--subject", f"{stream}.a", "--header", "N=0", "-y", "-o", "json"
        )
    )
    assert (shown["records"], shown["ranges"], shown["first_offset"]) == (2, 2, 6)
    left = [one["offset"] for one in liftlog.objects("consume", stream, "--until-end")]
    assert left == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]
    for bad in (
        ["--subject", "a..b"],
        ["--header", "a b"],
        ["--since", "17"],
        ["--since", "soon"],
        ["--since", "1m", "--until", "2m"],
        [],
    ):
        refused = liftlog("erase", stream, *bad, "-y")
        assert refused.exit_code == ExitCode.USAGE, bad
        assert "Traceback" not in refused.stderr
    typo = liftlog("erase", stream, "--subject", "x.y", "-y", "--now")
    assert f"The stream records {stream}.>, and no subject that matches x.y." in typo.stderr
    old = ["--since", "@1767225600", "--until", began[3], "--offset", "2-90"]
    assert f"2 records of {stream} erased" in liftlog.ok("erase", stream, *old, "-y")
    left = [one["offset"] for one in liftlog.objects("consume", stream, "--until-end")]
    assert left == [1, 4, 5, 7, 8, 9, 10, 11]


def test_erased_bytes_are_gone(liftlog: Cli, stream: str) -> None:
    assert "No records" in liftlog("erase", "ls", stream).stderr
    for number in range(1, 8):
        liftlog.ok("pub", f"{stream}.a", f"secret {number}", "--msg-id", f"id-{number}")
    liftlog.ok("erase", "records", stream, "--offset", "2", "-y", "--reason", "request 17")
    before = liftlog("erase", "prove", stream)
    assert before.exit_code == ExitCode.FAILED
    assert "1 of 1 erased record are still in the files" in before.stdout
    assert "active segment" in liftlog.ok("erase", "show", stream, _first_erasure(liftlog, stream))
    assert liftlog("erase", "remove", stream, "nope").exit_code == ExitCode.USAGE
    removed = liftlog("erase", "remove", stream)
    assert removed.exit_code == ExitCode.OK, removed.stderr
    assert "bytes are gone" in removed.stderr
    assert liftlog("erase", "prove", stream).exit_code == ExitCode.OK
    now = liftlog("erase", stream, "--offset", "4-5", "-y", "--now")
    assert now.exit_code == ExitCode.OK, now.stderr
    assert f"2 records of {stream} erased" in now.stdout
    assert "bytes are gone" in now.stderr
    listed = liftlog.objects("erase", "ls", stream)
    assert [(one["count"], one["left"]) for one in listed] == [(2, 0), (1, 0)]
    assert "request 17" in liftlog.ok("erase", "list", stream)
    shown = liftlog.ok("erase", "show", stream, listed[0]["erasure_id"])
    assert "nothing in the listed files" in shown
    assert liftlog.ok("erase", "ls", stream, "-q").split() == [one["erasure_id"] for one in listed]
    after = liftlog("erase", "prove", stream)
    assert after.exit_code == ExitCode.OK
    assert "No file has one of 3 erased records" in after.stdout
    assert "backups" in after.stderr
    # The id of a removed record still counts.
    assert " 4" in liftlog.ok("pub", f"{stream}.a", "again", "--msg-id", "id-4")
    unknown = liftlog("erase", "show", stream, "0f1e")
    assert unknown.exit_code == ExitCode.USAGE
    assert "no erasure '0f1e'" in unknown.stderr
    assert liftlog("erase", "prove", "nope").exit_code == ExitCode.NOT_FOUND


def _first_erasure(liftlog: Cli, stream: str) -> str:
    return liftlog.objects("erase", "ls", stream)[-1]["erasure_id"]


@pytest.mark.parametrize("name", ["../x", "a b", "_offsets", "x" * 129, "ü"])
def test_names_that_are_none(liftlog: Cli, name: str) -> None:
    result = liftlog("stream", "create", name, "--subject", "a")
    assert result.exit_code == ExitCode.USAGE
    assert "Traceback" not in result.stderr


def test_ls_and_info(liftlog: Cli, stream: str) -> None:
    liftlog.ok("pub", f"{stream}.a", "hello")
    names = [one["name"] for one in liftlog.objects("stream", "ls")]
    assert {"orders", "silent", stream} <= set(names)
    assert json.loads(liftlog.ok("stream", "list", "-o", "json"))[0].keys() >= {"name", "state"}
    heading, *rows = liftlog.ok("stream", "ls").splitlines()
    assert heading.split()[:3] == ["NAME", "SUBJECT", "STATE"]
    (row,) = [row for row in rows if row.startswith(stream)]
    assert row.split()[1:4] == [f"{stream}.>", "attached", "1"]
    shown = liftlog.ok("stream", "info", stream)
    assert "1 record at offsets 1 to 1" in shown
    assert "dedupe_window: 2m" in shown
    (described,) = liftlog.objects("stream", "describe", stream)
    assert described["high_watermark"] == 2


def test_rm_asks_first_and_spares_what_the_configuration_names(liftlog: Cli, stream: str) -> None:
    result = liftlog("stream", "rm", stream)
    assert result.exit_code == ExitCode.USAGE
    assert "--yes" in result.stderr
    shown = liftlog.ok("stream", "rm", stream, "--dry-run")
    assert "would be deleted" in shown
    assert liftlog("stream", "info", stream).exit_code == ExitCode.OK
    assert liftlog("stream", "rm", "orders", "--yes").exit_code == ExitCode.CONFLICT
    assert liftlog("stream", "rm", "nope", "--yes").exit_code == ExitCode.NOT_FOUND


# --- pub ---


def test_pub_prints_stream_and_offset(liftlog: Cli, stream: str) -> None:
    assert liftlog.ok("pub", f"{stream}.a", "one") == f"{stream} 1\n"
    twice = ("pub", f"{stream}.a", "two", "--msg-id", "m1")
    assert liftlog.ok(*twice) == f"{stream} 2\n"
    assert liftlog.ok(*twice) == f"{stream} 2 duplicate\n"
    assert json.loads(liftlog.ok(*twice, "-o", "json")) == [
        {"subject": f"{stream}.a", "stream": stream, "seq": 2, "duplicate": True}
    ]


def test_pub_finds_the_nats_server_of_the_daemon(liftlog: Cli, stream: str) -> None:
    environ = {**liftlog.environ, "NATS_URL": None, "LIFTLOG_NATS__SERVERS": None}
    result = CliRunner(env=environ).invoke(cli, ["pub", f"{stream}.a", "found"])
    assert result.output == f"{stream} 1\n"


@pytest.mark.parametrize("form", [(), ("--envelope",)])
def test_keys_headers_and_tombstones(liftlog: Cli, stream: str, form: tuple[str, ...]) -> None:
    with_key = ("--key", "k", "-H", "Trace: 1", *form)
    liftlog.ok("pub", f"{stream}.a", "value", "--msg-id", "m", *with_key)
    liftlog.ok("pub", f"{stream}.a", "--tombstone", *with_key)
    assert "duplicate" in liftlog.ok("pub", f"{stream}.a", "value", "--msg-id", "m", *with_key)
    first, second = liftlog.objects("consume", stream, "--until-end")
    assert (first["key"], first["value"], first["headers"]["Trace"]) == ("k", "value", "1")
    assert (second["key"], second["value"]) == ("k", None)


@pytest.mark.parametrize("key", [" a ", "a\t", "\u2003a", "a\nb", "a\r\nLiftlog-Tombstone: true"])
def test_keys_are_stored_as_given_or_refused(liftlog: Cli, stream: str, key: str) -> None:
    """NATS clients cut the blanks around a header value and fold its lines: two keys became one,
    and compaction deleted the records of the other."""
    result = liftlog("pub", f"{stream}.a", "x", "--key", key)
    assert result.exit_code == ExitCode.USAGE
    assert "--envelope" in result.stderr
    liftlog.ok("pub", f"{stream}.a", "x", "--key", key, "--envelope")
    (record,) = liftlog.objects("consume", stream, "--until-end")
    assert record["key"] == key


def test_message_ids_and_headers_are_stored_as_given_or_refused(liftlog: Cli, stream: str) -> None:
    for wrong in (("--msg-id", " m"), ("--msg-id", "m\nn"), ("-H", "A:b\nc"), ("-H", "A:\u2003b")):
        for form in ((), ("--envelope",)):
            assert liftlog("pub", f"{stream}.a", "x", *wrong, *form).exit_code == ExitCode.USAGE
    assert liftlog.objects("consume", stream, "--until-end") == []


def test_many_messages_come_in_order(liftlog: Cli, stream: str) -> None:
    acks = liftlog.ok("pub", f"{stream}.a", "n {n}", "--count", "1500").splitlines()
    assert acks == [f"{stream} {offset}" for offset in range(1, 1501)]
    found = liftlog.objects("consume", stream, "--until-end")
    assert [one["value"] for one in found] == [f"n {n}" for n in range(1, 1501)]


def test_lines_of_standard_input(liftlog: Cli, stream: str) -> None:
    data = b"first\r\n\n\xff\xfe\nlast"
    acks = liftlog.ok("pub", f"{stream}.a", "-", "--msg-id", "line-{n}", stdin=data)
    assert acks.splitlines() == [f"{stream} {offset}" for offset in range(1, 5)]
    found = liftlog.objects("consume", stream, "--until-end")
    assert [one["value"] for one in found] == ["first", "", "//4=", "last"]
    assert found[3]["headers"] == {"Nats-Msg-Id": "line-4"}


def test_without_acks(liftlog: Cli, stream: str) -> None:
    result = liftlog("pub", f"{stream}.a", "x", "--count", "3", "--no-ack")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "3 messages sent without asking for an ack" in result.stderr
    liftlog.ok("pub", f"{stream}.a", "x")  # same server, later: the three are in
    assert len(liftlog.objects("consume", stream, "--until-end")) == 4


def test_a_refusal_is_told_and_the_rest_goes_on(liftlog: Cli, stream: str) -> None:
    result = liftlog(
        "pub", f"{stream}.a", "x", "--count", "3", "-H", "Nats-Expected-Last-Sequence:0",
    )  # fmt: skip
    assert result.exit_code == ExitCode.NOT_ACKED
    assert result.stdout == f"{stream} 1\n"
    assert result.stderr.count("wrong last sequence: 1 (400/10071)") == 2
    assert "1 of 3 messages acked" in result.stderr


def test_nobody_listens_and_nobody_answers(liftlog: Cli) -> None:
    result = liftlog("pub", "nobody.here", "x", "--count", "1000")
    assert result.exit_code == ExitCode.NOT_ACKED
    assert "no one listens on nobody.here" in result.stderr
    assert "No further messages were sent" in result.stderr
    result = liftlog("pub", "silent", "x", "--timeout", "0.2")
    assert result.exit_code == ExitCode.NOT_ACKED
    assert "no ack came in 0.2 s" in result.stderr


async def test_a_service_that_replies_as_well_does_not_hide_the_ack(
    liftlog: Cli, stream: str
) -> None:
    service = await nats.connect(liftlog.environ["NATS_URL"])

    async def reply(message: Msg) -> None:
        await message.respond(b"pong")

    try:
        for subject in (f"{stream}.a", "elsewhere"):
            await service.subscribe(subject, cb=reply)
        await service.flush()
        acked = await asyncio.to_thread(liftlog.ok, "pub", f"{stream}.a", "x")
        alone = await asyncio.to_thread(liftlog, "pub", "elsewhere", "x", "--timeout", "0.2")
    finally:
        await service.close()
    assert acked == f"{stream} 1\n"
    assert alone.exit_code == ExitCode.NOT_ACKED
    assert "come from no stream" in alone.stderr


def test_results_of_lines_come_at_once_and_an_interrupt_ends_it(liftlog: Cli, stream: str) -> None:
    for options in ((), ("--no-ack",)):
        process = liftlog.spawn("pub", f"{stream}.a", "-", *options, stdin=subprocess.PIPE)
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"one\n")
            process.stdin.flush()
            if not options:
                assert process.stdout.readline() == f"{stream} 1\n".encode()
            else:
                deadline = time.monotonic() + 20
                while len(liftlog.objects("consume", stream, "--until-end")) < 2:
                    assert time.monotonic() < deadline
            process.send_signal(signal.SIGINT)
            _, complaints = process.communicate(timeout=20)
        finally:
            end(process)
        assert process.returncode == ExitCode.INTERRUPTED
        assert b"Traceback" not in complaints
        assert b"never retrieved" not in complaints


def test_a_connection_to_nats_that_is_lost(liftlog: Cli) -> None:
    for options in ((), ("--no-ack",)):
        with NatsServer() as gone, Daemon(gone.url, {"streams": {"a": {"subject": "a"}}}) as daemon:
            cli = Cli(daemon, gone)
            process = cli.spawn("pub", "a", "-", *options, stdin=subprocess.PIPE)
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(b"one\n")
                process.stdin.flush()
                deadline = time.monotonic() + 20
                while not cli.objects("consume", "a", "--until-end"):
                    assert time.monotonic() < deadline
                gone.kill()
                _, complaints = process.communicate(b"two\n" * 1000, timeout=30)
            finally:
                end(process)
            assert process.returncode == ExitCode.CANNOT_CONNECT, complaints
            assert b"Traceback" not in complaints
            assert b"never retrieved" not in complaints


def test_no_nats_and_no_secrets_shown(liftlog: Cli) -> None:
    result = liftlog("pub", "a", "x", "--nats", "nats://u:s3cret@127.0.0.1:1")
    assert result.exit_code == ExitCode.CANNOT_CONNECT
    assert "s3cret" not in result.output
    assert "127.0.0.1:1" in result.stderr


# --- consume ---


def test_where_to_start_and_stop(liftlog: Cli, stream: str) -> None:
    for number in range(1, 6):
        liftlog.ok("pub", f"{stream}.a", f"{number}")

    def values(*arguments: str) -> list[str]:
        return [one["value"] for one in liftlog.objects("consume", stream, *arguments)]

    assert values("--until-end") == ["1", "2", "3", "4", "5"]
    assert values("--until-end", "--from", "4") == ["4", "5"]
    assert values("--from", "2", "-n", "2") == ["2", "3"]
    assert values("--until-end", "--from", "latest") == []
    assert values("--until-end", "--from", "@-1h") == ["1", "2", "3", "4", "5"]
    assert values("--until-end", "--from", "@now") == []
    third = liftlog.objects("consume", stream, "--from", "3", "-n", "1")[0]
    assert values("--until-end", "--from", f"@{third['timestamp']}") == ["3", "4", "5"]
    assert json.loads(liftlog.ok("consume", stream, "--from", "5", "-n", "1", "-o", "json"))
    table = liftlog.ok("consume", stream, "--until-end").splitlines()
    assert len(table) == 6


def test_out_of_range_and_unknown(liftlog: Cli, stream: str) -> None:
    result = liftlog("consume", stream, "--from", "99", "--until-end")
    assert result.exit_code == ExitCode.OUT_OF_RANGE
    assert "next:" in result.stderr
    assert liftlog("consume", "nope").exit_code == ExitCode.NOT_FOUND


def test_it_waits_for_more_until_interrupted(liftlog: Cli, stream: str) -> None:
    liftlog.ok("pub", f"{stream}.a", "before")
    process = liftlog.spawn("consume", stream, "-o", "jsonl")
    assert process.stdout is not None
    try:
        assert json.loads(process.stdout.readline())["value"] == "before"
        liftlog.ok("pub", f"{stream}.a", "after")
        assert json.loads(process.stdout.readline())["value"] == "after"
        process.send_signal(signal.SIGINT)
        rest, complaints = process.communicate(timeout=20)
    finally:
        end(process)
    assert process.returncode == ExitCode.INTERRUPTED
    assert (rest, complaints) == (b"", b"")


def test_an_interrupted_json_array_is_whole(liftlog: Cli, stream: str) -> None:
    liftlog.ok("pub", f"{stream}.a", "x")
    process = liftlog.spawn("consume", stream, "-o", "json")
    assert process.stdout is not None
    try:
        head = process.stdout.read1(100)
        while b'"value"' not in head:
            head += process.stdout.read1(1000)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=20)
    finally:
        end(process)
    assert [one["value"] for one in json.loads(head + rest)] == ["x"]


def test_a_closed_pipe_is_quiet(liftlog: Cli, stream: str) -> None:
    liftlog.ok("pub", f"{stream}.a", "x" * 1000, "--count", "1000")
    process = liftlog.spawn("consume", stream)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        process.stdout.readline()
        process.stdout.close()
        process.wait(timeout=20)
        complaints = process.stderr.read()
    finally:
        end(process)
    assert process.returncode == ExitCode.PIPE_CLOSED
    assert complaints == b""


def test_a_daemon_that_goes_away(tmp_path: Path) -> None:
    with NatsServer() as nats, Daemon(nats.url, {"streams": {"a": {"subject": "a"}}}) as daemon:
        liftlog = Cli(daemon, nats)
        liftlog.ok("pub", "a", "x")
        process = liftlog.spawn("consume", "a", "-o", "jsonl", "--reconnect-for", "1")
        assert process.stdout is not None
        try:
            assert process.stdout.readline()
            daemon.kill()
            _, complaints = process.communicate(timeout=20)
        finally:
            end(process)
        assert process.returncode == ExitCode.CANNOT_CONNECT
        assert b"continue with --from 2" in complaints
        daemon.start()


def test_damaged_records_are_named_and_can_be_skipped(tmp_path: Path) -> None:
    streams = {"a": {"subject": "a"}}
    with NatsServer() as nats, Daemon(nats.url, {"streams": streams}, directory=tmp_path) as daemon:
        for number in range(1, 6):  # one batch each
            Cli(daemon, nats).ok("pub", "a", f"value {number}")
        daemon.stop()
        path = daemon.data_dir / "streams" / "a" / f"{1:020d}.log"
        path.write_bytes(path.read_bytes().replace(b"value 3", b"VALUE 3"))
        daemon.start()
        liftlog = Cli(daemon, nats)
        result = liftlog("consume", "a", "--until-end", "-o", "jsonl")
        assert result.exit_code == ExitCode.DAMAGED
        assert [json.loads(line)["offset"] for line in result.stdout.splitlines()] == [1, 2]
        assert "--from 4" in result.stderr
        result = liftlog("consume", "a", "--until-end", "-o", "jsonl", "--skip-damaged")
        assert result.exit_code == ExitCode.DAMAGED
        assert [json.loads(line)["offset"] for line in result.stdout.splitlines()] == [1, 2, 4, 5]
        assert "[3, 4)" in result.stderr
        result = liftlog("log", "verify", str(tmp_path / "data"))
        assert result.exit_code == ExitCode.DAMAGED
        assert "offset 3: lost before: the body checksum does not match" in result.stdout


# --- who may ---

ACL = """
principals:
  reader: {{token_hash: "{0}"}}
  owner: {{token_hash: "{1}"}}
roles:
  reading:
    - {{allow: [read], streams: ["orders"]}}
  owning:
    - {{allow: [create, delete, read, commit, admin], streams: ["*"], attach: ["orders.>"]}}
bindings:
  reader: [reading]
  owner: [owning]
"""


def test_tokens_and_a_unix_socket(tmp_path: Path) -> None:
    secret, other = new_secret(), new_secret()
    (tmp_path / "acl.yaml").write_text(ACL.format(hash_token(secret), hash_token(other)))
    settings = {
        "acl": {"file": str(tmp_path / "acl.yaml")},
        "pull": {"listen": [f"unix://{tmp_path}/pull.sock"]},
        "streams": {"orders": {"subject": "orders.>"}},
    }
    with NatsServer() as nats, Daemon(nats.url, settings, directory=tmp_path) as daemon:
        liftlog = Cli(daemon, nats)
        denied = liftlog("stream", "ls")
        assert denied.exit_code == ExitCode.DENIED
        assert liftlog("stream", "ls", "--token", "reader.wrong").exit_code == ExitCode.DENIED
        assert "orders" in liftlog.ok("stream", "ls", "--token", f"reader.{secret}")
        liftlog.environ["LIFTLOG_TOKEN"] = f"reader.{secret}"
        liftlog.ok("consume", "orders", "--until-end")
        create = ("stream", "create", "more", "--subject", "orders.more")
        refused = liftlog(*create)
        assert refused.exit_code == ExitCode.DENIED
        assert "Traceback" not in refused.stderr
        liftlog.ok(*create, "--token", f"owner.{other}")
        assert secret not in denied.output + refused.output + daemon.log


# --- log, serve, start-up ---


@pytest.mark.long
def test_verify_and_dump_beside_a_busy_daemon(liftlog: Cli, stream: str) -> None:
    process = liftlog.spawn("pub", f"{stream}.a", "x" * 2000, "--count", "20000")
    try:
        rounds = 0
        while process.poll() is None and rounds < 20:
            rounds += 1
            result = liftlog("log", "verify", str(liftlog.daemon.data_dir))
            assert result.exit_code == ExitCode.OK, result.output
        acks, _ = process.communicate(timeout=60)
    finally:
        end(process)
    count = len(acks.splitlines())
    directory = str(liftlog.daemon.data_dir / "streams" / stream)
    dumped = liftlog.ok("log", "dump", directory, "--values", "-o", "jsonl").splitlines()
    assert len(dumped) == count == 20_000
    assert json.loads(dumped[-1])["offset"] == count
    (report,) = liftlog.objects("log", "verify", directory)
    assert report["record_count"] == count
    assert report["findings"] == []


def test_a_second_daemon_on_the_same_directory_is_refused(liftlog: Cli) -> None:
    process = liftlog.spawn("serve", "-c", str(liftlog.daemon.config_path))
    try:
        _, complaints = process.communicate(timeout=30)
    finally:
        end(process)
    assert process.returncode == ExitCode.TRY_AGAIN
    assert str(liftlog.daemon.pid).encode() in complaints
    assert b"Traceback" not in complaints


def test_serve_logs_json_lines_without_secrets(tmp_path: Path) -> None:
    settings = {"nats": {"servers": ["nats://user:s3cret@127.0.0.1:1"], "connect_timeout": "100ms"}}
    daemon = Daemon(None, settings, directory=tmp_path).spawn()
    try:
        daemon.wait_listening()
        deadline = time.monotonic() + 20
        while "nats-" not in daemon.log.split("listening")[-1] and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        stopped = daemon.stop()
    assert stopped.exit_code == 0
    events = [json.loads(line) for line in daemon.log.splitlines()]
    assert {event["event"] for event in events} >= {"starting", "listening"}
    assert any(event["event"].startswith("nats-") for event in events)
    assert "s3cret" not in daemon.log


def test_consume_shows_what_was_asked_for(liftlog: Cli, stream: str) -> None:
    for number in range(6):
        header = ("--header", f"Kind: {'odd' if number % 2 else 'even'}")
        key = ("--key", f"k{number % 3}")
        liftlog.ok("pub", f"{stream}.{number}", f"value {number}", *header, *key)
    consume = ("consume", stream, "--until-end")

    def values(*options: str) -> list[str]:
        return [one["value"] for one in liftlog.objects(*consume, *options)]

    assert values("--subject", f"{stream}.2", "--subject", "*.5") == ["value 2", "value 5"]
    assert values("--key", "k1") == ["value 1", "value 4"]
    assert values("--key", "k1", "--key", "k2", "--header", "kind=odd") == ["value 1", "value 5"]
    assert values("--header", "None") == []
    refused = liftlog(*consume, "--subject", "a..b")
    assert refused.exit_code == ExitCode.USAGE
    assert "a..b" in refused.stderr


def test_consume_goes_on_elsewhere_only_when_told_to(liftlog: Cli, stream: str) -> None:
    liftlog.ok("pub", f"{stream}.a", "hello")
    consume = ("consume", stream, "--until-end", "--from", "500")
    assert liftlog(*consume).exit_code != ExitCode.OK
    found = liftlog(*consume, "--on-reset", "earliest")
    assert found.exit_code == ExitCode.OK
    assert "hello" in found.stdout
    assert "continuing at offset 1" in found.stderr


def test_consume_starts_fast(liftlog: Cli) -> None:
    """Processor time, the least of three: a machine that is busy counts more for the same work. The
    bound is generous, but imports of servers would break it: they take twice as long."""
    used = []
    for _ in range(3):
        before = os.times()
        process = liftlog.spawn("consume", "orders", "--until-end")
        process.communicate(timeout=30)
        after = os.times()
        assert process.returncode == 0
        user = after.children_user - before.children_user
        used.append(user + after.children_system - before.children_system)
    assert min(used) < 0.8


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def test_doctor_beside_a_healthy_daemon_does_not_complain_of_its_ports(liftlog: Cli) -> None:
    config = (
        f"data_dir={liftlog.daemon.data_dir}",
        f"pull.listen={liftlog.daemon.pull_address}",
        f"http.listen={liftlog.daemon.http_address}",
        f"nats.servers={liftlog.environ['NATS_URL']}",
    )
    options = [word for one in config for word in ("--set", one)]
    found = liftlog.objects("doctor", *options)
    ports = [one for one in found if one["check"] == "port"]
    assert [one["status"] for one in ports] == ["ok", "ok"]
    assert all("in use by a liftlog daemon" in one["detail"] for one in ports)


def test_doctor_recognises_a_daemon_that_wants_a_login(tmp_path: Path) -> None:
    acl = tmp_path / "acl.yaml"
    principal = f"{{a: {{token_hash: '{hash_token(new_secret())}'}}}}"
    acl.write_text(f"principals: {principal}\nroles: {{}}\nbindings: {{}}\n")
    with NatsServer() as nats, Daemon(nats.url, {"acl": {"file": str(acl)}}) as daemon:
        options = ("--set", f"pull.listen={daemon.pull_address}", "--set", "http.listen=null")
        found = Cli(daemon, nats).objects("doctor", *options, "--set", f"nats.servers={nats.url}")
        (port,) = (one for one in found if one["check"] == "port")
    assert port["status"] == "ok"


# --- small things ---


def test_quiet_updates_print_nothing(liftlog: Cli, stream: str) -> None:
    words = ("stream", "update", stream, "--set", "retention.max_age=7d")
    assert "retention.max_age" in liftlog.ok(*words, "--dry-run", "--quiet"), "that was asked for"
    assert liftlog.ok(*words, "--quiet") == ""
    assert liftlog.objects("stream", "info", stream)[0]["settings"]["retention"]["max_age"]


def test_what_an_update_deletes_within_a_segment(liftlog: Cli, stream: str) -> None:
    liftlog.ok("pub", f"{stream}.x", "{n}", "--count", "30")
    words = ("stream", "update", stream, "--set", "retention.max_messages=10", "--yes")
    shown = liftlog.ok(*words)
    assert "up to 20 records below offset 21: their segment also has later records" in shown
    assert "0 B" not in shown


def test_a_group_is_moved_only_without_dry_run(liftlog: Cli, stream: str) -> None:
    liftlog.ok("pub", f"{stream}.x", "{n}", "--count", "3")
    words = ("group", "seek", "billing", stream)
    assert "would continue at offset 2" in liftlog.ok(*words, "2", "--dry-run")
    assert liftlog.objects("group", "ls", "--stream", stream) == []
    assert "continues at offset 2" in liftlog.ok(*words, "2", "--yes")
    assert "would continue at offset 1" in liftlog.ok(*words, "start", "--dry-run")


def test_an_interrupted_pub_says_how_many_were_acked(liftlog: Cli, stream: str) -> None:
    publishing = liftlog.spawn("pub", f"{stream}.x", "-", stdin=subprocess.PIPE)
    assert publishing.stdin is not None
    assert publishing.stdout is not None
    publishing.stdin.write(b"a\nb\nc\n")
    publishing.stdin.flush()
    acked = [publishing.stdout.readline() for _ in range(3)]
    publishing.send_signal(signal.SIGINT)
    _, errors = publishing.communicate(timeout=60)
    assert acked[-1] == f"{stream} 3\n".encode()
    assert b"3 of 3 messages acked" in errors
    assert publishing.returncode == ExitCode.INTERRUPTED


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_data_directory_that_cannot_be_used(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(cli, ["serve", "--set", f"data_dir={tmp_path / place}"])
    assert result.exit_code == ExitCode.CONFIG
    assert "cannot be used" in result.stderr
    assert "set data_dir to a directory that the daemon's user may write" in result.stderr


def test_what_a_daemon_makes_is_for_its_owner_alone(liftlog: Cli, tmp_path: Path) -> None:
    """With the usual umask."""
    with Daemon(liftlog.environ["NATS_URL"], directory=tmp_path) as daemon:
        found = {path.name: path.stat().st_mode & 0o777 for path in daemon.data_dir.iterdir()}
    assert daemon.data_dir.stat().st_mode & 0o777 == 0o700
    assert found["reserve"] == found["addresses.json"] == 0o600
    assert {name for name, mode in found.items() if mode & 0o007} == set()


def test_reload_shows_the_lines_of_a_problem(tmp_path: Path, liftlog: Cli) -> None:
    acl = tmp_path / "acl.yaml"
    acl.write_text(f"principals: {{a: {{token_hash: '{hash_token(new_secret())}'}}}}\n")
    settings = {"acl": {"file": str(acl)}}
    with Daemon(liftlog.environ["NATS_URL"], settings) as daemon:
        acl.write_text("principals: {a: {token: x}}\nroles: {b: 7}\n")
        runner = CliRunner()
        result = runner.invoke(cli, ["reload", "--data-dir", str(daemon.data_dir)])
    assert result.exit_code == ExitCode.CONFIG
    assert "\\n" not in result.stderr
    assert len(result.stderr.splitlines()) > 1
