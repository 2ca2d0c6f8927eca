"""Imports `envelope` and the nkeys of `acl` from the place at which the installed distribution puts
them.

The distribution `liftlog` installs them as top-level packages. `liftlog-client` has copies inside
`liftlog.client`, because in the environment of an application these short names may belong to
another distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import envelope
    from acl import nkeys
else:
    try:
        from liftlog.client.bundled import envelope, nkeys
    except ModuleNotFoundError:
        import envelope
        from acl import nkeys

__all__ = ["envelope", "nkeys"]
