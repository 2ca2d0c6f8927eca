"""NATS subject patterns.

A subject is a list of non-empty tokens joined by dots. In a pattern, `*` matches exactly one
token, and `>`, allowed only as the last token, matches one or more:
https://docs.nats.io/nats-concepts/subjects

NATS accepts `orders*` as a literal token. In a pattern it is nearly always a mistake for
`orders.*`, so `is_valid_pattern` refuses it; `why_no_subject` accepts it. `matches` compares such a
token literally, because a publisher may use it in a subject.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

MAX_PATTERN_BYTES = 1024
"""Size limit of a pattern. NATS allows 4096 bytes for a whole control line, which contains the
pattern."""

_WILDCARD = re.compile(r"[*>]")
_WILD = ("*", ">")


def is_valid_pattern(pattern: str) -> bool:
    """True if clients can subscribe to `pattern`: printable tokens; wildcards are whole tokens."""
    return why_invalid(pattern) is None


def why_invalid(pattern: str) -> str | None:
    """Return the problem of `pattern`; None if it is valid."""
    for token in pattern.split("."):
        if len(token) > 1 and _WILDCARD.search(token):
            return why_no_subject(pattern) or (
                f"a wildcard must be a whole token, unlike in {token!r}"
            )
    return why_no_subject(pattern)


def why_no_subject(pattern: str) -> str | None:
    """Return the reason why NATS refuses `pattern`; None if NATS accepts it. For NATS, `a*` is an
    ordinary token without a wildcard."""
    if not pattern:
        return "it is empty"
    if any(char.isspace() or not char.isprintable() for char in pattern):
        return "white space and control characters are not allowed"
    if len(pattern.encode("utf-8", "surrogatepass")) > MAX_PATTERN_BYTES:
        return f"it is longer than {MAX_PATTERN_BYTES} bytes"
    tokens = pattern.split(".")
    if "" in tokens:
        return "it has an empty token (a dot at an end, or two dots in a row)"
    if ">" in tokens[:-1]:
        return "'>' must be the last token"
    return None


def is_literal(subject: str) -> bool:
    """True if `subject` is valid and has no wildcard, so that clients can publish to it."""
    return _WILDCARD.search(subject) is None and is_valid_pattern(subject)


def matches(pattern: str, subject: str) -> bool:
    """True if a message on the literal `subject` reaches a subscription to `pattern`."""
    wanted = pattern.split(".")
    given = subject.split(".")
    if "" in given:
        return False
    if wanted[-1] == ">":
        if len(given) < len(wanted):
            return False
        wanted.pop()
    elif len(given) != len(wanted):
        return False
    return all(want in ("*", have) for want, have in zip(wanted, given, strict=False))


def overlaps(first: str, second: str) -> bool:
    """Return True if there is a subject that matches both patterns."""
    left = first.split(".")
    right = second.split(".")
    for a, b in zip(left, right, strict=False):
        if a == ">" or b == ">":
            return True
        if a != b and a != "*" and b != "*":
            return False
    return len(left) == len(right)


def matches_any(patterns: Iterable[str], subject: str) -> bool:
    """True if a message on the literal `subject` reaches a subscription to one of `patterns`."""
    return any(matches(pattern, subject) for pattern in patterns)


def overlap_any(first: Sequence[str], second: Sequence[str]) -> bool:
    """True if some subject matches a pattern of `first` and a pattern of `second`."""
    if len(first) == len(second) == 1:  # nearly all streams have one pattern
        return overlaps(first[0], second[0])
    by_token: dict[str, list[str]] = {}
    for other in second:
        by_token.setdefault(other.partition(".")[0], []).append(other)
    for one in first:
        token = one.partition(".")[0]
        near = by_token if token in _WILD else (token, *_WILD)
        if any(overlaps(one, other) for name in near for other in by_token.get(name, ())):
            return True
    return False


def first_overlap(patterns: Sequence[str]) -> tuple[str, str] | None:
    """Return two of `patterns` that overlap; None if no two patterns overlap. Clients may send
    hundreds of patterns with hundreds of tokens, so the time depends on the number of tokens, and
    not on the number of pairs."""
    known = _Known()
    for one in patterns:
        others = known.overlapping(tokens := one.split("."))
        if others:
            return patterns[(others & -others).bit_length() - 1], one
        known.add(tokens)
    return None


class _Known:
    """Numbered patterns. A set of patterns is an integer in which bit i stands for pattern i."""

    def __init__(self) -> None:
        self._bit = 1
        self._ended: list[int] = []
        """At each index: the set of patterns that have this number of tokens and do not end with
        `>`."""
        self._longer: list[int] = []
        """At each index: the set of patterns that have a token at this position."""
        self._with: list[dict[str, int]] = []
        """At each index: a map of each token to the set of patterns that have this token at this
        position."""

    def add(self, tokens: Sequence[str]) -> None:
        while len(self._with) < len(tokens):
            self._with.append({})
            self._longer.append(0)
        self._ended += [0] * (len(tokens) + 1 - len(self._ended))
        for at, token in enumerate(tokens):
            self._longer[at] |= self._bit
            self._with[at][token] = self._with[at].get(token, 0) | self._bit
        if tokens[-1] != ">":
            self._ended[len(tokens)] |= self._bit
        self._bit <<= 1

    def overlapping(self, tokens: Sequence[str]) -> int:
        """Return the set of patterns that overlap with this one."""
        found, alike = 0, self._bit - 1
        for at, token in enumerate(tokens):
            if at == len(self._with) or not alike:
                return found
            here = self._with[at]
            if token == ">":
                return found | alike & self._longer[at]
            found |= alike & here.get(">", 0)
            alike &= self._longer[at] if token == "*" else here.get(token, 0) | here.get("*", 0)
        return found | alike & self._ended[len(tokens)]


def is_subset(inner: str, outer: str) -> bool:
    """True if every subject that matches `inner` also matches `outer`."""
    small = inner.split(".")
    large = outer.split(".")
    for index, wide in enumerate(large):
        if index >= len(small):
            return False
        if wide == ">":
            return True
        narrow = small[index]
        if narrow == ">":
            return False
        if wide not in ("*", narrow):
            return False
    return len(small) == len(large)
