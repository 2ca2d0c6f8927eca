"""Leases: durable, limited in time, and void when the disk is full."""

from __future__ import annotations

import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from support.disks.logs import BASE_NS, DIRECTORY, create, reopen
from support.disks.simfs import Fault, Keep, MachineStopped, SimFileSystem

from liftlog.errors import (
    CorruptMetadata,
    DiskFull,
    InvalidArgument,
    LeaseGone,
    LimitExceeded,
    StorageError,
)
from liftlog.log.files.leases import (
    EXPORT_LEASES,
    LEASES_NAME,
    MAX_DURATION_NS,
    MAX_LEASES,
    MAX_LEASES_PER_PRINCIPAL,
    MAX_POSSIBLE_LOSSES,
    Lease,
    Leases,
    SideState,
)

MINUTE_NS = 60 * 1_000_000_000
PATH = DIRECTORY / LEASES_NAME


def directory(fs: SimFileSystem) -> Path:
    """Make the directory with durable entries."""
    fs.make_directory(DIRECTORY)
    for parent in [DIRECTORY, *DIRECTORY.parents]:
        fs.fsync_directory(parent)
    return DIRECTORY


@pytest.fixture
def fs() -> SimFileSystem:
    return SimFileSystem()


@pytest.fixture
def leases(fs: SimFileSystem) -> Leases:
    return opened(fs, directory(fs))


def opened(fs: SimFileSystem, where: Path = DIRECTORY) -> Leases:
    leases = Leases(fs, where)
    leases.load()
    return leases


def acquire(
    leases: Leases, low: int, high: int, *, at: int = BASE_NS, for_export: bool = False
) -> Lease:
    return leases.acquire(
        low, high, duration_ns=MINUTE_NS, now_ns=at, holder="export", for_export=for_export
    )


def renew(leases: Leases, lease: Lease, *, at: int, low: int | None = None) -> Lease:
    return leases.renew(lease.lease_id, duration_ns=MINUTE_NS, now_ns=at, low=low)


def test_the_lowest_live_lease_holds(leases: Leases) -> None:
    assert leases.live(BASE_NS) == ()
    assert leases.low_bound(BASE_NS) is None
    first = acquire(leases, 10, 40)
    second = acquire(leases, 20, 30, at=BASE_NS + 5)
    assert leases.live(BASE_NS + 5) == (first, second)
    assert leases.low_bound(BASE_NS + 5) == 10
    leases.release(first.lease_id, now_ns=BASE_NS + 5)
    leases.release(first.lease_id, now_ns=BASE_NS + 5)  # once more is no error
    assert leases.low_bound(BASE_NS + 5) == 20
    assert leases.live(BASE_NS + 5) == (second,)


def test_time_ends_a_lease_and_renewal_carries_it_on(leases: Leases) -> None:
    lease = acquire(leases, 10, 40)
    end = BASE_NS + MINUTE_NS
    assert leases.live(end - 1) == (lease,)
    renewed = renew(leases, lease, at=end - 1, low=25)
    assert (renewed.low, renewed.high, renewed.expires_ns) == (25, 40, end - 1 + MINUTE_NS)
    assert leases.live(end) == (renewed,)
    # It may give up what it has read, but gets nothing back, and nothing more.
    assert renew(leases, lease, at=end, low=10).low == 25
    assert renew(leases, lease, at=end, low=99).low == 40
    assert leases.live(end + MINUTE_NS) == ()
    with pytest.raises(LeaseGone):
        renew(leases, lease, at=end + MINUTE_NS)


def test_a_clock_that_was_set_back_does_not_make_it_last(leases: Leases) -> None:
    lease = leases.acquire(1, 2, duration_ns=MAX_DURATION_NS, now_ns=BASE_NS)
    assert leases.live(BASE_NS) == (lease,)
    assert leases.live(BASE_NS - 600 * 10**9) == (lease,), "a small step is no news"
    assert leases.live(BASE_NS - 600 * 10**9 - 1) == ()


@pytest.mark.parametrize("duration_ns", [0, -1, MAX_DURATION_NS + 1])
def test_its_duration_is_bounded(leases: Leases, duration_ns: int) -> None:
    with pytest.raises(InvalidArgument):
        leases.acquire(1, 2, duration_ns=duration_ns, now_ns=BASE_NS)
    lease = acquire(leases, 1, 2)
    with pytest.raises(InvalidArgument):
        leases.renew(lease.lease_id, duration_ns=duration_ns, now_ns=BASE_NS)
    with pytest.raises(InvalidArgument):
        acquire(leases, 3, 2)
    assert leases.live(BASE_NS) == (lease,)


