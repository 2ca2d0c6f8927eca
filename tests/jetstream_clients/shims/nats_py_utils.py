"""In the place of tests/utils.py, which the source distribution of nats-py lacks: what its
tests/test_js.py imports from there."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import unittest
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

PORT = 4222


class SingleJetStreamServerTestCase(unittest.TestCase):
    """Each test has a server of its own, with nothing in it."""

    def setUp(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(os.environ["JETSTREAM_CLIENTS_SERVERS"])
        self._server.sendall(json.dumps({"port": PORT}).encode() + b"\n")
        if not self._server.recv(256).startswith(b"ready"):
            raise RuntimeError("the servers did not start")

    def tearDown(self) -> None:
        self._server.shutdown(socket.SHUT_WR)
        while self._server.recv(256):
            pass
        self._server.close()
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
