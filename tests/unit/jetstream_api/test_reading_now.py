"""Records that were just written are read in the event loop, without a thread."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.disks.page_cache import need_nowait
from support.disks.stored_logs import StoredLog

from liftlog.log.erased import ErasedSet
from liftlog.server.jetstream_api.consumers import recent
from liftlog.server.jetstream_api.consumers.budget import Budget, Budgets
from liftlog.server.jetstream_api.consumers.cursor import PIECE_BYTES, Cursor
from liftlog.server.jetstream_api.consumers.rows import SharedRow
from liftlog.server.jetstream_api.workers.buffer import Buffer
from liftlog.server.reading.read_share import ReadShare, ThreadUsage
from liftlog.server.reading.tailing import TailGroup
from liftlog.server.streams.intake import Ingested

SUBJECT = "orders.new"


class NoThreads:
    def of(self, *party: object) -> NoThreads:
        return self


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[StoredLog]:
    need_nowait(tmp_path)
    stored = StoredLog(tmp_path / "data")
    yield stored
    stored.close()


@pytest.fixture
async def group() -> TailGroup:
    share = ReadShare(ThreadUsage(), lambda: Ingested(0, 0))
    return TailGroup(asyncio.get_running_loop(), 0.0, share)


def cursor_of(
    stored: StoredLog,
    *,
    filters: tuple[str, ...] = (),
    readable: tuple[str, ...] | None = None,
    history: int | None = None,
) -> Cursor:
    shown = SimpleNamespace(
        host=SimpleNamespace(log=stored.log),
        first_offset=stored.log.high_watermark,
        history=history,
    )
    services = SimpleNamespace(scanners=NoThreads(), cold_readers=None)
    budget = Budget(100, 10)
    return Cursor(
        cast(Any, services), cast(Any, shown), filters, readable, "c", Budgets(budget, budget)
    )


async def test_what_was_written_since_the_last_time(stored: StoredLog, group: TailGroup) -> None:
    cursor = cursor_of(stored)
    stored.append([b"a", b"b"])
    stored.append([b"c"], headers=[b"NATS/1.0\r\nA: b\r\n\r\n"])
    rows, caught_up = cast(Any, cursor.read_now(group))
    assert [(one.offset, one.subject, one.value) for one in rows] == [
        (1, SUBJECT.encode(), b"a"),
        (2, SUBJECT.encode(), b"b"),
        (3, SUBJECT.encode(), b"c"),
    ]
    assert [one.headers for one in rows] == [b"", b"", b"NATS/1.0\r\nA: b\r\n\r\n"]
    assert caught_up
    assert (cursor.next_offset, cursor.left) == (4, 3)
    cursor.next_offset = 2  # within a batch
    rows, _ = cast(Any, cursor.read_now(group))
    assert [one.offset for one in rows] == [2, 3]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"filters": (SUBJECT,)}, [1, 2, 3]),
        ({"filters": ("others.>",)}, []),
        ({"filters": ("*.new",), "readable": ("others.>",)}, []),
        ({"history": 1}, [1, 3]),
        ({"history": 1, "filters": ("orders.>",)}, [1, 3]),
    ],
)
async def test_only_what_is_wanted(
    stored: StoredLog, group: TailGroup, options: Any, expected: list[int]
) -> None:
    cursor = cursor_of(stored, **options)
    stored.append([b"a", None, b"c"], keys=[b"k"] * 3)
    rows, caught_up = cast(Any, cursor.read_now(group))
    assert [one.offset for one in rows] == expected
    assert caught_up
    assert cursor.next_offset == 4


async def test_many_are_read_in_pieces(stored: StoredLog, group: TailGroup) -> None:
    cursor = cursor_of(stored)
    for number in range(3):
        stored.append([b"%d" % number * (PIECE_BYTES // 2)])
    found = []
    while True:
        rows, caught_up = cast(Any, cursor.read_now(group))
        assert sum(len(one.value) for one in rows) <= PIECE_BYTES
        found += [one.offset for one in rows]
        if caught_up:
            break
    assert found == [1, 2, 3]


async def test_what_takes_long_is_left_to_a_thread(stored: StoredLog, group: TailGroup) -> None:
    cursor = cursor_of(stored)
    assert cursor.read_now(group) is None, "there is nothing"
    stored.append([b"x" * (PIECE_BYTES + 1)])
    assert cursor.read_now(group) is None
    assert (cursor.next_offset, cursor.left) == (1, 0)
    cursor = cursor_of(stored)
    stored.append([b"x" * (PIECE_BYTES + 1)], compression="zstd")
    assert stored.positions()[-1][1].length < 1000
    assert cursor.read_now(group) is None
    assert cursor.next_offset == 2


async def test_damage_is_left_to_a_thread(stored: StoredLog, group: TailGroup) -> None:
    cursor = cursor_of(stored)
    stored.append([b"a" * 100])
    [(position, header)] = stored.positions()
    path = next(stored.directory.glob("*.log"))
    with path.open("r+b") as file:
        file.seek(position + header.length - 16)
        file.write(b"#")
    assert cursor.read_now(group) is None
    assert cursor.next_offset == 1


async def test_consumers_share_the_newest_records(stored: StoredLog, group: TailGroup) -> None:
    """Each batch is read and decoded once, whether the consumers read together or one behind the
    other."""
    cursors = [cursor_of(stored) for _ in range(5)]
    found: list[list[Any]] = [[] for _ in cursors]
    for number in range(30):
        stored.append([b"%d" % number])
        for place, cursor in enumerate(cursors):
            if number % (place + 1) == 0:
                rows, caught_up = cast(Any, cursor.read_now(group))
                assert caught_up
                found[place] += rows
    for cursor, rows in zip(cursors, found, strict=True):
        more = cursor.read_now(group)
        rows += [] if more is None else more[0]
        assert [one.value for one in rows] == [b"%d" % number for number in range(30)]
        assert [id(one) for one in rows] == [id(one) for one in found[0]]
        assert cursor.left == 30


async def test_old_records_are_forgotten_and_none_is_left_out(
    stored: StoredLog, group: TailGroup
) -> None:
    """A consumer that is far behind reads pieces of its own, or those that are still kept."""
    fast, middle, slow = (cursor_of(stored) for _ in range(3))
    value, count = b"x" * 4000, 200
    found: dict[Cursor, list[int]] = {fast: [], middle: [], slow: []}
    for number in range(count):
        stored.append([value])
        for cursor in (fast, middle) if number % 40 == 39 else (fast,):
            while (piece := cursor.read_now(group)) is not None:
                found[cursor] += [one.offset for one in piece[0]]
                assert sum(len(one.value) for one in piece[0]) <= 2 * PIECE_BYTES
    while (piece := slow.read_now(group)) is not None:
        found[slow] += [one.offset for one in piece[0]]
    for offsets in found.values():
        assert offsets == list(range(1, count + 1))


async def test_rows_of_another_history_are_not_shared(stored: StoredLog, group: TailGroup) -> None:
    cursor, behind = cursor_of(stored), cursor_of(stored)
    stored.append([b"a", b"b", b"c"])
    assert cursor.read_now(group) is not None
    stored.log.truncate_suffix(2, below_high_watermark=True)
    stored.append([b"B"])
    rows, _ = cast(Any, behind.read_now(group))
    assert [(one.offset, one.value) for one in rows][-1][1] == b"B"
    assert b"b" not in [one.value for one in rows]


async def test_erased_rows_are_not_shared(stored: StoredLog, group: TailGroup) -> None:
    cursor, behind = cursor_of(stored), cursor_of(stored)
    for value in (b"a", b"b", b"c"):
        stored.append([value])
    assert cursor.read_now(group) is not None
    stored.log.structure.erase(ErasedSet.of_ranges([(2, 3)]))
    found = []
    while (piece := behind.read_now(group)) is not None:
        found += [one.value for one in piece[0]]
    assert found == [b"a", b"c"]


async def test_a_fresh_consumer_does_not_deliver_what_was_erased(
    stored: StoredLog, group: TailGroup
) -> None:
    """A purge may let such a consumer have the record; an erasure may not."""
    cursor, buffer = cursor_of(stored), Buffer(1)
    cursor.is_fresh = True
    stored.append([b"a", b"b", b"c"])
    found = cursor.read_now(group)
    assert found is not None
    buffer.add(*found, cursor.read_bytes)
    stored.log.structure.erase(ErasedSet.of_ranges([(2, 3)]))
    buffer.leave_out_purged(cursor)
    assert cursor.is_fresh
    assert [row.offset for row in buffer.rows] == [1, 3]
    assert cursor.left == 2


def shared_rows() -> int:
    """The number of records that consumers share, in this process."""
    gc.collect()
    return sum(isinstance(one, SharedRow) for one in gc.get_objects())


async def test_few_tiny_records_are_kept_and_none_without_consumers(
    stored: StoredLog, group: TailGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record of a few bytes takes hundreds of them, and a daemon can have many streams."""
    monkeypatch.setattr(recent, "IDLE_SECONDS", 0.05)
    cursor, before = cursor_of(stored), shared_rows()
    for number in range(30):
        stored.append([b"%d" % number] * 1000)
        assert cursor.read_now(group) is not None
    assert 1000 <= shared_rows() - before <= 9000
    async with asyncio.timeout(10):
        while shared_rows() > before:
            await asyncio.sleep(0.02)
    stored.append([b"new"])
    found = cursor.read_now(group)
    assert found is not None
    assert [row.value for row in found[0]] == [b"new"]
