"""Readers of every kind while the daemon is killed and started again at the same address."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.clients.ingesting import assert_no_traceback, until
from support.clients.raw_nats import RawNats, pub_frame
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.daemons.ports import free_port
from support.repository import REPOSITORY

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.client import SyncClient, connect_sync

pytestmark = pytest.mark.integration

CONSUMER = """
import asyncio, sys
from liftlog.client import connect

async def main():
    async with connect(sys.argv[1]) as client:
        # By count alone: a slow machine must not get others by time in between.
        options = {"checkpoint_every": 7, "checkpoint_interval": 600}
        async with client.consumer("waiting", "orders", **options) as consumer:
            async for record in consumer:
                print(record.offset, flush=True)

asyncio.run(main())
"""


class Program:
    """A program of a user's that prints a line per record."""

    def __init__(self, *arguments: str, offset_of: Callable[[str], int] = int) -> None:
        self.offsets: list[int] = []
        self.complaints: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            text=True,
        )
        out, err = self._process.stdout, self._process.stderr
        assert out is not None
        assert err is not None
        self._threads = [
            threading.Thread(target=lambda: self.offsets.extend(map(offset_of, out))),
            threading.Thread(target=lambda: self.complaints.extend(err)),
        ]
        for thread in self._threads:
            thread.start()

    def has(self, count: int) -> None:
        until(lambda: len(self.offsets) >= count, 30, f"{count}: {self.complaints}")

    def interrupt(self) -> int:
        """Ctrl-C; the exit code."""
        self._process.send_signal(signal.SIGINT)
        return self.end()

    def kill(self) -> None:
        """Does nothing if the process has ended."""
        if self._process.poll() is None:
            self._process.kill()

    def end(self) -> int:
        try:
            return self._process.wait(20)
        finally:
            self._process.kill()
            for thread in self._threads:
                thread.join()
            for pipe in (self._process.stdout, self._process.stderr):
                assert pipe is not None
                pipe.close()


@contextmanager
def programs(address: str) -> Iterator[tuple[Program, Program]]:
    consume = Program(
        *("-m", "liftlog", "--server", address, "consume", "orders", "-o", "jsonl"),
        offset_of=lambda line: int(json.loads(line)["offset"]),
    )
    consumer = Program("-c", CONSUMER, address)
    try:
        yield consume, consumer
    finally:
        for program in (consume, consumer):
            program.kill()
            program.end()


def test_readers_go_on_after_kills(tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    settings = {"streams": {"orders": {"subject": "orders"}}, "pull": {"listen": [address]}}
    with (
        NatsServer() as nats,
        RawNats(nats.port) as raw,
        Daemon(nats.url, settings, directory=tmp_path) as daemon,
        connect_sync(address) as client,
        programs(address) as (consume, consumer),
    ):
        expected = 0

        def more(count: int) -> None:
            nonlocal expected
            # At once, so that they make one batch: the checkpoints fall into its midst.
            raw.send(pub_frame("orders", b"x") * count)
            expected += count
            for program in (consume, consumer):
                program.has(expected)
            until(lambda: committed(client) == expected - expected % 7 + 1, 15, "a checkpoint")

        def losses() -> list[str]:
            return [line for line in consume.complaints if "is lost" in line]

        more(10)
        for count in (1, 2):
            daemon.kill()
            until(lambda count=count: len(losses()) == count)  # it is told after a moment
            daemon.start()
            assert daemon.pull_address == address
            more(10)
        # Each record once, although the consumer's checkpoint lies before what was read last.
        assert consume.offsets == consumer.offsets == list(range(1, expected + 1))
        assert client.describe_stream("orders").leader_epoch == 3
        assert consume.interrupt() == ExitCode.INTERRUPTED
        assert consumer.interrupt() == -signal.SIGINT
        assert committed(client) == expected + 1, "the next one had been asked for"
        assert [line[:8] for line in losses()] == ["warning:"] * 2
        assert "trying again" in losses()[0]
        assert_no_traceback(daemon)


def committed(client: SyncClient) -> int:
    found = client.fetch_checkpoint("waiting", "orders", check=False)
    return 0 if found is None else found.offset
