"""Access control: principals, roles, NATS subject patterns, and decisions with their reason.

Pure: text in, values out. Nothing here opens a file or a socket.

    subjects   NATS subject patterns: valid, matches, overlaps, is a subset of
    document   strict reading of a YAML text: safe, bounded, no duplicate keys, line numbers
    tokens     hashing and checking tokens
    nkeys      the keys of NATS: text forms, signatures
    rules      the content of an ACL: principals, roles, bindings; matches streams to patterns
    reading    parses the text of an ACL file to rules, or to a list of problems
    policy     `Policy`: authenticates a client, and decides whether an operation is allowed

`import acl` alone is cheap: it loads only the subject functions (YAML comes with `acl.policy`).
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
