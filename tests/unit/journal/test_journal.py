"""The journal on the event loop: turns, syncs, failures, and a log that stays short."""

from __future__ import annotations

import asyncio
import errno
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace

import pytest
from support.disks.simfs import Fault, SimFile, SimFileSystem
from support.worlds.journal_model import create_store, reopen_store

from liftlog.errors import DiskFull, ShuttingDown, StorageError, SyncFailed
from liftlog.server.commits.writing import WriterPool
from liftlog.server.journal import Change, ConsumerKey, Journal, StateVersion
from liftlog.server.journal import ledger as ledger_module
from liftlog.server.journal import snapshots as snapshots_module
from liftlog.server.journal.ledger import Entry
from liftlog.server.journal.storing import JournalStore

ONE, TWO, IDLE = (ConsumerKey("a1", name) for name in ("one", "two", "idle"))


def version(number: int) -> StateVersion:
    return StateVersion(1, number)


def created(key: ConsumerKey, state: bytes = b"0") -> Change:
    return Change.snapshot(key, version(1), b"settings", state)


@pytest.fixture
def pool() -> Iterator[WriterPool]:
    pool = WriterPool(2)
    yield pool
    pool.close()


@pytest.fixture
def fs() -> SimFileSystem:
    return SimFileSystem()


@pytest.fixture
async def journal(fs: SimFileSystem, pool: WriterPool) -> AsyncIterator[Journal]:
    journal = Journal(create_store(fs), pool, flush_interval_seconds=0.005)
    yield journal
    fs.faults.clear()
    fs.free_bytes = None
    await journal.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


def appends(fs: SimFileSystem) -> int:
    return sum(one.startswith("write ") and one.endswith(".log") for one in fs.log)


async def test_one_append_for_all_changes_of_a_turn(fs: SimFileSystem, journal: Journal) -> None:
    before = appends(fs)
    journal.write([created(ONE)])
    position = journal.write([created(TWO), Change.delta(ONE, version(2), b"d")])
    assert (position, journal.written_position, appends(fs)) == (3, 0, before)
    await journal.written(position)
    assert (journal.written_position, appends(fs)) == (3, before + 1)
    assert journal.counters.changes == 3
    assert journal.ledger.consumers_of("a1") == ["one", "two"]


async def test_what_nobody_waits_for_is_synced_after_the_flush_interval(
    fs: SimFileSystem, journal: Journal
) -> None:
    await journal.written(journal.write([created(ONE)]))
    assert journal.synced_position == 0
    await until(lambda: journal.synced_position == 1)
    await asyncio.sleep(0.02)
    assert journal.counters.syncs == 1, "an idle journal syncs nothing"
    assert len(reopen_store(fs.power_cut("none"), boot="b").ledger) == 1


async def test_one_sync_confirms_all_that_wait(journal: Journal) -> None:
    waiting = [
        journal.synced(journal.write([created(ConsumerKey("a1", f"{n}"))])) for n in range(50)
    ]
    await asyncio.gather(*waiting)
    assert journal.counters.syncs == 1
    assert journal.synced_position == 50
    await journal.synced(50)


