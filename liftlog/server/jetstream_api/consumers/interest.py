"""The subjects that have subscribers, as a NATS server tells them to a leaf node. No I/O.

A look-up costs as much as the subject has tokens, however many clients there are: each of them has
an inbox with a wildcard.
"""

from __future__ import annotations

PLAIN = b""
"""Stands for the subscribers that are in no queue group."""


class _Node:
    """The patterns below one prefix of tokens. `here` and `below` are the groups of the
    patterns that end here, and of those that end with `>` after it."""

    __slots__ = ("below", "here", "next")

    def __init__(self) -> None:
        self.next: dict[bytes, _Node] = {}
        self.here: set[bytes] = set()
        self.below: set[bytes] = set()

    @property
    def is_empty(self) -> bool:
        return not (self.next or self.here or self.below)


class Interest:
    """Subjects and patterns, each with its queue groups. Belongs to one thread."""

    def __init__(self) -> None:
        self._literals: dict[bytes, set[bytes]] = {}
        self._patterns = _Node()
        self._has_queues = False

    def clear(self) -> None:
        self._literals.clear()
        self._patterns = _Node()
        self._has_queues = False

    def add(self, subject: bytes, queue: bytes = PLAIN) -> None:
        """Note that the subject, or the pattern, has subscribers. The server repeats it for a queue
        group whenever the number of its members changes."""
        self._has_queues = self._has_queues or queue != PLAIN
        tokens = subject.split(b".")
        if b"*" not in tokens and tokens[-1] != b">":
            self._literals.setdefault(subject, set()).add(queue)
            return
        node, is_open = self._patterns, tokens[-1] == b">"
        for token in tokens[:-1] if is_open else tokens:
            node = node.next.setdefault(token, _Node())
        (node.below if is_open else node.here).add(queue)

    def remove(self, subject: bytes, queue: bytes = PLAIN) -> None:
        """Note that it has no subscribers any more. Does nothing if it had none."""
        tokens = subject.split(b".")
        if b"*" not in tokens and tokens[-1] != b">":
            groups = self._literals.get(subject, set())
            groups.discard(queue)
            if not groups:
                self._literals.pop(subject, None)
            return
        is_open = tokens[-1] == b">"
        if is_open:
            tokens.pop()
        path = [self._patterns]
        for token in tokens:
            found = path[-1].next.get(token)
            if found is None:
                return
            path.append(found)
        (path[-1].below if is_open else path[-1].here).discard(queue)
        while len(path) > 1 and path.pop().is_empty:
            del path[-1].next[tokens.pop()]

    @property
    def size(self) -> int:
        """Number of entries that it holds: one for each literal subject, and for each token of the
        patterns."""
        count, nodes = len(self._literals), [self._patterns]
        while nodes:
            node = nodes.pop()
            nodes += node.next.values()
            count += len(node.next) + len(node.here) + len(node.below)
        return count

    def has(self, subject: bytes) -> bool:
        """Return True if a message on this literal subject reaches a subscriber."""
        return subject in self._literals or any(self._found(subject))

    def queues(self, subject: bytes) -> bytes:
        """Return the queue groups whose members subscribe to this literal subject, in order and
        separated by blanks."""
        if not self._has_queues:
            return b""
        found = self._literals.get(subject, set()).union(*self._found(subject))
        return b" ".join(sorted(found - {PLAIN}))

    def _found(self, subject: bytes) -> list[set[bytes]]:
        """Return the groups of the patterns that match."""
        nodes, found = [self._patterns], []
        for token in subject.split(b"."):
            found += [node.below for node in nodes if node.below]
            nodes = [
                near
                for node in nodes
                for key in (token, b"*")
                if (near := node.next.get(key)) is not None
            ]
            if not nodes:
                return found
        return found + [node.here for node in nodes if node.here]
