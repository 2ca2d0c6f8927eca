"""`liftlog import`: every message once and in order, wherever a run was cut off."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import StorageType
from nats.js.errors import KeyNotFoundError
from support.clients.command_line import Cli
from support.clients.ingesting import until
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.client import Record, connect_sync

pytestmark = pytest.mark.integration

NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def liftlog() -> Iterator[Cli]:
    with NatsServer(jetstream=True) as server, Daemon(server.url) as daemon:
        yield Cli(daemon, server)


@pytest.fixture
def stream(liftlog: Cli) -> str:
    name = f"into{next(NUMBERS)}"
    liftlog.ok("stream", "create", name, "--subject", f"{name}.>")
    return name


@pytest.fixture
async def jetstream(liftlog: Cli) -> AsyncIterator[Any]:
    connection = await nats.connect(liftlog.environ["NATS_URL"])
    yield connection.jetstream()
    await connection.close()


def records(liftlog: Cli, stream: str) -> list[Record]:
    with connect_sync(liftlog.daemon.pull_address) as client:
        return list(client.read(stream, until="end"))


def numbers(found: list[Record]) -> list[int]:
    return [int(one.headers["Copied-Sequence"]) for one in found]


def write_lines(path: Path, count: int, first: int = 1) -> Path:
    lines = (json.dumps({"id": n, "land": "de"}) + "\n" for n in range(first, first + count))
    path.write_text("".join(lines))
    return path


def test_lines_become_messages_and_a_longer_file_continues(
    liftlog: Cli, stream: str, tmp_path: Path
) -> None:
    file = write_lines(tmp_path / "old.jsonl", 700)
    words = ("import", "jsonl", stream, str(file), "-s", f"{stream}.{{{{.land}}}}", "--key", "id")
    assert "would begin at number 1" in liftlog.ok(*words, "--dry-run")
    assert liftlog.ok(*words).startswith(f"700 messages copied into {stream}")
    write_lines(file, 1500)
    (again,) = liftlog.objects(*words)
    assert (again["copied"], again["last"]) == (800, 1500)
    assert liftlog.objects(*words)[0]["copied"] == 0
    found = records(liftlog, stream)
    assert numbers(found) == list(range(1, 1501))
    assert [one.key for one in found[:2]] == [b"1", b"2"]
    assert found[0].value == b'{"id": 1, "land": "de"}'  # the bytes of the line
    assert {one.subject for one in found} == {f"{stream}.de"}


def test_two_sources_do_not_take_each_other_for_themselves(
    liftlog: Cli, stream: str, tmp_path: Path
) -> None:
    first, second = write_lines(tmp_path / "a", 5), write_lines(tmp_path / "b", 9)
    for file, count in ((first, 5), (second, 9), (first, 0), (second, 0)):
        (done,) = liftlog.objects("import", "jsonl", stream, str(file), "-s", f"{stream}.x")
        assert done["copied"] == count
    named = liftlog.objects(
        "import", "jsonl", stream, str(first), "-s", f"{stream}.x", "--source", "b"
    )
    assert named[0]["copied"] == 0
    assert len(records(liftlog, stream)) == 14


def test_a_killed_import_continues_where_it_was(liftlog: Cli, stream: str, tmp_path: Path) -> None:
    """By SIGKILL, with messages under way."""
    file = write_lines(tmp_path / "all", 4000)
    lines = file.read_bytes().splitlines(keepends=True)
    words = ("import", "jsonl", stream, "-", "-s", f"{stream}.x")
    for sent in (1500, 2900):
        before = len(records(liftlog, stream))
        copying = liftlog.spawn(*words, stdin=subprocess.PIPE)
        assert copying.stdin is not None
        copying.stdin.write(b"".join(lines[:sent]))
        copying.stdin.flush()
        deadline = time.monotonic() + 60
        while len(records(liftlog, stream)) <= before:
            assert time.monotonic() < deadline, copying.poll()
            time.sleep(0.01)
        copying.kill()
        copying.communicate()
    (done,) = liftlog.objects(*words[:3], str(file), *words[4:], "--source", "stdin")
    assert done["last"] == 4000
    assert numbers(records(liftlog, stream)) == list(range(1, 4001))


def test_records_of_a_stream_are_copied_as_they_are(liftlog: Cli, stream: str) -> None:
    liftlog.ok("pub", f"{stream}.a", "plain", "-H", "Trace: t1")
    liftlog.ok("pub", f"{stream}.b", "keyed", "--key", "k")
    liftlog.ok("pub", f"{stream}.b", "--tombstone", "--key", "k")
    lines = liftlog.ok("consume", stream, "--until-end", "-o", "jsonl")
    copy = f"{stream}copy"
    liftlog.ok("stream", "create", copy, "--subject", f"{copy}.>")
    moved = lines.replace(f'"{stream}.', f'"{copy}.').encode()
    liftlog.ok("import", "jsonl", copy, "-", "--form", "records", stdin=moved)
    found = [(one.subject, one.key, one.value) for one in records(liftlog, copy)]
    assert found == [
        (f"{copy}.a", None, b"plain"),
        (f"{copy}.b", b"k", b"keyed"),
        (f"{copy}.b", b"k", None),
    ]
    assert records(liftlog, copy)[0].headers["Trace"] == "t1"


@pytest.mark.parametrize(
    ("form", "line", "why"),
    [
        ("rows", "no json", "line 1 cannot be imported"),
        ("records", '{"subject": "a"}', "no 'value'"),
        ("records", "[]", "line 1"),
        ("copied", '{"sequence": 0, "subject": "a", "value": ""}', "sequence 0"),
        ("copied", '{"sequence": 1, "subject": "a", "value": "?"}', "line 1"),
        ("copied", '{"sequence": 1, "subject": "other.a", "value": ""}', "does not record"),
    ],
)
def test_a_line_that_cannot_be_copied(
    liftlog: Cli, stream: str, form: str, line: str, why: str
) -> None:
    words = ["import", "jsonl", stream, "-", "--form", form]
    words += ["-s", f"{stream}.x", "--key", "id"] if form == "rows" else []
    result = liftlog(*words, stdin=line.encode())
    assert result.exit_code == ExitCode.USAGE
    assert why in result.stderr
    assert records(liftlog, stream) == []


def test_another_publisher_ends_the_import(liftlog: Cli, stream: str, tmp_path: Path) -> None:
    """The order would be lost otherwise; what is stored remains, and a second run completes it."""
    words = ("import", "jsonl", stream, "-", "-s", f"{stream}.x")
    file = write_lines(tmp_path / "all", 2000)
    copying = liftlog.spawn(*words, stdin=subprocess.PIPE)
    assert copying.stdin is not None
    copying.stdin.write(b"".join(file.read_bytes().splitlines(keepends=True)[:1000]))
    copying.stdin.flush()
    deadline = time.monotonic() + 60
    while len(records(liftlog, stream)) < 1:
        assert time.monotonic() < deadline, copying.poll()
        time.sleep(0.01)
    liftlog("pub", f"{stream}.x", "from another")
    _, errors = copying.communicate(
        b"".join(file.read_bytes().splitlines(keepends=True)[1000:]), timeout=60
    )
    assert copying.returncode == ExitCode.NOT_ACKED, errors
    assert b"run the command again" in errors
    liftlog.ok(*words[:3], str(file), *words[4:], "--source", "stdin")
    copies = [one for one in records(liftlog, stream) if "Copied-From" in one.headers]
    assert numbers(copies) == list(range(1, 2001))


def test_parquet(liftlog: Cli, stream: str, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for name, first in (("a", 0), ("b", 1200)):
        table = arrow.table(
            {
                "id": list(range(first, first + 1200)),
                "raw": [b"\xff%d" % n for n in range(first, first + 1200)],
            }
        )
        parquet.write_table(table, tmp_path / name, row_group_size=500)
    words = ("import", "parquet", stream)
    more = ("-s", f"{stream}.{{{{id}}}}", "--value", "raw")
    assert liftlog.objects(*words, str(tmp_path / "a"), *more)[0]["copied"] == 1200
    both = (str(tmp_path / "a"), str(tmp_path / "b"))
    assert liftlog.objects(*words, *both, *more)[0]["copied"] == 1200
    found = records(liftlog, stream)
    assert [one.value for one in found] == [b"\xff%d" % n for n in range(2400)]
    assert found[2399].subject == f"{stream}.2399"
    wrong = liftlog(*words, __file__, *more)
    assert wrong.exit_code == ExitCode.USAGE
    assert "is not a Parquet file" in wrong.stderr


async def test_jetstream_with_holes_and_a_second_run(
    liftlog: Cli, stream: str, jetstream: Any
) -> None:
    name = f"JS_{stream}"
    await jetstream.add_stream(name=name, subjects=[f"{stream}.>"], storage=StorageType.MEMORY)
    for number in range(1, 41):
        headers = {"Trace": f"t{number}", "Nats-Msg-Id": f"id{number}"}
        await jetstream.publish(f"{stream}.{number % 3}", b"v%d" % number, headers=headers)
    for number in (1, 5, 6, 40):
        await jetstream.delete_msg(name, number)
    # What the daemon recorded beside JetStream is no copy.
    await asyncio.to_thread(liftlog.ok, "stream", "truncate", stream, "end", "--yes")
    refused = await asyncio.to_thread(liftlog, "import", "jetstream", name, stream)
    assert refused.exit_code == ExitCode.CONFLICT
    assert "records" in refused.stderr
    config = (await jetstream.stream_info(name)).config
    config.subjects = [f"retired.{stream}"]
    await jetstream.update_stream(config)
    wanted = [number for number in range(1, 41) if number not in (1, 5, 6, 40)]
    for count in (len(wanted), 0):
        (done,) = await asyncio.to_thread(liftlog.objects, "import", "jetstream", name, stream)
        assert done["copied"] == count
    found = records(liftlog, stream)
    assert numbers(found) == wanted
    for record, number in zip(found, wanted, strict=True):
        assert (record.subject, record.value) == (f"{stream}.{number % 3}", b"v%d" % number)
        assert record.headers["Trace"] == f"t{number}"
        assert record.headers["Copied-Id"] == f"id{number}"
        assert record.headers["Copied-From"] == f"jetstream/{name}"
    unknown = await asyncio.to_thread(liftlog, "import", "jetstream", "NOPE", stream)
    assert unknown.exit_code == ExitCode.NOT_FOUND


def test_subjects_that_are_not_utf8(tmp_path: Path) -> None:
    """JetStream and the daemon take them; nats-py ends its connection at one."""
    streams = {"js": {"subject": "js.>"}}
    with (
        NatsServer() as here,
        NatsServer(jetstream=True) as other,
        Daemon(here.url, {"streams": streams}) as daemon,
        RawNats(other.port) as old,
        RawNats(here.port) as new,
    ):
        config = {"name": "old", "subjects": ["js.>"], "storage": "memory"}
        old.request("$JS.API.STREAM.CREATE.old", json.dumps(config))
        subjects = [b"js.a", b"js.\xff", "js.ü".encode(), b"js.\xc3.b"]
        for subject in subjects:
            old.request(subject, b"value")
        new.sub("js.>")
        new.ping()
        cli = Cli(daemon, here)
        cli.ok("import", "jetstream", "old", "js", "--source-nats", other.url)
        assert [new.next_message().subject for _ in subjects] == subjects
        assert len(records(cli, "js")) == len(subjects)


async def test_a_bucket_moves_into_a_bucket(liftlog: Cli, jetstream: Any) -> None:
    """The way of docs/how-to/migrate-from-jetstream.md: with its values, deletes and purges, and
    then it goes on as a bucket."""
    old = await jetstream.create_key_value(bucket="prices", history=1)
    for key in ("a", "b", "c", "d.e"):
        await old.put(key, f"{key} 1".encode())
    await old.put("a", b"a 2")
    await old.delete("b")
    await old.purge("c")
    with (
        NatsServer() as nats_here,
        Daemon(nats_here.url, {"nats": {"jetstream_api": True}}) as here,
    ):
        await asyncio.to_thread(until, lambda: "jetstream-api-answers" in here.log)
        cli = Cli(here, nats_here)
        connection = await nats.connect(nats_here.url)
        try:
            new = await connection.jetstream(timeout=30).create_key_value(
                bucket="prices", history=1
            )
            words = ("import", "jetstream", "KV_prices", "KV_prices", "--key-from-subject")
            source = liftlog.environ["NATS_URL"]
            await asyncio.to_thread(cli.ok, *words, "--source-nats", source)
            assert (await new.get("a")).value == b"a 2"
            assert (await new.get("d.e")).value == b"d.e 1"
            for key in ("b", "c"):
                with pytest.raises(KeyNotFoundError):
                    await new.get(key)
            await new.put("b", b"again")
            assert (await new.get("b")).value == b"again"
            found = await new.get("a")
            assert found.revision is not None
            await new.update("a", b"a 3", last=found.revision)
        finally:
            await connection.close()
