"""Clients of NATS are one party in the thread for scans, however many inboxes they use."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from support.disks.simfs import SimFileSystem
from support.worlds.rewriting import add, keyed, row

from liftlog.log import Log
from liftlog.server.jetstream_api import lookups as module
from liftlog.server.jetstream_api.inboxes import Inboxes
from liftlog.server.jetstream_api.lookups import Lookup, open_lookup
from liftlog.server.reading.fairness import FairThreads
from liftlog.server.reading.scan import Scan, Scanned


def opened(threads: FairThreads, log: Log, inbox: str, inboxes: Inboxes) -> Lookup:
    host: Any = SimpleNamespace(
        name="s",
        log=log,
        sequencer=SimpleNamespace(subjects=None),
        settings=SimpleNamespace(jetstream=None),
    )
    parts = SimpleNamespace(
        gate=SimpleNamespace(readable_subjects=lambda *_, **__: None),
        services=SimpleNamespace(scanners=threads, cold_readers=None),
        ages=SimpleNamespace(first_offset=lambda host: host.log.log_start_offset),
        buckets=None,
        inboxes=inboxes,
    )
    request: Any = SimpleNamespace(
        parts=parts, stream="s", reply=f"_INBOX.{inbox}.1".encode(), led_stream=lambda: host
    )
    return open_lookup(request)[1]


async def test_searches_from_many_inboxes_delay_another_principal_by_one_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[int] = []
    scan_log = module.scan_log

    def noted(log: Log, scan: Scan) -> Scanned:
        searched.append(1)
        return scan_log(log, scan)

    monkeypatch.setattr(module, "scan_log", noted)
    log = keyed(SimFileSystem())
    add(log, [[row(None, b"x", subject="s.a")]])
    threads, gate, inboxes = FairThreads(1, "test"), threading.Event(), Inboxes()
    try:
        # Nothing runs before all requests are there.
        first = threads.of("gate").submit(gate.wait, 60)
        searches = [
            asyncio.create_task(opened(threads, log, f"{number}", inboxes).count(1, ("s.*",)))
            for number in range(50)
        ]
        await asyncio.sleep(0)
        before = threads.of("another principal").submit(lambda: len(searched))
        gate.set()
        assert await asyncio.wrap_future(first)
        assert await asyncio.wrap_future(before) <= 1
        assert await asyncio.gather(*searches) == [1] * 50
    finally:
        gate.set()
        threads.shutdown()
        log.close()
