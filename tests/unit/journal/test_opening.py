"""The journal is opened and created, by versions that know it and by those that do not."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.disks.logs import environment
from support.timing import is_cheap

from liftlog.errors import LiftlogError, NewerFormat
from liftlog.log import DataDir, OsFileSystem
from liftlog.log.files.manifest import read_manifest
from liftlog.log.files.shared_descriptors import SharedDescriptors
from liftlog.server.commits.writing import WriterPool
from liftlog.server.journal import Change, ConsumerKey, StateVersion
from liftlog.server.journal.content import read_content
from liftlog.server.journal.opening import (
    JOURNAL,
    close_journal,
    create_journal,
    create_store,
    open_journal,
    open_store,
)
from liftlog.server.streams.making import load_stream
from liftlog.settings import Settings

SETTINGS = Settings().consumers
ONE = ConsumerKey("a1", "one")


def created(key: ConsumerKey) -> Change:
    return Change.snapshot(key, StateVersion(1, 1), b"settings" * 20, b"state" * 8)


def opened(path: Path) -> DataDir:
    data_dir = DataDir(path, environment(SharedDescriptors(OsFileSystem(), 2)))
    data_dir.open()
    return data_dir


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[DataDir]:
    data_dir = opened(tmp_path)
    yield data_dir
    data_dir.close(None)


@pytest.fixture
def pool() -> Iterator[WriterPool]:
    pool = WriterPool(1)
    yield pool
    pool.close()


async def test_it_begins_with_the_first_consumer_and_ends_with_the_last(
    tmp_path: Path, pool: WriterPool
) -> None:
    data_dir = opened(tmp_path)
    assert await open_journal(data_dir, pool, SETTINGS) is None
    journal = await create_journal(data_dir, pool, SETTINGS)
    await journal.synced(journal.write([created(ONE)]))
    for is_left in (True, False):
        await close_journal(data_dir, journal)
        data_dir.mark_clean({})
        data_dir.close(None)
        assert data_dir.stream_path(JOURNAL).exists()
        data_dir = opened(tmp_path)
        found = await open_journal(data_dir, pool, SETTINGS)
        assert found is not None
        journal = found
        assert len(journal.ledger) == 1
        if not is_left:
            journal.write([Change.deleted(ONE)])
    await close_journal(data_dir, journal)
    assert not data_dir.stream_path(JOURNAL).exists()
    data_dir.close(None)


def test_a_version_without_consumers_leaves_it_alone(data_dir: DataDir) -> None:
    """Opening it as a stream is what such a version does."""
    store = create_store(data_dir)
    prepared = store.prepare([created(ONE)])
    store.write(prepared)
    data_dir.keep_clean(JOURNAL, store.close())
    directory = data_dir.stream_path(JOURNAL)
    before = {one.name: one.read_bytes() for one in directory.iterdir() if one.name != "acked"}
    with pytest.raises(NewerFormat, match="not know: deliveries"):
        load_stream(data_dir, JOURNAL, None)
    after = {one.name: one.read_bytes() for one in directory.iterdir() if one.name != "acked"}
    assert after == before
    found = open_store(data_dir)
    assert found is not None
    assert len(found.ledger) == 1
    found.close()


def test_a_newer_form_is_not_opened(data_dir: DataDir) -> None:
    create_store(data_dir).close()
    directory = data_dir.stream_path(JOURNAL)
    manifest = read_manifest(OsFileSystem(), directory)
    assert manifest is not None
    newer = {**manifest.metadata, "settings": {"deliveries": 2}}
    manifest.with_changes(metadata=newer).write(OsFileSystem(), directory)
    before = {one.name: one.read_bytes() for one in directory.iterdir()}
    with pytest.raises(NewerFormat, match="format 2"):
        open_store(data_dir)
    assert {one.name: one.read_bytes() for one in directory.iterdir()} == before


def test_an_unfinished_creation_is_none(data_dir: DataDir) -> None:
    data_dir.stream_path(JOURNAL).mkdir()
    assert open_store(data_dir) is None
    create_store(data_dir).close()


def test_an_unreadable_manifest_is_an_error(data_dir: DataDir) -> None:
    create_store(data_dir).close()
    for one in data_dir.stream_path(JOURNAL).glob("manifest*"):
        one.write_bytes(b"rot")
    with pytest.raises(LiftlogError):
        open_store(data_dir)
    assert data_dir.stream_path(JOURNAL).exists()


def test_ten_thousand_small_consumers(data_dir: DataDir) -> None:
    """A start reads each record once, and keeps no states in memory."""
    store = create_store(data_dir)
    keys = [ConsumerKey(f"{n % 200:032x}", f"worker-{n}") for n in range(10_000)]
    changes = [created(key) for key in keys]
    changes += [Change.delta(key, StateVersion(1, 2), b"d" * 60) for key in keys]
    for at in range(0, len(changes), 1000):
        prepared = store.prepare(changes[at : at + 1000])
        store.write(prepared)
        store.written(prepared)
    data_dir.keep_clean(JOURNAL, store.close())
    tracemalloc.start()
    try:
        found = open_store(data_dir)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found is not None
    assert len(found.ledger) == 10_000
    assert held < 10_000 * 1024, "bytes, at most 1 KiB for each"
    one = found.read(keys[5000], found.ledger.entries[keys[5000]])
    assert (one.state, len(one.deltas)) == (b"state" * 8, 1)
    assert is_cheap(lambda: read_content(found.log), 0.5)
    found.close()
