"""`import liftlog.client` is for programs without a daemon."""

from __future__ import annotations

import subprocess
import sys

FORBIDDEN = ["numpy", "pydantic", "nats", "aiohttp", "uvloop", "pyarrow", "yaml", "click", "rich",
             "prometheus_client", "liftlog.server", "liftlog.log", "liftlog.settings"]  # fmt: skip


def test_the_client_loads_no_server_dependency() -> None:
    code = f"import sys, liftlog.client; print([m for m in {FORBIDDEN!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