def test_their_number_is_bounded(leases: Leases) -> None:
    for _ in range(MAX_LEASES - EXPORT_LEASES):
        acquire(leases, 1, 2)
    with pytest.raises(
        LimitExceeded, match=r"90 leases .*; 10 more are kept for exports"
    ) as raised:
        acquire(leases, 1, 2)
    assert f"liftlog stream lease ls {DIRECTORY.name}" in (raised.value.hint or "")
    for _ in range(EXPORT_LEASES):
        acquire(leases, 1, 2, for_export=True)
    for for_export in (False, True):
        with pytest.raises(LimitExceeded, match=r"100 leases of all principals on \w+ al"):
            acquire(leases, 1, 2, for_export=for_export)
    later = BASE_NS + MINUTE_NS
    assert leases.live(later) == ()
    last = acquire(leases, 1, 2, at=later)
    assert leases.live(later) == (last,)


def test_a_principal_leaves_room_for_others(fs: SimFileSystem, leases: Leases) -> None:
    def take(principal: str, holder: str = "reader", *, for_export: bool = False) -> Lease:
        return leases.acquire(
            1,
            2,
            duration_ns=MINUTE_NS // 2,
            now_ns=BASE_NS,
            holder=holder,
            principal=principal,
            for_export=for_export,
        )

    first = take("shop")
    assert first.holder == "shop: reader"
    for _ in range(MAX_LEASES_PER_PRINCIPAL - EXPORT_LEASES - 1):
        take("shop", holder="")
    with pytest.raises(LimitExceeded, match="40 leases of shop on"):
        take("shop")
    for _ in range(EXPORT_LEASES):
        take("shop", for_export=True)
    with pytest.raises(LimitExceeded, match="50 leases of shop on"):
        take("shop", for_export=True)
    again = Leases(fs, DIRECTORY)  # who holds what is known after a restart too
    again.load()
    with pytest.raises(LimitExceeded):
        again.acquire(1, 2, duration_ns=MINUTE_NS, now_ns=BASE_NS, principal="shop")
    take("shopping")
    take("", holder="shopper")
    leases.release(first.lease_id, now_ns=BASE_NS)
    take("shop", for_export=True)


def test_every_change_is_durable_when_it_returns(fs: SimFileSystem, leases: Leases) -> None:
    first, second = acquire(leases, 1, 9), acquire(leases, 2, 9)
    renewed = renew(leases, first, at=BASE_NS + 1, low=5)
    leases.release(second.lease_id, now_ns=BASE_NS + 1)
    after = opened(fs.power_cut("none"))
    assert after.live(BASE_NS + 1) == (renewed,)
    assert renew(after, renewed, at=BASE_NS + 2) == replace(
        renewed, expires_ns=BASE_NS + 2 + MINUTE_NS
    )


def test_the_machine_stops_at_every_operation() -> None:
    """After that, either the whole change exists, or nothing of it."""
    operations = 0
    for keep in ("none", "all", "some"):
        for stop_at in range(1000):
            fs = SimFileSystem()
            leases = opened(fs, directory(fs))
            kept, given_back = acquire(leases, 1, 9), acquire(leases, 2, 9)
            fs.stop_at = fs.operations + stop_at
            states = [(kept, given_back)]
            try:
                states.append((renew(leases, kept, at=BASE_NS, low=4), given_back))
                leases.release(given_back.lease_id, now_ns=BASE_NS)
                states.append((states[-1][0],))
            except MachineStopped:
                operations += 1
            else:
                break
            found = opened(fs.power_cut(keep, seed=stop_at)).live(BASE_NS)
            lows = [(one.low for one in state) for state in states]
            possible = [tuple(low) for low in [*lows, (4, 2), (4,)]]
            assert tuple(one.low for one in found) in possible
            if len(states) > 1:
                assert found[0].low == 4, "the renewal had returned"
        else:
            raise AssertionError("it never came to an end")
    assert operations > 20


@pytest.mark.parametrize("operation", ["write", "fsync", "rename", "fsync-directory"])
def test_what_cannot_be_stored_is_refused(
    fs: SimFileSystem, leases: Leases, operation: str
) -> None:
    lease = acquire(leases, 1, 9)
    fs.faults = [Fault(operation, errno.ENOSPC, times=2)]
    with pytest.raises(DiskFull):
        acquire(leases, 3, 9)
    with pytest.raises(DiskFull):
        renew(leases, lease, at=BASE_NS)
    assert leases.live(BASE_NS) == (lease,)
    assert fs.faults[0].times == 0
    assert renew(leases, lease, at=BASE_NS).lease_id == lease.lease_id


