"""The content of an ACL: principals, roles, bindings. See config/acl.yaml for an example.

principals: {billing: {token_hash: "sha256:..."}, anonymous: {}}
roles:      {reader: [{allow: [read, commit], streams: ["orders*"], subjects: ["orders.eu.>"]}]}
bindings:   {billing: [reader]}
nats:       {allow: [read], streams: ["orders*"]}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

Operation = Literal["create", "delete", "read", "commit", "work", "admin", "erase", "replicate"]
OPERATIONS: Final[tuple[Operation, ...]] = get_args(Operation)

IN_WORDS: Final[Mapping[Operation, str]] = {
    "create": "create",
    "delete": "delete",
    "read": "read",
    "commit": "commit checkpoints of",
    "work": "use consumers with acks of",
    "admin": "administer",
    "erase": "erase records of",
    "replicate": "replicate",
}
"""Each operation as a verb for sentences such as "ops may administer stream 'orders'"."""

ANONYMOUS = "anonymous"
"""The principal of clients that did not authenticate. This principal exists only if the file names
it."""

OVER_NATS = "(nats)"
"""The principal of all clients that send requests over NATS, because NATS does not identify them.
The section `nats` lists its permissions. The ACL file cannot use this name."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
_CONSUMER_PATTERN = re.compile(r"[^\s.>/\\\x00-\x20\x7f]{1,255}")
_STREAM_PATTERN = re.compile(r"[A-Za-z0-9_*-]{1,128}|>", re.ASCII)

_MAX_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Principal:
    """A user or a program, and the credentials that identify it."""

    name: str
    token_hash: str | None = None
    nkey: str | None = None
    certificate_cn: str | None = None
    unix_uid: int | None = None

    def __repr__(self) -> str:
        return f"Principal({self.name!r})"  # the hash must not appear in logs


@dataclass(frozen=True, slots=True)
class Rule:
    """Allows `operations` on the streams that match one of the patterns in `streams`.

    `subjects` limits reading and erasing to records on these subjects (None: all). `attach` holds
    the NATS subjects that a created stream may record. `deliver`, only in the section `nats`, holds
    the subjects to which clients may request delivery, in addition to inboxes. `consumers` limits
    `work` to consumers whose names match one of these patterns (None: all).
    """

    role: str
    number: int
    operations: frozenset[Operation]
    streams: tuple[str, ...]
    subjects: tuple[str, ...] | None = None
    attach: tuple[str, ...] = ()
    deliver: tuple[str, ...] = ()
    consumers: tuple[str, ...] | None = None

    def __str__(self) -> str:
        if self.role == OVER_NATS:
            return "the section 'nats'"
        return f"rule {self.number} of role {self.role!r}"


@dataclass(frozen=True, slots=True)
class Rules:
    """The checked content of a whole ACL file."""

    principals: dict[str, Principal]
    roles: dict[str, tuple[Rule, ...]]
    bindings: dict[str, tuple[str, ...]]
    nats: Rule | None = None
    """The permissions of clients that send requests over NATS; None permits nothing."""


def is_name(text: str) -> bool:
    """True if `text` can name a principal or a role. A name has no dot, because a token is divided
    at its first dot."""
    return _NAME.fullmatch(text) is not None


def is_stream_pattern(text: str) -> bool:
    """True if `text` is a pattern for names of streams. In a pattern, `*` matches any characters;
    `>` alone means the same as `*`."""
    return _STREAM_PATTERN.fullmatch(text) is not None


def is_consumer_pattern(text: str) -> bool:
    """True if `text` is a pattern for names of consumers, in which `*` matches any characters."""
    return _CONSUMER_PATTERN.fullmatch(text) is not None


class StreamMatcher:
    """Tests whether any of a rule's patterns matches a stream.

    Every request needs this test. So whole names and prefixes are separated in advance, and looked
    up without a loop.
    """

    __slots__ = ("_exact", "_general", "_prefixes", "_system")

    def __init__(self, patterns: Iterable[str]) -> None:
        plain = ["*" if pattern == ">" else pattern for pattern in patterns]
        system = [pattern for pattern in plain if pattern.startswith("_")]
        self._system = tuple(system)
        plain = [pattern for pattern in plain if not pattern.startswith("_")]
        self._exact = frozenset(pattern for pattern in plain if "*" not in pattern)
        ends = [pattern[:-1] for pattern in plain if pattern.endswith("*")]
        self._prefixes = tuple(end for end in ends if "*" not in end)
        self._general = tuple(one for one in plain if "*" in one.rstrip("*") or "**" in one)

    def matches(self, stream: str) -> bool:
        if stream.startswith("_"):
            return any(stream_matches(pattern, stream) for pattern in self._system)
        return (
            stream in self._exact
            or stream.startswith(self._prefixes)
            or any(stream_matches(pattern, stream) for pattern in self._general)
        )


def stream_matches(pattern: str, stream: str) -> bool:
    """True if `pattern` matches `stream`. System streams are like dot files in a shell: only a
    pattern that begins with `_` matches them."""
    if pattern == ">":
        pattern = "*"
    if stream.startswith("_") and not pattern.startswith("_"):
        return False
    return name_matches(pattern, stream)


def name_matches(pattern: str, name: str) -> bool:
    """True if `pattern`, in which `*` matches any characters, matches `name`."""
    head, *rest = pattern.split("*")
    if not rest:
        return pattern == name
    if not name.startswith(head) or len(name) < len(pattern) - len(rest):
        return False
    *middle, tail = rest
    position, end = len(head), len(name) - len(tail)
    if not name.endswith(tail):
        return False
    # Taking the leftmost match each time is enough, since `*` is the only wildcard.
    for part in middle:
        found = name.find(part, position, end)
        if found < 0:
            return False
        position = found + len(part)
    return position <= end


class AclError(Exception):
    """The ACL text is wrong. `findings` lists every problem, one line each."""

    def __init__(self, findings: Sequence[str]) -> None:
        self.findings = tuple(findings)
        count = len(self.findings)
        head = "1 problem in the ACL" if count == 1 else f"{count} problems in the ACL"
        shown = list(self.findings[:_MAX_SHOWN])
        if count > _MAX_SHOWN:
            shown.append(f"... and {count - _MAX_SHOWN} more")
        super().__init__("\n  ".join([f"{head}:", *shown]))
