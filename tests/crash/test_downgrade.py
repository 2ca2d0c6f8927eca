"""A daemon is upgraded from an older version and downgraded again: both versions read its data.

`make test-upgrade` runs it; the older version is a commit of this repository (OLDER=commit).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from crash.test_version_skew import OLDER
from crash.test_version_skew import older as older
from support.clients.ingesting import publish, until
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.client import connect_sync
from liftlog.log import (
    DataDir,
    LogConfig,
    LogEnvironment,
    OsFileSystem,
    SystemClock,
    open_log,
)
from liftlog.log.files.manifest import read_manifest
from liftlog.server.journal import Change, ConsumerKey, StateVersion
from liftlog.server.journal.opening import JOURNAL, create_store

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not OLDER, reason="it starts daemons from nothing: make test-upgrade"),
]

MADE = {"subject": "made.>", "compaction": {"enabled": True}}
CONFIGURED = {"orders": {"subject": "orders.>"}}


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.mark.parametrize("first", ["older", "this"])
def test_back_and_forth(server: NatsServer, older: Path, tmp_path: Path, first: str) -> None:
    """Each version serves the streams, checkpoints and groups that the other version has stored."""
    trees = [older, None] if first == "older" else [None, older]
    daemon = Daemon(server.url, {"streams": CONFIGURED}, directory=tmp_path)
    count = 0
    for turn in range(4):
        daemon.use_version(trees[turn % 2])
        with daemon.start(), RawNats(server.port) as raw, connect_sync(daemon.pull_address) as one:
            status, text = daemon.get("/readyz")
            assert (status, "not-opened" in daemon.log) == (200, False), (text, daemon.log)
            if turn == 0:
                one.create_stream("made", subject="made.>", compaction={"enabled": True})
                start = 0
            else:
                start = _check(one, count)
            count += 20
            for number in range(start, count):
                for stream in ("orders", "made"):
                    headers = {"Liftlog-Key": f"{number}"}
                    assert (
                        publish(raw, f"{stream}.x", b"%d" % number, **headers)["seq"] == number + 1
                    )
            one.commit_checkpoint("billing", "made", count + 1)
            read = []
            with one.group("workers", "orders", member="m") as group:
                for record in group:
                    read.append(record.offset)
                    if len(read) == 20:
                        break
            one.commit_checkpoint("workers-read", "orders", read[-1])


def _check(client: object, count: int) -> int:
    """Check that the records that the other version has stored exist."""
    from liftlog.client import SyncClient

    assert isinstance(client, SyncClient)
    for stream in ("orders", "made"):
        found = [int(one.value or b"") for one in client.read(stream, until="end")]
        assert found == list(range(count)), stream
    checkpoint = client.fetch_checkpoint("billing", "made")
    assert checkpoint is not None
    assert (checkpoint.offset, checkpoint.problem) == (count + 1, "")
    group = client.describe_group("workers", "orders")
    assert group is not None
    assert min(group.offsets) > 0
    return count


def test_what_only_this_version_knows_is_left_alone_by_the_older_one(
    server: NatsServer, older: Path, tmp_path: Path
) -> None:
    """A stream that keeps its oldest records when full: the older version would delete them."""
    if "discard:" in (older / "liftlog/settings/stream.py").read_text():
        pytest.skip(f"{OLDER} has `retention.discard`: take an older one")
    daemon = Daemon(server.url, {}, directory=tmp_path)
    retention = {"max_messages": 10, "discard": "new"}
    with daemon.start(), RawNats(server.port) as raw:
        with connect_sync(daemon.pull_address) as client:
            client.create_stream("full", subject="full.>", retention=retention)
            client.create_stream("plain", subject="plain.>")
        for number in range(10):
            publish(raw, "full.x", b"%d" % number)
    daemon.use_version(older)
    with daemon.start(), RawNats(server.port) as raw:
        assert publish(raw, "plain.x", b"1")["seq"] == 1
        assert "retention.discard: unknown key" in daemon.log
    daemon.use_version(None)
    with daemon.start(), connect_sync(daemon.pull_address) as client:
        assert [int(one.value or b"") for one in client.read("full", until="end")] == [*range(10)]


def test_the_journal_of_consumers_is_left_alone_by_the_older_one(
    server: NatsServer, older: Path, tmp_path: Path
) -> None:
    """An older version serves the streams, and reports that it does not serve the consumers."""
    daemon = Daemon(server.url, {"streams": CONFIGURED}, directory=tmp_path)
    with daemon.start():
        pass
    data_dir = DataDir(daemon.data_dir, LogEnvironment.create(OsFileSystem(), SystemClock()))
    data_dir.open()
    incarnation = _incarnation(daemon.data_dir / "streams" / "orders")
    store = create_store(data_dir)
    key = ConsumerKey(incarnation, "billing")
    store.write(store.prepare([Change.snapshot(key, StateVersion(1, 1), b"{}", b"state")]))
    state = store.close()
    assert state is not None
    data_dir.keep_clean(JOURNAL, state)
    data_dir.mark_clean({})
    data_dir.close(None)
    directory = daemon.data_dir / "streams" / JOURNAL
    before = {one.name: one.read_bytes() for one in directory.glob("*.log")}
    daemon.use_version(older)
    daemon.spawn()
    daemon.wait_listening()
    with RawNats(server.port) as raw, connect_sync(daemon.pull_address) as client:
        until(lambda: client.describe_stream("orders").state == "attached", 30)
        assert publish(raw, "orders.x", b"1")["seq"] == 1
    status, text = daemon.get("/readyz")
    assert status == 200 or JOURNAL in text, text  # versions before that condition stay ready
    assert "stream-not-opened" in daemon.log
    assert JOURNAL in daemon.log
    daemon.stop()
    assert {one.name: one.read_bytes() for one in directory.glob("*.log")} == before
    daemon.use_version(None)
    with daemon.start():
        assert "journal-opened" in daemon.log
        assert JOURNAL not in daemon.get("/readyz")[1]
    found = open_log(directory, data_dir.environment, LogConfig())[0]
    assert found.log_end_offset == 2
    found.close()


def _incarnation(directory: Path) -> str:
    manifest = read_manifest(OsFileSystem(), directory)
    assert manifest is not None
    return manifest.incarnation
