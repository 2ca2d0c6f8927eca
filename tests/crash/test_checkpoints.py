"""A confirmed checkpoint exists after `kill -9`, repeatedly."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator

import pytest
from support.clients.ingesting import assert_no_traceback, describe, publish
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.rounds import rounds

from liftlog.client import connect, connect_sync
from liftlog.errors import CheckpointMoved, ConnectionLost, ShuttingDown

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600)]

CONSUMERS = 20
RECORDS = 50


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


class Committers(threading.Thread):
    """Consumers that commit without end, each its own sequence. Stores the last requested and the
    last confirmed commit. The sequence number is in the metadata, because offsets occur again."""

    def __init__(self, address: str, confirmed: dict[str, int], seed: int) -> None:
        super().__init__(daemon=True)
        self.confirmed = confirmed
        self.asked = dict(confirmed)
        self.count = 0
        self.enough = threading.Event()
        self.failure: BaseException | None = None
        self._address = address
        self._chance = random.Random(seed)
        self._wanted = self._chance.randint(50, 600)

    def run(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # the test looks at it
            self.failure = error
        self.enough.set()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for n in range(CONSUMERS):
                group.create_task(self._consume(f"c{n}"))

    async def _consume(self, name: str) -> None:
        try:
            async with connect(self._address, reconnect_for=0) as client:
                while True:
                    number = self.asked[name] = self.asked.get(name, 0) + 1
                    # Every other consumer makes sure that no other client commits.
                    expected = None
                    if int(name[1:]) % 2:
                        known = await client.fetch_checkpoint(name, "orders")
                        expected = known.offset if known is not None else 0
                    await client.commit_checkpoint(
                        name, "orders", 1 + number % RECORDS, expected, metadata=str(number)
                    )
                    self.confirmed[name] = number
                    self.count += 1
                    if self.count >= self._wanted:
                        self.enough.set()
        except (ConnectionLost, ShuttingDown):
            return


def test_a_confirmed_checkpoint_survives_kill(server: NatsServer) -> None:
    confirmed: dict[str, int] = {}
    settings = {
        "streams": {"orders": {"subject": "orders.>"}},
        # Compaction runs, too, on segments that roll all the time.
        "cleaner": {"interval": "50ms"},
        "log": {"retention_interval": "50ms"},
    }
    count = rounds(3)
    with Daemon(server.url, settings) as daemon:
        with RawNats(server.port) as raw:
            for _ in range(RECORDS):
                publish(raw, "orders.a", b"x")
        for number in range(count):
            committers = Committers(daemon.pull_address, confirmed, number)
            committers.start()
            assert committers.enough.wait(60), daemon.log_tail()
            if number % 2:
                with connect_sync(daemon.pull_address) as client:
                    client.compact_stream("_offsets")
            daemon.kill()
            committers.join(30)
            assert not committers.is_alive()
            assert committers.failure is None, committers.failure
            assert committers.count
            daemon.start()
            check(daemon, confirmed, committers.asked)
        assert describe(daemon, "_offsets").quarantined == []
        assert "checkpoints-lost" not in daemon.log
        assert_no_traceback(daemon)


def check(daemon: Daemon, confirmed: dict[str, int], asked: dict[str, int]) -> None:
    with connect_sync(daemon.pull_address) as client:
        found = {one.consumer: one for one in client.list_checkpoints()}
        for name, number in confirmed.items():
            one = found[name]
            stored = int(one.metadata)
            # Only a requested commit without a confirmation may exist in addition.
            assert number <= stored <= asked[name]
            assert one.offset == 1 + stored % RECORDS
            assert one.problem == ""
            confirmed[name] = stored
        for name in found.keys() - confirmed.keys():
            confirmed[name] = int(found[name].metadata)
        with pytest.raises(CheckpointMoved):
            client.commit_checkpoint("nobody", "orders", 1, 5)
