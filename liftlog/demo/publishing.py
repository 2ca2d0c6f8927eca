"""The demo's publishers, and the check, record by record, that nothing is missing or changed. The
publishers use plain nats-py, and nothing of liftlog except `envelope`."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import nats.errors
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import PubAck
from nats.js.errors import APIError, NoStreamResponseError

import envelope

if TYPE_CHECKING:
    from liftlog.records.decode import Record

UNACKED = 100
IN_FLIGHT = 64
_ACK_SECONDS = 2.0
_MANY_ACKS_SECONDS = 60

SUBJECT = "orders.new"
MESSAGE_ID = "order-1001"
CORRELATION_ID = "call-7"

_MOST_NAMED = 10


async def acked_seconds(nc: NatsClient, subject: str, count: int, payload: bytes) -> float | None:
    """Publish `count` messages, all in flight, and return the seconds until all acks have arrived;
    None if they do not arrive in time."""
    left, done = count, asyncio.Event()

    async def on_ack(_: Msg) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done.set()

    inbox = nc.new_inbox()
    subscription = await nc.subscribe(inbox, cb=on_ack)
    started = time.monotonic()
    for _ in range(count):
        await nc.publish(subject, payload, reply=inbox)
    try:
        async with asyncio.timeout(_MANY_ACKS_SECONDS):
            await nc.flush()
            await done.wait()
    except TimeoutError:
        return None
    finally:
        await subscription.unsubscribe()
    return time.monotonic() - started


@dataclass(slots=True)
class Shown:
    """One row of the demo's table: the published message, the call, and the answer."""

    what: str
    call: str
    answer: str


@dataclass(slots=True)
class Introduction:
    """The answers to the first messages, and the records that must be found later."""

    shown: list[Shown] = field(default_factory=list)
    expected: list[Expected] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    message_id_offset: int = 0


async def introduce(nc: NatsClient) -> Introduction:
    """Publish one message of each kind."""
    story = Introduction()
    js = nc.jetstream()
    await _plain(nc, story)
    await _with_headers(nc, story)
    await _enveloped(nc, story)
    await _by_jetstream(js, story)
    await _refused(js, story)
    await _unacked(nc, story)
    return story


async def _plain(nc: NatsClient, story: Introduction) -> None:
    value = b"2 apples"
    reply = await nc.request(SUBJECT, value, timeout=_ACK_SECONDS)
    story.expected.append(Expected(_offset(reply.data), SUBJECT, value))
    story.shown.append(Shown("plain text", "nc.request()", reply.data.decode()))


async def _with_headers(nc: NatsClient, story: Introduction) -> None:
    value, headers = b"3 pears", {"Trace-Id": "4711", "Liftlog-Key": "customer-7"}
    reply = await nc.request(SUBJECT, value, timeout=_ACK_SECONDS, headers=headers)
    story.expected.append(
        Expected(_offset(reply.data), SUBJECT, value, b"customer-7", {"Trace-Id": "4711"})
    )
    story.shown.append(Shown("headers and a key", "nc.request()", reply.data.decode()))


async def _enveloped(nc: NatsClient, story: Introduction) -> None:
    """Publish without headers, with an envelope. The ack goes to a subject that the publisher
    chooses."""
    inbox = nc.new_inbox()
    acks = await nc.subscribe(inbox)
    data = envelope.encode(
        b"5 plums",
        key="customer-8",
        headers={"Trace-Id": "4712"},
        ack_subject=inbox,
        correlation_id=CORRELATION_ID,
    )
    await nc.publish(SUBJECT, data)
    ack = await acks.next_msg(timeout=_ACK_SECONDS)
    await acks.unsubscribe()
    story.expected.append(
        Expected(_offset(ack.data), SUBJECT, b"5 plums", b"customer-8", {"Trace-Id": "4712"})
    )
    if json.loads(ack.data).get("correlation_id") != CORRELATION_ID:
        story.problems.append("the ack of the envelope lacks its correlation id")
    story.shown.append(Shown("an envelope.encode()", "nc.publish()", ack.data.decode()))


async def _by_jetstream(js: JetStreamContext, story: Introduction) -> None:
    """Publish with JetStream's call and deduplication."""
    value, headers = b"8 cherries", {"Nats-Msg-Id": MESSAGE_ID}
    first = await js.publish(SUBJECT, value, headers=headers)
    again = await js.publish(SUBJECT, value, headers=headers)
    story.message_id_offset = first.seq
    story.expected.append(Expected(first.seq, SUBJECT, value, None, headers))
    story.shown.append(Shown(f"Nats-Msg-Id: {MESSAGE_ID}", "js.publish()", show_ack(first)))
    story.shown.append(Shown("the same again", "js.publish()", show_ack(again)))
    if not again.duplicate or again.seq != first.seq:
        story.problems.append(f"the same Nats-Msg-Id twice was answered {again}, not duplicate")


async def _refused(js: JetStreamContext, story: Introduction) -> None:
    """Show optimistic locking: this publisher has not received the newest message, so its message
    is refused."""
    stale = {"Nats-Expected-Last-Sequence": "1"}
    try:
        ack = await js.publish(SUBJECT, b"too late", headers=stale)
    except APIError as error:
        answer = f"{error.err_code} {error.description}"
        if error.err_code != 10071:
            story.problems.append(f"a stale precondition was answered {answer}")
    else:
        answer = show_ack(ack)
        story.problems.append("a message whose precondition fails was stored")
    story.shown.append(Shown("a stale precondition", "js.publish()", answer))


