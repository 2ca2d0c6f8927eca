"""Moving from JetStream: the page as it stands, interruptions, and who else publishes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
import yaml
from nats.js.api import StorageType
from support.clients.ingesting import until
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.pages import DOCS, blocks, run_shell
from support.repository import REPOSITORY

from liftlog.client import Record, connect_sync

pytestmark = pytest.mark.integration

PAGE = "how-to/migrate-from-jetstream.md"
PROGRAMS = DOCS / "examples/copying"


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer(jetstream=True) as server:
        yield server


@pytest.fixture(scope="module")
def daemon(server: NatsServer) -> Iterator[Daemon]:
    with Daemon(server.url) as daemon:
        yield daemon


@pytest.fixture
async def jetstream(server: NatsServer) -> AsyncIterator[Any]:
    connection = await nats.connect(server.url)
    yield connection.jetstream()
    await connection.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the commands of the page are typed: beside the two programs."""
    for program in PROGRAMS.glob("*.py"):
        shutil.copy(program, tmp_path)
    return tmp_path


def environment(server: NatsServer, daemon: Daemon) -> dict[str, str]:
    return {"NATS_URL": server.url, "LIFTLOG_SERVER": daemon.pull_address}


def records(daemon: Daemon, stream: str) -> list[Record]:
    with connect_sync(daemon.pull_address) as client:
        return list(client.read(stream, until="end"))


def copying(place: Path, stream: str, given: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(place / "into_liftlog.py"), stream],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **given, "PYTHONPATH": str(REPOSITORY)},
    )


async def filled(jetstream: Any, name: str, subject: str, count: int) -> list[int]:
    """A stream of JetStream; the sequence numbers that are in it."""
    await jetstream.add_stream(name=name, subjects=[f"{subject}.>"], storage=StorageType.FILE)
    for number in range(1, count + 1):
        headers = {"Trace": f"t{number}", "Nats-Expected-Last-Sequence": str(number - 1)}
        if number % 3 == 0:
            headers["Nats-Msg-Id"] = f"id{number}"
        await jetstream.publish(f"{subject}.{number % 7}", b"v%d\x00\xff" % number, headers=headers)
    holes = {1, 5, 6, count}
    for number in holes:
        await jetstream.delete_msg(name, number)
    return [number for number in range(1, count + 1) if number not in holes]


async def retire(jetstream: Any, name: str) -> None:
    config = (await jetstream.stream_info(name)).config
    config.subjects = [f"retired.{name}"]
    await jetstream.update_stream(config)


def assert_copied(found: list[Record], subject: str, numbers: list[int]) -> None:
    assert [record.offset for record in found] == list(range(1, len(numbers) + 1))
    for record, number in zip(found, numbers, strict=True):
        assert record.subject == f"{subject}.{number % 7}"
        assert record.value == b"v%d\x00\xff" % number
        headers = dict(record.headers)
        assert headers.pop("Copied-Time").startswith("20")
        assert headers.pop("Nats-Msg-Id") == f"copied-{number}"
        assert headers.pop("Copied-Id", None) == (f"id{number}" if number % 3 == 0 else None)
        for steering in ("Stream", "Last-Sequence", "Last-Msg-Id"):
            headers.pop(f"Nats-Expected-{steering}", None)
        assert headers == {"Trace": f"t{number}", "Copied-Sequence": str(number)}


@pytest.mark.long
async def test_the_page(server: NatsServer, daemon: Daemon, jetstream: Any, place: Path) -> None:
    numbers = await filled(jetstream, "ORDERS", "orders", 50)
    retiring, floor = blocks(PAGE, "python")
    create, _bucket, copy, compare = blocks(PAGE, "sh")  # a bucket moves in test_importing.py
    given = environment(server, daemon)

    def run(code: str) -> str:
        (place / "example.py").write_text(code.replace("tcp://127.0.0.1:9292", daemon.pull_address))
        return run_shell("python example.py", place, given)

    assert await asyncio.to_thread(run, retiring) == "46 messages to copy\n"
    await asyncio.to_thread(run_shell, create, place, given)
    copied = await asyncio.to_thread(run_shell, copy, place, given)
    assert copied == "46 messages copied, the last one was 49\n"
    assert_copied(records(daemon, "orders"), "orders", numbers)
    again = await asyncio.to_thread(run_shell, copy, place, given)
    assert again == "0 messages copied, the last one was 49\n"
    last = (await asyncio.to_thread(run_shell, compare, place, given)).splitlines()[-1]
    assert json.loads(last)["headers"]["Copied-Sequence"] == "49"
    assert await asyncio.to_thread(run, floor) == "billing begins at offset 2\n"
    # The publishers' own calls, unchanged.
    ack = await jetstream.publish("orders.eu", b"new")
    assert (ack.stream, ack.seq) == ("orders", len(numbers) + 1)
    refused = await asyncio.to_thread(run_shell, copy, place, given, expect=1)
    assert refused == ""


