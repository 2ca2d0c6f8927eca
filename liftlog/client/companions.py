"""`envelope` and the nkeys of `acl`, from where this distribution installs them.

`liftlog` installs them as packages of their own. `liftlog-client` has copies in this package: in
the environment of an application those short names may belong to another distribution.
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
