"""Many consumers in one process: they tail a stream, commit checkpoints, or read through a filter.

    python -m bench.liftbench.consumers '{"mode": "tail", "address": ..., "stream": ...}'

Prints `ready` once all are connected, and one JSON line at the end.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import uvloop

from liftlog.client import Client, Filter, connect

Delays = list[tuple[float, int]]
"""Seconds, and how many records waited that long or less."""


async def _connected(stack: AsyncExitStack, spec: dict[str, Any]) -> list[Client]:
    return [await stack.enter_async_context(connect(spec["address"])) for _ in range(spec["count"])]


async def tail(spec: dict[str, Any]) -> dict[str, Any]:
    """Each reads `records` records from offset `start` on, or for ever when that is null."""
    delays: Delays = []
    received = [0] * spec["count"]
    end = None if spec["records"] is None else spec["start"] + spec["records"]

    async def follow(number: int, client: Client) -> None:
        async for batch in client.read_batches(spec["stream"], spec["start"], end):
            # From the stamp that the oldest record of the batch got before it was committed.
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
    """Each commits one checkpoint after the other for `seconds`."""
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
    """One reads all that matches `subject`."""
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


MODES = {"tail": tail, "checkpoints": checkpoints, "filtered": filtered}


def main(argument: str) -> None:
    spec: dict[str, Any] = json.loads(argument)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(MODES[spec["mode"]](spec))))


if __name__ == "__main__":
    main(sys.argv[1])
