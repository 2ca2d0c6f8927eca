"""What a call costs, on machines where other work goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

_ATTEMPTS = 5


def is_cheap(call: Callable[[], object], limit_seconds: float) -> bool:
    """Whether `call` needs less processor time than that in one of several attempts. Others on the
    machine slow some attempts down, but never make one quicker."""
    for _ in range(_ATTEMPTS):
        began = time.thread_time()
        call()
        if time.thread_time() - began < limit_seconds:
            return True
    return False
