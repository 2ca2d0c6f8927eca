"""A cleaner on real logs. Its jobs run in a thread of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.daemons.local_broker import Running

from liftlog.records import iter_batches
from liftlog.server.cleaning.cleaner import Cleaner
from liftlog.server.cleaning.pace import Rates
from liftlog.server.cleaning.process import JobFailed, Worker
from liftlog.server.cleaning.worker import perform
from liftlog.settings import CleanerSettings

COMPACTED: dict[str, Any] = {
    "subject": "in",
    "dedupe_window": "0s",
    "compaction": {"tombstone_retention": "1h"},
    "rebatch": {"enabled": False},
}


class LocalWorker(Worker):
    """Runs the jobs and records them. A test can make it fail."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[tuple[str, str]] = []
        self.rates: list[Rates] = []
        self.failures: list[BaseException] = []
        self.before: Callable[[str], Any] | None = None

    async def run(
        self,
        kind: str,
        job: dict[str, Any],
        *,
        rates: Rates,
        on_progress: Callable[[str, int, int], None],
    ) -> dict[str, Any]:
        self.jobs.append((kind, Path(job["directory"]).name))
        self.rates.append(rates)
        if self.before is not None:
            await self.before(kind)
        if self.failures:
            raise self.failures.pop(0)
        order = {"kind": kind, "job": job, "max_rate_bytes": 2**40, "idle_rate_bytes": None}
        said: list[dict[str, Any]] = []
        answer = await asyncio.to_thread(perform, order, said.append)
        for line in said:
            on_progress(*line["progress"])
        if "failed" in answer:
            failed = answer["failed"]
            raise JobFailed(failed["reason"], failed["message"], failed.get("file", ""))
        result: dict[str, Any] = answer["result"]
        return result


class Cleaning:
    """A broker, its cleaner, and the worker of the cleaner. The test runs the rounds."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.running = Running(directory)
        self.worker = LocalWorker()
        self.settings = CleanerSettings.model_validate(
            {"scrub_interval": None, "sketches": False} | settings
        )
        self.cleaner = Cleaner(
            self.running.broker.hosts,
            self.running.broker.now_ns,
            self.settings,
            self.running.data_dir,
            self.worker,
            clock_is_trusted=lambda: self.running.broker.clock_guard.wall_clock_is_trusted(),
        )
        self.running.broker.hosted.compactor = self.cleaner

    async def stream(self, name: str, records: int, keys: int, **changes: Any) -> None:
        """Create a stream with sealed segments of about 4 KiB."""
        settings = COMPACTED | {"segment": {"max_bytes": "4KiB"}} | changes
        await self.running.broker.create_stream(name, settings)
        for first in range(0, records, 10):
            pairs = [(f"key-{n % keys}", b"%d" % n + b"." * 90) for n in range(first, first + 10)]
            await self.running.put(name, pairs)

    async def round(self) -> bool:
        """Run one round of the cleaner. Returns True if another round is due at once."""
        return await self.cleaner._round()

    def remembered(self) -> list[str]:
        """Return the streams whose state the cleaner stores."""
        return [host.name for host in self.cleaner._states]

    def judge_readers_by(self, clock: Callable[[], float]) -> None:
        """Use this clock to end leases whose readers send no reports."""
        self.running.broker.administration.leases._monotonic = clock

    def state(self, name: str) -> Any:
        return self.cleaner.state_of(self.running.broker.hosts[name])

    def read(self, name: str) -> dict[bytes, int]:
        """Return the newest offset of each key. Checks that each key occurs once below
        `cleaned_below`."""
        log = self.running.broker.hosts[name].log
        found: dict[bytes, int] = {}
        offset = log.log_start_offset
        while (piece := log.read(offset, 2**20)) is not None:
            with piece:
                for batch in iter_batches(piece.pread()):
                    for record in batch.trim(offset):
                        key = record.key or b""
                        assert key not in found or record.offset >= log.view.manifest.cleaned_below
                        found[key] = record.offset
                offset = piece.next_offset
        return found

    def segment_files(self, stream: str) -> list[str]:
        directory = self.running.data_dir.stream_path(stream)
        return sorted(path.name for path in directory.glob("*.log"))

    async def close(self) -> None:
        await self.cleaner._jobs.close()
        await self.running.broker.close()
