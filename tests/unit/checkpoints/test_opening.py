"""Checkpoints on a real log: what is there after a restart, damage, a failed write."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.daemons.local_broker import Running

from liftlog.errors import (
    CheckpointUncertain,
    DiskFull,
    Forbidden,
    LiftlogError,
    ShuttingDown,
    StorageError,
    StreamUnavailable,
)
from liftlog.groups.requests import Join, Leave
from liftlog.log import LogSlice
from liftlog.records import parse_header
from liftlog.server.checkpoints import OFFSETS_STREAM, Checkpoints
from liftlog.server.checkpoints import table as table_module
from liftlog.server.checkpoints.checkpoint import Stored
from liftlog.server.checkpoints.expiring import expire, restamp_ahead
from liftlog.server.checkpoints.opening import is_open_to_nats, open_checkpoints
from liftlog.server.checkpoints.service import complete
from liftlog.server.checkpoints.table import CheckpointTable, load_table
from liftlog.server.streams.broker import Broker
from liftlog.server.streams.housekeeping import expire_unused
from liftlog.settings import Settings

ORDERS = {"orders": {"subject": "in"}}
DAY_NS = 86_400 * 1_000_000_000


class Opened:
    def __init__(self, running: Running, broker: Broker, checkpoints: Checkpoints) -> None:
        self.running, self.broker, self.checkpoints = running, broker, checkpoints

    async def commit(self, consumer: str, offset: int, **options: Any) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        stream = options.pop("stream", "orders")
        self.checkpoints.commit(
            consumer, stream, offset, lambda error: complete(future, error), **options
        )
        await future

    def offsets(self) -> dict[str, int]:
        return {one.consumer: one.offset for one in self.checkpoints.page(lambda _: True)[0]}


@asynccontextmanager
async def opened(directory: Path, records: int = 0) -> AsyncIterator[Opened]:
    running = Running(directory, **ORDERS)
    broker = await running.start()
    try:
        checkpoints = await open_checkpoints(broker, broker.now_ns)
        if records:
            await running.publish("orders", *[b"x"] * records)
        yield Opened(running, broker, checkpoints)
    finally:
        await broker.close()


async def test_they_are_there_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path, records=100) as one:
        await asyncio.gather(*(one.commit(f"c{n}", n + 1) for n in range(100)))
        await one.commit("c1", 77, metadata="mine")
        await one.checkpoints.deleted("c2", "orders")
        expected = one.offsets()
        before = one.checkpoints.fetch("c1", "orders", check=True)
    assert len(expected) == 99
    assert expected["c1"] == 77
    async with opened(tmp_path) as one:
        assert one.offsets() == expected
        assert one.checkpoints.fetch("c1", "orders", check=True) == before
        host = one.broker.hosts[OFFSETS_STREAM]
        assert host.log.high_watermark == 103  # two groups more than the first one
        assert host.origin == "system"
        assert host.settings.compaction is not None


async def test_a_damaged_batch_costs_what_is_in_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path, records=9) as one:
        await one.commit("a", 1)
        await one.commit("b", 2)
        await one.commit("a", 3)
    rot(tmp_path, b'"offset":3')
    async with opened(tmp_path) as one:
        assert one.offsets() == {"a": 1, "b": 2}
        await one.commit("a", 3)
    assert "checkpoints-lost first_offset=3 next_offset=4" in caplog.text
    async with opened(tmp_path) as one:
        assert one.offsets() == {"a": 3, "b": 2}


@pytest.mark.parametrize("place", [1, 2, 3])
async def test_an_older_batch_in_the_place_of_another_is_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: int
) -> None:
    """A write that went to the wrong place leaves whole batches there: a checkpoint does not go
    back without a word."""
    async with opened(tmp_path, records=9) as one:
        for offset in (1, 2, 3, 4):
            await one.commit("a", offset)
        await one.commit("b", 9)
    path = tmp_path / "streams" / OFFSETS_STREAM / f"{1:020}.log"
    raw = bytearray(path.read_bytes())
    position, batches = 0, []
    while position < len(raw):
        batches.append((position, parse_header(raw, position)))
        position += batches[-1][1].length
    (start, first), (position, header) = batches[0], batches[place]
    assert header.length == first.length
    raw[position : position + header.length] = raw[start : start + header.length]
    path.write_bytes(raw)
    async with opened(tmp_path) as one:
        table = one.checkpoints.table
        found = {one.consumer: one for one in one.checkpoints.page(lambda _: True)[0]}
        assert table.losses == 1
        if place == 3:
            assert (found["a"].offset, found["a"].uncertain) == (3, True)
        else:
            assert (found["a"].offset, found["a"].uncertain) == (4, False)
        assert (found["b"].offset, found["b"].uncertain) == (9, False)
    lost = f"checkpoints-lost first_offset={place + 1} next_offset={place + 2}"
    assert lost in caplog.text


async def test_what_damage_may_have_made_older_is_told(tmp_path: Path) -> None:
    """It is unknown whose checkpoints were lost: a consumer without a checkpoint after them is
    uncertain until its next commit."""
    async with opened(tmp_path, records=9) as one:
        for consumer, offset in (("a", 1), ("gone", 1), ("b", 2), ("lost", 4), ("b", 3)):
            await one.commit(consumer, offset)
        await one.checkpoints.deleted("gone", "orders")
    rot(tmp_path, b'"offset":4')
    async with opened(tmp_path) as one:
        table = one.checkpoints.table
        assert (table.losses, table.uncertain_count) == (1, 1)
        found = {one.consumer: one for one in one.checkpoints.page(lambda _: True)[0]}
        assert {name: (one.offset, one.uncertain) for name, one in found.items()} == {
            "a": (1, True),
            "b": (3, False),
        }
        assert one.checkpoints.fetch("a", "orders", check=True) == found["a"]
        assert one.checkpoints.fetch("gone", "orders", check=True) is None, "that is known"
        for consumer in ("lost", "new"):
            with pytest.raises(CheckpointUncertain):
                one.checkpoints.fetch(consumer, "orders", check=True)
            told = one.checkpoints.fetch(consumer, "orders", check=False)
            assert told is not None
            assert (told.offset, told.problem, told.uncertain) == (0, "CHECKPOINT_UNCERTAIN", True)
        one.running.clock.ahead_ns = 2 * DAY_NS
        assert await expired(one) == 1
        assert set(one.offsets()) == {"a"}, "it is unknown when it committed last"
        await one.commit("a", 2, expected=1)
        await one.commit("new", 5, expected=0)
        await one.checkpoints.deleted("lost", "orders")
        assert table.uncertain_count == 0
        assert one.checkpoints.fetch("lost", "orders", check=True) is None
    async with opened(tmp_path) as one:
        assert one.offsets() == {"a": 2, "new": 5}
        assert one.checkpoints.table.uncertain_count == 0


async def test_a_disk_that_cannot_be_read_is_no_reason_not_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon goes on without checkpoints for a StorageError, and ends for anything else."""
    async with opened(tmp_path, records=9) as one:
        await one.commit("a", 1)
        log = one.broker.hosts[OFFSETS_STREAM].log

        def fail(piece: LogSlice) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(LogSlice, "pread", fail)
        with pytest.raises(StorageError, match="reading the checkpoints: Input/output error"):
            load_table(log)
        monkeypatch.undo()


