"""Flipped bits in the files of the real daemon: each loses at most its batch, and every reader gets
an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.ingesting import assert_no_traceback, describe, publish
from support.clients.raw_nats import RawNats
from support.clients.readback import read_back
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.disks.stored_logs import batch_positions, flip

pytestmark = pytest.mark.integration

SETTINGS = {
    "streams": {"in": {"subject": "in.>", "segment": {"max_bytes": "16KiB"}}},
    "log": {"recovery_checkpoint_interval": "50ms"},
}
HEADER, BODY = 9, 90
MESSAGES = 60


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture
def stopped(server: NatsServer, request: pytest.FixtureRequest) -> Iterator[Daemon]:
    """Yield a daemon that stored sixty messages in several segments and was then stopped."""
    with Daemon(server.url, SETTINGS) as daemon:
        with RawNats(server.port) as raw:
            for i in range(1, MESSAGES + 1):
                answer = publish(raw, "in.x", b"%d" % i + b"x" * 500, Nats_Msg_Id=f"id-{i}")
                assert answer["seq"] == i
        assert describe(daemon, "in").segment_count >= 3
        getattr(daemon, request.param)()
        yield daemon


def segments(daemon: Daemon) -> list[Path]:
    return sorted((daemon.data_dir / "streams" / "in").glob("*.log"))


@pytest.mark.parametrize(
    ("stopped", "where"), [("kill", HEADER), ("kill", BODY), ("stop", HEADER)], indirect=["stopped"]
)
def test_rot_costs_one_batch_and_no_start(stopped: Daemon, where: int, server: NatsServer) -> None:
    """Such a start rebuilds the dedupe window from the log, so it reads the damage."""
    lost = []
    for path in segments(stopped):
        position, header = batch_positions(path)[5]
        flip(path, position + where)
        lost.append(header.base_offset)
    stopped.start()
    found = read_back(stopped, "in")
    assert [int((r.value or b"").rstrip(b"x")) for r in found.records] == [
        i for i in range(1, MESSAGES + 1) if i not in lost
    ]
    quarantined = [q["first_offset"] for q in describe(stopped, "in").quarantined]
    assert sorted({*quarantined, *(first for first, _ in found.damaged)}) == lost
    with RawNats(server.port) as raw:
        # Ids that lay in the damage are forgotten after a crash, no others are.
        for i in range(1, MESSAGES + 1):
            answer = publish(raw, "in.x", b"again", Nats_Msg_Id=f"id-{i}")
            if i not in lost:
                assert answer["duplicate"], i
                assert answer["seq"] == i
            else:
                assert answer["seq"] > MESSAGES or answer["duplicate"]
    assert_no_traceback(stopped)
