"""The journal after kills, power cuts, damage and errors of the disk, at any moment."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest
from support.disks.logs import flip
from support.disks.simfs import Fault, MachineStopped, SimFileSystem
from support.rounds import one_in, rounds, stride
from support.worlds.journal_model import Actor, applied, create_store, read_all, reopen_store

from liftlog.errors import DiskFull, StorageError, SyncFailed
from liftlog.server.journal import storing
from liftlog.server.journal.records import Change, ConsumerKey, StateVersion
from liftlog.server.journal.storing import JournalStore

STEPS = 40
ONE, TWO = ConsumerKey("a1", "one"), ConsumerKey("a1", "two")


def run(fs: SimFileSystem, seed: int) -> Actor:
    """The same turns for the same seed, until the machine stops."""
    actor = Actor(create_store(fs), seed)
    try:
        for _ in range(STEPS):
            actor.step()
    except MachineStopped:
        pass
    return actor


@pytest.mark.parametrize("seed", range(rounds(3)))
def test_a_stop_before_any_operation(seed: int) -> None:
    whole = SimFileSystem()
    begun = SimFileSystem()
    create_store(begun)
    run(whole, seed)
    found_older = 0
    for stop_at in one_in(7, range(begun.operations, whole.operations), f"journal {seed}"):
        fs = SimFileSystem()
        fs.stop_at = stop_at
        actor = run(fs, seed)
        store = reopen_store(fs.kill())
        actor.check(read_all(store), killed=True)
        assert not store.ledger.uncertain()
        for keep in ("none", "all", "some", "last"):
            store = reopen_store(fs.power_cut(keep, stop_at), boot="boot-2")
            found = read_all(store)
            actor.check(found, killed=False)
            assert not store.ledger.uncertain(), "only what was not synced is lost"
            found_older += found != actor.world
    assert found_older, "power cuts lose something"


@pytest.mark.parametrize("seed", range(rounds(10)))
def test_it_goes_on_after_each_stop(seed: int) -> None:
    """What a start finds is what the next starts find, whatever was lost before."""
    fs = SimFileSystem()
    actor = Actor(create_store(fs), seed)
    for boot in range(8):
        for _ in range(10):
            actor.step()
        after = fs.power_cut("some", seed + boot) if boot % 2 else fs.kill()
        store = reopen_store(after, boot=f"boot-{boot + 2}")
        found = read_all(store)
        actor.check(found, killed=not boot % 2)
        assert not store.ledger.uncertain()
        fs, number = after, actor.number
        actor = Actor(store, 100 * seed + boot)
        actor.number = number
        actor.worlds = [found]
        assert read_all(reopen_store(fs.kill(), boot=f"boot-{boot + 2}")) == found


@pytest.mark.parametrize("operation", ["write", "fsync", "create", "rename", "truncate"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("times", [1, 3])
def test_an_error_of_any_call(operation: str, error: int, times: int) -> None:
    """Nothing is lost in memory, and nothing on the disk once the disk works again."""
    failures = 0
    for countdown in range(1, 40, stride(1 if times == 1 else 5)):
        fs = SimFileSystem()
        actor = Actor(create_store(fs), countdown)
        fs.faults.append(Fault(operation, error, countdown=countdown, times=times))
        changes: list[Change] = []
        for _ in range(STEPS):
            changes = actor.some_changes()
            try:
                actor.append(changes)
                if actor.rng.random() < 0.4:
                    actor.sync()
            except StorageError as caught:
                failures += 1
                actor.failed(caught)
                _recover(actor)
        actor.sync()
        assert read_all(actor.store) == actor.world
        actor.check(read_all(reopen_store(fs.power_cut("none"), boot="b")), killed=False)
    assert failures or operation in ("truncate", "create", "rename")


def _recover(actor: Actor) -> None:
    for _ in range(10):
        try:
            return actor.recover()
        except StorageError as error:
            if isinstance(error, SyncFailed):
                actor.retained = [*actor.store.failed(), *actor.retained]
    raise AssertionError("it does not recover")


def test_a_full_disk_confirms_nothing_and_forgets_nothing() -> None:
    fs = SimFileSystem()
    actor = Actor(create_store(fs), 1)
    actor.append([Change.snapshot(ONE, StateVersion(1, 1), b"s", b"0")])
    actor.sync()
    fs.free_bytes = 0
    with pytest.raises(DiskFull):
        while True:
            actor.append([Change.delta(ONE, StateVersion(1, 2), b"x" * 500)])
    fs.free_bytes = None
    actor.failed(DiskFull("full"))
    actor.recover()
    assert read_all(reopen_store(fs.power_cut("none"), boot="b")) == actor.world


# --- damage ---


def lives() -> tuple[SimFileSystem, Actor]:
    """Two consumers, changed in turns; each turn is synced, so each batch was confirmed."""
    fs = SimFileSystem()
    actor = Actor(create_store(fs), 1)
    for key in (ONE, TWO):
        actor.append([Change.snapshot(key, StateVersion(1, 1), b"s", b"0")])
        actor.sync()
    for number in range(4):
        for key in (ONE, TWO):
            actor.append([Change.delta(key, StateVersion(1, 2 + number), b"d%d" % number)])
            actor.sync()
    return fs, actor


def damaged(fs: SimFileSystem, number: int) -> None:
    """Flip a bit in the value of delta `number` of the first consumer."""
    flip_in(fs, b"d%d" % number)


def flip_in(fs: SimFileSystem, value: bytes) -> None:
    for path in fs.files():
        if path.suffix == ".log" and value in fs.read(path):
            return flip(fs, path, fs.read(path).index(value))
    raise AssertionError(f"{value!r} is in no segment")


@pytest.mark.parametrize("number", range(4))
def test_damage_costs_what_follows_it_in_one_consumer(number: int) -> None:
    fs, actor = lives()
    damaged(fs, number)
    store = reopen_store(fs.kill())
    found = read_all(store)
    deltas = actor.world[ONE].deltas
    assert found[ONE].deltas == deltas[:number], "an older state counts"
    assert found[TWO] == actor.world[TWO]
    assert store.ledger.is_uncertain(ONE)
    # The last records of the other consumer follow the damage, and so prove that it lacks nothing.
    assert not store.ledger.is_uncertain(TWO)


@pytest.mark.parametrize("count", [1, 191, 255, 700])
def test_damage_before_the_records_of_a_consumer_does_not_hide_them(count: int) -> None:
    """A load also reads batches before the records, and may begin with those of another
    consumer."""
    fs = SimFileSystem()
    store = create_store(fs)
    settings = b"settings"
    appended(store, [Change.snapshot(TWO, StateVersion(1, 0), settings, b"to-be-damaged")])
    appended(store, [Change.snapshot(ONE, StateVersion(1, 0), settings, b"state")])
    for number in range(1, 1 + count):
        appended(store, [Change.delta(ONE, StateVersion(1, number), b"%d" % number)])
    store.close()
    flip_in(fs, b"to-be-damaged")
    found = reopen_store(fs.kill(), boot="boot-2")
    assert TWO not in found.ledger.entries
    stored = found.read(ONE, found.ledger.entries[ONE])
    assert [delta for _, delta in stored.deltas] == [b"%d" % n for n in range(1, 1 + count)]


def appended(store: JournalStore, changes: Sequence[Change]) -> None:
    prepared = store.prepare(changes)
    store.write(prepared)
    store.written(prepared)
    store.sync_begins()
    store.sync()
    store.synced()


def test_a_mark_of_uncertainty_stays_until_a_snapshot_settles_it() -> None:
    fs, _ = lives()
    damaged(fs, 1)
    for settles in (False, True):
        store = reopen_store(fs.kill())
        actor = Actor(store, 2)
        actor.worlds = [read_all(store)]
        assert store.ledger.is_uncertain(ONE)
        version = StateVersion(2, 1)
        actor.append([Change.delta(ONE, version, b"more")])
        actor.append([Change.snapshot(ONE, version, b"s", b"whole", settles=settles)])
        actor.append([Change.delta(ONE, version, b"later")])
        actor.sync()
        assert store.ledger.is_uncertain(ONE) != settles
        again = reopen_store(fs.kill())
        assert again.ledger.is_uncertain(ONE) != settles
        assert read_all(again) == actor.world


def test_a_lost_snapshot_leaves_a_consumer_that_is_reported() -> None:
    fs = SimFileSystem()
    actor = Actor(create_store(fs), 1)
    actor.append([Change.snapshot(ONE, StateVersion(1, 1), b"s", b"snapshot")])
    actor.sync()
    for number in range(3):
        actor.append([Change.delta(ONE, StateVersion(1, number), b"delta")])
        actor.sync()
    flip_in(fs, b"snapshot")
    store = reopen_store(fs.kill())
    assert (store.ledger.lost, read_all(store)) == ({ONE}, {})
    actor = Actor(store, 1)
    actor.append([Change.deleted(ONE)])
    actor.sync()
    assert not store.ledger.lost
    assert not reopen_store(fs.kill()).ledger.lost


def test_a_record_of_another_kind_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checksums are right, so this is a defect: the rest is served."""
    fs, actor = lives()
    with monkeypatch.context() as patched:
        patched.setattr(storing, "encode_value", lambda change, chaining: b"\1\0nonsense")
        actor.append([Change.delta(ONE, StateVersion(1, 9), b"")])
    actor.append([Change.delta(ONE, StateVersion(1, 10), b"later")])
    actor.append([Change.delta(TWO, StateVersion(1, 11), b"other")])
    actor.sync()
    store = reopen_store(fs.kill())
    found = read_all(store)
    assert found[ONE].deltas == actor.world[ONE].deltas[:-2]
    assert found[TWO] == actor.world[TWO]


