"""liftlog: a durable log for NATS.

Two distributions install this package. The distribution `liftlog` contains the whole package and
three more packages, `envelope`, `compaction` and `acl`; the import of `liftlog` checks that all
four come from the same distribution. The distribution `liftlog-client` contains only
`liftlog.client` and the modules that it needs.

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
