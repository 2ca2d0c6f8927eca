"""Deltas as bytes: the changes of one turn of one consumer.

A delta consists of a version and the changes in order. Each change is a tag and its fields (see
`wire` for numbers and columns). The journal adds a checksum, the consumer's name and the state
version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from liftlog.deliveries import changes
from liftlog.deliveries.columns import Ints
from liftlog.deliveries.settings import (
    MAX_BACKOFFS,
    MAX_WAITING,
    AckPolicy,
    PriorityPolicy,
    Settings,
)
from liftlog.deliveries.state import ConsumerState
from liftlog.deliveries.wire import MAX_OFFSET, MAX_TIME_NS, Reader, Writer
from liftlog.errors import CorruptState, NewerFormat

VERSION = 1
MAX_NUMBERS = 4_000_000
"""Maximum number of values in all columns of a delta."""
MAX_REPLY_BYTES = 4096
MAX_GROUPS = 16


def encode_delta(done: Sequence[changes.Change]) -> bytes:
    """Return the changes as bytes; empty if there are none."""
    if not done:
        return b""
    writer = Writer(VERSION)
    for change in done:
        tag, encode, _ = _BY_TYPE[type(change)]
        writer.number(tag)
        encode(writer, change)
    return writer.done()


def decode_delta(delta: bytes) -> list[changes.Change]:
    """Decode a delta. Raises NewerFormat for an unknown version or change, CorruptState for invalid
    bytes."""
    if not delta:
        return []
    reader = Reader(delta, MAX_NUMBERS)
    check_version(reader.byte(), VERSION)
    found = []
    while not reader.is_at_end:
        tag = reader.number()
        if tag >= len(_CODECS):
            raise NewerFormat(f"a change of a consumer has the unknown tag {tag}")
        found.append(_CODECS[tag][2](reader))
    return found


def apply_delta(state: ConsumerState, delta: bytes) -> None:
    """Apply the changes of a turn to a state. Raises the errors of `decode_delta`, and CorruptState
    if the changes do not fit the state; the state is then unusable.
    """
    for change in decode_delta(delta):
        state.apply(change)


def check_version(found: int, newest: int) -> None:
    if not found:
        raise CorruptState("version 0 does not exist")
    if found > newest:
        raise NewerFormat(f"the state of a consumer has version {found}; expected {newest}")


# --- fields ----------------------------------------------------------------------


def write_settings(writer: Writer, settings: Settings) -> None:
    writer.number(settings.ack_policy)
    writer.number(settings.is_push)
    writer.number(settings.priority_policy)
    writer.number(len(settings.priority_groups))
    for group in settings.priority_groups:
        writer.raw(group.encode())
    writer.number(len(settings.backoff_ns))
    for value in (*settings.backoff_ns, *(getattr(settings, name) for name in _LIMITS)):
        writer.signed(value)


def read_settings(reader: Reader) -> Settings:
    policy = AckPolicy(reader.number(max(AckPolicy)))
    is_push = bool(reader.number(1))
    priority = PriorityPolicy(reader.number(max(PriorityPolicy)))
    groups = tuple([reader.text() for _ in range(reader.number(MAX_GROUPS))])
    backoff = tuple([reader.signed() for _ in range(reader.number(MAX_BACKOFFS))])
    limits = {name: reader.signed() for name in _LIMITS}
    try:
        return Settings(
            policy,
            backoff_ns=backoff,
            is_push=is_push,
            priority_policy=priority,
            priority_groups=groups,
            **limits,
        )
    except ValueError as error:
        raise CorruptState(f"settings of a consumer: {error}") from error


_LIMITS = (
    "ack_wait_ns",
    "max_deliver",
    "max_ack_pending",
    "max_waiting",
    "max_request_batch",
    "max_request_expires_ns",
    "max_request_bytes",
    "pause_until_ns",
    "ack_prefix_bytes",
    "pinned_ttl_ns",
)


def write_pull(writer: Writer, pull: changes.StoredPull) -> None:
    writer.raw(pull.reply)
    for value in (pull.number, pull.left, pull.left_bytes, pull.expires_at_ns):
        writer.number(value)


def read_pull(reader: Reader) -> changes.StoredPull:
    reply = read_reply(reader)
    number, left, left_bytes, expires_at_ns = [reader.number() for _ in range(4)]
    return changes.StoredPull(number, reply, left, left_bytes, expires_at_ns)


def write_inbox(writer: Writer, inbox: changes.InboxUsed) -> None:
    writer.raw(inbox.reply)
    for name in _INBOX_NUMBERS:
        writer.number(getattr(inbox, name))


def read_inbox(reader: Reader) -> changes.InboxUsed:
    reply = read_reply(reader)
    numbers = {name: reader.number() for name in _INBOX_NUMBERS}
    if not reply or not numbers["batch"]:
        raise CorruptState("an inbox without a reply subject or a pull")
    return changes.InboxUsed(reply, **numbers)


_INBOX_NUMBERS = ("window", "window_bytes", "batch", "pulled_ns", "gap_ns")


def read_reply(reader: Reader) -> bytes:
    reply = reader.raw()
    if len(reply) > MAX_REPLY_BYTES:
        raise CorruptState(f"a reply subject of {len(reply)} bytes")
    return reply


def read_offsets(reader: Reader) -> Ints:
    """Read a column of offsets. Raises CorruptState if the column is empty or repeats an offset."""
    offsets = reader.column()
    if not len(offsets):
        raise CorruptState("a change without offsets")
    is_rising = _is_rising(offsets)
    least, most = (offsets[0], offsets[-1]) if is_rising else (offsets.min(), offsets.max())
    if least < 0 or most > MAX_OFFSET:
        raise CorruptState("a change with impossible offsets")
    if not is_rising and len(np.unique(offsets)) < len(offsets):
        raise CorruptState("a change names an offset twice")
    return offsets


def _is_rising(numbers: Ints) -> bool:
    return bool((numbers[1:] > numbers[:-1]).all())


# --- changes ---------------------------------------------------------------------


def _write_delivered(writer: Writer, change: changes.Delivered) -> None:
    writer.rising(change.offsets)
    writer.number(change.now_ns)
    writer.signed(change.now_ns - change.oldest_ns)
    writer.number(change.newest_ns - change.oldest_ns)


def _read_delivered(reader: Reader) -> changes.Delivered:
    offsets, now_ns = read_offsets(reader), reader.number(MAX_TIME_NS)
    oldest_ns = now_ns - reader.signed()
    newest_ns = oldest_ns + reader.number()
    if not _is_rising(offsets):
        raise CorruptState("first deliveries are not in offset order")
    if oldest_ns < -(2**63) or newest_ns >= 2**63:
        raise CorruptState("stamps of a delivery are out of range")
    return changes.Delivered(offsets, now_ns, oldest_ns, newest_ns)


def _write_delayed(writer: Writer, change: changes.Delayed) -> None:
    writer.column(change.offsets)
    writer.column(change.until_ns)


def _read_delayed(reader: Reader) -> changes.Delayed:
    offsets, until_ns = read_offsets(reader), reader.column()
    if len(offsets) != len(until_ns) or int(until_ns.max()) > MAX_TIME_NS:
        raise CorruptState("delays of other messages")
    return changes.Delayed(offsets, until_ns)


def _write_pulls(writer: Writer, change: changes.PullsChanged) -> None:
    writer.number(len(change.waiting))
    for pull in change.waiting:
        write_pull(writer, pull)
    writer.column(np.array(change.ended, np.int64))


def _read_pulls(reader: Reader) -> changes.PullsChanged:
    waiting = tuple([read_pull(reader) for _ in range(reader.number(MAX_WAITING))])
    return changes.PullsChanged(waiting, tuple(reader.column(MAX_WAITING).tolist()))


def _write_at(writer: Writer, change: Any) -> None:
    writer.column(change.offsets)
    writer.number(change.now_ns)


def _write_offsets(writer: Writer, change: Any) -> None:
    writer.column(change.offsets)


def _write_advanced(writer: Writer, change: changes.Advanced) -> None:
    writer.number(change.next_offset)
    writer.number(change.epoch)


_Codec = tuple[type[Any], Callable[[Writer, Any], None], Callable[[Reader], Any]]

_CODECS: tuple[_Codec, ...] = (
    (changes.Delivered, _write_delivered, _read_delivered),
    (
        changes.Redelivered,
        _write_at,
        lambda reader: changes.Redelivered(read_offsets(reader), reader.number(MAX_TIME_NS)),
    ),
    (
        changes.Advanced,
        _write_advanced,
        lambda reader: changes.Advanced(reader.number(MAX_OFFSET), reader.number()),
    ),
    (
        changes.Done,
        lambda writer, change: writer.rising(change.offsets),
        lambda reader: changes.Done(read_offsets(reader)),
    ),
    (
        changes.DoneBelow,
        lambda writer, change: writer.number(change.end),
        lambda reader: changes.DoneBelow(reader.number(MAX_OFFSET)),
    ),
    (changes.Exhausted, _write_offsets, lambda reader: changes.Exhausted(read_offsets(reader))),
    (changes.Queued, _write_offsets, lambda reader: changes.Queued(read_offsets(reader))),
    (changes.Delayed, _write_delayed, _read_delayed),
    (
        changes.Progressed,
        _write_at,
        lambda reader: changes.Progressed(read_offsets(reader), reader.number(MAX_TIME_NS)),
    ),
    (
        changes.LogStarted,
        lambda writer, change: writer.number(change.offset),
        lambda reader: changes.LogStarted(reader.number(MAX_OFFSET)),
    ),
    (
        changes.LogTruncated,
        lambda writer, change: writer.number(change.end),
        lambda reader: changes.LogTruncated(reader.number(MAX_OFFSET)),
    ),
    (
        changes.Updated,
        lambda writer, change: write_settings(writer, change.settings),
        lambda reader: changes.Updated(read_settings(reader)),
    ),
    (
        changes.TakenOver,
        lambda writer, change: writer.number(change.now_ns),
        lambda reader: changes.TakenOver(reader.number(MAX_TIME_NS)),
    ),
    (changes.PullsChanged, _write_pulls, _read_pulls),
    (changes.InboxUsed, write_inbox, read_inbox),
)
"""The index of a change is its tag on disk, so add new changes at the end."""

_BY_TYPE = {codec[0]: (tag, codec[1], codec[2]) for tag, codec in enumerate(_CODECS)}