def rot(directory: Path, where: bytes) -> None:
    """One bit of what was last stored so."""
    path = directory / "streams" / OFFSETS_STREAM / f"{1:020}.log"
    raw = bytearray(path.read_bytes())
    raw[raw.rindex(where)] ^= 1
    path.write_bytes(raw)


def test_what_is_known_of_deleted_checkpoints_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "_MAX_SETTLED", 10)
    stored = Stored(1, 1, "i", 0)
    table = CheckpointTable({("kept", "s"): stored}, losses=1)
    assert table.is_uncertain(("kept", "s"))
    table.apply({("kept", "s"): stored})
    for n in range(100):
        table.apply({(f"c{n}", "s"): stored})
        table.apply({(f"c{n}", "s"): None})
        assert not table.is_uncertain(("kept", "s"))
    assert len(table._settled) <= 12
    assert table.is_uncertain(("c0", "s")), "nothing is said that is not known any more"


async def test_a_full_disk_refuses_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, records=9) as one:
        await one.commit("a", 1)
        log = one.broker.hosts[OFFSETS_STREAM].log

        def full(*_: Any) -> None:
            raise DiskFull("no space left")

        with monkeypatch.context() as patch:
            patch.setattr(log, "append", full)
            for _ in range(3):
                with pytest.raises(DiskFull):
                    await one.commit("a", 2)
            with pytest.raises(DiskFull):
                await one.checkpoints.deleted("a", "orders")
            assert one.offsets() == {"a": 1}
            assert one.checkpoints.fetch("a", "orders", check=True) is not None
        await one.commit("a", 2, expected=1)
        assert one.checkpoints.refused["DISK_FULL"] == 4
    async with opened(tmp_path) as one:
        assert one.offsets() == {"a": 2}


