"""Access control: principals, roles, NATS subject patterns, and decisions with their reason.

Pure: text in, values out. The package opens no files and no sockets.

    subjects   NATS subject patterns: valid, matches, overlaps, is a subset of
    document   strict reading of a YAML text: safe, bounded, no duplicate keys, line numbers
    tokens     hashing and checking tokens
    nkeys      the keys of NATS: text forms, signatures
    rules      the content of an ACL: principals, roles, bindings; matches streams to patterns
    reading    parses the text of an ACL file to rules, or to a list of problems
    policy     `Policy`: authenticates a client, and decides whether an operation is allowed

`import acl` is fast, because it loads only the functions for subjects (`acl.policy` imports YAML).
"""

from __future__ import annotations

from .rules import AclError
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
