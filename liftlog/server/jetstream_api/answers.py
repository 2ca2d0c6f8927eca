"""Builds answers: JetStream's errors, times and JSON, and the NATS commands that carry them.

The codes come from nats-server's server/errors.json (2.15), because clients distinguish errors by
their codes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from liftlog.errors import (
    Conflict,
    CorruptRange,
    DiskFull,
    Forbidden,
    InvalidArgument,
    LiftlogError,
    LimitExceeded,
    OffsetOutOfRange,
    StreamNotFound,
)
from liftlog.sequencing.destinations import Destination

_TYPE_PREFIX = "io.nats.jetstream.api.v1."
_MAX_DESCRIPTION = 1024
PREAMBLE = b"NATS/1.0\r\n"
_NO_STATUS = (b"", PREAMBLE)
API_LEVEL = 2
"""The level of JetStream's API that is reported. Programs require level 1 before they pause
consumers, and level 2 before they create a consumer with a pinned client. The daemon lacks some
features of these levels, and refuses requests for them."""
ZERO_TIME = "0001-01-01T00:00:00Z"
"""The value that a Go program shows for an unset time."""


class JetStreamError(Exception):
    """A refusal, with JetStream's codes. `code` is like the status of an HTTP response."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(description)
        self.code = code
        self.err_code = err_code
        self.description = description[:_MAX_DESCRIPTION]

    def to_json(self) -> dict[str, Any]:
        return {"code": self.code, "err_code": self.err_code, "description": self.description}


def bad_request(why: str = "") -> JetStreamError:
    return JetStreamError(400, 10003, f"bad request: {why}" if why else "bad request")


def invalid_json(why: str) -> JetStreamError:
    return JetStreamError(400, 10025, f"invalid JSON: {why}")


def invalid_config(why: str) -> JetStreamError:
    return JetStreamError(500, 10052, why)


def stream_not_found() -> JetStreamError:
    return JetStreamError(404, 10059, "stream not found")


def no_message() -> JetStreamError:
    return JetStreamError(404, 10037, "no message found")


def unavailable(why: str) -> JetStreamError:
    return JetStreamError(503, 10008, f"JetStream system temporarily unavailable: {why}")


def too_large_for_nats(limit: int) -> JetStreamError:
    """Return the error for an answer above NATS's maximum size. JetStream does not need this error:
    it runs inside nats-server, and this daemon is only a client of nats-server."""
    return JetStreamError(
        400,
        10054,
        f"message size exceeds maximum allowed: the answer is larger than max_payload of NATS "
        f"({limit} bytes); read it with a consumer, or with liftlog's pull API",
    )


def too_many_requests() -> JetStreamError:
    return JetStreamError(429, 10167, "too many requests")


def from_liftlog(error: LiftlogError) -> JetStreamError:
    """Return the JetStream error whose meaning is closest to a liftlog error from another part of
    the daemon."""
    text = f"{error.message}; {error.hint}" if error.hint else error.message
    match error:
        case StreamNotFound():
            return stream_not_found()
        case Conflict():
            return JetStreamError(400, 10058, text)
        case InvalidArgument():
            return invalid_config(text)
        case Forbidden():
            return JetStreamError(403, 10003, f"{text}; see the section nats of the ACL")
        case LimitExceeded():
            return JetStreamError(429, 10167, text)
        case OffsetOutOfRange():
            return no_message()
        case CorruptRange():
            return JetStreamError(500, 10051, text)
        case DiskFull():
            return JetStreamError(500, 10047, text)
    if error.retriable:
        return unavailable(text)
    return JetStreamError(500, 10051, text)


# --- JSON ---


def to_text(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def answer_text(kind: str, body: Mapping[str, Any]) -> bytes:
    """Return the text of an answer. `kind` is a name such as `stream_info`."""
    return to_text({"type": f"{_TYPE_PREFIX}{kind}_response", **body})


DIRECT_GET = "direct_get"
"""The kind of the answers that are not JSON."""


def refusal(reply: Destination, kind: str, error: JetStreamError) -> bytes:
    """Return the NATS command that sends the error. The error of a direct get is a status in the
    headers; all other errors are JSON."""
    if kind == DIRECT_GET:
        return command(reply, b"", status(error.code, error.description))
    return command(reply, answer_text(kind, {"error": error.to_json()}))


def status(code: int, words: str) -> bytes:
    """Return a header block that contains only a status."""
    line = " ".join([str(code), *words.split()])[:200]
    return f"NATS/1.0 {line}\r\n\r\n".encode("ascii", "replace")


def without_statuses(blocks: list[bytes]) -> list[bytes]:
    """Return the header blocks of records without status lines. A publisher may have put a status
    line into its message. Clients would treat such a message as a message from the server."""
    if not any(blocks):
        return blocks
    return [one if one[:10] in _NO_STATUS else _without_status(one) for one in blocks]


def _without_status(block: bytes) -> bytes:
    rest = block.partition(b"\r\n")[2]
    return b"" if rest in (b"", b"\r\n") else PREAMBLE + rest


def time_text(ns: int) -> str:
    """Return a time in RFC 3339 with nanoseconds, in Go's format."""
    seconds, rest = divmod(ns, 1_000_000_000)
    try:
        text = _second_text(seconds)
    except (OverflowError, ValueError, OSError):
        return ZERO_TIME
    digits = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{text}{digits}Z"


@lru_cache(maxsize=64)
def _second_text(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def is_utf8(value: str) -> bool:
    """Return False if the text contains a lone surrogate. JSON can express a lone surrogate, but
    UTF-8 cannot encode it."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- NATS ---


def command(
    subject: Destination, body: bytes, headers: bytes = b"", *, reply: bytes = b""
) -> bytes:
    """Return a `PUB` command, or an `HPUB` command if there are headers."""
    target = b"%b %b" % (subject, reply) if reply else subject
    if not headers:
        return b"PUB %b %d\r\n%b\r\n" % (target, len(body), body)
    size = len(headers)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (target, size, size + len(body), headers, body)
