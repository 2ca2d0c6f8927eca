"""`liftlog doctor`: what on this machine would keep a daemon from working, and what to do.

command   the click command
machine   disk, files, clock       network   ports, NATS, the daemon that runs
setup     configuration, streams, packages, certificate

`Checkup` is what each check says.
"""

from __future__ import annotations

from dataclasses import dataclass

OK = "ok"
WARNING = "warning"
FAILED = "failed"
SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Checkup:
    """The result of one check. `advice` is given unless it is ok."""

    check: str
    status: str
    detail: str
    advice: str = ""