async def _unacked(nc: NatsClient, story: Introduction) -> None:
    """Publish without acks, as most core NATS publishers do; the last message of the series is
    acked."""
    for number in range(UNACKED):
        await nc.publish("orders.log", b"event %d" % number)
    closing = b"the last one"
    reply = await nc.request("orders.log", closing, timeout=_ACK_SECONDS)
    end = _offset(reply.data)
    story.expected += [
        Expected(end - UNACKED + number, "orders.log", b"event %d" % number)
        for number in range(UNACKED)
    ]
    story.expected.append(Expected(end, "orders.log", closing))
    story.shown.append(Shown(f"{UNACKED} without asking", "nc.publish()", ""))
    story.shown.append(Shown("one more, asking", "nc.request()", reply.data.decode()))


def show_ack(ack: PubAck) -> str:
    """Format the result of `js.publish()` without its unset fields."""
    duplicate = ", duplicate=True" if ack.duplicate else ""
    return f"PubAck(stream={ack.stream!r}, seq={ack.seq}{duplicate})"


def _offset(ack: bytes) -> int:
    return int(json.loads(ack)["seq"])


class Burst:
    """Publishes many messages by `js.publish()`, each with its own id, many in flight at a time."""

    def __init__(self, js: JetStreamContext, count: int) -> None:
        self.acked: dict[int, int] = {}  # offset of each message by its number
        self.unacked: set[int] = set()
        self.duplicates = 0
        self._js = js
        self._count = count

    @staticmethod
    def value(number: int) -> bytes:
        return b"burst order %d" % number

    @staticmethod
    def headers(number: int) -> dict[str, str]:
        return {"Nats-Msg-Id": f"burst-{number}"}

    def expected(self) -> list[Expected]:
        return [
            Expected(offset, SUBJECT, self.value(number), None, self.headers(number))
            for number, offset in self.acked.items()
        ]

    async def run(self, on_ack: Callable[[int], None]) -> None:
        """Publish until all messages are acked, or until a message gets no answer. `on_ack` is
        called with the number of acks."""
        numbers = iter(range(1, self._count + 1))
        stop = asyncio.Event()

        async def publisher() -> None:
            for number in numbers:
                if stop.is_set():
                    return
                if await self._publish(number):
                    on_ack(len(self.acked))
                else:
                    stop.set()

        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(publisher())

    async def publish_unacked_again(self) -> None:
        """Publish with the same ids, so that messages that are stored already are not stored
        twice."""
        for number in sorted(self.unacked):
            await self._publish(number)

    async def _publish(self, number: int) -> bool:
        try:
            ack = await self._js.publish(
                SUBJECT, self.value(number), timeout=_ACK_SECONDS, headers=self.headers(number)
            )
        except (nats.errors.Error, NoStreamResponseError, TimeoutError):
            self.unacked.add(number)
            return False
        self.unacked.discard(number)
        self.acked[number] = ack.seq
        self.duplicates += bool(ack.duplicate)
        return True


class Expected(NamedTuple):
    """A message that must be found unchanged, at this offset."""

    offset: int
    subject: str
    value: bytes | None
    key: bytes | None = None
    headers: Mapping[str, str] | None = None


def find_problems(expected: Iterable[Expected], records: Sequence[Record]) -> list[str]:
    """Describe missing and different records; empty if there are none."""
    found = {record.offset: record for record in records}
    problems = []
    for one in expected:
        record = found.get(one.offset)
        if record is None:
            problems.append(f"offset {one.offset} ({_shown(one.value)}) is missing")
            continue
        for name in ("subject", "value", "key"):
            wanted, got = getattr(one, name), getattr(record, name)
            if wanted != got:
                problems.append(f"offset {one.offset} has the {name} {got!r}, not {wanted!r}")
        headers = record.headers
        for name, text in (one.headers or {}).items():
            if headers.get(name) != text:
                got = headers.get(name)
                problems.append(f"offset {one.offset} has the header {name}: {got}, not {text}")
    return problems


def find_repeats(values: Iterable[bytes], records: Sequence[Record]) -> list[str]:
    """Return a text for each of `values` that was not stored exactly once."""
    counts = Counter(record.value for record in records)
    problems = []
    for value in values:
        count = counts[value]
        if count != 1:
            problems.append(f"{_shown(value)} was stored {count} times, not once")
    return problems


def find_disorder(records: Sequence[Record]) -> list[str]:
    """Return the places where offsets do not increase by one. The demo's streams have no compaction
    and no retention, so each such place shows a defect."""
    offsets = [record.offset for record in records]
    return [
        f"offset {after} follows {before}"
        for before, after in pairwise(offsets)
        if after != before + 1
    ]


def summarise(problems: Sequence[str]) -> list[str]:
    """Return the first few problems, and the number of others."""
    shown = list(problems[:_MOST_NAMED])
    if len(problems) > _MOST_NAMED:
        shown.append(f"... and {len(problems) - _MOST_NAMED} more")
    return shown


def _shown(value: bytes | None) -> str:
    return "a tombstone" if value is None else repr(value[:60].decode("utf-8", "replace"))
