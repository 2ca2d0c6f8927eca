"""The NATS command line before the daemon: streams, consumers, buckets and benchmarks, as someone
at a terminal uses them.

`make natscli` builds it, which takes Go and some minutes; without it these tests are skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clients.ingesting import assert_no_traceback, until
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.repository import REPOSITORY

NATS = shutil.which("nats") or shutil.which(str(REPOSITORY / "build/tools/nats"))

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(NATS is None, reason="natscli is not installed; make natscli builds it"),
]


class Natscli:
    def __init__(self, url: str, home: Path) -> None:
        self._command = [NATS, "--server", url, "--timeout", "30s"]
        self._environ = {"HOME": str(home), "PATH": "/usr/bin:/bin"}

    def __call__(self, *arguments: str, given: str = "") -> str:
        """What it prints; it must succeed."""
        done = self.tried(*arguments, given=given)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def tried(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._command, *arguments],
            env=self._environ,
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))

    def at_a_terminal(self, *arguments: str) -> str:
        """What someone sees there who types nothing."""
        ours, theirs = pty.openpty()
        shown = b""
        with subprocess.Popen(
            [*self._command, *arguments],
            env={**self._environ, "TERM": "dumb"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        ) as process:
            os.close(theirs)
            with contextlib.suppress(OSError):  # no one has the other end any more
                while piece := os.read(ours, 4096):
                    shown += piece
            process.wait(60)
        os.close(ours)
        return shown.decode()

    def started(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._command, *arguments],
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture(scope="module")
def natscli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Natscli]:
    with NatsServer(leafnodes={"listen": "127.0.0.1:-1"}) as server:
        listener = re.search(r"Listening for leafnode connections on (\S+:\d+)", server.log)
        assert listener is not None, server.log
        settings = {"nats": {"jetstream_api": True, "leafnode": listener[1]}}
        with Daemon(server.url, settings) as daemon:
            until(lambda: "jetstream-api-answers" in daemon.log)
            until(lambda: "nats-leaf-connected" in daemon.log)
            yield Natscli(server.url, tmp_path_factory.mktemp("home"))
            assert_no_traceback(daemon)


def test_the_life_of_a_stream(natscli: Natscli) -> None:
    natscli("stream", "add", "orders", "--subjects", "orders.>", "--defaults", "--max-age", "1h")
    natscli("pub", "--count", "5", "orders.new", "order {{Count}}")
    assert "orders" in natscli("stream", "ls", "--names").split()
    info = natscli.json("stream", "info", "orders")
    assert info["config"]["subjects"] == ["orders.>"]
    assert info["config"]["max_age"] == 3600 * 10**9
    assert info["state"]["messages"] == 5
    assert natscli.json("stream", "get", "orders", "2")["subject"] == "orders.new"
    assert "order 5" in natscli("stream", "get", "orders", "--last-for", "orders.new")
    viewed = natscli.at_a_terminal("stream", "view", "orders", "10")
    assert [f"order {number}" in viewed for number in range(1, 6)] == [True] * 5
    assert "orders.new" in natscli("stream", "subjects", "orders")
    natscli("stream", "purge", "orders", "--force", "--keep", "2")
    assert natscli.json("stream", "info", "orders")["state"]["first_seq"] == 4
    natscli("stream", "edit", "orders", "--max-age", "2h", "--force")
    assert natscli.json("stream", "info", "orders")["config"]["max_age"] == 7200 * 10**9
    natscli("stream", "rm", "orders", "--force")
    assert natscli.tried("stream", "info", "orders").returncode != 0


def test_messages_are_removed_and_purged(natscli: Natscli) -> None:
    natscli("stream", "add", "gone", "--subjects", "gone.>", "--defaults")
    for subject in ("gone.a", "gone.b"):
        natscli("pub", subject, "{{Count}}", "--count", "10")
    natscli("stream", "rmm", "gone", "3", "--force")
    again = natscli.tried("stream", "rmm", "gone", "3", "--force")
    assert again.returncode
    assert "sequence 3 not found" in again.stderr
    purge = ("stream", "purge", "gone", "--force", "--subject")
    assert "Purged 7 messages" in natscli(*purge, "gone.a", "--keep", "2")
    assert "Purged 4 messages" in natscli(*purge, "gone.*", "--seq", "13")
    state = natscli.json("stream", "info", "gone")["state"]
    assert [state[name] for name in ("messages", "first_seq", "last_seq")] == [8, 13, 20]
    natscli("stream", "rm", "gone", "--force")


def test_a_stream_that_cannot_be_promised_is_refused_with_the_reason(natscli: Natscli) -> None:
    done = natscli.tried(
        "stream", "add", "w", "--subjects", "w", "--retention", "work", "--defaults"
    )
    assert done.returncode != 0
    assert "only limits is supported" in done.stdout + done.stderr


def test_an_object_store(natscli: Natscli, tmp_path: Path) -> None:
    content = bytes(range(256)) * 2_000
    file, copy = tmp_path / "file", tmp_path / "copy"
    natscli("object", "add", "files")
    for part in (content, content[::-1]):  # the second one replaces the first
        file.write_bytes(part)
        natscli("object", "put", "files", str(file), "--name", "one", "--force", "--no-progress")
    natscli("object", "get", "files", "one", "--output", str(copy), "--no-progress")
    assert copy.read_bytes() == content[::-1]
    natscli("object", "rm", "files", "one", "--force")
    assert natscli.tried("object", "get", "files", "one").returncode != 0


def test_the_life_of_a_consumer(natscli: Natscli) -> None:
    natscli("stream", "add", "bills", "--subjects", "bills.>", "--defaults")
    natscli("pub", "--count", "20", "bills.new", "bill {{Count}}")
    place = ("bills", "billing")
    natscli("consumer", "add", *place, "--pull", "--max-deliver", "5", "--wait", "1m", "--defaults")
    natscli("consumer", "add", "bills", "pushed", "--target", "out.x", "--defaults")
    assert natscli("consumer", "ls", "bills", "--names").split() == ["billing", "pushed"]
    shown = natscli("consumer", "next", *place, "--count", "3", "--ack")
    assert [f"bill {number}" in shown for number in range(1, 5)] == [True, True, True, False]
    assert "bill 4" in natscli("consumer", "next", *place, "--no-ack")
    info = natscli.json("consumer", "info", *place)
    assert (info["config"]["max_deliver"], info["config"]["ack_wait"]) == (5, 60 * 10**9)
    assert (info["ack_floor"]["stream_seq"], info["num_ack_pending"]) == (3, 1)
    assert (info["delivered"]["consumer_seq"], info["num_pending"]) == (4, 16)
    assert "Outstanding Acks: 1" in natscli("consumer", "state", *place)
    assert natscli("consumer", "find", "bills", "--pull").split() == ["billing"]
    assert re.search(r"billing .*16 / 80%", natscli("consumer", "report", "bills"))
    natscli("consumer", "edit", *place, "--description", "for the books", "--force")
    assert natscli.json("consumer", "info", *place)["config"]["description"] == "for the books"
    natscli("consumer", "copy", *place, "copied")
    assert natscli.json("consumer", "info", "bills", "copied")["num_pending"] == 20
    natscli("consumer", "pause", *place, "1h", "--force")
    assert natscli.json("consumer", "info", *place)["paused"] is True
    natscli("consumer", "resume", *place, "--force")
    natscli("consumer", "reset", *place, "--force")
    info = natscli.json("consumer", "info", *place)
    assert (info["num_ack_pending"], info["num_pending"]) == (0, 17), "the acked ones stay acked"
    for name in ("billing", "pushed", "copied"):
        natscli("consumer", "rm", "bills", name, "--force")
    assert natscli.tried("consumer", "info", *place).returncode != 0
    natscli("stream", "rm", "bills", "--force")


def test_a_pinned_client(natscli: Natscli) -> None:
    natscli("stream", "add", "jobs", "--subjects", "jobs", "--defaults")
    natscli("pub", "jobs", "a job")
    pinned = ("--pinned-groups", "one", "--pinned-ttl", "10s")
    natscli("consumer", "add", "jobs", "workers", "--pull", *pinned, "--defaults")
    done = natscli.tried("consumer", "unpin", "jobs", "workers", "one", "--force")
    assert "no priority groups have pinned clients" in done.stdout + done.stderr
    info = natscli.json("consumer", "info", "jobs", "workers")
    assert info["config"]["priority_groups"] == ["one"]
    assert info["config"]["priority_timeout"] == 10 * 10**9
    natscli("stream", "rm", "jobs", "--force")


def test_benchmarks_of_consumers(natscli: Natscli) -> None:
    """`--create` would create a stream with atomic batches, which is refused."""
    natscli("stream", "add", "benchstream", "--subjects", "bench.js", "--defaults")
    messages = ("--msgs", "2000", "--no-progress")
    natscli("bench", "js", "pub", "async", "bench.js", *messages)
    for command in ("consume", "fetch", "fetch --doubleack", "ordered"):
        done = natscli("bench", "js", *command.split(), *messages)
        assert re.search(r"stats: [\d,]+ msgs/sec", done), done
        if command != "ordered":
            info = natscli.json("consumer", "info", "benchstream", "nats-bench")
            assert (info["ack_floor"]["stream_seq"], info["num_ack_pending"]) == (2000, 0)
            natscli("consumer", "rm", "benchstream", "nats-bench", "--force")
    natscli("stream", "rm", "benchstream", "--force")


def test_a_bucket(natscli: Natscli) -> None:
    natscli("kv", "add", "config", "--history", "3")
    for value in ("one", "two", "three", "four"):
        natscli("kv", "put", "config", "a.b", value)
    natscli("kv", "create", "config", "c", "5")
    assert natscli.tried("kv", "create", "config", "c", "6").returncode != 0
    assert natscli("kv", "get", "config", "a.b", "--raw").strip() == "four"
    natscli("kv", "update", "config", "c", "7", "5")
    assert natscli.tried("kv", "update", "config", "c", "8", "5").returncode != 0
    history = natscli("kv", "history", "config", "a.b")
    assert [value in history for value in ("one", "two", "three", "four")] == [False, *[True] * 3]
    assert sorted(natscli("kv", "ls", "config").split()) == ["a.b", "c"]
    natscli("kv", "del", "config", "c", "--force")
    assert natscli.tried("kv", "get", "config", "c", "--raw").returncode != 0
    assert "config" in natscli("kv", "ls")
    with natscli.started("kv", "watch", "config") as watching:
        assert watching.stdout is not None
        seen = "".join([watching.stdout.readline() for _ in range(2)])
        assert "config > a.b: four" in seen, seen
        natscli("kv", "put", "config", "new", "9")
        while "new" not in (line := watching.stdout.readline()):
            assert line, seen
        watching.kill()
    natscli("kv", "del", "config", "new", "--force")
    assert natscli.json("stream", "info", "KV_config")["state"]["messages"] == 8
    natscli("kv", "compact", "config", "--force")
    assert sorted(natscli("kv", "ls", "config").split()) == ["a.b"]
    natscli("kv", "rm", "config", "--force")
    assert "config" not in natscli("kv", "ls")
    assert "1.0 MiB" in natscli("kv", "add", "limited", "--max-bucket-size", "1MiB")
