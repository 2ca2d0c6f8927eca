"""The file of the records: compare-and-set; what stops, failing disks and damage leave of it."""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from support.disks.simfs import Fault, Keep, MachineStopped, SimFileSystem
from support.rounds import one_in, seeds

from liftlog.cluster.store import CasLost, CasUnknown, StoreUnavailable
from liftlog.log import OsFileSystem
from liftlog.server.metadata.records_file import Change, RecordsFile, locked_file

PATH = Path("/data/records")
KEEPS: list[Keep] = ["none", "some", "all", "last"]
KEYS = ("stream.a", "stream.b", "node.x")
State = dict[str, bytes]


def new_disk() -> SimFileSystem:
    fs = SimFileSystem()
    fs.make_directory(PATH.parent)
    for directory in PATH.parents:
        fs.fsync_directory(directory)
    fs.operations = 0
    return fs


@pytest.fixture
def fs() -> SimFileSystem:
    return new_disk()


def private(fs: SimFileSystem, now_ns: int = 0) -> RecordsFile:
    return RecordsFile(PATH, fs, lock=None, now_ns=lambda: now_ns)


def shared(fs: SimFileSystem) -> RecordsFile:
    return RecordsFile(PATH, fs, lock=contextlib.nullcontext, now_ns=lambda: 0)


def state(file: RecordsFile) -> State:
    return {key: one.entry.value for key, one in file.read().entries.items()}


def value(number: int) -> bytes:
    return b'{"n": %d}' % number


def test_a_key_is_created_changed_and_deleted_at_its_revision(fs: SimFileSystem) -> None:
    file = private(fs)
    assert file.apply([Change("k", value(1), 0)]) == [1]
    lost = file.apply([Change("k", value(2), 0)])[0]
    assert isinstance(lost, CasLost)
    assert "revision 1" in str(lost)
    assert file.apply([Change("k", value(3), 1), Change("other", value(4), 0)]) == [2, 3]
    assert isinstance(file.apply([Change("k", None, 1)])[0], CasLost)
    assert file.apply([Change("k", None, 2)]) == [4]
    assert isinstance(file.apply([Change("k", None, 2)])[0], CasLost)
    # A key that is made again has a revision that it never had.
    assert file.apply([Change("k", value(5), 0)]) == [5]
    assert state(private(fs.power_cut("none"))) == {"k": value(5), "other": value(4)}


def test_two_changes_of_one_key_in_one_write_are_judged_in_their_order(fs: SimFileSystem) -> None:
    results = private(fs).apply([Change("k", value(1), 0), Change("k", value(2), 0)])
    assert results[0] == 1
    assert isinstance(results[1], CasLost)


def test_changes_that_come_together_cost_one_write(fs: SimFileSystem) -> None:
    file = private(fs)
    file.apply([Change("first", value(0), 0)])
    before = fs.operations
    file.apply([Change("one", value(1), 0)])
    for_one = fs.operations - before
    file.apply([Change(f"k{i}", value(i), 0) for i in range(1000)])
    assert fs.operations - before == 2 * for_one


def test_a_change_that_is_refused_writes_nothing(fs: SimFileSystem) -> None:
    file = private(fs)
    file.apply([Change("k", value(1), 0)])
    before = fs.operations
    file.apply([Change("k", value(2), 0), Change("other", None, 7)])
    assert fs.operations == before


# --- the model: two processes on one file, stops and faults at every operation ---


class Model:
    """What may be in the file: the answered state, and that of a change without an answer."""

    def __init__(self) -> None:
        self.answered: State = {}
        self.possible: State | None = None

    def allows(self, found: State) -> bool:
        return found in (self.answered, self.possible)


def _changes(rng: random.Random, file: RecordsFile) -> tuple[list[Change], State]:
    """Valid changes, and the state that they lead to."""
    found = file.read().entries
    keys = rng.sample(KEYS, rng.randint(1, len(KEYS)))
    changes = []
    after = {key: one.entry.value for key, one in found.items()}
    for key in keys:
        revision = found[key].entry.revision if key in found else 0
        if revision and rng.random() < 0.3:
            changes.append(Change(key, None, revision))
            del after[key]
        else:
            new = value(rng.randrange(10**9))
            changes.append(Change(key, new, revision))
            after[key] = new
    return changes, after


def _work(fs: SimFileSystem, model: Model, seed: int) -> None:
    """Two processes change the file in turns, and believe what is answered."""
    rng = random.Random(seed)
    processes = [shared(fs), shared(fs)]
    for _ in range(5):
        file = rng.choice(processes)
        try:
            changes, after = _changes(rng, file)
        except StoreUnavailable:
            continue
        if model.possible is not None:
            # What a process has read is durable: it decides what became of the change.
            assert model.allows(state(file))
            model.answered = state(file)
        model.possible = after
        try:
            results = file.apply(changes)
        except StoreUnavailable:
            model.possible = None
            continue
        if all(isinstance(one, int) for one in results):
            model.answered, model.possible = after, None
        elif any(isinstance(one, StoreUnavailable) for one in results):
            model.possible = None
        else:
            assert all(isinstance(one, CasUnknown) for one in results)


