"""Cleaning is fast while the daemon is idle, and slow beside its work."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.local_cleaning import Cleaning

from liftlog.log.rewrite import ScrubJob, ScrubResult
from liftlog.server.cleaning.pace import BESIDE_WORK, UNBOUNDED, Pace
from liftlog.server.cleaning.process import Worker
from liftlog.server.cleaning.worker import SCRUB


class Daemon:
    def __init__(self) -> None:
        self.now = 100.0
        self.records = 7
        self.cpu = 3.0
        self.pace = Pace(lambda: self.records, clock=lambda: self.now, cpu=lambda: self.cpu)
        self.pace.begin()

    def after(self, seconds: float, *, records: int = 0, cpu: float = 0.0) -> int:
        self.now += seconds
        self.records += records
        self.cpu += cpu
        return self.pace.rate()


def test_it_is_fast_after_a_quiet_second() -> None:
    daemon = Daemon()
    assert [daemon.after(0.25) for _ in range(5)] == [BESIDE_WORK] * 3 + [UNBOUNDED] * 2


def test_one_record_makes_it_slow_at_once() -> None:
    daemon = Daemon()
    assert daemon.after(1.0) == UNBOUNDED
    assert daemon.after(0.125, records=1) == BESIDE_WORK
    assert daemon.after(0.875) == BESIDE_WORK
    assert daemon.after(0.125) == UNBOUNDED


def test_readers_make_it_slow_too() -> None:
    daemon = Daemon()
    assert daemon.after(1.0, cpu=0.01) == UNBOUNDED
    assert daemon.after(0.125, cpu=0.02) == BESIDE_WORK


def test_what_happened_before_a_job_is_no_load() -> None:
    daemon = Daemon()
    daemon.now += 60
    daemon.records += 1000
    daemon.cpu += 30
    daemon.pace.begin()
    assert daemon.after(0.5) == BESIDE_WORK
    assert daemon.after(0.5) == UNBOUNDED


async def test_a_running_job_follows_its_pace(tmp_path: Path) -> None:
    cleaning, worker = Cleaning(tmp_path), Worker()
    await cleaning.running.start()
    await cleaning.stream("s", 200, 1)
    log = cleaning.running.broker.hosts["s"].log
    job = ScrubJob(str(log.directory), log.segments[0].entry()).to_dict()
    rates = iter([1, 1, *[UNBOUNDED] * 1000])
    async with asyncio.timeout(60):  # at one byte per second it would take an hour
        answer = await worker.run(
            SCRUB,
            job,
            max_rate_bytes=1,
            on_progress=lambda *at: None,
            pace=lambda: next(rates),
        )
    assert ScrubResult.from_dict(answer).batches > 0
    assert next(rates) == UNBOUNDED, "it was asked for the rate more than twice"
    await worker.close()
    await cleaning.close()


async def test_only_a_configured_rate_is_fixed(tmp_path: Path) -> None:
    for settings, expected in (({}, BESIDE_WORK), ({"max_rate": "1GiB"}, 2**30)):
        cleaning = Cleaning(tmp_path / str(expected), **settings)
        await cleaning.running.start()
        await cleaning.stream("s", 100, 3)
        await cleaning.cleaner._round()
        assert cleaning.worker.rates == [expected]
        assert [pace is None for pace in cleaning.worker.paces] == [bool(settings)]
        await cleaning.close()
