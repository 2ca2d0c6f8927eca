"""liftlog: a durable log for NATS.

The distribution installs four top-level packages: `liftlog`, `envelope`, `compaction`
and `acl`. Their short names exist on the public index too, so importing `liftlog`
checks that the other three are the ones it was shipped with.
"""

from __future__ import annotations

import importlib

__version__ = "0.1.0"


def _check_companions() -> None:
    for name in ("envelope", "compaction", "acl"):
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            raise ImportError(
                f"liftlog needs its own package {name!r}, which cannot be imported ({error}). "
                "Install liftlog into a virtual environment of its own."
            ) from error
        if getattr(module, "PART_OF", None) != "liftlog":
            raise ImportError(
                f"the package {name!r} at {getattr(module, '__file__', '?')} belongs to another "
                "distribution and has replaced the one of liftlog. "
                "Install liftlog into a virtual environment of its own."
            )


_check_companions()