async def test_a_stream_that_cannot_be_opened_is_left_alone(tmp_path: Path) -> None:
    async with opened(tmp_path, records=9) as one:
        await one.commit("a", 1)
    manifest = tmp_path / "streams" / OFFSETS_STREAM / "manifest"
    for path in (manifest, manifest.with_name("manifest.copy")):
        path.write_bytes(b"nonsense")
    with pytest.raises(StreamUnavailable, match="_offsets"):
        async with opened(tmp_path):
            pass
    assert manifest.read_bytes() == b"nonsense"


async def test_a_failed_write_is_told_and_the_next_one_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, records=9) as one:
        await one.commit("a", 1)
        log = one.broker.hosts[OFFSETS_STREAM].log
        real = log.append

        def failing(*arguments: Any) -> Any:
            monkeypatch.setattr(log, "append", real)
            raise LiftlogError("failed on purpose")

        monkeypatch.setattr(log, "append", failing)
        results = await asyncio.gather(
            one.commit("a", 2), one.commit("b", 1), return_exceptions=True
        )
        assert [type(result) for result in results] == [StreamUnavailable] * 2
        assert one.offsets() == {"a": 1}
        await one.commit("b", 5)
        assert one.offsets() == {"a": 1, "b": 5}
    async with opened(tmp_path) as one:
        assert one.offsets() == {"a": 1, "b": 5}


async def test_a_defect_while_committing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, records=9) as one:
        log = one.broker.hosts[OFFSETS_STREAM].log
        monkeypatch.setattr(log, "append", lambda _: 1 / 0)
        with pytest.raises(StreamUnavailable):
            await one.commit("a", 2)
        with pytest.raises(StreamUnavailable):
            await one.commit("a", 2)


async def test_nobody_is_left_waiting_at_the_end(tmp_path: Path) -> None:
    async with opened(tmp_path, records=9) as one:
        await one.broker.drain()
        with pytest.raises(ShuttingDown):
            await one.commit("a", 1)


async def test_it_belongs_to_the_daemon(tmp_path: Path) -> None:
    async with opened(tmp_path) as one:
        with pytest.raises(Forbidden):
            await one.broker.delete_stream(OFFSETS_STREAM)
        listed = [info.name for info in await one.broker.list_streams()]
        assert listed == ["orders"]
        info = await one.broker.describe_stream(OFFSETS_STREAM)
        assert (info.origin, info.durability) == ("system", "fsync")


async def test_owners_are_known_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path, records=100) as one:
        for n in range(5):
            await one.commit(f"c{n}", n + 1, owner="shop")
        await one.commit("c0", 7, owner="ops")
        await one.commit("n", 7)
        await one.checkpoints.deleted("c1", "orders")
    async with opened(tmp_path) as one:
        table = one.checkpoints.table
        assert [table.owned_count(name) for name in ("shop", "ops", "")] == [3, 1, 1]
        listed, _ = one.checkpoints.page(lambda name: True)
        owners = {found.consumer: found.owner for found in listed}
        assert owners == {"c0": "ops", "c2": "shop", "c3": "shop", "c4": "shop", "n": ""}


@pytest.mark.parametrize(
    ("acl", "over_nats", "open_to_nats"),
    [(False, None, True), (True, None, False), (True, True, True), (False, False, False)],
)
def test_over_nats_only_where_nobody_is_kept_out(
    acl: bool, over_nats: bool | None, open_to_nats: bool
) -> None:
    raw: dict[str, Any] = {"checkpoints": {"over_nats": over_nats}}
    if acl:
        raw["acl"] = {"file": "acl.yaml"}
    assert is_open_to_nats(Settings.model_validate(raw)) == open_to_nats


# --- expiry ---


async def expired(one: Opened, find: Callable[[str], Any] | None = None) -> int:
    before_ns = one.running.clock.now_ns() - DAY_NS
    return await expire(one.checkpoints, find or one.broker.stream, before_ns)


async def test_what_was_left_behind_expires(tmp_path: Path) -> None:
    async with opened(tmp_path, records=10) as one:
        await one.commit("behind", 5)
        await one.commit("at-the-end", 11)
        await one.commit("busy", 5)
        one.running.clock.ahead_ns = 2 * DAY_NS
        await one.running.publish("orders", b"new")
        await one.commit("busy", 5)
        assert await expired(one) == 1
        assert set(one.offsets()) == {"at-the-end", "busy"}
        one.running.clock.ahead_ns = 4 * DAY_NS
        # The record has waited for them for two days, and one of them has not come.
        await one.commit("at-the-end", 11)
        assert await expired(one) == 1
        assert set(one.offsets()) == {"at-the-end"}
    async with opened(tmp_path) as one:
        assert set(one.offsets()) == {"at-the-end"}


