"""Backups under load, of random values that end in zeros, with every codec: restored, each holds
every record that was acked when it began, byte for byte.

A file with space allocated ahead also ends in zeros, so the end of such a log is hard to find. The
backups are made of a running, a killed and a stopped daemon.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.clients.command_line import Cli
from support.clients.ingesting import AckedPublisher, assert_no_traceback, until
from support.clients.ledger import PATIENCE
from support.clients.values import ZERO_TAILS
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.rounds import rounds

from liftlog.log import DataDir, LogConfig, LogEnvironment
from liftlog.log.environment import SystemClock
from liftlog.log.files.filesystem import OsFileSystem
from liftlog.records import iter_batches

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600)]

CODECS = ["none", "lz4", "zstd"]
SETTINGS = {
    "streams": {
        codec: {
            "subject": f"backups.{codec}",
            "compression": codec,
            "segment": {"max_bytes": "64KiB"},
        }
        for codec in CODECS
    },
    "nats": {"reconnect_wait": "50ms"},
}


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


def random_value(codec: str) -> Callable[[int], bytes]:
    """Return the value of a message, the same for each call."""

    def value_of(number: int) -> bytes:
        chance = random.Random(f"{codec} {number}")
        stem = chance.randbytes(chance.choice([0, 1, 9, 100, 700]))
        return stem + chance.choice(ZERO_TAILS)

    return value_of


def restored_values(data_dir: Path) -> dict[str, dict[int, bytes | None]]:
    """Return every record of every stream of a data directory that no daemon uses."""
    found: dict[str, dict[int, bytes | None]] = {}
    directory = DataDir(data_dir, LogEnvironment.create(OsFileSystem(), SystemClock()))
    directory.open()
    states = {}
    for name in CODECS:
        log, report = directory.open_log(name, LogConfig())
        assert report.clean, report.events
        rows = found[name] = {}
        offset = log.log_start_offset
        while (piece := log.read(offset, 1 << 20)) is not None:
            with piece:
                for batch in iter_batches(piece.pread()):
                    rows |= zip(batch.offsets(), batch.values(), strict=True)
                offset = piece.next_offset
        assert offset == log.log_end_offset
        state = log.close()
        assert state is not None
        states[name] = state
    directory.close(states)
    return found


class Books:
    """The acked messages, by codec and offset."""

    def __init__(self, port: int, chance: random.Random) -> None:
        self.publishers = {
            codec: AckedPublisher(
                port,
                f"backups.{codec}",
                in_flight=chance.choice([1, 3, 40]),
                value_of=random_value(codec),
            )
            for codec in CODECS
        }

    def acked(self) -> dict[str, dict[int, bytes]]:
        found = {}
        for codec, publisher in self.publishers.items():
            if publisher.error is not None:
                raise publisher.error
            value_of = random_value(codec)
            books = publisher.acked.copy()  # its thread may add items
            found[codec] = {offset: value_of(number) for number, offset in books.items()}
        return found

    def wait_acked(self, more: int) -> None:
        for publisher in self.publishers.values():
            wanted = len(publisher.acked) + more
            until(lambda p=publisher, n=wanted: p.error or len(p.acked) >= n, PATIENCE)  # type: ignore[misc]


def check(command: Cli, data_dir: Path, place: Path, books: Books) -> None:
    """Back up, verify, restore and compare."""
    before = books.acked()
    command.ok("backup", "create", str(data_dir), str(place / "backup"))
    command.ok("backup", "verify", str(place / "backup"))
    command.ok("backup", "restore", str(place / "backup"), str(place / "data"))
    found = restored_values(place / "data")
    after = books.acked()
    for codec in CODECS:
        missing = [offset for offset in before[codec] if offset not in found[codec]]
        assert not missing, f"{codec}: {len(missing)} of {len(before[codec])} are not in it"
        for offset, value in found[codec].items():
            assert after[codec].get(offset, value) == value, (codec, offset)
        assert sorted(found[codec]) == list(range(1, len(found[codec]) + 1)), codec


@pytest.mark.long
@pytest.mark.parametrize("in_flight", ["some", "few"])
def test_values_that_end_in_zeros(in_flight: str, server: NatsServer, tmp_path: Path) -> None:
    chance = random.Random(f"backups {in_flight}")
    with Daemon(server.url, SETTINGS, directory=tmp_path / "source") as daemon:
        books = Books(server.port, chance)
        command = Cli(daemon, server)
        for publisher in books.publishers.values():
            publisher.start()
            publisher.easy = in_flight == "few"
        for number in range(rounds(1)):
            books.wait_acked(chance.randint(1, 60))
            stop = chance.choice(["run", "run", "kill", "stop"]) if number > 1 else "run"
            if stop != "run":
                getattr(daemon, stop)()
            check(command, daemon.data_dir, tmp_path / f"{number}", books)
            if stop != "run":
                daemon.start()
        for publisher in books.publishers.values():
            publisher.finish()
        daemon.stop()
        check(command, daemon.data_dir, tmp_path / "last", books)
        assert_no_traceback(daemon)
