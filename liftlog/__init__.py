"""liftlog: a durable log for NATS.

Two distributions install this package. `liftlog` contains all of it and three more packages,
`envelope`, `compaction` and `acl`; at import it checks that they come from the same distribution.
`liftlog-client` contains only `liftlog.client` and the modules that it needs.

Modules outside of the subpackages: errors, names (of streams, consumers and others), times as text,
tls for daemon and clients, the commit of the sources, and companions, which checks the three
packages.
"""

from __future__ import annotations

import importlib.util

__version__ = "0.1.0"

if importlib.util.find_spec("liftlog.companions") is not None:
    from liftlog import companions

    companions.check()
