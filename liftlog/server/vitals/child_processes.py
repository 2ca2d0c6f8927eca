"""Child processes that must not outlive the daemon."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

# Runs before the real program and asks Linux to kill the process when the starting thread ends,
# for whatever reason. It is a separate program because `preexec_fn` is not safe beside other
# threads. The parent may have died before prctl took effect, so its pid is checked again.
_PRELUDE = """\
import ctypes, os, signal, sys
parent = int(sys.argv[1])
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if parent and os.getppid() != parent:
        os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def tied_to_parent(command: Sequence[str], *, parent: int | None = None) -> list[str]:
    """Return `command` (absolute program path first) in a form that dies with the thread that
    starts it.

    `parent` is the process that will run it: this one if None, 0 for one not known yet.
    """
    parent = os.getpid() if parent is None else parent
    return [sys.executable, "-I", "-S", "-c", _PRELUDE, str(parent), *command]
