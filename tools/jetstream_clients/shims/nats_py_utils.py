"""In the place of tests/utils.py, which the source distribution of nats-py lacks: what its
tests/test_js.py imports from there."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

PORT, HTTP_PORT = 4222, 8222


class SingleJetStreamServerTestCase(unittest.TestCase):
    """Each test has a server of its own, with nothing in it."""

    def setUp(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._directory = tempfile.mkdtemp(prefix="jetstream-clients-")
        command = [sys.executable, "-m", "tools.jetstream_clients.server"]
        command += [f"--port={PORT}", f"--http-port={HTTP_PORT}", f"--store-dir={self._directory}"]
        self._server = subprocess.Popen(
            command, cwd=os.environ["LIFTLOG_REPOSITORY"], stdout=subprocess.PIPE
        )
        assert self._server.stdout is not None
        if not self._server.stdout.readline().startswith(b"ready"):
            raise RuntimeError(f"the servers did not start: see {self._directory}")

    def tearDown(self) -> None:
        self._server.terminate()
        self._server.wait()
        assert self._server.stdout is not None
        self._server.stdout.close()
        shutil.rmtree(self._directory)
        self.loop.close()


class SingleJetStreamServerLimitsTestCase(unittest.TestCase):
    def setUp(self) -> None:
        self.skipTest("accounts with limits are JetStream's own")


def _within(timeout: float) -> Callable[[Callable[..., Awaitable[Any]]], Callable[..., Any]]:
    def decorate(test: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        @wraps(test)
        def run(case: Any, *args: Any, **keywords: Any) -> Any:
            return asyncio.run(asyncio.wait_for(test(case, *args, **keywords), timeout))

        return run

    return decorate


async_test = _within(20)
async_long_test = _within(60)
async_debug_test = _within(60)
