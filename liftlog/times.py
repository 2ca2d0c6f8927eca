"""Times as text, for logs, pages and the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def show_time(timestamp_ns: int) -> str:
    """Return the time in UTC with microseconds, as ISO 8601."""
    seconds, rest_ns = divmod(timestamp_ns, 1_000_000_000)
    return f"{_show_second(seconds)}.{rest_ns // 1000:06d}Z"


@lru_cache(maxsize=1024)
def _show_second(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
