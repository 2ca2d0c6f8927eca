"""Which subjects an ack may be sent to.

An ack is a message that a publisher makes us send, so its subject must reach no one else:
not JetStream's API ($JS...), not the system ($SYS...), not our own subjects, and not a subject
that a stream records (an ack would be recorded and acked for ever). One exception: a silent
witness (`acks: off`) that records inboxes, perhaps as part of `>`, does not take the acks away
from everybody else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from acl.subjects import is_subset, matches, overlaps

MAX_LENGTH = 255
_INBOX = re.compile(rb"_INBOX(?:\.[A-Za-z0-9_-]+)+")
_LITERAL = re.compile(rb"[!-)+-=?-~]+")  # printable ASCII without blank, `*` and `>`
_INBOX_BYTES = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."
_CACHED = 10_000


class AckSubjects:
    """Decides per subject, and for whole runs of ordinary inboxes in a few C calls."""

    def __init__(
        self,
        attached: Iterable[str] = (),
        witnesses: Iterable[str] = (),
        chosen: Iterable[str] = (">",),
    ) -> None:
        """Subjects of the streams that ack, and of those that never do; and `chosen` by the
        operator; one of them must match."""
        self._chosen = tuple(chosen)
        attached = tuple(attached)
        self._attached = _by_token(attached)
        self._witnesses = _by_token(witnesses)
        self._inbox_is_ordinary = any(
            is_subset("_INBOX.>", pattern) for pattern in self._chosen
        ) and not any(overlaps(pattern, "_INBOX.>") for pattern in attached)
        self._cached = lru_cache(maxsize=_CACHED)(self._decide)

    def allows(self, subject: bytes) -> bool:
        if len(subject) > MAX_LENGTH:
            return False
        if self._inbox_is_ordinary and _INBOX.fullmatch(subject) is not None:
            return True  # not remembered: clients use each inbox once
        return self._cached(subject)

    def _decide(self, subject: bytes) -> bool:
        if not _LITERAL.fullmatch(subject):
            return False
        text = subject.decode("ascii")
        if text.startswith(("$", "liftlog.")) or "" in text.split("."):
            return False
        if _matched(self._attached, text):
            return False
        if not any(matches(pattern, text) for pattern in self._chosen):
            return False
        return text.startswith("_INBOX.") or not _matched(self._witnesses, text)

    def all_allowed_or_empty(self, subjects: Sequence[bytes]) -> bool:
        """As `all_allowed`, where b"" stands for no reply subject."""
        if b"" not in subjects:
            return self.all_allowed(subjects)
        given = list(filter(None, subjects))
        return not given or self.all_allowed(given)

    def all_allowed(self, subjects: Sequence[bytes]) -> bool:
        """True only if every one may be acked to; False means: ask one by one."""
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


def _by_token(patterns: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """By the first token. There may be hundreds of patterns for each of a thousand streams, and
    each message may have another reply subject."""
    found: dict[str, list[str]] = {}
    for pattern in patterns:
        found.setdefault(pattern.partition(".")[0], []).append(pattern)
    return found


def _matched(patterns: Mapping[str, Sequence[str]], subject: str) -> bool:
    near = subject.partition(".")[0], "*", ">"
    return any(matches(one, subject) for token in near for one in patterns.get(token, ()))