async def test_a_copy_that_is_killed_goes_on(
    server: NatsServer, daemon: Daemon, jetstream: Any, place: Path
) -> None:
    numbers = await filled(jetstream, "TRIPS", "trips", 200)
    await retire(jetstream, "TRIPS")
    given = environment(server, daemon)
    with connect_sync(daemon.pull_address) as client:
        client.create_stream("trips", subject="trips.>")
        source = await asyncio.to_thread(
            run_shell, "python from_jetstream.py TRIPS 2> counted", place, given
        )
        lines = source.splitlines(keepends=True)
        assert len(lines) == len(numbers)
        with copying(place, "trips", given) as killed:
            assert killed.stdin is not None
            killed.stdin.write("".join(lines[:120]) + lines[120][:40])
            killed.stdin.flush()
            until(lambda: client.describe_stream("trips").high_watermark > 20, 60)
            killed.send_signal(signal.SIGKILL)
        stored = client.describe_stream("trips").high_watermark - 1
    assert 20 <= stored < len(numbers)
    script = (
        "set -o pipefail\n"
        'python from_jetstream.py TRIPS --from "$(python into_liftlog.py trips --next)" 2> counted'
        " | python into_liftlog.py trips"
    )
    printed = await asyncio.to_thread(run_shell, script, place, given)
    assert printed == f"{len(numbers) - stored} messages copied, the last one was {numbers[-1]}\n"
    assert_copied(records(daemon, "trips"), "trips", numbers)


async def test_somebody_else_who_publishes_is_noticed(
    server: NatsServer, daemon: Daemon, jetstream: Any, place: Path
) -> None:
    given = environment(server, daemon)

    def lines(*numbers: int) -> str:
        made = [{"sequence": n, "subject": "busy.x", "value": "eA=="} for n in numbers]
        return "".join(json.dumps(line) + "\n" for line in made)

    with connect_sync(daemon.pull_address) as client:
        client.create_stream("busy", subject="busy.>")
        with copying(place, "busy", given) as process:
            assert process.stdin is not None
            process.stdin.write(lines(1, 2))
            process.stdin.flush()
            await asyncio.to_thread(
                until, lambda: client.describe_stream("busy").high_watermark == 3, 60
            )
            await jetstream.publish("busy.other", b"mine")
            said = process.communicate(lines(3, 4))[1]
    assert process.returncode == 1
    assert said.startswith("PUBLISH_REFUSED: refused by busy: wrong last sequence: 3")
    found = [record.headers.get("Copied-Sequence") for record in records(daemon, "busy")]
    assert found == ["1", "2", None]
    refused = ["python", "into_liftlog.py", "busy", "--next"]
    await asyncio.to_thread(run_shell, " ".join(refused), place, given, expect=1)


async def test_a_bucket_with_its_deletions(
    server: NatsServer, daemon: Daemon, jetstream: Any, place: Path
) -> None:
    bucket = await jetstream.create_key_value(bucket="prices", history=3)
    await bucket.put("acme", b"1")
    await bucket.put("acme", b"2")
    await bucket.put("ibm", b"3")
    await bucket.delete("ibm")
    await retire(jetstream, "KV_prices")
    with connect_sync(daemon.pull_address) as client:
        client.create_stream("prices", subject="prices.>", compaction={})
    script = (
        "set -o pipefail; python from_jetstream.py KV_prices --key-from-subject --strip '$KV.'"
        " 2> counted | python into_liftlog.py prices --envelope"
    )
    await asyncio.to_thread(run_shell, script, place, environment(server, daemon))
    found = [(record.key, record.value) for record in records(daemon, "prices")]
    assert found == [
        (b"prices.acme", b"1"),
        (b"prices.acme", b"2"),
        (b"prices.ibm", b"3"),
        (b"prices.ibm", None),
    ]


async def test_the_pages_on_liftbridge_and_other_systems(place: Path) -> None:
    page = "how-to/migrate-from-liftbridge.md"
    [settings] = blocks(page, "yaml")
    [publisher] = blocks(page, "python")
    [line] = blocks("how-to/migrate-from-elsewhere.md", "json")
    [copy] = blocks("how-to/migrate-from-elsewhere.md", "sh")
    with NatsServer() as server, Daemon(server.url, yaml.safe_load(settings)) as daemon:
        given = environment(server, daemon)
        stand_in = place / "print-messages"
        stand_in.write_text(f"#!/bin/sh\necho '{line.strip()}'\n")
        stand_in.chmod(0o755)
        copied = await asyncio.to_thread(run_shell, copy, place, given)
        assert copied == ("1 message copied into orders; the last one is number 1 of old-orders\n")
        (place / "example.py").write_text(publisher.replace("nats://127.0.0.1:4222", server.url))
        said = await asyncio.to_thread(run_shell, "python example.py", place, given)
        assert said == "orders: offset 2, error 0\n"
        old, new = records(daemon, "orders")
        assert (old.key, old.value, old.headers["trace"]) == (b"\x00\xff1", b"paid", "t9")
        assert (new.key, new.value, new.headers["trace"]) == (b"order-17", b"paid", "t9")
