"""liftlog: a durable log for NATS.

Two distributions install this package. `liftlog` has all of it and three packages beside it,
`envelope`, `compaction` and `acl`; importing it checks that they are its own. `liftlog-client` has
`liftlog.client` and what that needs, and nothing beside it.

Beside the packages: errors, names of streams and their like, tls for daemon and clients, the commit
of the sources, and companions, which checks the packages beside this one.
"""

from __future__ import annotations

import importlib.util

__version__ = "0.1.0"

if importlib.util.find_spec("liftlog.companions") is not None:
    from liftlog import companions

    companions.check()
