"""Retention in a real daemon: files go, exactly what should stay can be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.daemon import Daemon
from support.ingesting import assert_no_traceback, describe, publish, records_of, until
from support.nats_server import NatsServer
from support.raw_nats import RawNats

from liftlog.client import connect_sync
from liftlog.errors import OffsetOutOfRange

pytestmark = pytest.mark.integration

SMALL = {"segment": {"max_bytes": "4KiB"}, "dedupe_window": "0s"}
STREAMS = {
    "counted": {"subject": "counted", "retention": {"max_messages": 7}, **SMALL},
    "sized": {"subject": "sized", "retention": {"max_bytes": "16KiB"}, **SMALL},
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
}
COUNT = 100


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture(scope="module")
def daemon(server: NatsServer) -> Iterator[Daemon]:
    settings = {"streams": STREAMS, "log": {"retention_interval": "100ms"}}
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
    # The last segment rolls although nobody publishes, so the records in it age out too.
    until(lambda: describe(daemon, "aged").log_start_offset == COUNT + 1)
    until(lambda: len(segment_files(daemon, "aged")) == 1, what="old files are deleted")
    assert records_of(daemon, "aged") == []
    assert publish(raw, "aged", b"next")["seq"] == COUNT + 1


def test_files_younger_than_the_dedupe_window_stay(daemon: Daemon, raw: RawNats) -> None:
    fill(raw, "protected")
    until(lambda: describe(daemon, "protected").log_start_offset == COUNT - 6)
    assert len(segment_files(daemon, "protected")) > 20
    assert len(records_of(daemon, "protected")) == 7


def test_what_retention_removed_stays_removed_after_a_restart(daemon: Daemon) -> None:
    before = {name: describe(daemon, name).log_start_offset for name in ("counted", "sized")}
    daemon.kill()
    daemon.restart()
    after = {name: describe(daemon, name).log_start_offset for name in before}
    assert after == before
    assert len(records_of(daemon, "counted")) == 7
