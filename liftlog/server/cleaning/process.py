"""The daemon's end of the worker process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import liftlog
from liftlog.server.cleaning.pace import LOOK_EVERY_SECONDS
from liftlog.server.vitals.child_processes import tied_to_parent

logger = logging.getLogger("liftlog.server.cleaner")

_IDLE_SECONDS = 30.0
_MAX_LINE_BYTES = 256 * 1024 * 1024  # a job lists all segments of a stream
# -P: `-m` alone would put the working directory first on the module path. A file named acl.py in
# there (in the image it holds the data) would run as the daemon's user.
_PROGRAM = (sys.executable, "-P", "-m", "liftlog.server.cleaning.worker")


class WorkerDied(Exception):
    """The process ended before the job did."""


class JobFailed(Exception):
    """The job ended with an error. `reason` is one of those in `worker`."""

    def __init__(self, reason: str, message: str, file_name: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.file_name = file_name


class Worker:
    """Starts the process for the first job, and ends it when it was idle for a while.

    One job at a time. Belongs to the event loop, whose thread must start it: the process is
    killed when that thread ends.
    """

    def __init__(self, *, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._process: asyncio.subprocess.Process | None = None
        self._ending: asyncio.subprocess.Process | None = None
        self._idle: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def run(
        self,
        kind: str,
        job: dict[str, Any],
        *,
        max_rate_bytes: int,
        on_progress: Callable[[str, int, int], None],
        pace: Callable[[], int] | None = None,
    ) -> dict[str, Any]:
        """The result of one job. Raises JobFailed, WorkerDied. `pace` is asked again and again for
        the rate that holds from then on; without one `max_rate_bytes` holds to the end.

        When it is cancelled, the process is dead before it returns, so nothing more is written.
        """
        if self._idle is not None:
            self._idle.cancel()
        try:
            process = await self._started()
            order = {"kind": kind, "job": job, "max_rate_bytes": max_rate_bytes}
            if pace is None:
                return await _converse(process, order, on_progress)
            pacing = asyncio.ensure_future(_keep_pace(process, pace, max_rate_bytes))
            try:
                return await _converse(process, order, on_progress)
            finally:
                pacing.cancel()
        except JobFailed:
            raise
        except BaseException:
            await asyncio.shield(self.close())
            raise
        finally:
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(self._idle_seconds, self._end_idle)

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        place = str(Path(liftlog.__file__).parents[1])
        path = os.pathsep.join(filter(None, (place, os.getenv("PYTHONPATH"))))
        self._process = await asyncio.create_subprocess_exec(
            *tied_to_parent(_PROGRAM),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_MAX_LINE_BYTES,
            # Each of numpy's threads for linear algebra, which is not used here, takes memory.
            env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
        )
        logger.debug("worker-started pid=%d", self._process.pid)
        return self._process

    def _end_idle(self) -> None:
        # It ends by itself at the end of its input; the next job starts another.
        self._ending, self._process = self._process, None
        if self._ending is not None and self._ending.stdin is not None:
            self._ending.stdin.close()

    async def close(self) -> None:
        """Kill the process and wait until it has ended. Does nothing when it is not running."""
        if self._idle is not None:
            self._idle.cancel()
        process, self._process = self._process or self._ending, None
        self._ending = None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _keep_pace(
    process: asyncio.subprocess.Process, pace: Callable[[], int], rate: int
) -> None:
    """Tell the process each rate that differs from the one before, until this is cancelled."""
    assert process.stdin is not None
    while not process.stdin.is_closing():
        await asyncio.sleep(LOOK_EVERY_SECONDS)
        before, rate = rate, pace()
        if rate != before:
            process.stdin.write(json.dumps({"max_rate_bytes": rate}).encode() + b"\n")


async def _converse(
    process: asyncio.subprocess.Process,
    order: dict[str, Any],
    on_progress: Callable[[str, int, int], None],
) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(order).encode() + b"\n")
        await process.stdin.drain()
        while line := await process.stdout.readline():
            answer = json.loads(line)
            if "progress" in answer:
                on_progress(*answer["progress"])
            elif "failed" in answer:
                failed = answer["failed"]
                raise JobFailed(failed["reason"], failed["message"], failed["file"])
            else:
                result: dict[str, Any] = answer["result"]
                return result
    except (OSError, ValueError) as error:  # a broken pipe, half a line
        raise WorkerDied(f"the cleaning process broke off: {error}") from error
    raise WorkerDied(f"the cleaning process ended with status {await process.wait()}")