async def test_an_append_goes_on_beside_a_sync(
    fs: SimFileSystem, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    real = SimFile.fdatasync

    def slow(file: SimFile) -> None:
        begun.set()
        assert go_on.wait(20)
        real(file)

    monkeypatch.setattr(SimFile, "fdatasync", slow)
    first = journal.synced(journal.write([created(ONE)]))
    await until(begun.is_set)
    later = journal.write([Change.delta(ONE, version(2), b"later")])
    await journal.written(later)
    assert not first.done()
    go_on.set()
    await first
    await journal.synced(later)
    assert journal.counters.syncs == 2, "the first sync says nothing about a later append"


async def test_a_consumer_is_loaded_with_all_that_was_written(journal: Journal) -> None:
    journal.write([created(ONE, b"state"), created(TWO)])
    journal.write([Change.delta(ONE, version(n), b"%d" % n) for n in range(2, 6)])
    journal.write([Change.updated(ONE, version(6), b"newer")])
    stored = await journal.load(ONE)
    assert stored is not None
    assert (stored.settings, stored.state, stored.version) == (b"newer", b"state", version(1))
    assert stored.deltas == [(version(n), b"%d" % n) for n in range(2, 6)]
    assert not stored.is_uncertain
    assert journal.ledger.version_of(ONE) == version(6)
    journal.write([Change.deleted(ONE)])
    assert await journal.load(ONE) is None
    journal.write([Change.stream_deleted("a1")])
    assert await journal.load(TWO) is None
    assert journal.ledger.incarnations() == []


async def test_changes_of_consumers_that_do_not_exist_are_dropped(journal: Journal) -> None:
    await journal.synced(journal.write([Change.delta(ONE, version(1), b"d"), created(TWO)]))
    assert journal.counters.unknown == 1
    assert journal.ledger.consumers_of("a1") == ["two"]


# --- failures ---


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
async def test_a_failed_write_is_reported_and_tried_again(
    fs: SimFileSystem, journal: Journal, error: int
) -> None:
    await journal.synced(journal.write([created(ONE)]))
    fs.faults.append(Fault("write", error, ".log", times=2))
    position = journal.write([Change.delta(ONE, version(2), b"kept")])
    waiting = [journal.written(position), journal.synced(position)]
    expected = DiskFull if error == errno.ENOSPC else StorageError
    for one in waiting:
        with pytest.raises(expected):
            await one
    with pytest.raises(expected):
        journal.check_writable()
    with pytest.raises(expected):
        await journal.synced(position)
    refused = journal.write([created(TWO), Change.deleted(TWO)])
    await journal.writable()
    journal.check_writable()
    assert journal.counters.failures >= 2
    assert journal.synced_position == refused
    stored = await journal.load(ONE)
    assert stored is not None
    assert stored.deltas == [(version(2), b"kept")]
    assert reopen_store(fs.power_cut("none"), boot="b").ledger.consumers_of("a1") == ["one"]


async def test_a_failed_sync_takes_nothing_back(fs: SimFileSystem, journal: Journal) -> None:
    """What was written may have been delivered: it is written again, though no client waits."""
    await journal.synced(journal.write([created(ONE)]))
    fs.faults.append(Fault("fsync", errno.EIO, ".log", times=1))
    written = journal.write([Change.delta(ONE, version(2), b"delivered")])
    await journal.written(written)
    with pytest.raises(SyncFailed):
        await journal.synced(journal.write([Change.delta(ONE, version(3), b"acked")]))
    await journal.writable()
    found = reopen_store(fs.power_cut("none"), boot="b")
    stored = found.read(ONE, found.ledger.entries[ONE])
    assert [delta for _, delta in stored.deltas] == [b"delivered", b"acked"]


async def test_after_the_end_nothing_is_accepted(fs: SimFileSystem, pool: WriterPool) -> None:
    journal = Journal(create_store(fs), pool, flush_interval_seconds=60)
    position = journal.write([created(ONE)])
    state = await journal.close()
    assert state is not None
    assert journal.synced_position == position
    with pytest.raises(ShuttingDown):
        journal.check_writable()
    with pytest.raises(ShuttingDown):
        await journal.synced(journal.write([created(TWO)]))
    assert reopen_store(fs.power_cut("none"), boot="b").ledger.consumers_of("a1") == ["one"]


async def test_a_journal_on_a_broken_disk_closes_uncleanly(
    fs: SimFileSystem, pool: WriterPool
) -> None:
    journal = Journal(create_store(fs), pool, flush_interval_seconds=60)
    fs.faults.append(Fault("fsync", errno.EIO, ".log", times=-1))
    with pytest.raises(SyncFailed):
        await journal.synced(journal.write([created(ONE)]))
    assert await journal.close() is None


# --- a log that stays short ---


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that fit segments of 1,200 bytes."""
    monkeypatch.setattr(ledger_module, "MAX_DELTA_BYTES", 600)
    monkeypatch.setattr(snapshots_module, "MAX_DELTA_BYTES", 600)
    monkeypatch.setattr(snapshots_module, "_SPARE_BYTES", 2400)


async def test_a_consumer_with_many_deltas_is_snapshotted(small: None, journal: Journal) -> None:
    number = 1

    def snapshot(key: ConsumerKey) -> Change:
        return Change.snapshot(key, version(number), b"s", b"state of %d" % number)

    journal.set_owner(snapshot)
    journal.write([created(ONE)])
    for number in range(2, 200):  # the owner reads it
        await journal.written(journal.write([Change.delta(ONE, version(number), b"x" * 40)]))
        assert journal.ledger.delta_bytes < 800
    assert journal.counters.snapshots > 10
    stored = await journal.load(ONE)
    assert stored is not None
    last = stored.deltas[-1][0] if stored.deltas else stored.version
    assert last.number == 199
    await until(lambda: journal.size_bytes < 12_000)


@pytest.mark.parametrize("in_memory", [True, False])
async def test_an_idle_consumer_does_not_hold_back_the_cut(
    small: None, fs: SimFileSystem, journal: Journal, in_memory: bool
) -> None:
    """Whether its owner has it in memory or not."""
    idle = [ConsumerKey("b2", f"idle-{n}") for n in range(5)]
    asked: list[ConsumerKey] = []

    def snapshot(key: ConsumerKey) -> Change | None:
        asked.append(key)
        if key in idle and not in_memory:
            return None
        return Change.snapshot(key, version(9), b"settings", b"0")

    journal.set_owner(snapshot)
    journal.write([*map(created, idle), created(ONE)])
    journal.write([Change.delta(idle[0], version(8), b"delta")])
    for _ in range(400):
        await journal.synced(journal.write([Change.delta(ONE, version(9), b"x" * 100)]))
    await until(lambda: journal.size_bytes < 12_000)
    assert set(idle) <= set(asked)
    assert journal.counters.cut_bytes > 20_000
    assert bool(journal.counters.copies) != in_memory
    found = reopen_store(fs.power_cut("none"), boot="b")
    stored = found.read(idle[0], found.ledger.entries[idle[0]])
    assert (stored.settings, stored.state) == (b"settings", b"0")
    assert len(stored.deltas) == (0 if in_memory else 1)
    assert len(found.ledger) == 6


async def test_the_largest_are_snapshotted_when_all_together_have_too_much(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots_module, "MAX_ALL_DELTA_BYTES", 100_000)
    monkeypatch.setattr(snapshots_module, "_KEPT_DELTA_BYTES", 80_000)
    asked: list[ConsumerKey] = []

    def snapshot(key: ConsumerKey) -> Change:
        asked.append(key)
        return created(key)

    journal.set_owner(snapshot)
    keys = [ConsumerKey("a1", f"{n:03}") for n in range(100)]
    journal.write(map(created, keys))
    for round_ in range(3):
        for number, key in enumerate(keys):
            journal.write([Change.delta(key, version(2), b"x" * 10 * number)])
        await journal.written(journal.write([created(IDLE)]))
        assert round_ or not asked
    await until(lambda: journal.ledger.delta_bytes <= 100_000)
    assert min(asked) > keys[30], "those with the most deltas"


async def test_those_that_became_too_many_meanwhile_are_snapshotted_too(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow machine asks for few snapshots in one turn, while further deltas are written."""
    monkeypatch.setattr(snapshots_module, "MAX_ALL_DELTA_BYTES", 100_000)
    monkeypatch.setattr(snapshots_module, "_KEPT_DELTA_BYTES", 80_000)
    clock = itertools.count(step=0.001)
    slow = SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr(snapshots_module, "time", slow)
    journal.set_owner(created)
    keys = [ConsumerKey("a1", f"{n:03}") for n in range(100)]
    journal.write(map(created, keys))
    for _ in range(3):
        await journal.written(
            journal.write([Change.delta(key, version(2), b"x" * 490) for key in keys])
        )
    await until(lambda: journal.ledger.delta_bytes <= 100_000)


async def test_without_consumers_the_log_is_cut_to_its_end(journal: Journal) -> None:
    for _ in range(100):
        journal.write([created(ONE, b"x" * 200)])
        await journal.synced(journal.write([Change.deleted(ONE)]))
    assert journal.size_bytes < 5000


async def test_a_load_waits_until_the_journal_can_be_written_again(
    fs: SimFileSystem, journal: Journal
) -> None:
    """A full disk does not make the consumer unreadable."""
    await journal.synced(journal.write([created(ONE)]))
    fs.faults.append(Fault("write", errno.ENOSPC, times=1000))
    journal.write([Change.delta(ONE, version(2), b"d")])
    await until(lambda: journal.problem is not None)
    loads = [asyncio.ensure_future(one) for one in (journal.load(ONE), journal.records_of(ONE))]
    await asyncio.sleep(0.05)
    assert not any(one.done() for one in loads)
    fs.faults.clear()
    stored, records = await asyncio.gather(*loads)
    assert stored.deltas == [(version(2), b"d")]
    assert len(records) == 2


@pytest.mark.parametrize("read", ["read", "read_changes"])
async def test_a_load_succeeds_although_the_records_are_copied_and_cut_off_meanwhile(
    small: None, journal: Journal, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """The load has looked up where the records are, and reads them late."""
    journal.set_owner(lambda key: None)
    await journal.synced(journal.write([created(IDLE, b"idle"), created(ONE)]))
    real, may_read, entries = getattr(JournalStore, read), threading.Event(), []

    def slow(store: JournalStore, key: ConsumerKey, entry: Entry) -> object:
        if key == IDLE:
            entries.append(entry)
            assert may_read.wait(20)
        return real(store, key, entry)

    monkeypatch.setattr(JournalStore, read, slow)
    load = asyncio.ensure_future(journal.load(IDLE) if read == "read" else journal.records_of(IDLE))
    await until(lambda: len(entries) == 1)
    monkeypatch.setattr(JournalStore, read, real)
    journal.set_owner(lambda key: created(ONE) if key == ONE else None)
    for _ in range(400):
        await journal.synced(journal.write([Change.delta(ONE, version(9), b"x" * 100)]))
    await until(lambda: journal.ledger.entries[IDLE].base > entries[0].base)
    await until(lambda: journal.size_bytes < 12_000)
    may_read.set()
    found = await load
    assert (found.state if read == "read" else found[0].state) == b"idle"
