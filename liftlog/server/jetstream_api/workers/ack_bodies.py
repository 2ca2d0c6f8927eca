"""The body of an ack: it marks the message as done, or requests another delivery. Pure.

The rules are the same as in nats-server (consumer.go, processAck and processNak):

    (empty), +ACK, +OK                       done
    -NAK, with a duration or {"delay": ns}   deliver it again, now or later
    +WPI                                     the worker is still processing it
    +TERM, with a reason                     done without success
    +NXT, with the body of a pull            done, and a pull

Any other body has no effect, but its sender gets an answer.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from liftlog.deliveries.acks import AckKind
from liftlog.deliveries.settings import MAX_WAIT_NS
from liftlog.server.jetstream_api.answers import JetStreamError
from liftlog.server.jetstream_api.consumers.durations import parse_duration
from liftlog.server.jetstream_api.fields import read_object, whole

PLAIN = (b"+ACK", b"", b"+OK")
"""The bodies of a plain ack, the most frequent first."""
_NAK, _PROGRESS, _TERM, _NEXT = b"-NAK", b"+WPI", b"+TERM", b"+NXT"
_MAX_REASON = 1024
_MAX_CACHED_BYTES = 128
_CACHED = 1024


class AckBody(NamedTuple):
    kind: AckKind | None
    """The kind of the ack; None if the ack has no effect."""
    delay_ns: int = 0
    """Delay of a NAK, at most MAX_WAIT_NS; 0 for no delay."""
    reason: str = ""
    """Reason of a TERM, at most 1,024 characters."""
    pull: bytes | None = None
    """The body of the pull that follows the ack; None if there is no pull."""


def parse_ack_body(body: bytes) -> AckBody:
    return _parse_cached(body) if len(body) <= _MAX_CACHED_BYTES else _parse(body)


def _parse(body: bytes) -> AckBody:
    if body in PLAIN:
        return AckBody(AckKind.ACK)
    if body == _PROGRESS:
        return AckBody(AckKind.PROGRESS)
    if body.startswith(_NEXT):
        return AckBody(AckKind.ACK, pull=body.removeprefix(_NEXT))
    if body.startswith(_NAK):
        return AckBody(AckKind.NAK, _delay_ns(body.removeprefix(_NAK).strip()))
    if body.startswith(_TERM):
        text = body.removeprefix(_TERM)[: 4 * _MAX_REASON].decode("utf-8", "replace")
        return AckBody(AckKind.TERM, reason=text.strip()[:_MAX_REASON])
    return AckBody(None)


# Workers send the same few bodies again and again.
_parse_cached = lru_cache(_CACHED)(_parse)


def _delay_ns(text: bytes) -> int:
    """Return the delay of a NAK. As in JetStream, an invalid text means no delay."""
    try:
        if text.startswith(b"{"):
            delay_ns = whole(read_object(text), "delay")
        else:
            delay_ns = parse_duration(text.decode()) if text else 0
    except (ValueError, JetStreamError):
        return 0
    return min(max(delay_ns, 0), MAX_WAIT_NS)
