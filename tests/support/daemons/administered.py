"""A broker whose streams are changed while it runs."""

from __future__ import annotations

from typing import Any

from support.daemons.local_broker import Running

from liftlog.log import Log

SMALL_SEGMENTS = {"segment": {"max_bytes": 400}, "dedupe_window": "0s"}
MINUTE_MS = 60_000


async def restarted(running: Running, **streams: Any) -> Running:
    await running.broker.close()
    again = Running(running.data_dir.path, **streams)
    await again.start()
    return again


async def fill(running: Running, name: str = "s", count: int = 20, **settings: Any) -> Log:
    """Create a stream with batches of one record, in many small segments."""
    await running.broker.create_stream(name, {"subject": "in", **SMALL_SEGMENTS, **settings})
    for number in range(count):
        await running.publish(name, b"%03d" % number)
    return running.broker.hosts[name].log


def acks_of(running: Running) -> list[bytes]:
    sent: list[bytes] = []
    running.broker.intake.send = sent.append  # type: ignore[method-assign]
    return sent