def test_void_needs_no_room(fs: SimFileSystem, leases: Leases) -> None:
    lease = acquire(leases, 1, 9)
    acquire(leases, 2, 9)
    fs.free_bytes = 0
    assert leases.void("the disk is full") == 2
    assert leases.live(BASE_NS) == ()
    assert leases.void("the disk is full") == 0
    with pytest.raises(LeaseGone):
        renew(leases, lease, at=BASE_NS)
    assert opened(fs).live(BASE_NS) == ()


def test_void_does_not_depend_on_the_disk(fs: SimFileSystem, leases: Leases) -> None:
    acquire(leases, 1, 9)
    fs.faults = [Fault("unlink", errno.EIO)]
    assert leases.void("the disk is full") == 1
    assert leases.live(BASE_NS) == ()
    # Leases that were never read, and cannot be: they do not hold anybody up either.
    unread = Leases(fs, DIRECTORY)
    fs.faults = [Fault("pread", errno.ENOMEM)]
    assert unread.void("the disk is full") == 1
    assert unread.live(BASE_NS) == ()


def test_a_sector_that_cannot_be_read_stops_nobody(fs: SimFileSystem, leases: Leases) -> None:
    """Leases last an hour, but the sector stays unreadable, so retention must not wait for it."""
    acquire(leases, 1, 9)
    fs.lose_page(PATH, 0)
    again = opened(fs)
    assert again.live(BASE_NS) == ()
    new = acquire(again, 3, 4)
    assert opened(fs).live(BASE_NS) == (new,)


def test_a_damaged_file_stops_nobody_and_one_that_was_not_read_is_no_empty_one(
    fs: SimFileSystem, leases: Leases
) -> None:
    lease = acquire(leases, 1, 9)
    fs.faults = [Fault("pread", errno.ENOMEM)]
    again = Leases(fs, DIRECTORY)
    with pytest.raises(StorageError):
        again.load()
    with pytest.raises(StorageError, match="not read"):
        again.live(BASE_NS)
    again.load()
    assert again.live(BASE_NS) == (lease,), "the next attempt reads it"
    raw = bytearray(fs.read(PATH))
    raw[-3] ^= 1
    fs.replace(PATH, bytes(raw))
    damaged = opened(fs)
    assert damaged.live(BASE_NS) == ()
    assert len(damaged.live(BASE_NS)) == 0
    new = acquire(damaged, 3, 4)
    assert opened(fs).live(BASE_NS) == (new,)


