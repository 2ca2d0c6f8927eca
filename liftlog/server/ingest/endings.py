"""Classifies the server's error texts: why a connection ended, and what NATS refused.

nats-server sends `-ERR '...'` before it closes a connection, except when the client does not read:
then it only closes the socket.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class Cause(Enum):
    """Causes for the end of a connection. They are the values of a metric's label, so there are
    only a few."""

    CLOSED = "closed"
    """NATS closed the connection and gave no reason."""
    NETWORK = "network"
    SLOW_CONSUMER = "slow_consumer"
    STALE = "stale"
    """One side did not get answers to its pings."""
    AUTHORIZATION = "authorization"
    MAX_PAYLOAD = "max_payload"
    LIMIT = "limit"
    """Too many connections, or another limit of the server or the account."""
    LAME_DUCK = "lame_duck"
    PROTOCOL = "protocol"
    """Input that could not be parsed."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Ending:
    cause: Cause
    text: str
    is_guess: bool = False
    """True if NATS gave no reason: the cause is inferred from the state of the daemon."""

    def __str__(self) -> str:
        return self.text


_CAUSES = (
    ("slow consumer", Cause.SLOW_CONSUMER),
    ("stale connection", Cause.STALE),
    ("maximum payload", Cause.MAX_PAYLOAD),
    ("maximum", Cause.LIMIT),
    ("shutdown", Cause.CLOSED),
    ("auth", Cause.AUTHORIZATION),
    ("expired", Cause.AUTHORIZATION),
    ("revoked", Cause.AUTHORIZATION),
    ("permissions", Cause.AUTHORIZATION),
)


def ending_of(words: str) -> Ending:
    """Return the meaning of an -ERR text that ends the connection."""
    lowered = words.lower()
    cause = next((cause for mark, cause in _CAUSES if mark in lowered), Cause.OTHER)
    if cause is Cause.SLOW_CONSUMER:
        return Ending(cause, "NATS dropped us as a slow consumer")
    return Ending(cause, f"NATS ended the connection: {words}")


@dataclass(frozen=True, slots=True)
class Rejection:
    """The refusal of a command by NATS, which does not close the connection."""

    text: str
    """NATS's text, without quotes."""
    is_publish: bool = False
    subject: str = ""
    """The refused subject; empty if NATS does not name it. The subject is in lower case if the text
    passed through nats-py's parser."""
    sid: int | None = None


_PERMISSION = re.compile(
    r"permissions violation for (?P<what>subscription to|publish to|publish with reply of) "
    r'"(?P<subject>[^"]*)"(?:.*\(sid "(?P<sid>\d+)"\))?',
    re.IGNORECASE | re.DOTALL,
)
_OTHERS = ("maximum subscriptions exceeded", "invalid subject", "permissions violation")
_MAX_TEXT = 400


def rejection_of(words: str) -> Rejection | None:
    """Parse an -ERR that rejects a single operation; None if the -ERR ends the connection."""
    lowered = words.lower()
    shown = words[:_MAX_TEXT]
    if "invalid publish subject" in lowered:
        return Rejection(shown, is_publish=True)
    found = _PERMISSION.search(words)
    if found is not None:
        sid = found["sid"]
        return Rejection(
            shown,
            is_publish=found["what"].lower().startswith("publish"),
            subject=found["subject"],
            sid=None if sid is None else int(sid),
        )
    return Rejection(shown) if any(mark in lowered for mark in _OTHERS) else None


_ERR_LINE = re.compile(rb"-ERR\s+'?(.*?)'?\s*\r\n", re.DOTALL)


def error_words(line: bytes) -> str | None:
    """Return the text of an `-ERR '...'` line; None for any other line."""
    found = _ERR_LINE.fullmatch(line)
    return None if found is None else found[1].decode("utf-8", "replace")
