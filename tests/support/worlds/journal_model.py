"""The journal of consumers on a simulated disk, and a model of plain dicts that must agree with
it."""

from __future__ import annotations

import random
from typing import NamedTuple

from support.disks.logs import DIRECTORY, SMALL, environment
from support.disks.simfs import SimFileSystem

from liftlog.errors import LiftlogError, SyncFailed
from liftlog.log import Log, open_log
from liftlog.server.journal.opening import load_store, new_metadata
from liftlog.server.journal.records import Change, ConsumerKey, Kind, StateVersion
from liftlog.server.journal.storing import JournalStore

KEYS = [ConsumerKey(stream, name) for stream in ("a1", "b2") for name in ("one", "two", "three")]


class Known(NamedTuple):
    """A consumer according to the owner: settings, state of its snapshot, and deltas since then."""

    settings: bytes
    state: bytes
    deltas: tuple[tuple[StateVersion, bytes], ...] = ()


World = dict[ConsumerKey, Known]


def applied(world: World, change: Change) -> World:
    """Return the world after a change."""
    after, key = dict(world), change.key
    if change.kind is Kind.DELETED:
        for one in world:
            if one == key or (not key.consumer and one.incarnation == key.incarnation):
                del after[one]
    elif change.kind is Kind.SNAPSHOT:
        after[key] = Known(change.settings, change.state)
    elif key in world:
        known = world[key]
        if change.kind is Kind.SETTINGS:
            after[key] = known._replace(settings=change.settings)
        else:
            after[key] = known._replace(deltas=(*known.deltas, (change.version, change.state)))
    return after


def read_all(store: JournalStore) -> World:
    """The expected content of the journal for each consumer. All of it is synced."""
    found: World = {}
    for key, entry in store.ledger.entries.items():
        one = store.read(key, entry)
        found[key] = Known(one.settings, one.state, tuple(one.deltas))
    return found


def create_store(fs: SimFileSystem, *, boot: str = "boot-1") -> JournalStore:
    fs.make_directory(DIRECTORY.parent)
    for parent in [*DIRECTORY.parents]:
        fs.fsync_directory(parent)
    log = Log.create(DIRECTORY, environment(fs), SMALL, metadata=new_metadata(), boot_id=boot)
    return load_store(log)


def reopen_store(fs: SimFileSystem, *, boot: str = "boot-1") -> JournalStore:
    log, _ = open_log(DIRECTORY, environment(fs), SMALL, boot_id=boot)
    return load_store(log)


class Actor:
    """Makes random changes of consumers, and stores every world that has existed."""

    def __init__(self, store: JournalStore, seed: int) -> None:
        self.store = store
        self.rng = random.Random(seed)
        self.worlds: list[World] = [{}]
        """The world after each append, and the world of the running append."""
        self.synced = 0
        """Index of the newest synced world."""
        self.number = 0

    @property
    def world(self) -> World:
        return self.worlds[-1]

    def some_changes(self) -> list[Change]:
        """Return the changes of one turn."""
        return [self._some_change() for _ in range(self.rng.choice((1, 1, 2, 5)))]

    def _some_change(self) -> Change:
        rng, key = self.rng, self.rng.choice(KEYS)
        self.number += 1
        version = StateVersion(1, self.number)
        data = b"%d-" % self.number + b"x" * rng.randrange(80)
        choice = rng.random()
        if choice < 0.03:
            return Change.stream_deleted(key.incarnation)
        if choice < 0.1:
            return Change.deleted(key)
        if choice < 0.3 or key not in self.world:
            return Change.snapshot(key, version, b"settings" + data, b"state" + data)
        if choice < 0.4:
            return Change.updated(key, version, b"new" + data)
        return Change.delta(key, version, data)

    def append(self, changes: list[Change]) -> None:
        """Append changes. If it raises LiftlogError, nothing was appended."""
        after = self.world
        for change in changes:
            after = applied(after, change)
        self.worlds.append(after)
        store = self.store
        try:
            prepared = store.prepare(changes)
            store.write(prepared)
        except LiftlogError:
            self.worlds.pop()
            raise
        store.written(prepared)

    def sync(self) -> None:
        """Raises SyncFailed."""
        self.store.sync_begins()
        self.store.sync()
        self.store.synced()
        self.synced = len(self.worlds) - 1

    def step(self) -> None:
        """Run one turn: changes, and possibly a sync or a cut."""
        self.append(self.some_changes())
        if self.rng.random() < 0.4:
            self.sync()
            offset = self.store.cut_offset()
            if offset is not None:
                self.store.cut(offset)

    def recover(self) -> None:
        """Model the journal after a failed write or sync."""
        self.store.abandon()
        prepared = self.store.prepare(self.retained)
        self.store.write(prepared)
        self.store.sync()
        self.store.written(prepared)
        self.store.sync_begins()
        self.store.synced()
        self.synced = len(self.worlds) - 1
        self.retained: list[Change] = []

    def failed(self, error: LiftlogError) -> None:
        self.retained = self.store.failed() if isinstance(error, SyncFailed) else []

    def check(self, found: World, *, killed: bool) -> None:
        """Check the consumers after a stop. Each has a state that it had since the last sync. If
        only the process was killed, all have their last state."""
        if killed:
            assert found in (self.worlds[-1], self.worlds[-2] if self.worlds[1:] else {})
            return
        possible = self.worlds[self.synced :]
        for key in {*found, *possible[0]}:
            assert found.get(key) in [one.get(key) for one in possible], key
