"""The worker process: runs jobs, tells of them, and is never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.clients.ingesting import until
from support.daemons.local_broker import Running
from support.daemons.processes import children_of

from liftlog.log import Log
from liftlog.log.rewrite import RebatchJob, RebatchResult, ScrubJob, ScrubResult
from liftlog.server.cleaning.pace import GRANT_SECONDS, Rates, fixed_rate
from liftlog.server.cleaning.process import JobFailed, Worker, WorkerDied
from liftlog.server.cleaning.worker import IO_ERROR, REBATCH, SCRUB

RATE = fixed_rate(2**30)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    made = Running(tmp_path)
    await made.start()
    yield made
    await made.broker.close()


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    made = Worker()
    yield made
    await made.close()


async def sealed_log(running: Running, batches: int = 20) -> Log:
    """A stream with one sealed segment of small batches."""
    await running.broker.create_stream("s", {"subject": "in"})
    for number in range(batches):
        await running.put("s", [(f"key-{number}", b"x" * 1000)])
    log = running.broker.hosts["s"].log
    log.writer.roll()
    return log


def rebatch_job(log: Log) -> RebatchJob:
    return RebatchJob(str(log.directory), log.segments[0].entry())


def scrub_job(log: Log) -> ScrubJob:
    return ScrubJob(str(log.directory), log.segments[0].entry())


def nothing(phase: str, done: int, total: int) -> None: ...


async def test_jobs_run_one_after_the_other_in_one_process(
    running: Running, worker: Worker
) -> None:
    log = await sealed_log(running)
    answer = await worker.run(REBATCH, rebatch_job(log).to_dict(), rates=RATE, on_progress=nothing)
    result = RebatchResult.from_dict(answer)
    assert (result.records, result.batches_in, result.batches_out) == (20, 20, 1)
    pid = worker.pid
    answer = await worker.run(SCRUB, scrub_job(log).to_dict(), rates=RATE, on_progress=nothing)
    assert ScrubResult.from_dict(answer).batches == 20
    assert worker.pid == pid


async def test_it_is_nice_and_holds_no_lock(running: Running, worker: Worker) -> None:
    log = await sealed_log(running)
    await worker.run(SCRUB, scrub_job(log).to_dict(), rates=RATE, on_progress=nothing)
    assert worker.pid is not None
    stat = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
    assert int(stat[16]) >= 10
    open_files = [os.readlink(fd) for fd in Path(f"/proc/{worker.pid}/fd").iterdir()]
    assert not [name for name in open_files if str(running.data_dir.path) in name]


async def test_a_job_that_fails_ends_nothing_else(running: Running, worker: Worker) -> None:
    log = await sealed_log(running)
    lost = rebatch_job(log).to_dict()
    lost["source"]["base_offset"] = 77
    with pytest.raises(JobFailed, match="No such file") as failed:
        await worker.run(REBATCH, lost, rates=RATE, on_progress=nothing)
    assert failed.value.reason == IO_ERROR
    pid = worker.pid
    await worker.run(SCRUB, scrub_job(log).to_dict(), rates=RATE, on_progress=nothing)
    assert worker.pid == pid


async def slow_job(running: Running, worker: Worker) -> asyncio.Task[object]:
    """A job that has begun and will not end by itself."""
    log = await sealed_log(running)
    job = scrub_job(log).to_dict()
    work = worker.run(SCRUB, job, rates=fixed_rate(1), on_progress=nothing)
    task: asyncio.Task[object] = asyncio.create_task(work)
    # It sleeps before the first byte; that it was started is all there is to see.
    while worker.pid is None:
        await asyncio.sleep(0.01)
    return task


async def test_its_death_is_noticed_and_the_next_job_starts_another(
    running: Running, worker: Worker
) -> None:
    task = await slow_job(running, worker)
    pid = worker.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerDied):
        await asyncio.wait_for(task, 30)
    log = running.broker.hosts["s"].log
    await worker.run(SCRUB, scrub_job(log).to_dict(), rates=RATE, on_progress=nothing)
    assert worker.pid not in (None, pid)


async def test_a_cancelled_job_is_dead(running: Running, worker: Worker) -> None:
    task = await slow_job(running, worker)
    pid = worker.pid
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 30)
    assert not Path(f"/proc/{pid}").exists()


async def test_the_idle_rate_holds_once_the_daemon_is_idle(running: Running) -> None:
    """At one byte a second the job would never end."""
    log = await sealed_log(running)
    idle, looks = False, 0

    def daemon_is_idle() -> bool:
        nonlocal looks
        looks += 1
        return idle

    worker = Worker(daemon_is_idle=daemon_is_idle)
    job = scrub_job(log).to_dict()
    work = worker.run(SCRUB, job, rates=Rates(1, None), on_progress=nothing)
    task = asyncio.create_task(work)
    while worker.pid is None or looks < 20:
        await asyncio.sleep(0.01)
    assert not task.done()
    assert not worker.has_grant
    idle = True
    answer = await asyncio.wait_for(task, 30)
    assert ScrubResult.from_dict(answer).batches == 20
    assert not worker.has_grant
    ended = looks
    await worker.run(SCRUB, job, rates=RATE, on_progress=nothing)
    assert looks == ended  # a fixed rate needs no looks, and between jobs there are none
    await worker.close()


async def test_a_grant_is_renewed_in_time_and_taken_back_at_once(running: Running) -> None:
    log = await sealed_log(running)
    idle = True
    told: list[tuple[float, float]] = []

    class Noting(Worker):
        def _tell(self, line: dict[str, Any]) -> bool:
            done = super()._tell(line)
            if done:
                told.append((time.monotonic(), line["idle_seconds"]))
            return done

    worker = Noting(daemon_is_idle=lambda: idle)
    job = scrub_job(log).to_dict()
    task = asyncio.create_task(worker.run(SCRUB, job, rates=Rates(1, 2), on_progress=nothing))
    while len(told) < 5:
        await asyncio.sleep(0.01)
    assert {seconds for _, seconds in told} == {GRANT_SECONDS}
    assert worker.has_grant
    idle = False
    while told[-1][1]:
        await asyncio.sleep(0.001)
    assert told[-1][1] == 0
    assert not worker.has_grant
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 30)
    await worker.close()


async def test_a_process_that_does_not_read_is_not_told_more_and_more(running: Running) -> None:
    log = await sealed_log(running)
    looks = 0

    def daemon_is_idle() -> bool:
        nonlocal looks
        looks += 1
        return looks % 2 == 0  # each look changes what is to be told

    worker = Worker(daemon_is_idle=daemon_is_idle)
    job = scrub_job(log).to_dict()
    task = asyncio.create_task(worker.run(SCRUB, job, rates=Rates(1, 2), on_progress=nothing))
    while not worker.has_grant:
        await asyncio.sleep(0.001)
    process = process_of(worker)
    assert process.stdin is not None
    os.kill(process.pid, signal.SIGSTOP)
    pipe = process.stdin
    while not pipe.transport.get_write_buffer_size():
        pipe.write(b" " * 65_536)
    size = pipe.transport.get_write_buffer_size()
    before = looks
    while looks < before + 10:
        await asyncio.sleep(0.01)
    assert pipe.transport.get_write_buffer_size() == size
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 30)
    await worker.close()


def process_of(worker: Worker) -> asyncio.subprocess.Process:
    process = worker._process
    assert process is not None
    return process


async def test_it_ends_when_there_is_nothing_to_do(running: Running) -> None:
    log = await sealed_log(running)
    worker = Worker(idle_seconds=0.05)
    await worker.run(SCRUB, scrub_job(log).to_dict(), rates=RATE, on_progress=nothing)
    process = process_of(worker)
    assert await asyncio.wait_for(process.wait(), 30) == 0
    await worker.run(SCRUB, scrub_job(log).to_dict(), rates=RATE, on_progress=nothing)
    assert process_of(worker) is not process
    await worker.close()


_PARENT = """
import asyncio, sys
from liftlog.server.cleaning.pace import GRANT_SECONDS, Rates, fixed_rate
from liftlog.server.cleaning.process import Worker

async def main():
    worker = Worker()
    await worker._started()
    print(worker.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def test_it_dies_with_the_daemon() -> None:
    parent = subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert pid in children_of(parent.pid)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()  # type: ignore[union-attr]
    # A process that is dead is gone, or a zombie of its new parent.
    until(lambda: state_of(pid) in ("", "Z"), what="the worker ends")
