"""Checks that `envelope`, `compaction` and `acl` are the packages that were installed with liftlog.

Packages with the same short names exist on the public index. If such a package is installed later,
it overwrites liftlog's package silently. The client distribution contains neither these packages
nor this module.
"""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec

NAMES = ("envelope", "compaction", "acl")

_MARK = 'PART_OF = "liftlog"'


def check() -> None:
    """Check the packages. Raises ImportError with the remedy. The packages are located but not
    imported, because their import would take longer than the rest of `import liftlog`."""
    for name in NAMES:
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ImportError(
                f"liftlog needs its own package {name!r}, which is not installed. "
                "Install liftlog into a virtual environment of its own."
            )
        if not _is_ours(spec):
            raise ImportError(
                f"the package {name!r} at {spec.origin} belongs to another "
                "distribution and has replaced the one of liftlog. Install liftlog into a virtual "
                "environment of its own. To read streams, liftlog-client is enough."
            )


def _is_ours(spec: ModuleSpec) -> bool:
    source = getattr(spec.loader, "get_source", lambda _: "")(spec.name)
    if source is None:  # compiled only
        return getattr(importlib.import_module(spec.name), "PART_OF", None) == "liftlog"
    return _MARK in source
