from __future__ import annotations

from support.daemons.both_loops import broker, no_scan_is_slow, pytest_asyncio_loop_factories

__all__ = ["broker", "no_scan_is_slow", "pytest_asyncio_loop_factories"]