def test_a_misplaced_page_is_damage() -> None:
    """A page that the disk wrote to another place has right checksums, but in the wrong place."""
    fs, actor = lives()
    for number in range(60):
        actor.append([Change.delta(ONE, StateVersion(1, 9), b"n%d" % number + b"x" * 100)])
        actor.sync()
    path = sorted(one for one in fs.files() if one.suffix == ".log")[-2]  # records of one consumer
    raw = bytearray(fs.read(path))
    step = len(raw) // 3 // 8 * 8
    raw[step : 2 * step] = raw[:step]
    fs.replace(path, bytes(raw))
    store = reopen_store(fs.kill())
    assert store.ledger.is_uncertain(ONE)
    found, world = read_all(store), actor.world
    assert found[ONE].deltas == world[ONE].deltas[: len(found[ONE].deltas)]
    assert len(found[ONE].deltas) < len(world[ONE].deltas)
    assert found[TWO] == world[TWO]
    assert store.ledger.is_uncertain(TWO), "records of it could be among the lost ones"


def test_an_append_during_a_sync_is_not_confirmed_by_it() -> None:
    fs = SimFileSystem()
    actor = Actor(create_store(fs), 1)
    actor.append([Change.snapshot(ONE, StateVersion(1, 1), b"s", b"0")])
    store = actor.store
    store.sync_begins()
    store.sync()
    later = [Change.delta(ONE, StateVersion(1, 2), b"later")]
    prepared = store.prepare(later)
    store.write(prepared)
    store.written(prepared)
    store.synced()
    assert (store.written_position, store.synced_position) == (2, 1)
    fs.faults.append(Fault("fsync", errno.EIO, ".log"))
    store.sync_begins()
    with pytest.raises(SyncFailed):
        store.sync()
    assert store.failed() == later
    assert store.written_position == 1
    assert store.ledger.version_of(ONE) == StateVersion(1, 1)
    store.abandon()
    prepared = store.prepare(later)
    store.write(prepared)
    store.written(prepared)
    store.sync_begins()
    store.sync()
    store.synced()
    world = applied(actor.world, later[0])
    assert read_all(reopen_store(fs.power_cut("none"), boot="b")) == world
