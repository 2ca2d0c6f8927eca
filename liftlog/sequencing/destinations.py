"""Decides whether the daemon may publish to a subject that a client names.

A publisher chooses the subject of its ack, and a client of JetStream's API chooses the subjects of
its answers and deliveries. The daemon publishes to these subjects with its own permissions, so only
that client may receive the messages. The following subjects are forbidden: JetStream's API
($JS...), the system ($SYS...), liftlog's own subjects, and every subject that a stream records (an
ack would be recorded and acked forever). There is one exception: a stream with `acks: off` may
record inboxes, perhaps as part of `>`. Other streams still send their acks to these inboxes.

The daemon chooses the content of acks and answers. The content of a record was chosen by a
publisher. So records are sent only to inboxes, and to subjects for which the client has permission.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import NewType

from acl.subjects import is_subset, matches, overlaps

MAX_LENGTH = 255
_INBOX = re.compile(rb"_INBOX(?:\.[A-Za-z0-9_-]+)+")
_LITERAL = re.compile(rb"[!-)+-=?-~]+")  # printable ASCII without blank, `*` and `>`
_INBOX_BYTES = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."
_CACHED = 10_000
_OF_CLIENTS = re.compile(r"_INBOX[._]|_R_\.")
"""Patterns of inboxes: the usual inboxes, the inboxes of clients with a prefix of their own
(`_INBOX_name.`), and the inboxes by which nats-server forwards answers to another account."""
_OVER_GATEWAY = re.compile(rb"_GR_\.[^.]*\.[^.]*\.")
"""Prefix that the servers of a super-cluster add to a reply subject, and remove again."""

Destination = NewType("Destination", bytes)
"""A subject to which the daemon may publish now. Only this module makes destinations. A destination
is valid until the next await, because streams and permissions may change."""


class Why(Enum):
    """The reason why the daemon does not publish to a subject."""

    RESERVED = "it is not an ordinary subject, or NATS or liftlog use it themselves"
    NOT_CHOSEN = "the setting nats.ack_subjects leaves it out"
    RECORDED = "a stream records it"
    NOT_GRANTED = "it is not an inbox, and `deliver` in the section nats of the ACL leaves it out"


def own_subject(subject: bytes) -> Destination:
    """Return, without a check, the destination for a subject that the daemon itself has chosen."""
    return Destination(subject)


def is_inbox(subject: str) -> bool:
    return _OF_CLIENTS.match(subject) is not None


class Destinations:
    """Decides about single subjects, and about whole runs of ordinary inboxes in a few C calls."""

    def __init__(
        self,
        attached: Iterable[str] = (),
        witnesses: Iterable[str] = (),
        chosen: Iterable[str] = (">",),
    ) -> None:
        """Set the patterns. `attached` are the subjects of streams that send acks. `witnesses` are
        the subjects of streams with `acks: off`. A destination must match one of the patterns
        `chosen`, which the operator sets."""
        self._chosen = tuple(chosen)
        self._attached: dict[str, list[str]] = {}
        self._witnesses: dict[str, list[str]] = {}
        self._inbox_is_ordinary = any(is_subset("_INBOX.>", pattern) for pattern in self._chosen)
        self._cached = lru_cache(maxsize=_CACHED)(self._decide)
        self.version = 0
        """A number that rises with each `add`. After an `add`, earlier decisions may no longer be
        valid."""
        self.add(attached, witnesses)

    def add(self, attached: Iterable[str] = (), witnesses: Iterable[str] = ()) -> None:
        """Add the subjects of further streams; see `__init__`."""
        attached = tuple(attached)
        _group_by_token(self._attached, attached)
        _group_by_token(self._witnesses, witnesses)
        if any(overlaps(pattern, "_INBOX.>") for pattern in attached):
            self._inbox_is_ordinary = False
        self._cached.cache_clear()
        self.version += 1

    # --- acks and answers ---

    def allows(self, subject: bytes) -> bool:
        """Return True if `why_not` returns None. For messages that are judged one by one."""
        if self._inbox_is_ordinary and _INBOX.fullmatch(subject) is not None:
            return len(subject) <= MAX_LENGTH
        return self.why_not(subject) is None

    def for_answer(self, subject: bytes) -> Destination | None:
        """Return the destination of an ack or an answer; None if nothing may be sent to the
        subject."""
        return Destination(subject) if self.why_not(subject) is None else None

    def why_not(self, subject: bytes) -> Why | None:
        if len(subject) > MAX_LENGTH:
            return Why.RESERVED
        if self._inbox_is_ordinary and _INBOX.fullmatch(subject) is not None:
            return None  # not cached, because clients use each inbox once
        return self._cached(subject)

    def _decide(self, subject: bytes) -> Why | None:
        subject = _behind_gateway(subject)
        if not _LITERAL.fullmatch(subject):
            return Why.RESERVED
        text = subject.decode("ascii")
        if text.startswith(("$", "liftlog.")) or "" in text.split("."):
            return Why.RESERVED
        if _matched(self._attached, text):
            return Why.RECORDED
        if not any(matches(pattern, text) for pattern in self._chosen):
            return Why.NOT_CHOSEN
        if not is_inbox(text) and _matched(self._witnesses, text):
            return Why.RECORDED
        return None

    # --- records ---

    def for_records(self, subject: bytes, granted: Sequence[str] | None) -> Destination | Why:
        """Decide about a subject to which a client wants records to be sent.

        `granted` are the subjects that the client may name in addition to inboxes; None allows any.
        """
        found = self.why_not(subject)
        if found is not None:
            return found
        if granted is not None:
            text = _behind_gateway(subject).decode()
            if not is_inbox(text) and not any(matches(one, text) for one in granted):
                return Why.NOT_GRANTED
        return Destination(subject)

    def for_pushes(
        self, subject: bytes, granted: Sequence[str] | None, source: Sequence[str]
    ) -> Destination | Why:
        """Decide about a subject to which a stream that records `source` pushes records
        continuously.

        Not even a stream with `acks: off` may record the pushed records: a stream that reads
        itself, or two streams that read each other, would grow forever. Only a stream on `>` may
        record them, because its own records are never pushed.
        """
        found = self.for_records(subject, granted)
        if isinstance(found, Why):
            return found
        text = _behind_gateway(subject).decode()
        if any(matches(one, text) for one in source) or _matched(self._witnesses, text, but=">"):
            return Why.RECORDED
        return found

    # --- whole runs ---

    def all_allowed_or_empty(self, subjects: Sequence[bytes]) -> bool:
        """Call `all_allowed` for the subjects that are not b"". (b"" stands for a missing reply
        subject.)"""
        if b"" not in subjects:
            return self.all_allowed(subjects)
        given = list(filter(None, subjects))
        return not given or self.all_allowed(given)

    def all_allowed(self, subjects: Sequence[bytes]) -> bool:
        """Return True only if acks may be sent to every subject. If the result is False, the caller
        must check each subject."""
        if not self._inbox_is_ordinary:
            return False
        if len(subjects) == 1:
            return len(subjects[0]) <= MAX_LENGTH and _INBOX.fullmatch(subjects[0]) is not None
        joined = b"\n" + b"\n".join(subjects)
        return (
            joined.count(b"\n_INBOX.") == joined.count(b"\n") == len(subjects)
            and not joined.translate(None, _INBOX_BYTES + b"\n")
            and b".." not in joined
            and b".\n" not in joined
            and not joined.endswith(b".")
            and max(map(len, subjects)) <= MAX_LENGTH
        )


def _group_by_token(groups: dict[str, list[str]], patterns: Iterable[str]) -> None:
    """Add the patterns to the group of their first token, so that a check compares only few
    patterns. A thousand streams may have hundreds of patterns each, and each message may have
    another reply subject."""
    for pattern in patterns:
        groups.setdefault(pattern.partition(".")[0], []).append(pattern)


def _behind_gateway(subject: bytes) -> bytes:
    """Return the subject without the prefix that a gateway adds."""
    return _OVER_GATEWAY.sub(b"", subject, count=1) if subject.startswith(b"_GR_.") else subject


def _matched(patterns: Mapping[str, Sequence[str]], subject: str, *, but: str = "") -> bool:
    near = subject.partition(".")[0], "*", ">"
    return any(
        matches(one, subject) for token in near for one in patterns.get(token, ()) if one != but
    )
