"""Hundreds of streams hold more files open than most systems' soft limit allows."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource
hard = min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
from liftlog.server.vitals.descriptors import raise_open_file_limit
raise_open_file_limit()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
"""


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
