"""Prints the progress to stderr, so that stdout contains only the table."""

from __future__ import annotations

import sys
import time


class Progress:
    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        if not self._quiet:
            seconds = time.monotonic() - self._started
            print(f"[{seconds:6.1f} s] {text}", file=sys.stderr, flush=True)
