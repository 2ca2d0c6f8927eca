"""Effects of an erasure on the index of a bucket, and on the requests that wait for an erasure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.daemons.local_broker import Running
from support.disks.simfs import SimFileSystem
from support.worlds.rewriting import add, keyed, row

from liftlog.errors import DiskFull, LiftlogError, NotReady
from liftlog.log.erased import ErasedSet
from liftlog.records.decode import decode_batch
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api import erasing
from liftlog.server.jetstream_api.erasing import Deletion, Deletions, Result
from liftlog.server.jetstream_api.messages.buckets import BucketIndex


def these(*offsets: int) -> ErasedSet:
    return ErasedSet.of_ranges((offset, offset + 1) for offset in offsets)


@pytest.mark.parametrize("count", [3, 100])  # a tuple, and a deque
def test_the_index_of_a_bucket_forgets_single_records(count: int) -> None:
    log = keyed(SimFileSystem())
    add(log, ([row(None, b"x", subject="k.a")] for _ in range(count)))
    add(log, [[row(None, b"yy", subject="k.b")]])
    index = BucketIndex(1000)
    assert index.advance(log, 1, 1000)
    size, whole = index.size_bytes, count + 1
    assert index.count == whole
    index.erased(b"k.a", these(2, whole))  # the other one is of another subject
    index.erased(b"k.a", these(2))
    index.erased(b"k.none", these(1))
    assert index.count == count
    assert [at for at in range(1, whole + 1) if index.shows(b"k.a", at)] == [1, *range(3, whole)]
    index.erased(b"k.b", these(whole))
    assert (index.count, index.subject_count) == (count - 1, 1)
    index.erased(b"k.a", these(*range(1, whole)))
    assert (index.count, index.subject_count, index.size_bytes) == (0, 0, 0)
    assert size > 0
    log.close()


class Erasures:
    """Records which messages are erased together. Each call waits until `may_end` allows it to
    end."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.may_end = asyncio.Semaphore(0)
        self.error: LiftlogError | None = None

    async def erase(
        self, request: Any, host: Any, lookup: Any, some: Sequence[Deletion]
    ) -> list[Result]:
        self.calls.append([one.offset for one in some])
        await self.may_end.acquire()
        return [self.error or one.offset % 2 == 0 for one in some]


class Host:
    name = "s"


async def test_requests_that_wait_are_carried_out_together() -> None:
    erasures, host = Erasures(), Host()
    deletions = Deletions(erasures.erase)
    request: Any = SimpleNamespace(led_stream=lambda: host)
    lookup: Any = None

    def delete(offset: int) -> asyncio.Task[bool]:
        one = Deletion(offset, b"a", ErasedSet({}))
        return asyncio.create_task(deletions.delete(request, lookup, one))

    first = delete(2)
    await asyncio.sleep(0)
    others = [delete(offset) for offset in (3, 4, 5)]
    await asyncio.sleep(0)
    assert erasures.calls == [[2]]
    erasures.may_end.release()
    assert await first
    for _ in range(3):
        await asyncio.sleep(0)
    assert erasures.calls == [[2], [3, 4, 5]]
    others[0].cancel()  # even if this task runs the erasure, the other requests are not lost
    with pytest.raises(asyncio.CancelledError):
        await others[0]
    erasures.may_end.release()
    assert await asyncio.wait_for(others[1], 5) is True
    assert await asyncio.wait_for(others[2], 5) is False

    erasures.error = DiskFull("no space")
    failing = [delete(offset) for offset in (6, 7)]
    for _ in range(2):
        erasures.may_end.release()
    for one in failing:
        with pytest.raises(DiskFull):
            await asyncio.wait_for(one, 5)


async def test_a_deletion_that_has_waited_does_not_concern_a_new_stream(tmp_path: Path) -> None:
    """The stream was deleted and created again meanwhile: its offsets are those of other
    messages."""
    running = Running(tmp_path)
    broker = await running.start()
    settings = {"subject": "in", "dedupe_window": "0s"}
    await broker.create_stream("s", settings)
    host = broker.hosts["s"]
    request: Any = SimpleNamespace(broker=broker, stream="s", led_stream=lambda: broker.hosts["s"])
    deletions, lookup = Deletions(erasing._erase), cast(Any, None)
    queue = deletions._queues.setdefault(host, erasing._Queue())
    async with queue.lock:
        waiting = asyncio.create_task(
            deletions.delete(request, lookup, Deletion(1, b"in", these()))
        )
        await asyncio.sleep(0)
        await broker.delete_stream("s")
        await broker.create_stream("s", settings)
        await running.publish("s", b"new")
    with pytest.raises(NotReady):
        await waiting
    assert broker.hosts["s"].log.view.record_count == 1
    await broker.close()


class HistoryOfTwo:
    """A search in a stream with one subject that shows two records. `arriving` are the numbers of
    messages that arrive after each search."""

    def __init__(self, running: Running, host: StreamHost) -> None:
        self.arriving: list[int] = []
        self.searches = 0
        self._running, self._host = running, host
        self._erase = running.broker.erasing.erase_offsets

    def stored(self) -> list[int]:
        found, at = list[int](), 1
        while at < self._host.log.high_watermark:
            piece = self._host.log.read(at, 1, 1)
            if piece is None:  # the rest is erased
                break
            with piece:
                batch = decode_batch(piece.pread())
            found += [one for one in batch.offsets() if one >= at]
            at = piece.next_offset
        return found

    async def at(self, offset: int) -> int | None:
        return offset if offset in self.stored()[-2:] else None

    async def last_left(self, subject: str, end: int) -> int:
        return max([one for one in self.stored() if one < end], default=0)

    async def superseded(self, subject: str, end: int) -> ErasedSet:
        self.searches += 1
        return these(*[one for one in self.stored()[:-2] if one < end])

    async def erase_offsets(self, *arguments: Any, **named: Any) -> Any:
        if self.arriving:
            await self._running.publish("s", *[b"new"] * self.arriving.pop(0))
        return await self._erase(*arguments, **named)


@pytest.mark.parametrize(
    ("arriving", "searches"), [([0], 1), ([1], 2), ([1, 0], 2), ([2], 1), ([1, 1], 2)]
)
async def test_a_message_that_arrives_during_a_deletion_still_supersedes(
    tmp_path: Path, arriving: list[int], searches: int
) -> None:
    running = Running(tmp_path)
    broker = await running.start()
    history = {"max_msgs_per_subject": 2}
    await broker.create_stream(
        "s", {"subject": "in", "subject_sequences": {}, "jetstream": history}
    )
    host = broker.hosts["s"]
    for _ in range(3):
        await running.publish("s", b"old")
    search = HistoryOfTwo(running, host)
    broker.erasing.erase_offsets = search.erase_offsets  # type: ignore[method-assign]
    nobody: Any = SimpleNamespace(of=lambda _: (), erased=_nothing)
    parts: Any = SimpleNamespace(buckets=nobody, consumers=nobody, acked=nobody)
    request: Any = SimpleNamespace(
        broker=broker, stream="s", parts=parts, led_stream=lambda: broker.hosts["s"]
    )
    lookup = cast(Any, search)
    one = Deletion(3, b"in", await search.superseded("in", 3), 3)
    search.arriving = list(arriving)
    assert await Deletions(erasing._erase).delete(request, lookup, one)
    assert search.searches == searches
    # Record 1 was superseded from the beginning, and record 2 by the first new message.
    count = sum(arriving)
    new = [*range(4, 4 + count)]
    assert search.stored()[-2:] == (new or [2])[-2:]
    await broker.close()


async def _nothing(*_: object) -> None:
    pass
