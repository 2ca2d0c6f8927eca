"""Starts the worker process and exchanges messages with it."""

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
from liftlog.server.cleaning.pace import GRANT_SECONDS, LOOK_SECONDS, Rates
from liftlog.server.vitals.child_processes import tied_to_parent

logger = logging.getLogger("liftlog.server.cleaner")

_IDLE_SECONDS = 30.0
_MAX_LINE_BYTES = 256 * 1024 * 1024  # the line of a job lists all segments of a stream
# `-m` alone would put the working directory first on the module path. A file named acl.py in that
# directory (in the image it holds the data) would then run as the daemon's user. -P prevents this.
_PROGRAM = (sys.executable, "-P", "-m", "liftlog.server.cleaning.worker")


class WorkerDied(Exception):
    """The worker process ended before its job."""


class JobFailed(Exception):
    """A job ended with an error. `reason` is one of the reasons in `worker`."""

    def __init__(self, reason: str, message: str, file_name: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.file_name = file_name


class Worker:
    """Runs jobs in the worker process. It starts the process for the first job. When the process
    has been idle for a while, it ends the process.

    One job runs at a time. Belongs to the event loop. The thread of the event loop must start the
    process, because the process is killed when that thread ends. While a job runs, `daemon_is_idle`
    determines its rate.
    """

    def __init__(
        self,
        *,
        idle_seconds: float = _IDLE_SECONDS,
        daemon_is_idle: Callable[[], bool] = lambda: False,
    ) -> None:
        self._idle_seconds = idle_seconds
        self._daemon_is_idle = daemon_is_idle
        self._look: asyncio.TimerHandle | None = None
        self._granted_until = 0.0
        self._process: asyncio.subprocess.Process | None = None
        self._ending: asyncio.subprocess.Process | None = None
        self._idle: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def has_grant(self) -> bool:
        """True if a job runs at the rate for an idle daemon."""
        return self._granted_until > asyncio.get_running_loop().time()

    async def run(
        self,
        kind: str,
        job: dict[str, Any],
        *,
        rates: Rates,
        on_progress: Callable[[str, int, int], None],
    ) -> dict[str, Any]:
        """Run one job and return its result. Raises JobFailed, WorkerDied.

        If the call is cancelled, the process is killed before the call returns, so it writes
        nothing more.
        """
        if self._idle is not None:
            self._idle.cancel()
        try:
            if rates.idle_bytes != rates.busy_bytes:
                self._look_at_daemon()
            process = await self._started()
            order = {
                "kind": kind,
                "job": job,
                "max_rate_bytes": rates.busy_bytes,
                "idle_rate_bytes": rates.idle_bytes,
            }
            return await _converse(process, order, on_progress)
        except JobFailed:
            raise
        except BaseException:
            await asyncio.shield(self.close())
            raise
        finally:
            if self._look is not None:
                self._look.cancel()
            self._look, self._granted_until = None, 0.0
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(self._idle_seconds, self._end_idle)

    def _look_at_daemon(self) -> None:
        """Send the process a grant if the daemon is idle. Repeats this every `LOOK_SECONDS`."""
        loop = asyncio.get_running_loop()
        self._look = loop.call_later(LOOK_SECONDS, self._look_at_daemon)
        now, is_idle = loop.time(), self._daemon_is_idle()
        if is_idle and self._granted_until - now < GRANT_SECONDS / 2:
            if self._tell({"idle_seconds": GRANT_SECONDS}):
                self._granted_until = now + GRANT_SECONDS
        elif not is_idle and self._granted_until and self._tell({"idle_seconds": 0}):
            # Sent even if the grant has expired by the daemon's clock. The worker measures the
            # grant from the moment at which it read the line.
            self._granted_until = 0.0

    def _tell(self, line: dict[str, Any]) -> bool:
        """Send a line to the process. Return False if the process does not run or does not read. In
        this case an earlier grant expires by itself."""
        stdin = None if self._process is None else self._process.stdin
        if stdin is None or stdin.is_closing() or stdin.transport.get_write_buffer_size():
            return False
        stdin.write(json.dumps(line).encode() + b"\n")
        return True

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
            # Each of numpy's threads for linear algebra would use memory, although none of them is
            # needed.
            env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
        )
        logger.debug("worker-started pid=%d", self._process.pid)
        return self._process

    def _end_idle(self) -> None:
        # The process exits when its input ends. The next job starts a new process.
        self._ending, self._process = self._process, None
        if self._ending is not None and self._ending.stdin is not None:
            self._ending.stdin.close()

    async def close(self) -> None:
        """Kill the process and wait until it has ended. Does nothing if no process is running."""
        if self._idle is not None:
            self._idle.cancel()
        process, self._process = self._process or self._ending, None
        self._ending = None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


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
    except (OSError, ValueError) as error:  # a broken pipe, or an incomplete line
        raise WorkerDied(f"the cleaning process broke off: {error}") from error
    raise WorkerDied(f"the cleaning process ended with status {await process.wait()}")
