"""Are `envelope`, `compaction` and `acl` the packages that were installed with liftlog?

Their short names exist on the public index too, and a distribution that is installed later
replaces them without a word. The client distribution has none of them and lacks this module.
"""

from __future__ import annotations

import importlib

NAMES = ("envelope", "compaction", "acl")


def check() -> None:
    """Raises ImportError, which says what to do."""
    for name in NAMES:
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
                "distribution and has replaced the one of liftlog. Install liftlog into a virtual "
                "environment of its own. To read streams, liftlog-client is enough."
            )
