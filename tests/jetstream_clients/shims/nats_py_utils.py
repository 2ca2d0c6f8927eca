"""In the place of tests/utils.py, which the source distribution of nats-py lacks: what its
tests/test_js.py imports from there."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
import unittest
import unittest.mock  # a test uses it without importing it
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

PORT = 4222


class _Server:
    """A server that keeps its stored data over restarts."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="nats-py-")

    def start(self) -> None:
        self._link = socket.socket(socket.AF_UNIX)
        self._link.connect(os.environ["JETSTREAM_CLIENTS_SERVERS"])
        request = {"port": PORT, "store_dir": self._directory.name}
        self._link.sendall(json.dumps(request).encode() + b"\n")
        if not self._link.recv(256).startswith(b"ready"):
            raise RuntimeError("the servers did not start")

    def stop(self) -> None:
        self._link.shutdown(socket.SHUT_WR)
        while self._link.recv(256):
            pass
        self._link.close()


class SingleJetStreamServerTestCase(unittest.TestCase):
    """Each test has its own, empty server."""

    def setUp(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.server_pool = [_Server()]
        self.server_pool[0].start()

    def tearDown(self) -> None:
        self.server_pool[0].stop()
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


async_test = _within(60)
async_long_test = _within(180)
async_debug_test = _within(180)
