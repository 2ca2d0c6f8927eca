"""The journal of a daemon: it is created for the first consumer, and follows what is deleted."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from support.daemons.local_broker import Running

from liftlog.errors import DiskFull, Forbidden, StreamNotFound, StreamUnavailable
from liftlog.log import OsFileSystem
from liftlog.log.files.manifest import read_manifest
from liftlog.server.journal import Change, ConsumerKey, StateVersion
from liftlog.server.journal.opening import JOURNAL
from liftlog.server.streams.broker import Broker

STREAMS = {"orders": {"subject": "in"}}


async def with_consumers(broker: Broker, *incarnations: str) -> None:
    journal = await broker.journal.get()
    for one in incarnations:
        position = journal.write(
            [Change.snapshot(ConsumerKey(one, "billing"), StateVersion(1, 1), b"s", b"0")]
        )
    await journal.synced(position)


async def test_a_daemon_without_consumers_has_no_journal(tmp_path: Path) -> None:
    running = Running(tmp_path, **STREAMS)
    broker = await running.start()
    assert broker.journal.opened is None
    await broker.close()
    assert not running.data_dir.stream_path(JOURNAL).exists()


async def test_it_is_no_stream(tmp_path: Path) -> None:
    broker = await Running(tmp_path, **STREAMS).start()
    await with_consumers(broker, broker.hosts["orders"].log.incarnation)
    await broker.close()
    broker = await Running(tmp_path, **STREAMS).start()
    journal = broker.journal.opened
    assert journal is not None
    assert len(journal.ledger) == 1
    assert broker.stream_names() == ["orders"]
    assert JOURNAL not in broker.hosts
    assert broker.failed_streams() == []
    with pytest.raises(StreamNotFound):
        broker.stream(JOURNAL)
    with pytest.raises(Forbidden):
        await broker.delete_stream(JOURNAL)
    await broker.close()


async def test_the_consumers_of_deleted_streams_go(tmp_path: Path) -> None:
    """Those of a stream that is deleted, and those that an interrupted deletion has left."""
    broker = await Running(tmp_path).start()
    info = await _created(broker, "orders")
    kept = await _created(broker, "kept")
    await with_consumers(broker, info, kept, "gone-before")
    journal = await broker.journal.get()
    await broker.delete_stream("orders")
    assert await journal.load(ConsumerKey(info, "billing")) is None
    assert set(journal.ledger.incarnations()) == {kept, "gone-before"}
    await broker.close()
    broker = await Running(tmp_path).start()
    journal = await broker.journal.get()
    await journal.synced(journal.write([]))
    assert journal.ledger.incarnations() == [kept]
    await broker.delete_stream("kept")
    await broker.close()
    assert not (tmp_path / "streams" / JOURNAL).exists(), "an older version can use the directory"


async def _created(broker: Broker, name: str) -> str:
    await broker.create_stream(name, {"subject": name})
    return broker.hosts[name].log.incarnation


async def test_one_of_a_newer_version_is_shown_and_left_alone(tmp_path: Path) -> None:
    broker = await Running(tmp_path, **STREAMS).start()
    await with_consumers(broker, broker.hosts["orders"].log.incarnation)
    await broker.close()
    directory = tmp_path / "streams" / JOURNAL
    manifest = read_manifest(OsFileSystem(), directory)
    assert manifest is not None
    newer = {**manifest.metadata, "settings": {"deliveries": 2}}
    manifest.with_changes(metadata=newer).write(OsFileSystem(), directory)
    before = {one.name: one.read_bytes() for one in directory.iterdir()}
    broker = await Running(tmp_path, **STREAMS).start()
    assert broker.failed_streams() == [JOURNAL]
    (condition,) = [one for one in await broker.conditions.now() if one.subject == JOURNAL]
    assert condition.kind.name == "newer_version"
    with pytest.raises(StreamUnavailable):
        await broker.journal.get()
    assert broker.stream("orders").is_accepting
    await broker.close()
    assert {one.name: one.read_bytes() for one in directory.iterdir()} == before


async def test_a_lost_directory_is_shown_and_not_made_again(tmp_path: Path) -> None:
    broker = await Running(tmp_path, **STREAMS).start()
    await with_consumers(broker, broker.hosts["orders"].log.incarnation)
    await broker.close()
    directory, aside = tmp_path / "streams" / JOURNAL, tmp_path / "aside"
    directory.rename(aside)
    broker = await Running(tmp_path, **STREAMS).start()
    assert broker.failed_streams() == [JOURNAL]
    assert f"its directory {directory} is missing" in broker.broken[JOURNAL]
    with pytest.raises(StreamUnavailable, match="is missing"):
        await broker.journal.get()
    assert broker.stream("orders").is_accepting
    await broker.close()
    assert not directory.exists()
    aside.rename(directory)
    broker = await Running(tmp_path, **STREAMS).start()
    assert broker.failed_streams() == []
    assert len((await broker.journal.get()).ledger) == 1
    await broker.close()
    shutil.rmtree(directory)
    (tmp_path / "records").unlink()  # as an operator who knows that it is gone for good
    broker = await Running(tmp_path, **STREAMS).start()
    assert broker.failed_streams() == []
    await with_consumers(broker, broker.hosts["orders"].log.incarnation)
    await broker.close()


async def test_one_without_consumers_is_not_missed(tmp_path: Path) -> None:
    broker = await Running(tmp_path).start()
    await with_consumers(broker, await _created(broker, "orders"))
    await broker.delete_stream("orders")
    await broker.close()
    assert not (tmp_path / "streams" / JOURNAL).exists()
    broker = await Running(tmp_path).start()
    assert broker.failed_streams() == []
    await broker.close()


async def test_what_is_wrong_with_it_is_a_condition(tmp_path: Path) -> None:
    broker = await Running(tmp_path, **STREAMS).start()
    await with_consumers(broker, broker.hosts["orders"].log.incarnation)
    journal = await broker.journal.get()
    assert list(broker.journal.conditions()) == []
    journal.problem = DiskFull("the disk is full")
    (found,) = broker.journal.conditions()
    assert (found.kind.name, found.text) == ("consumers_not_stored", str(journal.problem))
    journal.problem = None
    journal.ledger.doubt_before(100)
    (found,) = broker.journal.conditions()
    assert found.kind.name == "consumers_uncertain"
    assert "billing" in found.text
    assert found in [*await broker.conditions.now()]
    await broker.close()


async def test_the_first_request_may_be_cancelled_while_the_journal_is_created(
    tmp_path: Path,
) -> None:
    broker = await Running(tmp_path, **STREAMS).start()
    first = asyncio.ensure_future(broker.journal.get())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await with_consumers(broker, broker.hosts["orders"].log.incarnation)
    await broker.close()
    broker = await Running(tmp_path, **STREAMS).start()
    journal = broker.journal.opened
    assert journal is not None
    assert len(journal.ledger) == 1
    await broker.close()
