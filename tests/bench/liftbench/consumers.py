"""Runs many consumers in one process, which tail a stream, commit checkpoints, or read with a
filter.

    python -m bench.liftbench.consumers '{"mode": "tail", "address": ..., "stream": ...}'

Prints `ready` once all are connected, and one JSON line at the end.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any

import uvloop
from support.clients.opened_client import router_of
from support.daemons.processes import cpu_seconds

from liftlog.client import Client, Filter, connect
from liftlog.client.aio.group import GroupConsumer
from liftlog.client.requests import result_of
from liftlog.protocol.groups import AssignmentAnswer, CommitGroup, JoinGroup
from liftlog.protocol.messages import Done

_LOOK_SECONDS = 0.005

Delays = list[tuple[float, int]]
"""Pairs of seconds, and the number of records that waited this long or less."""


async def _connected(stack: AsyncExitStack, spec: dict[str, Any]) -> list[Client]:
    return [await stack.enter_async_context(connect(spec["address"])) for _ in range(spec["count"])]


async def tail(spec: dict[str, Any]) -> dict[str, Any]:
    """Let each consumer read `records` records from offset `start` on, or without end if `records`
    is null."""
    delays: Delays = []
    received = [0] * spec["count"]
    end = None if spec["records"] is None else spec["start"] + spec["records"]

    async def follow(number: int, client: Client) -> None:
        async for batch in client.read_batches(spec["stream"], spec["start"], end):
            # From the timestamp of the oldest record of the batch, which precedes the commit.
            delays.append((time.time() - batch.header.base_timestamp_ns / 1e9, len(batch)))
            received[number] += len(batch)

    async with AsyncExitStack() as stack:
        clients = await _connected(stack, spec)
        print("ready", flush=True)
        followers = [asyncio.create_task(follow(n, one)) for n, one in enumerate(clients)]
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGTERM, lambda: [task.cancel() for task in followers]
        )
        outcomes = await asyncio.gather(*followers, return_exceptions=True)
    failures = [repr(one) for one in outcomes if isinstance(one, Exception)]
    return {
        "received": received,
        "failures": failures,
        "p50_ms": _percentile(delays, 0.50) * 1e3,
        "p99_ms": _percentile(delays, 0.99) * 1e3,
    }


def _percentile(delays: Delays, share: float) -> float:
    total = sum(count for _, count in delays)
    reached = 0
    for seconds, count in sorted(delays):
        reached += count
        if reached >= share * total:
            return seconds
    return 0.0


async def checkpoints(spec: dict[str, Any]) -> dict[str, Any]:
    """Let each consumer commit one checkpoint after the other for `seconds`."""
    offset = spec["offset"]

    async def commit(number: int, client: Client, end: float) -> int:
        done = 0
        while time.monotonic() < end:
            await client.commit_checkpoint(f"bench-{number}", spec["stream"], 1 + done % offset)
            done += 1
        return done

    async with AsyncExitStack() as stack:
        clients = await _connected(stack, spec)
        print("ready", flush=True)
        started = time.monotonic()
        end = started + spec["seconds"]
        done = await asyncio.gather(*(commit(n, one, end) for n, one in enumerate(clients)))
        return {"commits_per_second": sum(done) / (time.monotonic() - started)}


async def filtered(spec: dict[str, Any]) -> dict[str, Any]:
    """Read all records that match `subject`."""
    records = 0
    async with AsyncExitStack() as stack:
        (client,) = await _connected(stack, spec)
        print("ready", flush=True)
        started = time.monotonic()
        async for batch in client.read_batches(
            spec["stream"], "earliest", "end", filter=Filter(subject=spec["subject"])
        ):
            records += len(batch)
        return {"records": records, "seconds": time.monotonic() - started}


class _Progress:
    """The number of records that were read so far, and the times."""

    def __init__(self, total: int) -> None:
        self.done = 0
        self.seen: list[tuple[float, int]] = []
        self.all_read = asyncio.Event()
        self._total = total

    def took(self, count: int) -> None:
        self.done += count
        if self.done >= self._total:
            self.all_read.set()

    async def look(self) -> None:
        while True:
            self.seen.append((time.monotonic(), self.done))
            await asyncio.sleep(_LOOK_SECONDS)


async def group(spec: dict[str, Any]) -> dict[str, Any]:
    """Let the members of one group read all records or, with `count` 0, a plain reader. They read
    single records or, with `by_batch`, lists of records. The time counts from the moment at which
    all have joined, printed as `joined`, until `records` were read. `seen` contains the number of
    records read at several times, and `shares` the number of records of each member."""
    joined = 0
    shares = [0] * spec["count"]
    by_batch, progress = spec["by_batch"], _Progress(spec["records"])
    all_joined, took = asyncio.Event(), progress.took

    async def work(number: int, client: Client) -> None:
        nonlocal joined
        async with client.group(spec["group"], spec["stream"], session=60) as member:
            while len(member.slots) != 64 // spec["count"]:
                await attend(member)
                await asyncio.sleep(0.05)
            joined += 1
            if joined == spec["count"]:
                all_joined.set()
            await all_joined.wait()
            mine = 0
            try:
                if by_batch:
                    async for records in member.batches():
                        mine += len(records)
                        took(len(records))
                else:
                    async for _ in member:
                        mine += 1
                        took(1)
            finally:
                shares[number] = mine

    async def read(client: Client) -> None:
        all_joined.set()
        if by_batch:
            async for batch in client.read_batches(spec["stream"], "earliest"):
                took(len(batch.records()))
        else:
            async for _ in client.read(spec["stream"], "earliest"):
                took(1)

    async with AsyncExitStack() as stack:
        clients = await _connected(stack, {**spec, "count": spec["count"] or 1})
        print("ready", flush=True)
        jobs = [work(n, one) for n, one in enumerate(clients)] if spec["count"] else [
            read(clients[0])
        ]  # fmt: skip
        tasks = [asyncio.create_task(job) for job in jobs]
        looking = asyncio.create_task(progress.look())
        await asyncio.wait([asyncio.create_task(all_joined.wait()), *tasks],
                           return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
        began, daemon = time.process_time(), cpu_seconds(spec["daemon"])
        print("joined", flush=True)
        await asyncio.wait([asyncio.create_task(progress.all_read.wait()), *tasks],
                           return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
        told = {
            "records": progress.done,
            "cpu": (time.process_time() - began) / (spec["count"] or 1),
            "daemon_cpu": cpu_seconds(spec["daemon"]) - daemon,
            "seen": [*progress.seen, (time.monotonic(), progress.done)],
        }
        for task in (*tasks, looking):
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        failures = [repr(one) for one in outcomes if isinstance(one, Exception)]
        return told | {"shares": shares, "failures": failures}


async def group_member(spec: dict[str, Any]) -> dict[str, Any]:
    """Run one member until SIGTERM. Reports the time of each record, its slot and its delay after
    the timestamp, and the gained and lost slots."""
    records: list[tuple[float, int, float]] = []
    moves: list[tuple[float, list[int]]] = []

    def moved(slots: Sequence[int]) -> None:
        moves.append((time.time(), list(slots)))

    async with AsyncExitStack() as stack:
        (client,) = await _connected(stack, spec)
        member = client.group(
            spec["stream"], spec["stream"], member=spec["member"], session=spec["session"],
            on_assigned=moved, on_revoked=moved,
        )  # fmt: skip
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, member.stop)
        print("ready", flush=True)
        async with member:
            async for record in member:
                now = time.time()
                records.append((now, member.slot_of(record), now - record.timestamp_ns / 1e9))
    return {"records": records, "moves": moves}


async def member(spec: dict[str, Any]) -> dict[str, Any]:
    """Run one member of a group of `count` in this process, or a plain reader if `count` is 0.
    Prints `joined` when it has its share, begins after a line of input, and ends a second after the
    last record."""
    count, by_batch, taken = spec["count"], spec["by_batch"], 0
    loop = asyncio.get_running_loop()
    async with connect(spec["address"]) as client:

        async def read() -> None:
            nonlocal taken
            if by_batch:
                async for batch in client.read_batches(spec["stream"], "earliest"):
                    taken += len(batch.records())
            else:
                async for _ in client.read(spec["stream"], "earliest"):
                    taken += 1

        async def take(consumer: GroupConsumer) -> None:
            nonlocal taken
            if by_batch:
                async for records in consumer.batches():
                    taken += len(records)
            else:
                async for _ in consumer:
                    taken += 1

        async def watched(work: Coroutine[Any, Any, None]) -> dict[str, Any]:
            await told
            last, last_at = 0, time.monotonic()
            task = asyncio.create_task(work)
            while not task.done() and (not last or time.monotonic() < last_at + 1):
                await asyncio.sleep(0.005)
                if taken != last:
                    last, last_at = taken, time.monotonic()
            task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            failures = [repr(outcome)] if isinstance(outcome, Exception) else []
            return {"records": taken, "ended": last_at, "failures": failures}

        told = loop.run_in_executor(None, sys.stdin.readline)
        if not count:
            print("joined", flush=True)
            return await watched(read())
        async with client.group(spec["group"], spec["stream"], session=60) as consumer:
            says = True
            async with asyncio.timeout(60):
                while not told.done():
                    await attend(consumer)
                    if says and len(consumer.slots) == 64 // count:
                        print("joined", flush=True)
                        says = False
                    await asyncio.sleep(0.02)
            return await watched(take(consumer))


async def attend(member: Any) -> None:
    """Handle gained and lost slots, as between two records, without returning a record."""
    await member._attend()


async def group_commits(spec: dict[str, Any]) -> dict[str, Any]:
    """Let the member of each of many groups commit all its slots repeatedly."""

    async def commit(number: int, client: Client, end: float) -> int:
        name, session = f"bench-{number}", router_of(client)
        join = JoinGroup(spec["stream"], name, "m", "token", 60_000)
        joined = result_of(await session.ask(join, 60), AssignmentAnswer)
        done = 0
        while time.monotonic() < end:
            done += 1
            request = CommitGroup(
                spec["stream"], name, "m", joined.joined, joined.generation, joined.slots,
                [done % spec["offset"] + 1] * len(joined.slots), spec["incarnation"], spec["epoch"],
            )  # fmt: skip
            result_of(await session.ask(request, 60), Done)
        return done

    async with AsyncExitStack() as stack:
        clients = await _connected(stack, spec)
        print("ready", flush=True)
        started = time.monotonic()
        end = started + spec["seconds"]
        done = await asyncio.gather(*(commit(n, one, end) for n, one in enumerate(clients)))
        return {"commits_per_second": sum(done) / (time.monotonic() - started)}


MODES = {
    "tail": tail,
    "checkpoints": checkpoints,
    "filtered": filtered,
    "group": group,
    "member": member,
    "group_commits": group_commits,
    "group_member": group_member,
}


def main(argument: str) -> None:
    spec: dict[str, Any] = json.loads(argument)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(MODES[spec["mode"]](spec))))


if __name__ == "__main__":
    main(sys.argv[1])
