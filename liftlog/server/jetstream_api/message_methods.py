"""STREAM.MSG.GET and DIRECT.GET: return single messages, and batches of them.

The answer to a direct get is the message itself, with headers that name its stream and sequence; an
error is a status in the headers. The answer to STREAM.MSG.GET is JSON.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from acl.rules import OVER_NATS
from acl.subjects import is_literal, matches, why_no_subject
from liftlog.errors import StreamNotFound
from liftlog.log.read.one_now import read_one_now
from liftlog.sequencing.destinations import Why
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.answers import (
    DIRECT_GET,
    PREAMBLE,
    JetStreamError,
    answer_text,
    bad_request,
    command,
    invalid_json,
    no_message,
    status,
    time_text,
    too_large_for_nats,
    without_statuses,
)
from liftlog.server.jetstream_api.consumers.deliveries import record_target
from liftlog.server.jetstream_api.fields import flag, read_object, text, whole
from liftlog.server.jetstream_api.lookups import (
    MAX_RESULTS,
    Found,
    Lookup,
    TooManyResults,
    open_lookup,
)
from liftlog.server.jetstream_api.methods import Answer, Request, answers, without

_BATCH_BYTES = 4 * 2**20
"""Maximum size of the answers to one request; the client requests the rest."""
_MSG_GET = "stream_msg_get"
_PIECE_BYTES = 128 * 1024
_EARLIEST_NS, _LATEST_NS = 0, 2**63 - 1


@dataclass(frozen=True, slots=True)
class Wish:
    """The fields of a request; a missing field is 0, empty or None."""

    seq: int
    last_for: str
    next_for: str
    start_ns: int | None
    batch: int
    max_bytes: int
    multi_last: Sequence[str]
    up_to_seq: int
    up_to_ns: int | None
    no_headers: bool

    @property
    def is_empty(self) -> bool:
        return not (
            self.seq
            or self.last_for
            or self.next_for
            or self.multi_last
            or self.start_ns is not None
        )

    @property
    def is_contradictory(self) -> bool:
        """Return True if the fields contradict each other, so that no message or batch can match
        them."""
        has_start = self.start_ns is not None
        return (
            (self.seq > 0 and has_start)
            or (bool(self.last_for) and (self.seq > 0 or has_start or self.batch > 0))
            or (bool(self.last_for) and bool(self.next_for))
            or (bool(self.multi_last) and bool(self.last_for or self.next_for))
            or (self.up_to_seq > 0 and self.up_to_ns is not None)
        )


def parse_wish(body: dict[str, Any]) -> Wish:
    """Parse the fields of a request. Unknown fields are ignored, as in JetStream. Raises
    JetStreamError."""
    patterns = body.get("multi_last") or []
    if not isinstance(patterns, list) or len(patterns) > MAX_RESULTS:
        raise invalid_json(f"multi_last: expected a list of at most {MAX_RESULTS} subjects")
    named = [text({"multi_last": one}, "multi_last") for one in patterns]
    wish = Wish(
        seq=whole(body, "seq"),
        last_for=text(body, "last_by_subj"),
        next_for=text(body, "next_by_subj"),
        start_ns=_time(body, "start_time"),
        batch=whole(body, "batch"),
        max_bytes=whole(body, "max_bytes"),
        multi_last=named,
        up_to_seq=whole(body, "up_to_seq"),
        up_to_ns=_time(body, "up_to_time"),
        no_headers=flag(body, "no_hdr"),
    )
    for pattern in (wish.last_for, wish.next_for, *named):
        if pattern and why_no_subject(pattern) is not None:
            raise bad_request("invalid subject")
    return wish


def _time(body: dict[str, Any], name: str) -> int | None:
    """Parse a time in RFC 3339 to ns since 1970. A time outside the 64-bit range becomes the
    nearest value in the range."""
    value = text(body, name)
    if not value:
        return None
    whole_part, point, rest = value.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))] if point else ""
    zone = rest[len(digits) :] if point else ""
    try:
        moment = datetime.fromisoformat(whole_part + zone)
        if moment.tzinfo is None:
            raise ValueError("no time zone")
        since = moment - datetime.fromisoformat("1970-01-01T00:00:00+00:00")
    except (ValueError, OverflowError):
        raise invalid_json(f"{name}: expected a time as in RFC 3339") from None
    seconds = since.days * 86_400 + since.seconds
    nanoseconds = seconds * 1_000_000_000 + int(digits[:9].ljust(9, "0") or 0)
    return max(_EARLIEST_NS, min(_LATEST_NS, nanoseconds))


# --- STREAM.MSG.GET ---


_is_by_sequence = without(b"by_subj", b"start_time", b"multi_last", b"batch")


def _last_for(request: Request) -> str | None:
    """Return the subject if the request asks only for the last record of that subject. Return None
    if the request has other fields."""
    body = read_object(request.payload)
    wanted = body.get("last_by_subj")
    return wanted if len(body) == 1 and isinstance(wanted, str) else None


def _last_now(request: Request, host: StreamHost, pattern: str | None) -> Found | None:
    """Return the last record of a subject. The record must be in memory, shown, and readable for
    the client; otherwise return None. Raises LiftlogError."""
    table = host.sequencer.subjects
    if not pattern or not is_literal(pattern) or table is None:
        return None
    if not request.may_read(request.stream):
        return None  # `perform` refuses the request, and writes one line to the audit log
    readable = request.parts.gate.readable_subjects(OVER_NATS, request.stream, peer="nats")
    if readable is not None and not any(matches(one, pattern) for one in readable):
        return None
    offset = table.last_committed(pattern.encode())
    record = read_one_now(host.log.view, host.log.environment, offset) if offset else None
    if record is None or record.subject != pattern:
        return None
    own = host.settings.jetstream
    if record.value is None and own is not None and own.max_msgs_per_subject is not None:
        return None
    return Found(record, without_statuses([record.raw_headers])[0])


def _command_now(request: Request, body: bytes, headers: bytes = b"") -> bytes | None:
    """Return the NATS command that sends a record; None if the record is too large, or must not be
    sent there."""
    limit = request.parts.max_payload_bytes()
    target = record_target(request.broker, request.parts.gate, request.reply)
    if isinstance(target, Why) or (limit and len(headers) + len(body) > limit):
        return None
    return command(target, body, headers)


def _get_now(request: Request) -> bytes | None:
    """Answer a get of the last record of a subject, if the record is in memory."""
    host = request.led_stream()
    found = _last_now(request, host, _last_for(request))
    if found is None:
        return None
    return _command_now(request, answer_text(_MSG_GET, _described(found, with_headers=True)))


def _described(found: Found, *, with_headers: bool) -> Answer:
    record = found.record
    message: dict[str, Any] = {
        "subject": record.subject,
        "seq": record.offset,
        "time": time_text(record.timestamp_ns),
    }
    if record.value:
        message["data"] = base64.b64encode(record.value).decode()
    if found.headers and with_headers:
        message["hdrs"] = base64.b64encode(found.headers).decode()
    return {"message": message}


@answers(
    "STREAM.MSG.GET",
    _MSG_GET,
    arguments=(1, 1),
    at_leader=True,
    is_cheap=_is_by_sequence,
    answer_now=_get_now,
)
async def _get(request: Request) -> Answer:
    host, lookup = open_lookup(request)
    wish = parse_wish(request.body())
    if wish.is_empty or wish.is_contradictory or wish.batch or wish.max_bytes or wish.multi_last:
        raise bad_request()
    request.record_target()
    found = await _one(lookup, wish)
    if found is None:
        raise no_message()
    _check_still_readable(request, host)
    return _described(found, with_headers=not wish.no_headers)


def _check_still_readable(request: Request, host: StreamHost) -> None:
    """Check the rights and the stream again after a search, because the ACL may have changed, or
    the stream may have been deleted. Raises LiftlogErrors."""
    request.authorize("read")
    if request.led_stream() is not host:
        raise no_message()


async def _one(lookup: Lookup, wish: Wish) -> Found | None:
    if wish.last_for:
        return await lookup.last(wish.last_for)
    seq = wish.seq
    if wish.start_ns is not None:
        seq = await lookup.offset_at(wish.start_ns)
    elif not wish.next_for:
        return await lookup.at(seq)
    subjects = (wish.next_for,) if wish.next_for else ()
    found, _ = await lookup.following(seq, subjects, 1, _PIECE_BYTES)
    return found[0] if found else None


# --- DIRECT.GET ---


class _Status(Exception):
    """An answer that consists only of a status. If the stream does not exist or does not allow
    direct gets, JetStream answers 503 without text, and clients check for exactly this answer. NATS
    itself sends it if a subject has no subscriber."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.block = status(code, words)


