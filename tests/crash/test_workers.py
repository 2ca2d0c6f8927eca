"""Workers on one consumer while the daemon is killed and stopped, NATS goes away, and the machine
loses power. `support/clients/worker_campaign.py` lists the errors that must never occur."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from support.clients.ingesting import assert_no_traceback
from support.clients.worker_campaign import STREAM, SUBJECT, Campaign, Oracle, asked
from support.daemons.daemon import Daemon
from support.daemons.machine import Machine
from support.daemons.nats_server import NatsServer
from support.disks.losefs import losefs
from support.rounds import chance_of, modes, rounds

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600)]

ROUNDS = rounds(4)
WORKERS = 4
PATIENCE_SECONDS = 120.0


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer(leafnodes={"listen": "127.0.0.1:-1"}) as server:
        yield server


def settings_for(server: NatsServer) -> dict[str, Any]:
    found = re.search(r"Listening for leafnode connections on (\S+:\d+)", server.log)
    assert found is not None, server.log
    return {
        "nats": {"servers": [server.url], "jetstream_api": True, "leafnode": found[1]},
        "streams": {STREAM: {"subject": f"{SUBJECT}.>"}},
    }


def check(oracle: Oracle, rounds: int) -> None:
    print(f"{rounds} rounds: {oracle.summary()}")
    assert not oracle.wrong, oracle.wrong[:10]
    never = oracle.never_came(oracle.unfinished)
    assert not never, sorted(never)[:10]
    assert oracle.confirmed > 5 * rounds


@pytest.mark.parametrize("kind", modes("pull", "push"))
async def test_the_daemon_is_killed_and_stopped(kind: str, server: NatsServer) -> None:
    luck, oracle = chance_of(f"workers {kind}"), Oracle()
    with Daemon(server.url, settings_for(server)) as daemon:
        campaign = Campaign(server.url, oracle, luck, is_push=kind == "push")
        await campaign.start(WORKERS)
        for _ in range(ROUNDS):
            await asyncio.sleep(luck.uniform(0.5, 2.5))
            fault = luck.choice(["kill", "kill", "stop", "terminate"])
            if fault == "stop":
                os.kill(daemon.pid, signal.SIGSTOP)
                await asyncio.sleep(luck.uniform(0.1, 2.5))
                os.kill(daemon.pid, signal.SIGCONT)
                oracle.disturbed()
            else:
                await asyncio.to_thread(daemon.kill if fault == "kill" else daemon.stop)
                await asyncio.to_thread(daemon.restart)
                await asyncio.to_thread(daemon.wait_ready)
        await campaign.finish(PATIENCE_SECONDS)
        check(oracle, ROUNDS)
        assert_no_traceback(daemon)


@pytest.mark.long
async def test_the_machine_loses_its_power(server: NatsServer, tmp_path: Path) -> None:
    luck, oracle = chance_of("workers power"), Oracle()
    with losefs(tmp_path / "disk") as disk:
        machine = Machine(server, disk, settings_for(server))
        daemon = machine.daemon.start()
        campaign = Campaign(server.url, oracle, luck, is_push=False)
        await campaign.start(WORKERS)
        for _ in range(ROUNDS):
            await asyncio.sleep(luck.uniform(0.5, 2.5))
            disk.cut_after(luck.randint(1, 60))
            await asyncio.to_thread(disk.wait_cut)
            at = time.monotonic()
            await asyncio.to_thread(machine.lose_power, luck.randrange(1 << 30))
            await asyncio.sleep(0.3)  # until the clients have taken what is on the way
            oracle.power_lost(at)  # before the daemon delivers again
            await asyncio.to_thread(machine.start, luck)
            oracle.is_down = False
        await campaign.finish(PATIENCE_SECONDS)
        check(oracle, ROUNDS)
        assert_no_traceback(daemon)
        daemon.stop()


@pytest.mark.long
async def test_jetstream_beside_it(tmp_path: Path) -> None:
    """Kill a nats-server with JetStream in the same way. Prints the messages that it delivers again
    after confirmed acks: it writes its state now and then, and not before the answer to an ack."""
    luck, oracle = chance_of("workers of jetstream"), Oracle()
    with NatsServer(tmp_path / "jetstream", jetstream=True) as real:
        client = await nats.connect(real.url)
        body = {"name": STREAM, "subjects": [f"{SUBJECT}.>"]}
        assert "error" not in await asked(client, f"STREAM.CREATE.{STREAM}", body)
        await client.close()
        campaign = Campaign(real.url, oracle, luck, is_push=False, operates=False)
        await campaign.start(WORKERS)
        for _ in range(ROUNDS):
            await asyncio.sleep(luck.uniform(0.5, 2.5))
            await asyncio.to_thread(real.kill)
            await asyncio.to_thread(real.restart)
            oracle.disturbed()
        with contextlib.suppress(TimeoutError):  # it may have forgotten a message
            await campaign.finish(PATIENCE_SECONDS)
        print(f"JetStream, {ROUNDS} rounds of kill -9: {oracle.summary()}")
        assert oracle.confirmed > 5 * ROUNDS, "the oracle has seen no worker"
