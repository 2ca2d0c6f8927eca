"""Who may do what: principals, roles, NATS subject patterns, decisions that explain themselves.

Pure: text in, values out. Nothing here opens a file or a socket.

    subjects   NATS subject patterns: valid, matches, overlaps, is a subset of
    document   strict reading of a YAML text: safe, bounded, no duplicate keys, with lines
    tokens     hashing and checking of tokens
    nkeys      the keys of NATS: text forms, signatures
    rules      what an ACL says: principals, roles, bindings, stream patterns
    reading    from the text of an ACL file to rules, or to everything that is wrong
    policy     `Policy`: who is it, may they do it

`import acl` alone is cheap: it loads only the subject functions (YAML comes with `acl.policy`).
"""

from __future__ import annotations

from .errors import AclError
from .subjects import is_literal, is_subset, is_valid_pattern, matches, overlaps

PART_OF = "liftlog"

__all__ = [
    "PART_OF",
    "AclError",
    "is_literal",
    "is_subset",
    "is_valid_pattern",
    "matches",
    "overlaps",
]
