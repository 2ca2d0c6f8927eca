"""The daemon is killed while records are erased. Exactly the records of answered erasures stay
hidden. Their bytes are removed from the sealed segments."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from support.clients.ingesting import publish, until
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.rounds import rounds

from liftlog.client import connect_sync
from liftlog.errors import LiftlogError
from liftlog.log.files.filesystem import OsFileSystem
from liftlog.log.files.manifest import read_manifest
from liftlog.records import iter_batches

pytestmark = pytest.mark.integration

ROUNDS = rounds(3)
COUNT = 3000
SETTINGS = {
    "streams": {
        "s": {"subject": "s.>", "dedupe_window": "0s", "segment": {"max_bytes": "64KiB"}},
    },
    "cleaner": {"interval": "1s"},
}


def shown(daemon: Daemon) -> set[int]:
    with connect_sync(daemon.pull_address) as client:
        return {o for batch in client.read_batches("s", 1, COUNT + 1) for o in batch.offsets()}


def stored_in_sealed(directory: Path) -> set[int]:
    manifest = read_manifest(OsFileSystem(), directory)
    assert manifest is not None
    found: set[int] = set()
    for entry in manifest.segments[:-1]:
        try:
            raw = (directory / entry.file_name).read_bytes()[: entry.size_bytes]
        except FileNotFoundError:  # it was just replaced
            return stored_in_sealed(directory)
        for batch in iter_batches(raw):
            found |= set(batch.offsets())
    return found


class Eraser(threading.Thread):
    """Erases one range after the other until the daemon is gone."""

    def __init__(self, daemon: Daemon, seed: int, *, now: bool = False) -> None:
        super().__init__()
        self._now = now
        self._address, self._chance = daemon.pull_address, random.Random(seed)
        self.asked: set[int] = set()
        self.answered: set[int] = set()
        self.start()

    def run(self) -> None:
        try:
            with connect_sync(self._address) as client:
                while True:
                    first = self._chance.randrange(1, COUNT)
                    end = min(first + self._chance.randrange(1, 9), COUNT + 1)
                    self.asked |= set(range(first, end))
                    client.erase("s", [(first, end)], now=self._now)
                    self.answered |= set(range(first, end))
        except (LiftlogError, OSError):
            return


def test_what_was_answered_stays_hidden() -> None:
    chance = random.Random(ROUNDS)
    with NatsServer() as nats, Daemon(nats.url, SETTINGS) as daemon:
        with RawNats(nats.port, timeout=60) as raw:
            for number in range(COUNT - 1):
                raw.pub("s.a", b"secret %d" % number + bytes(200))
            assert raw.request("s.a", b"last").json()["seq"] == COUNT
        asked: set[int] = set()
        answered: set[int] = set()
        for number in range(ROUNDS):
            eraser = Eraser(daemon, number)
            until(lambda: len(eraser.answered) > 20)  # noqa: B023
            threading.Event().wait(chance.uniform(0, 0.5))
            daemon.kill()
            eraser.join(60)
            daemon.start()
            asked |= eraser.asked
            answered |= eraser.answered
            found = shown(daemon)
            assert not found & answered, "an erased record is shown again"
            assert found >= set(range(1, COUNT + 1)) - asked, "another record is hidden"
        # Erase most of the first half, so that its segments are worth a rewrite.
        with connect_sync(daemon.pull_address) as client:
            client.erase("s", [(1, COUNT // 2), (COUNT // 2 + 1, COUNT // 2 + 2)])
        directory = daemon.data_dir / "streams" / "s"
        manifest = read_manifest(OsFileSystem(), directory)
        assert manifest is not None
        # A segment that also has later records may keep its bytes: not half of it may be erased.
        ends = [one.next_offset for one in manifest.segments if one.next_offset <= COUNT // 2]
        half = set(range(1, max(ends, default=1)))
        assert half
        until(lambda: not stored_in_sealed(directory) & half)
        assert not shown(daemon) & half


def test_a_removal_at_once_survives_kills() -> None:
    """The bytes are removed after the next start, and the ids of removed messages still count."""
    chance = random.Random(ROUNDS)
    settings = {**SETTINGS, "streams": {"s": {**SETTINGS["streams"]["s"], "dedupe_window": "1h"}}}
    with NatsServer() as nats, Daemon(nats.url, settings) as daemon:
        with RawNats(nats.port, timeout=60) as raw:
            for number in range(1, COUNT + 1):
                publish(raw, "s.a", b"secret %d." % number + bytes(200), Nats_Msg_Id=f"id-{number}")
        asked: set[int] = set()
        answered: set[int] = set()
        for number in range(ROUNDS):
            eraser = Eraser(daemon, number, now=True)
            until(lambda: len(eraser.answered) > 20)  # noqa: B023
            threading.Event().wait(chance.uniform(0, 1.5))
            daemon.kill()
            eraser.join(60)
            daemon.start()
            asked |= eraser.asked
            answered |= eraser.answered
            found = shown(daemon)
            assert not found & answered, "an erased record is shown again"
            assert found >= set(range(1, COUNT + 1)) - asked, "another record is hidden"
        with connect_sync(daemon.pull_address) as client:
            until(lambda: all(not one.left for one in client.list_erasures("s")), 120)
            proof = client.prove_erasure("s")
            assert proof.found == 0
            assert [one for one in proof.files if one.is_listed] == []
        directory = daemon.data_dir / "streams" / "s"
        content = b"".join([one.read_bytes() for one in directory.iterdir()])
        for number in answered:
            assert b"secret %d." % number not in content
        ends = []
        for _ in range(2):
            with RawNats(nats.port, timeout=60) as raw:
                for number in sorted(answered):
                    ack = publish(raw, "s.a", b"again", Nats_Msg_Id=f"id-{number}")
                    assert ack["seq"] == number
                    assert ack["duplicate"]
            with connect_sync(daemon.pull_address) as client:
                ends.append(client.describe_stream("s").high_watermark)
            daemon.kill()
            daemon.start()
        assert ends == [COUNT + 1] * 2
