"""Advisories about consumers, in JetStream's form, on `$JS.EVENT.ADVISORY.CONSUMER.>`.

They are for monitoring, and for programs that copy what was delivered too often. One is sent only
if its subject has a subscriber, at most 1,000 a second, and only while the server takes them: they
never delay deliveries. What is left out is counted. So a program cannot rely on them; a consumer
keeps the offsets of its exhausted messages for that.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

from liftlog.sequencing.destinations import own_subject
from liftlog.server.jetstream_api.answers import ZERO_TIME, time_text, to_text
from liftlog.server.jetstream_api.consumers.leaf_frames import leaf_message

MOST_PER_SECOND = 1000
_SECOND_NS = 1_000_000_000
_FULL = MOST_PER_SECOND * _SECOND_NS
_SUBJECT = "$JS.EVENT.ADVISORY.CONSUMER."
_TYPE = "io.nats.jetstream.advisory.v1."


class Sender(Protocol):
    """The leaf node connection."""

    def has_interest(self, subject: bytes) -> bool: ...

    def queues(self, subject: bytes) -> bytes: ...

    def offer(self, commands: bytes) -> bool:
        """Send without waiting. Returns False if that is not possible now."""
        ...


class AdvisoryKind(Enum):
    """The token of the subject, and the end of the type."""

    MAX_DELIVERIES = "MAX_DELIVERIES", "max_deliver"
    TERMINATED = "MSG_TERMINATED", "terminated"
    NAKED = "MSG_NAKED", "nak"
    CREATED = "CREATED", "consumer_action"
    DELETED = "DELETED", "consumer_action"
    PAUSE = "PAUSE", "consumer_pause"


class OneMessage(NamedTuple):
    """A message in an advisory."""

    offset: int
    sequence: int
    """Sequence of the consumer; it is not in MAX_DELIVERIES."""
    deliveries: int
    reason: str = ""
    """That of TERMINATED."""


class Advisories:
    """Belongs to one event loop."""

    def __init__(
        self,
        sender: Sender,
        now_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._sender = sender
        self._now_ns = now_ns
        self._monotonic_ns = monotonic_ns
        self._room = _FULL
        """Room for advisories, each of which takes `_SECOND_NS`."""
        self._refilled_ns = monotonic_ns()
        self.sent: Counter[AdvisoryKind] = Counter()
        self.left_out: Counter[AdvisoryKind] = Counter()
        """Those that had a subscriber, but no room."""

    # --- kinds ---

    def about_messages(
        self, kind: AdvisoryKind, stream: str, consumer: str, messages: Sequence[OneMessage]
    ) -> None:
        """Send MAX_DELIVERIES, TERMINATED or NAKED, one per message."""
        self._send(kind, stream, consumer, (_fields(kind, one) for one in messages), len(messages))

    def created(self, stream: str, consumer: str) -> None:
        self._send(AdvisoryKind.CREATED, stream, consumer, [{"action": "create"}], 1)

    def deleted(self, stream: str, consumer: str) -> None:
        self._send(AdvisoryKind.DELETED, stream, consumer, [{"action": "delete"}], 1)

    def paused(self, stream: str, consumer: str, until_ns: int) -> None:
        """Send PAUSE, also for the end of a pause. `until_ns` is the end in ns since 1970; 0 if the
        consumer has no pause any more."""
        fields = {
            "paused": self._now_ns() < until_ns,
            "pause_until": time_text(until_ns) if until_ns else ZERO_TIME,
        }
        self._send(AdvisoryKind.PAUSE, stream, consumer, [fields], 1)

    # --- sending ---

    def _send(
        self,
        kind: AdvisoryKind,
        stream: str,
        consumer: str,
        bodies: Iterable[dict[str, Any]],
        count: int,
    ) -> None:
        token, type_ = kind.value
        subject = own_subject(f"{_SUBJECT}{token}.{stream}.{consumer}".encode())
        if not count or not self._sender.has_interest(subject):
            return
        room = self._refill()
        queues, now = self._sender.queues(subject), time_text(self._now_ns())
        commands: list[bytes] = []
        for body in bodies:
            if len(commands) >= room:
                break
            head = {"type": _TYPE + type_, "id": secrets.token_hex(11), "timestamp": now}
            text = to_text({**head, "stream": stream, "consumer": consumer, **body})
            commands.append(leaf_message(subject, b"", b"", text, queues))
        sent = len(commands)
        if commands and not self._sender.offer(b"".join(commands)):
            sent = 0
        self._room -= sent * _SECOND_NS
        self.sent[kind] += sent
        self.left_out[kind] += count - sent

    def _refill(self) -> int:
        """Return how many may be sent now."""
        now = self._monotonic_ns()
        self._room = min(self._room + (now - self._refilled_ns) * MOST_PER_SECOND, _FULL)
        self._refilled_ns = now
        return self._room // _SECOND_NS


def _fields(kind: AdvisoryKind, message: OneMessage) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if kind is not AdvisoryKind.MAX_DELIVERIES:
        fields["consumer_seq"] = message.sequence
    fields["stream_seq"] = message.offset
    fields["deliveries"] = message.deliveries
    if message.reason:
        fields["reason"] = message.reason
    return fields