async def test_checkpoints_of_what_is_gone_expire_by_age(tmp_path: Path) -> None:
    async with opened(tmp_path, records=10) as one:
        await one.broker.create_stream("other", {"subject": "other"})
        await one.commit("c", 1, stream="other")
        await one.broker.delete_stream("other")
        assert await expired(one) == 0
        one.running.clock.ahead_ns = 2 * DAY_NS
        assert await expired(one) == 1


async def test_a_stream_that_cannot_be_asked_costs_nobody_a_checkpoint(tmp_path: Path) -> None:
    async with opened(tmp_path, records=10) as one:
        await one.commit("behind", 5)
        one.running.clock.ahead_ns = 2 * DAY_NS

        def unavailable(name: str) -> Any:
            raise StreamUnavailable(f"{name} has failed")

        assert await expired(one, unavailable) == 0
        assert await expired(one) == 1


YEAR_NS = 365 * DAY_NS


async def keeps_house(one: Opened) -> dict[str, int]:
    """What is left, by consumer, when what is unused has expired; groups with offset 0."""
    one.broker.serve_checkpoints(one.checkpoints)
    settings = one.broker.settings.checkpoints.model_copy(update={"expire_after_seconds": 3e7})
    one.broker.settings = one.broker.settings.model_copy(update={"checkpoints": settings})
    await expire_unused(one.broker)
    groups = one.checkpoints.groups.keys()
    return one.offsets() | {group: 0 for group, _ in groups}


async def left_group(one: Opened, group: str) -> None:
    key = (group, "orders")
    joined = await one.checkpoints.groups.asked(Join(key, "m", "token", 10_000, 4, 5, ""))
    assert joined is not None
    await one.checkpoints.groups.asked(Leave(key, "m", joined.joined))


async def test_what_a_slow_clock_has_stamped_does_not_expire_when_it_is_set(
    tmp_path: Path,
) -> None:
    expires_ns = 400 * DAY_NS
    async with opened(tmp_path, records=10) as one:
        clock, guard = one.running.clock, one.broker.clock_guard
        await one.commit("behind", 5)
        await left_group(one, "crowd")
        clock.jumped_ns = expires_ns  # until now it was slow
        await one.running.publish("orders", b"new")
        clock.ahead_ns = 3601 * 10**9
        guard.believe("a test says so")
        everyone = {"behind": 5, "crowd": 0}
        assert await keeps_house(one) == everyone
        clock.ahead_ns += DAY_NS
        assert await keeps_house(one) == everyone
        clock.ahead_ns += expires_ns
        await one.running.publish("orders", b"newer")
        assert await keeps_house(one) == {}


async def test_what_a_clock_ahead_has_stamped_expires_after_all(tmp_path: Path) -> None:
    async with opened(tmp_path, records=10) as one:
        clock = one.running.clock
        clock.jumped_ns = 20 * YEAR_NS
        one.broker.clock_guard.believe("a test says so")
        await one.commit("behind", 5)
        await one.commit("busy", 5)
        await left_group(one, "crowd")
        clock.jumped_ns = 0
        one.broker.now_ns()
        clock.ahead_ns = 3601 * 10**9  # an hour later, the clock that was set back is trusted
        assert await keeps_house(one) == {"behind": 5, "busy": 5, "crowd": 0}
        stored = one.checkpoints.table.get(("behind", "orders"))
        assert stored is not None
        assert abs(one.running.clock.now_ns() - stored.time_ns) < 60 * 10**9
        clock.ahead_ns += 400 * DAY_NS
        await one.running.publish("orders", b"new")
        await one.commit("busy", 5)
        assert await keeps_house(one) == {"busy": 5}


async def test_a_checkpoint_that_moves_meanwhile_is_not_stored_again(tmp_path: Path) -> None:
    async with opened(tmp_path, records=10) as one:
        one.running.clock.jumped_ns = YEAR_NS
        await one.commit("a", 5)
        one.running.clock.jumped_ns = 0
        ahead_ns = one.running.clock.now_ns() + DAY_NS
        restamping = asyncio.ensure_future(restamp_ahead(one.checkpoints, ahead_ns))
        moved = asyncio.ensure_future(one.commit("a", 7))
        await moved
        await restamping
        assert one.offsets() == {"a": 7}
        assert await restamp_ahead(one.checkpoints, ahead_ns) == 0
