"""Measures the cost of a call on machines that also do other work."""

from __future__ import annotations

import time
from collections.abc import Callable

_ATTEMPTS = 5


def is_cheap(call: Callable[[], object], limit_seconds: float) -> bool:
    """Return True if `call` needs less processor time than the limit in one of several attempts.
    Other work on the machine makes some attempts slower, but never faster."""
    for _ in range(_ATTEMPTS):
        began = time.thread_time()
        call()
        if time.thread_time() - began < limit_seconds:
            return True
    return False
