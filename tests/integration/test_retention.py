"""Retention in a real daemon: files go, exactly what should stay can be read."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
from support.clients.ingesting import assert_no_traceback, describe, publish, records_of, until
from support.clients.raw_nats import RawNats
from support.clients.raw_pull import RawPull
from support.daemons.compacted import Compacted
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.client import connect_sync
from liftlog.errors import OffsetOutOfRange
from liftlog.records import iter_batches

pytestmark = pytest.mark.integration

SMALL = {"segment": {"max_bytes": "4KiB"}, "dedupe_window": "0s"}
STREAMS = {
    "counted": {"subject": "counted", "retention": {"max_messages": 7}, **SMALL},
    "sized": {"subject": "sized", "retention": {"max_bytes": "16KiB"}, **SMALL},
    "restarted": {
        "subject": "restarted",
        "retention": {"max_messages": 7, "max_bytes": "16KiB"},
        **SMALL,
    },
    "aged": {
        "subject": "aged",
        "retention": {"max_age": "1s"},
        "segment": {"max_bytes": "4KiB", "max_age": "500ms"},
        "dedupe_window": "0s",
    },
    "protected": {
        "subject": "protected",
        "retention": {"max_messages": 7},
        "segment": {"max_bytes": "4KiB"},
        "dedupe_window": "1h",
    },
    "rolling": {
        "subject": "rolling",
        "retention": {"max_messages": 2},
        "segment": {"max_bytes": "1KiB"},
        "dedupe_window": "0s",
    },
    "expiring": {
        "subject": "expiring",
        "retention": {"max_messages": 30},
        "segment": {"max_bytes": "3MiB"},
        "dedupe_window": "0s",
    },
    "holed": {
        "subject": "holed",
        "retention": {"max_messages": 60},
        "compaction": {"min_dirty_ratio": 1.0},
        **SMALL,
    },
}
COUNT = 100


@pytest.fixture(scope="module")
def daemon(server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    socket = tmp_path_factory.mktemp("pull") / "pull.sock"
    settings = {
        "streams": STREAMS,
        "log": {"retention_interval": "100ms"},
        "cleaner": {"interval": "100ms"},
        "pull": {"listen": ["tcp://127.0.0.1:0", f"unix://{socket}"]},
    }
    with Daemon(server.url, settings) as daemon:
        yield daemon
        assert_no_traceback(daemon)


@pytest.fixture
def raw(server: NatsServer, daemon: Daemon) -> Iterator[RawNats]:
    with RawNats(server.port) as client:
        yield client


def fill(raw: RawNats, subject: str) -> None:
    """100 records of 1,000 bytes, three or four to a segment."""
    for number in range(COUNT):
        assert publish(raw, subject, b"%04d" % number + b"x" * 996)["seq"] == number + 1


def segment_files(daemon: Daemon, stream: str) -> list[Path]:
    return sorted((daemon.data_dir / "streams" / stream).glob("*.log"))


def test_count_is_exact_and_frees_the_disk(daemon: Daemon, raw: RawNats) -> None:
    fill(raw, "counted")
    until(lambda: describe(daemon, "counted").log_start_offset == COUNT - 6)
    until(lambda: len(segment_files(daemon, "counted")) <= 4, what="old files are deleted")
    records = records_of(daemon, "counted")
    assert [record.offset for record in records] == list(range(COUNT - 6, COUNT + 1))
    with connect_sync(daemon.pull_address) as client, pytest.raises(OffsetOutOfRange) as refused:
        list(client.read("counted", start=1, until="end"))
    assert refused.value.details["log_start_offset"] == COUNT - 6
    assert refused.value.details["log_end_offset"] == COUNT + 1


def test_size_keeps_at_least_the_limit(daemon: Daemon, raw: RawNats) -> None:
    fill(raw, "sized")
    until(lambda: len(segment_files(daemon, "sized")) <= 6, what="old files are deleted")
    info = describe(daemon, "sized")
    assert 16 * 1024 <= info.size_bytes <= 16 * 1024 + 2 * 4096
    records = records_of(daemon, "sized")
    assert [record.offset for record in records] == list(range(info.log_start_offset, COUNT + 1))


def test_age_empties_a_stream_that_fell_silent(daemon: Daemon, raw: RawNats) -> None:
    fill(raw, "aged")
    # The last segment rolls although no one publishes, so the records in it age out too.
    until(lambda: describe(daemon, "aged").log_start_offset == COUNT + 1)
    until(lambda: len(segment_files(daemon, "aged")) == 1, what="old files are deleted")
    assert records_of(daemon, "aged") == []
    assert publish(raw, "aged", b"next")["seq"] == COUNT + 1


def test_files_younger_than_the_dedupe_window_stay(daemon: Daemon, raw: RawNats) -> None:
    fill(raw, "protected")
    until(lambda: describe(daemon, "protected").log_start_offset == COUNT - 6)
    assert len(segment_files(daemon, "protected")) > 20
    assert len(records_of(daemon, "protected")) == 7


def test_what_retention_removed_stays_removed_after_a_restart(daemon: Daemon, raw: RawNats) -> None:
    fill(raw, "restarted")
    until(lambda: describe(daemon, "restarted").log_start_offset == COUNT - 6)
    daemon.kill()
    daemon.restart()
    assert describe(daemon, "restarted").log_start_offset == COUNT - 6
    assert len(records_of(daemon, "restarted")) == 7


def test_every_tick_counts_also_those_that_roll(daemon: Daemon, raw: RawNats) -> None:
    """Each record fills a segment, so that at each tick there has just been a roll."""
    for number in range(30):
        assert publish(raw, "rolling", b"x" * 1000)["seq"] == number + 1
        until(lambda: len(segment_files(daemon, "rolling")) <= 4, what="files are deleted")
    until(lambda: describe(daemon, "rolling").log_start_offset == 29)
    assert [record.offset for record in records_of(daemon, "rolling")] == [29, 30]


def test_count_is_exact_across_the_holes_of_compaction(daemon: Daemon, raw: RawNats) -> None:
    holed = Compacted(raw, "holed")
    holed.put_many((f"key-{number % 20}" for number in range(60)), pad=200)
    with connect_sync(daemon.pull_address) as client:
        client.compact_stream("holed", wait=True)
    left = [record.offset for record in records_of(daemon, "holed")]
    assert left == list(range(41, 61))
    holed.put_many((f"new-{number}" for number in range(49)), pad=200)
    until(lambda: describe(daemon, "holed").log_start_offset == 50)
    # 109 offsets hold 69 records, of which 60 stay: the oldest 9 of what compaction left go.
    assert [record.offset for record in records_of(daemon, "holed")] == list(range(50, 110))


def deleted_files(daemon: Daemon) -> list[str]:
    """Segment files without a name that the daemon still holds open."""
    links = []
    for entry in Path(f"/proc/{daemon.pid}/fd").iterdir():
        try:
            links.append(str(entry.readlink()))
        except FileNotFoundError:
            continue  # closed meanwhile
    return [link for link in links if ".log (deleted)" in link]


async def test_an_answer_from_an_expiring_segment_is_finished(daemon: Daemon, raw: RawNats) -> None:
    """Its reader is slow: log start and files move on, the answer stays what it was."""
    value = os.urandom(100_000)
    for number in range(25):
        assert publish(raw, "expiring", b"%04d" % number + value)["seq"] == number + 1
    first = segment_files(daemon, "expiring")[0]
    async with await RawPull.connect(str(daemon.addresses["pull"][1])) as peer:
        peer.send({"k": "fetch", "i": 1, "s": "expiring", "o": 1, "m": 8 << 20})
        (length,) = struct.unpack("<I", await peer.reader.readexactly(4))
        answer = msgpack.unpackb(await peer.reader.readexactly(length))
        assert answer["n"] > 20, "the answer holds more than sockets buffer"
        for number in range(25, 70):
            publish(raw, "expiring", b"%04d" % number + value)
        until(lambda: describe(daemon, "expiring").log_start_offset == 41)
        until(lambda: not first.exists(), what="the file loses its name")
        assert [Path(link.split(" ")[0]).name for link in deleted_files(daemon)] == [first.name]

        body = await peer.reader.readexactly(answer["b"])
        records = [record for batch in iter_batches(body) for record in batch.records()]
        assert [record.offset for record in records] == list(range(1, answer["n"]))
        for number, record in enumerate(records):
            assert record.value == b"%04d" % number + value
        until(lambda: not deleted_files(daemon), what="and then its last holder")

        peer.send({"k": "fetch", "i": 2, "s": "expiring", "o": answer["n"]})
        refused = await peer.receive()
        assert refused["c"] == OffsetOutOfRange.code
        assert refused["d"] == {"log_start_offset": 41, "log_end_offset": 71}
        peer.send({"k": "fetch", "i": 3, "s": "expiring", "o": 41})
        assert (await peer.receive())["k"] == "data"