def _is_direct_cheap(arguments: Sequence[str], payload: bytes) -> bool:
    return len(arguments) == 1 and _is_by_sequence(arguments, payload)


def _direct_now(request: Request) -> bytes | None:
    """Answer a direct get of the last record of a subject, if the record is in memory."""
    host = request.led_stream()
    own = host.settings.jetstream
    pattern = ".".join(request.arguments[1:])
    if (own is not None and not own.allow_direct) or (pattern and request.payload.strip()):
        return None
    found = _last_now(request, host, pattern or _last_for(request))
    if found is None:
        return None
    return _command_now(request, found.record.value or b"", _headers(host.name, found, b""))


@answers(
    "DIRECT.GET",
    DIRECT_GET,
    arguments=(1, None),
    at_leader=True,
    is_cheap=_is_direct_cheap,
    answer_now=_direct_now,
)
async def _direct_get(request: Request) -> None:
    try:
        await _serve_direct(request)
        return
    except _Status as refusal:
        block = refusal.block
    except TooManyResults:
        block = status(413, "Too Many Results")
    await request.parts.send(lambda: command(request.target(), b"", block))


async def _serve_direct(request: Request) -> None:
    wish = _direct_wish(request)
    try:
        host, lookup = open_lookup(request)
    except StreamNotFound as error:
        raise _Status(503, "") from error
    own = host.settings.jetstream
    if own is not None and not own.allow_direct:
        raise _Status(503, "")
    if wish.multi_last:
        await _send_last_of_each(request, host, lookup, wish)
    elif wish.batch:
        await _send_batch(request, host, lookup, wish)
    else:
        found = await _one(lookup, wish)
        if found is None:
            raise _Status(404, "Message Not Found")
        _check_still_readable(request, host)
        await _send(request, host, wish, found, b"")


