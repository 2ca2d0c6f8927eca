from __future__ import annotations

from support.daemons.both_loops import broker, pytest_asyncio_loop_factories

__all__ = ["broker", "pytest_asyncio_loop_factories"]
