"""The subjects that have subscribers, as a NATS server reports them to a leaf node. No I/O.

The time of a look-up depends only on the number of tokens in the subject, not on the number of
clients. This is important because each client subscribes to an inbox with a wildcard.
"""

from __future__ import annotations

from collections.abc import Sequence

PLAIN = b""
"""Name that stands for the subscribers that are in no queue group."""


Groups = frozenset[bytes]
_NONE: Groups = frozenset()
_ONLY_PLAIN: Groups = frozenset((PLAIN,))
"""The groups of nearly all subjects. These subjects share this object."""


class _Node:
    """The patterns below one prefix of tokens. `here` contains the groups of the patterns that are
    equal to the prefix. `below` contains the groups of the patterns that consist of the prefix and
    `>`."""

    __slots__ = ("below", "here", "next")

    def __init__(self) -> None:
        self.next: dict[bytes, _Node] | None = None
        self.here = _NONE
        self.below = _NONE

    def near(self, token: bytes) -> _Node | None:
        return None if self.next is None else self.next.get(token)

    def make(self, token: bytes) -> _Node:
        if self.next is None:
            self.next = {}
        return self.next.setdefault(token, _Node())

    def drop(self, token: bytes) -> None:
        assert self.next is not None
        del self.next[token]
        self.next = self.next or None

    @property
    def is_empty(self) -> bool:
        return not (self.next or self.here or self.below)


class Interest:
    """Subjects and patterns, each with its queue groups. Belongs to one thread."""

    def __init__(self) -> None:
        self._literals: dict[bytes, Groups] = {}
        self._patterns = _Node()
        self._has_queues = False

    def clear(self) -> None:
        self._literals.clear()
        self._patterns = _Node()
        self._has_queues = False

    def add(self, subject: bytes, queue: bytes = PLAIN) -> None:
        """Record that the subject, or the pattern, has subscribers. For a queue group, the server
        repeats its report whenever the number of members changes."""
        self._has_queues = self._has_queues or queue != PLAIN
        tokens = subject.split(b".")
        if _is_literal(tokens):
            self._literals[subject] = _with(self._literals.get(subject, _NONE), queue)
            return
        is_open = tokens[-1] == b">"
        node = self._patterns
        for token in tokens[:-1] if is_open else tokens:
            node = node.make(token)
        if is_open:
            node.below = _with(node.below, queue)
        else:
            node.here = _with(node.here, queue)

    def remove(self, subject: bytes, queue: bytes = PLAIN) -> None:
        """Record that the subject or pattern no longer has subscribers. Does nothing if it had
        none."""
        tokens = subject.split(b".")
        if _is_literal(tokens):
            groups = self._literals.pop(subject, _NONE) - {queue}
            if groups:
                self._literals[subject] = groups
            return
        is_open = tokens[-1] == b">"
        if is_open:
            tokens.pop()
        path = [self._patterns]
        for token in tokens:
            found = path[-1].near(token)
            if found is None:
                return
            path.append(found)
        if is_open:
            path[-1].below -= {queue}
        else:
            path[-1].here -= {queue}
        while len(path) > 1 and path.pop().is_empty:
            path[-1].drop(tokens.pop())

    @property
    def size(self) -> int:
        """Number of entries: one for each literal subject, and one for each token of the
        patterns."""
        count, nodes = len(self._literals), [self._patterns]
        while nodes:
            node = nodes.pop()
            below = [] if node.next is None else list(node.next.values())
            nodes += below
            count += len(below) + len(node.here) + len(node.below)
        return count

    def has(self, subject: bytes) -> bool:
        """Return True if a message on this literal subject reaches a subscriber."""
        return subject in self._literals or any(self._found(subject))

    def queues(self, subject: bytes) -> bytes:
        """Return the queue groups whose members subscribe to this literal subject, sorted and
        separated by blanks."""
        if not self._has_queues:
            return b""
        return b" ".join(sorted(self.names(subject) - {PLAIN}))

    def names(self, subject: bytes) -> Groups:
        """Return the names of the queue groups that subscribe to this literal subject, and PLAIN
        for other subscribers."""
        return self._literals.get(subject, _NONE).union(*self._found(subject))

    def _found(self, subject: bytes) -> list[Groups]:
        """Return the groups of the patterns that match."""
        nodes = [self._patterns]
        found: list[Groups] = []
        for token in subject.split(b"."):
            near: list[_Node] = []
            for node in nodes:
                if node.below:
                    found.append(node.below)
                if node.next is not None:
                    near += filter(None, (node.next.get(token), node.next.get(b"*")))
            if not near:
                return found
            nodes = near
        return found + [node.here for node in nodes if node.here]


def _is_literal(tokens: Sequence[bytes]) -> bool:
    return b"*" not in tokens and tokens[-1] != b">"


def _with(groups: Groups, queue: bytes) -> Groups:
    return _ONLY_PLAIN if queue == PLAIN and not groups else groups | {queue}