def test_who_asks_waits_for_no_change(
    fs: SimFileSystem, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop queries the leases, and a change holds its lock during a sync of the disk."""
    lease = acquire(leases, 5, 9)
    syncing, go_on = threading.Event(), threading.Event()

    def stalled(path: Path) -> None:
        syncing.set()
        assert go_on.wait(10)

    monkeypatch.setattr(fs, "fsync_directory", stalled)
    with ThreadPoolExecutor(2) as threads:
        renewal = threads.submit(renew, leases, lease, at=BASE_NS + 1)
        try:
            assert syncing.wait(10)
            assert threads.submit(leases.live, BASE_NS + 1).result(10) == (lease,)
            assert (leases.low_bound(BASE_NS + 1), leases.may_be_void) == (5, True)
        finally:
            go_on.set()
        renewed = renewal.result(10)
        assert leases.live(BASE_NS + 1) == (renewed,)


def test_they_live_in_the_directory_of_the_log(fs: SimFileSystem) -> None:
    """Opening a log removes unknown files from the directory."""
    log = create(fs)
    lease = acquire(log.leases, 1, 1)
    reopened, _ = reopen(fs.kill())
    assert reopened.leases.live(BASE_NS) == (lease,)


# --- side state ---


def test_a_leader_numbers_its_changes_and_a_replica_copies_them(
    leases: Leases, fs: SimFileSystem
) -> None:
    assert leases.side_state.version == 0
    leases.number(lambda version: version, lambda version: version + 10)
    lease = acquire(leases, 3, 9)
    leases.set_tombstone_bound(5)
    leases.set_tombstone_bound(5)
    assert (leases.side_state.version, leases.tombstone_bound) == (20, 5)
    told = SideState.from_dict(leases.side_state.to_dict())
    copy_fs = SimFileSystem()
    copy = opened(copy_fs, directory(copy_fs))
    copy.copy(told)
    for one in (copy, opened(copy_fs.power_cut("none"))):
        assert one.side_state == leases.side_state
        assert one.live(BASE_NS) == (lease,)
    leases.release(lease.lease_id, now_ns=BASE_NS)
    copy.copy(leases.side_state)
    assert opened(copy_fs.power_cut("none")).side_state == SideState(30, {}, 5)


def test_leases_of_a_time_without_replicas_are_side_state_too(
    leases: Leases, fs: SimFileSystem
) -> None:
    acquire(leases, 3, 9)
    assert opened(fs).side_state.version == 0
    leases.number(lambda version: version + 70, lambda version: version + 1)
    assert leases.side_state.version == 71, "1 before, since 0 is the empty state"


def test_possible_losses_are_copied_and_the_newest_stay(fs: SimFileSystem, leases: Leases) -> None:
    leases.number(lambda version: version + 10, lambda version: version + 1)
    for number in range(MAX_POSSIBLE_LOSSES + 2):
        leases.note_possible_loss(number, BASE_NS, "no leader")
    side = leases.side_state
    assert (side.version, len(side.possible_losses)) == (
        10 + MAX_POSSIBLE_LOSSES + 2,
        MAX_POSSIBLE_LOSSES,
    )
    assert side.possible_losses[0]["offset"] == 2
    lease = acquire(leases, 1, 2)
    leases.void("the disk is full")
    assert leases.side_state.possible_losses == side.possible_losses
    copy_fs = SimFileSystem()
    copy = opened(copy_fs, directory(copy_fs))
    copy.copy(SideState.from_dict(leases.side_state.to_dict()))
    for disk in (fs, copy_fs):
        again = opened(disk.power_cut("all"))
        assert again.side_state.possible_losses == side.possible_losses
        assert lease.lease_id not in again.side_state.leases


def test_void_leases_are_a_change_and_the_bound_stays(leases: Leases) -> None:
    leases.number(lambda version: version, lambda version: version + 1)
    leases.set_tombstone_bound(5)
    assert leases.void("the disk is full") == 0
    assert leases.side_state.version == 1
    acquire(leases, 3, 9)
    assert leases.void("the disk is full") == 1
    assert leases.side_state == SideState(3, {}, 5)


@pytest.mark.parametrize("stop", range(12))
def test_a_copy_is_whole_or_the_one_before(stop: int) -> None:
    """The version identifies the content, so a replica never confirms a state that a crash has
    removed."""
    fs = SimFileSystem()
    copy = opened(fs, directory(fs))
    old, new = SideState(1, {}, 3), SideState(2, {"a": Lease("a", 1, 2, BASE_NS)}, 4)
    copy.copy(old)
    fs.stop_at = fs.operations + stop
    possible = [old, new]
    try:
        copy.copy(new)
        possible = [new]
    except MachineStopped:
        pass
    keeps: list[Keep] = ["none", "all"]
    for keep in keeps:
        assert opened(fs.power_cut(keep)).side_state in possible


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"leases": {"a": 1}},
        {"leases": [{"lease_id": "a"}]},
        {"leases": [], "version": -1},
        {"leases": [], "version": True},
        {"leases": [], "version": 1, "tombstone_bound": "5"},
        {"leases": [{"lease_id": 5, "low": 1, "high": 2, "expires_ns": 3, "holder": ""}]},
        {"leases": [{"lease_id": "a", "low": 1.5, "high": 2, "expires_ns": 3, "holder": ""}]},
        {"leases": [], "possible_losses": 5},
        {"leases": [], "possible_losses": [{"offset": 1, "time_ns": 2}]},
        {"leases": [], "possible_losses": [{"offset": -1, "time_ns": 2, "reason": ""}]},
        {"leases": [], "possible_losses": [{"offset": 1, "time_ns": 2, "reason": 3}]},
        {"leases": [], "possible_losses": [{"offset": 1, "time_ns": 2, "reason": ""}] * 101},
        {
            "leases": [
                {"lease_id": str(n), "low": 1, "high": 2, "expires_ns": 3, "holder": ""}
                for n in range(MAX_LEASES + 1)
            ]
        },
    ],
)
def test_what_another_node_tells_may_be_anything(content: dict[str, object]) -> None:
    with pytest.raises(CorruptMetadata):
        SideState.from_dict(content)
