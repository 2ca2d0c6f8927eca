"""The address of the HTTP port, which is bound some time before connections are accepted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from liftlog.errors import ConfigError
from liftlog.server.http.port import HttpPort

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_of_two_daemons_that_start_at_the_same_time_one_gets_the_address(run: Run) -> None:
    async def start_both() -> None:
        first = await HttpPort.bind("127.0.0.1:0")
        second = await HttpPort.bind(first.address)
        try:
            await first.open(asyncio.Protocol)
            with pytest.raises(ConfigError, match=r"^http\.listen: cannot listen on 127"):
                await second.open(asyncio.Protocol)
        finally:
            first.close()
            second.close()

    run(start_both())
