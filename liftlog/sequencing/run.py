"""Messages as columns, in the order in which NATS delivers them. All later steps work by column."""

from __future__ import annotations

from collections.abc import Sequence

MESSAGE_OVERHEAD_BYTES = 256
"""Memory, in bytes, of a message in addition to its payload and headers: subjects, objects, its
answer. Without this number, a flood of empty messages would count as zero bytes."""


class MessageRun:
    """Consecutive messages of one subscription, in the order in which NATS delivered them.

    `replies` contains b"" for a message without a reply subject. `headers` is None if no message
    has headers. Otherwise it contains one raw block per message, b"" for a message without headers.
    If a payload is an envelope, `has_cookie` is true; it may also be true if no payload is an
    envelope.
    """

    __slots__ = (
        "has_cookie",
        "headers",
        "memory_bytes",
        "payloads",
        "replies",
        "size_bytes",
        "subjects",
    )

    def __init__(
        self,
        subjects: Sequence[bytes],
        replies: Sequence[bytes],
        payloads: Sequence[bytes],
        headers: Sequence[bytes] | None = None,
        *,
        has_cookie: bool = True,
    ) -> None:
        self.subjects = subjects
        self.replies = replies
        self.payloads = payloads
        self.headers = headers
        self.has_cookie = has_cookie
        self.size_bytes = sum(map(len, payloads))
        if headers is not None:
            self.size_bytes += sum(map(len, headers))
        self.memory_bytes = self.size_bytes + MESSAGE_OVERHEAD_BYTES * len(payloads)
        """Approximate memory that the run takes until it is committed."""

    def __len__(self) -> int:
        return len(self.payloads)
