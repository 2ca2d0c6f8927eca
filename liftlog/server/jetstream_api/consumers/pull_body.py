"""The body of a pull request: its fields, and the limits of its consumer. Pure.

The rules and the words of refusals are the same as in nats-server (consumer.go, nextReqFromMsg and
processNextMsgRequest), because clients compare the words.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

from liftlog.deliveries.statuses import go_duration
from liftlog.server.jetstream_api.answers import JetStreamError
from liftlog.server.jetstream_api.fields import flag, read_object, text, whole

MAX_BATCH = 100_000
_MAX_CACHED_BYTES = 256
_CACHED = 1024
_NUMBER = re.compile(rb"[+-]?[0-9]{1,18}")


class BadPull(Exception):
    """A pull that is refused. `words` is the status that the client gets, such as `400 Bad Request
    - heartbeat value too large`."""

    def __init__(self, words: bytes) -> None:
        super().__init__(words.decode("utf-8", "replace"))
        self.words = words


class Pull(NamedTuple):
    """The fields of one pull. In `max_bytes`, `expires_ns` and `heartbeat_ns`, 0 means that the
    field is not set."""

    batch: int = 1
    """Maximum number of messages to send, from 1 to `MAX_BATCH`."""
    max_bytes: int = 0
    no_wait: bool = False
    expires_ns: int = 0
    heartbeat_ns: int = 0
    group: str = ""
    """The priority group. The fields below this one apply only to some policies of priority
    groups."""
    pin_id: str = ""
    min_pending: int = 0
    min_ack_pending: int = 0
    priority: int = 0


class PullLimits(NamedTuple):
    """The limits of a consumer on one pull; 0 for no limit."""

    batch: int = 0
    max_bytes: int = 0
    expires_ns: int = 0


def parse_pull(payload: bytes) -> Pull:
    """Parse the body of a pull. The body is empty, a number of messages, or a JSON object. As in
    JetStream, any other text asks for one message. Raises BadPull."""
    if len(payload) <= _MAX_CACHED_BYTES:
        return _parse_cached(payload)
    return _parse(payload)


def _parse(payload: bytes) -> Pull:
    payload = payload.strip()
    if not payload.startswith(b"{"):
        batch = int(payload) if _NUMBER.fullmatch(payload) else 1
        return Pull(_within(batch))
    try:
        return _from_object(read_object(payload))
    except JetStreamError as error:
        raise BadPull(b"400 Bad Request - %b" % _one_line(error.description)) from None


# The results are cached, because clients send the same few bodies all the time.
_parse_cached = lru_cache(_CACHED)(_parse)


def _from_object(body: dict[str, Any]) -> Pull:
    expires_ns, heartbeat_ns = whole(body, "expires"), whole(body, "idle_heartbeat")
    if 2 * heartbeat_ns > expires_ns:
        raise BadPull(b"400 Bad Request - heartbeat value too large")
    return Pull(
        _within(whole(body, "batch", least=-(2**63))),
        whole(body, "max_bytes"),
        flag(body, "no_wait"),
        expires_ns,
        heartbeat_ns,
        text(body, "group"),
        text(body, "id"),
        whole(body, "min_pending", least=-(2**63)),
        whole(body, "min_ack_pending", least=-(2**63)),
        whole(body, "priority", least=-(2**63)),
    )


def _within(batch: int) -> int:
    return min(max(batch, 1), MAX_BATCH)


def _one_line(words: str) -> bytes:
    return " ".join(words.split()).encode("ascii", "replace")[:200]


def check_limits(pull: Pull, limits: PullLimits) -> None:
    """Raise BadPull if the pull exceeds a limit of the consumer."""
    if 0 < limits.batch < pull.batch:
        raise BadPull(b"409 Exceeded MaxRequestBatch of %d" % limits.batch)
    if 0 < limits.expires_ns < pull.expires_ns:
        shown = go_duration(limits.expires_ns).encode()
        raise BadPull(b"409 Exceeded MaxRequestExpires of %b" % shown)
    if 0 < limits.max_bytes < pull.max_bytes:
        raise BadPull(b"409 Exceeded MaxRequestMaxBytes of %d" % limits.max_bytes)


def check_without_priorities(pull: Pull) -> None:
    """Raise BadPull if the pull uses a field of priority groups, for a consumer without such
    groups."""
    if pull.min_pending or pull.min_ack_pending:
        raise BadPull(b"400 Bad Request - Not a Overflow Priority consumer")
    if pull.pin_id:
        raise BadPull(b"400 Bad Request - Not a Pinned Client Priority consumer")
    if not 0 <= pull.priority <= 9:
        raise BadPull(b"400 Bad Request - Priority must be between 0 and 9")