@pytest.mark.parametrize("seed", seeds(6))
def test_an_answered_change_survives_a_stop_at_any_operation(fs: SimFileSystem, seed: int) -> None:
    _work(fs, Model(), seed)
    assert fs.operations > 15
    for stop_at in one_in(2, range(fs.operations + 1), f"records {seed}"):
        disk, model = new_disk(), Model()
        disk.stop_at = stop_at
        try:
            _work(disk, model, seed)
        except MachineStopped:
            pass
        for image in [*(disk.power_cut(keep, stop_at) for keep in KEEPS), disk.kill()]:
            found = state(shared(image))
            assert model.allows(found)
            # It was read, so it stays, and the next process continues from there.
            again = shared(image.power_cut("none"))
            assert state(again) == found
            revision = again.content.revision
            assert again.apply([Change("next", value(0), 0)]) == [revision + 1]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("operation", ["create", "write", "fsync", "rename", "fsync-directory"])
def test_a_failing_operation_is_answered_with_what_is_true(
    operation: str, after: bool, error: int
) -> None:
    for countdown in range(1, 6):
        fs, model = new_disk(), Model()
        fault = Fault(operation, error, countdown=countdown, after=after)
        fs.faults = [fault]
        for seed in range(4):
            _work(fs, model, seed)
            found = state(shared(fs))
            assert model.allows(found)
            model.answered, model.possible = found, None
            assert state(shared(fs.power_cut("none"))) == found
        assert not fault.times, "the fault did not hit"


def test_a_full_disk_and_a_short_write_change_nothing(fs: SimFileSystem) -> None:
    file = private(fs)
    file.apply([Change("k", value(1), 0)])
    fs.free_bytes = 10
    failed = file.apply([Change("k", value(2), 1)])[0]
    assert isinstance(failed, StoreUnavailable)
    assert "free some space" in str(failed)
    fs.free_bytes = None
    assert state(file) == {"k": value(1)}
    fs.faults = [Fault("write", short=3)]
    assert file.apply([Change("k", value(3), 1)]) == [2]
    assert state(private(fs.power_cut("none"))) == {"k": value(3)}


def test_a_directory_that_cannot_be_synced_leaves_the_outcome_open(fs: SimFileSystem) -> None:
    file = private(fs)
    file.apply([Change("k", value(1), 0)])
    fs.faults = [Fault("fsync-directory")]
    assert isinstance(file.apply([Change("k", value(2), 1)])[0], CasUnknown)
    assert state(file) == {"k": value(2)}
    assert file.apply([Change("k", value(3), 2)]) == [3]


# --- damage ---


@pytest.mark.parametrize("opened", [shared, private])
@pytest.mark.parametrize("damage", ["rot", "empty", "other file", "newer", "unreadable"])
def test_a_damaged_file_is_an_error_that_says_what_to_do(
    fs: SimFileSystem, damage: str, opened: Callable[[SimFileSystem], RecordsFile]
) -> None:
    private(fs).apply([Change("k", value(1), 0)])
    raw = fs.read(PATH)
    if damage == "unreadable":
        fs.lose_page(PATH, 0)
    else:
        other = {
            "rot": raw[:-9] + b"#" + raw[-8:],
            "empty": b"",
            "other file": b"liftlog clean 1 crc32c=00000000\n{}",
            "newer": raw.replace(b"records 1", b"records 2"),
        }
        fs.replace(PATH, other[damage])
    file = opened(fs)
    for _ in range(2):
        with pytest.raises(StoreUnavailable) as caught:
            file.read()
        assert "/data/records" in str(caught.value)
        with pytest.raises(StoreUnavailable):
            file.apply([Change("k", value(2), 0)])
    if damage != "unreadable":
        assert fs.read(PATH) == other[damage], "it is left as it is"
        fs.replace(PATH, raw)  # the operator has put it back
        assert file.apply([Change("k", value(2), 1)]) == [2]


def test_a_file_that_is_removed_while_it_is_shared_is_not_begun_again(fs: SimFileSystem) -> None:
    file = shared(fs)
    file.apply([Change("k", value(1), 0)])
    fs.remove(PATH)
    with pytest.raises(StoreUnavailable, match="put it back"):
        file.read()
    with pytest.raises(StoreUnavailable, match="put it back"):
        file.apply([Change("k", value(2), 0)])
    assert not fs.exists(PATH)


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    lock = tmp_path / "gone" / "records.lock"
    file = RecordsFile(lock.with_suffix(""), OsFileSystem(), lock=lambda: locked_file(lock))
    for call in (file.read, lambda: file.apply([Change("k", value(1), 0)])):
        with pytest.raises(StoreUnavailable, match=f"make the directory {tmp_path}/gone"):
            call()


def test_a_lock_that_another_process_keeps_is_an_error_after_a_while(tmp_path: Path) -> None:
    path = tmp_path / "records.lock"
    with locked_file(path):
        with pytest.raises(StoreUnavailable, match="another process has held the lock"):
            with locked_file(path, wait_seconds=0.01):
                raise AssertionError("the lock was taken twice")
    with locked_file(path, wait_seconds=0.01):
        pass


# --- entries that expire ---


def test_an_entry_expires_on_the_clock_of_the_machine_and_after_a_reboot(
    fs: SimFileSystem,
) -> None:
    ttl = 15_000_000_000
    private(fs, now_ns=100 * ttl).apply([Change("live.a", value(1), 0, ttl)])
    late = Change("live.a", value(2), 0, ttl)
    assert isinstance(private(fs, now_ns=101 * ttl - 1).apply([late])[0], CasLost)
    for now_ns in (101 * ttl, 5):  # the second: the machine has started again meanwhile
        copy = fs.power_cut("none")
        assert private(copy, now_ns=now_ns).apply([late]) == [2]