def _direct_wish(request: Request) -> Wish:
    key = ".".join(request.arguments[1:])
    if not request.payload.strip() and not key:
        raise _Status(408, "Empty Request")
    try:
        wish = parse_wish(read_object(request.payload) | ({"last_by_subj": key} if key else {}))
    except JetStreamError as error:
        raise _Status(408, "Malformed Request") from error
    if wish.is_empty:
        raise _Status(408, "Empty Request")
    if wish.is_contradictory or (key and (wish.up_to_seq or wish.up_to_ns is not None)):
        raise _Status(408, "Bad Request")
    return wish


def _headers(stream: str, found: Found, more: bytes) -> bytes:
    """Return the header block of the answer that carries this record."""
    record = found.record
    place = (
        f"Nats-Stream: {stream}\r\nNats-Subject: {record.subject}\r\n"
        f"Nats-Sequence: {record.offset}\r\n"
        f"Nats-Time-Stamp: {time_text(record.timestamp_ns)}\r\n"
    )
    # As in JetStream, these headers come last, because clients use the last value if a name occurs
    # twice. So a header from a publisher or a republished message cannot replace one of them.
    own = found.headers[:-2] if found.headers else PREAMBLE
    return b"%b%b%b\r\n" % (own, place.encode(), more)


async def _send(request: Request, host: StreamHost, wish: Wish, one: Found, more: bytes) -> None:
    """Send one record. Raises JetStreamError if the message is too large for NATS."""
    headers = b"" if wish.no_headers else _headers(host.name, one, more)
    value = one.record.value or b""
    limit = request.parts.max_payload_bytes()
    if limit and len(headers) + len(value) > limit:
        raise too_large_for_nats(limit)
    await request.parts.send(lambda: command(request.record_target(), value, headers))


async def _send_batch(request: Request, host: StreamHost, lookup: Lookup, wish: Wish) -> None:
    at = wish.seq if wish.start_ns is None else await lookup.offset_at(wish.start_ns)
    subjects = (wish.next_for,) if wish.next_for else ()
    pending = await lookup.count(at, subjects)
    most = min(wish.max_bytes or _BATCH_BYTES, _BATCH_BYTES)
    left, sent_bytes, last = wish.batch, 0, 0
    while left > 0 and sent_bytes < most:
        found, at = await lookup.following(at, subjects, left, _PIECE_BYTES)
        if not found:
            break
        _check_still_readable(request, host)
        for one in found:
            pending = max(0, pending - 1)
            await _send(request, host, wish, one, _progress(pending, last))
            last = one.record.offset
            left -= 1
            sent_bytes += _size_of(one)
            if sent_bytes >= most:
                break
    if not last:
        raise _Status(404, "Message Not Found")
    pending = await lookup.count(last + 1, subjects)
    end = b"NATS/1.0 204 EOB\r\n%b\r\n" % _progress(pending, last)
    await request.parts.send(lambda: command(request.target(), b"", end))


async def _send_last_of_each(
    request: Request, host: StreamHost, lookup: Lookup, wish: Wish
) -> None:
    end = host.log.high_watermark
    if wish.up_to_ns is not None:
        end = min(end, await lookup.offset_at(wish.up_to_ns))
        if end <= host.log.log_start_offset:
            raise _Status(404, "No Results")
    elif wish.up_to_seq:
        end = min(end, wish.up_to_seq + 1)
    offsets = await lookup.last_of_each(wish.multi_last, wish.seq, end)
    if not offsets:
        raise _Status(404, "No Results")
    if len(offsets) > MAX_RESULTS:
        raise TooManyResults
    most = min(wish.max_bytes or _BATCH_BYTES, _BATCH_BYTES)
    pending, sent_bytes, sent, last = len(offsets), 0, 0, 0
    for offset in offsets:
        found = await lookup.stored(offset)
        pending -= 1
        if found is None:  # retention has deleted the record
            continue
        _check_still_readable(request, host)
        await _send(request, host, wish, found, _progress(pending, last))
        last = offset
        sent += 1
        sent_bytes += _size_of(found)
        if sent_bytes >= most or (wish.batch and sent >= wish.batch):
            break
    up_to = b"Nats-UpTo-Sequence: %d\r\n" % (end - 1)
    line = b"NATS/1.0 204 EOB\r\n%b%b\r\n" % (_progress(pending, last), up_to)
    await request.parts.send(lambda: command(request.target(), b"", line))


def _progress(pending: int, last: int) -> bytes:
    return b"Nats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n" % (pending, last)


def _size_of(found: Found) -> int:
    record = found.record
    return len(record.subject) + len(found.headers) + len(record.value or b"")
