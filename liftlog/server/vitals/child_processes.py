"""Child processes that must not outlive the daemon."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

# This program runs before the real program. It asks Linux to kill the process when the thread that
# started it ends for any reason. It is a separate program because `preexec_fn` is not safe when
# other threads run. The parent may have died before prctl took effect, so its pid is checked again.
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
    """Return a command that runs `command` (its first word is an absolute path). The process is
    killed when the thread that starts it ends.

    `parent` is the pid of the process that will start the command: None for this process, 0 if the
    pid is not known yet.
    """
    parent = os.getpid() if parent is None else parent
    return [sys.executable, "-I", "-S", "-c", _PRELUDE, str(parent), *command]
