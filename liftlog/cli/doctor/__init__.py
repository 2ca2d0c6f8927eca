"""`liftlog doctor`: finds problems on this machine that would keep a daemon from working, and says
how to solve them.

command   the click command
machine   disk, files, clock       network   ports, NATS, the daemon that runs
setup     configuration, streams, packages, certificate

Each check yields a `Checkup`.
"""

from __future__ import annotations

from dataclasses import dataclass

OK = "ok"
WARNING = "warning"
FAILED = "failed"
SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Checkup:
    """The result of one check. `advice` is set if a problem was found."""

    check: str
    status: str
    detail: str
    advice: str = ""
