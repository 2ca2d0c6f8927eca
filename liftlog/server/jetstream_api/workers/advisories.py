"""Advisories about consumers, in JetStream's form, on `$JS.EVENT.ADVISORY.CONSUMER.>`.

Advisories are for monitoring, and for programs that copy messages which have reached `max_deliver`.
An advisory is sent only if its subject has a subscriber and the server accepts it without waiting.
At most 1,000 advisories are sent per second. So advisories never delay deliveries, but programs
cannot rely on them. The daemon counts the advisories that it does not send. In addition, the state
of a consumer keeps the offsets of its newest exhausted messages.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple, Protocol

from liftlog.deliveries.instructions import Advisory, AdvisoryKind
from liftlog.sequencing.destinations import own_subject
from liftlog.server.jetstream_api.answers import ZERO_TIME, time_text, to_text
from liftlog.server.jetstream_api.consumers.leaf_frames import leaf_message

MOST_PER_SECOND = 1000
_SECOND_NS = 1_000_000_000
_FULL = MOST_PER_SECOND * _SECOND_NS
_SUBJECT = "$JS.EVENT.ADVISORY.CONSUMER."
_TYPE = "io.nats.jetstream.advisory.v1."
_ACTION = "consumer_action"
_METRIC = "$JS.EVENT.METRIC.CONSUMER."
_ACK_METRIC = "io.nats.jetstream.metric.v1.consumer_ack"
_TOKENS = {
    AdvisoryKind.MAX_DELIVERIES: "MAX_DELIVERIES",
    AdvisoryKind.TERMINATED: "MSG_TERMINATED",
    AdvisoryKind.NAK: "MSG_NAKED",
}


class Sample(NamedTuple):
    """An ack about which a metric is published. `ack_ns` is the time since the delivery."""

    sequence: int
    offset: int
    ack_ns: int
    deliveries: int


class Sender(Protocol):
    """The methods of the leaf node connection that advisories use."""

    def has_interest(self, subject: bytes) -> bool: ...

    def queues(self, subject: bytes) -> bytes: ...

    def offer(self, commands: bytes) -> bool:
        """Send without waiting. Returns False if the message cannot be sent now."""
        ...


class Advisories:
    """Sends advisories, and counts them. Belongs to one event loop."""

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
        """Credit for advisories. Each advisory takes `_SECOND_NS` from the credit."""
        self._refilled_ns = monotonic_ns()
        self.sent: Counter[str] = Counter()
        """Number of sent advisories by kind, which is a token of the subject."""
        self.left_out: Counter[str] = Counter()
        """Number of advisories with a subscriber that were not sent, by kind."""

    # --- kinds ---

    def about_messages(self, stream: str, consumer: str, advisory: Advisory) -> None:
        """Send the advisories of a consumer's turn, one per message."""
        kind = advisory.kind
        bodies = _bodies(advisory)
        self._send(_TOKENS[kind], kind.value, stream, consumer, bodies, len(advisory.offsets))

    def created(self, stream: str, consumer: str) -> None:
        self._send("CREATED", _ACTION, stream, consumer, [{"action": "create"}], 1)

    def deleted(self, stream: str, consumer: str) -> None:
        self._send("DELETED", _ACTION, stream, consumer, [{"action": "delete"}], 1)

    def paused(self, stream: str, consumer: str, until_ns: int) -> None:
        """Send the advisory PAUSE, at the beginning or at the end of a pause. `until_ns` is the end
        of the pause in ns since 1970; 0 if the consumer is not paused."""
        fields = {
            "paused": self._now_ns() < until_ns,
            "pause_until": time_text(until_ns) if until_ns else ZERO_TIME,
        }
        self._send("PAUSE", "consumer_pause", stream, consumer, [fields], 1)

    def pinned(self, stream: str, consumer: str, group: str, pin: str) -> None:
        """Send PINNED: the client with the id `pin` gets the messages of a group."""
        fields = {"group": group, "pinned_id": pin}
        self._send("PINNED", "consumer_group_pinned", stream, consumer, [fields], 1)

    def unpinned(self, stream: str, consumer: str, group: str, reason: str) -> None:
        fields = {"group": group, "reason": reason}
        self._send("UNPINNED", "consumer_group_unpinned", stream, consumer, [fields], 1)

    def wants_samples(self, stream: str, consumer: str) -> bool:
        """Return True if anybody subscribes to the metrics of acks."""
        return self._sender.has_interest(f"{_METRIC}ACK.{stream}.{consumer}".encode())

    def acked(self, stream: str, consumer: str, samples: Sequence[Sample]) -> None:
        """Send a metric about each of these acks."""
        bodies = (
            {
                "consumer_seq": one.sequence,
                "stream_seq": one.offset,
                "ack_time": one.ack_ns,
                "deliveries": one.deliveries,
            }
            for one in samples
        )
        self._send("ACK", _ACK_METRIC, stream, consumer, bodies, len(samples), _METRIC)

    # --- sending ---

    def _send(
        self,
        token: str,
        type_: str,
        stream: str,
        consumer: str,
        bodies: Iterable[dict[str, Any]],
        count: int,
        prefix: str = _SUBJECT,
    ) -> None:
        subject = own_subject(f"{prefix}{token}.{stream}.{consumer}".encode())
        if not count or not self._sender.has_interest(subject):
            return
        room = self._refill()
        queues, now = self._sender.queues(subject), time_text(self._now_ns())
        commands: list[bytes] = []
        for body in bodies:
            if len(commands) >= room:
                break
            head = {
                "type": type_ if "." in type_ else _TYPE + type_,
                "id": secrets.token_hex(11),
                "timestamp": now,
            }
            text = to_text({**head, "stream": stream, "consumer": consumer, **body})
            commands.append(leaf_message(subject, b"", b"", text, queues))
        sent = len(commands)
        if commands and not self._sender.offer(b"".join(commands)):
            sent = 0
        self._room -= sent * _SECOND_NS
        self.sent[token] += sent
        self.left_out[token] += count - sent

    def _refill(self) -> int:
        """Return the number of advisories that may be sent now."""
        now = self._monotonic_ns()
        self._room = min(self._room + (now - self._refilled_ns) * MOST_PER_SECOND, _FULL)
        self._refilled_ns = now
        return self._room // _SECOND_NS


def _bodies(advisory: Advisory) -> Iterator[dict[str, Any]]:
    """Yield the fields about each message."""
    with_sequence = advisory.kind is not AdvisoryKind.MAX_DELIVERIES
    columns = advisory.offsets.tolist(), advisory.sequences.tolist(), advisory.counts.tolist()
    reasons = chain(advisory.reasons, repeat(""))
    for offset, sequence, count, reason in zip(*columns, reasons, strict=False):
        fields: dict[str, Any] = {"consumer_seq": sequence} if with_sequence else {}
        fields |= {"stream_seq": offset, "deliveries": count}
        if reason:
            fields["reason"] = reason
        yield fields
