"""The connection on which acks and pulls of workers arrive.

It is separate from the other connections to NATS. So messages for streams do not wait behind acks,
and acks do not wait behind requests. The node that leads a stream subscribes to two subjects for
all consumers of the stream:

    $JS.ACK.<stream>.>                          acks
    $JS.API.CONSUMER.MSG.NEXT.<stream>.*        pulls

Acks and pulls are lost if they arrive while there is no connection. No message is lost: a message
without an ack is delivered again, and clients repeat pulls.

One read can bring thousands of acks and pulls. They are parsed and passed on in parts, for a short
time in each turn of the event loop. While parts remain, the connection is not read. So publishers
do not wait for their acks until a flood of workers' messages is processed.

The acks of a client often arrive in several reads, and the client's next pull arrives in the last
of these reads. This module processes them with few turns:

- Acks that no client waits for are kept for a few milliseconds, and parsed together with later
  acks.
- If a pull can be answered before the acks of the same read, it is passed on alone. The acks follow
  in the next turn of the event loop.
- Acks that no client waits for cause no turn of their consumer for some milliseconds
  (`Rounds.ready_later`), because the client's next pull usually causes a turn earlier.

So a client that pulls and acks all the time costs one turn per pull.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from typing import NamedTuple, Protocol

from liftlog.errors import NatsRefused, NatsUnavailable
from liftlog.sequencing.run import MessageRun
from liftlog.server.ingest.nats_link import NatsLink
from liftlog.server.ingest.subscriptions import LinkSubscription
from liftlog.server.jetstream_api.workers import acks as ack_columns
from liftlog.server.jetstream_api.workers import pulls as pull_parsing
from liftlog.server.jetstream_api.workers.ack_bodies import PLAIN
from liftlog.server.jetstream_api.workers.acks import AckParser, WorkerAcks
from liftlog.server.jetstream_api.workers.pulls import PullParser, WorkerPull, request_of
from liftlog.server.vitals.rare_warnings import RareWarnings
from liftlog.settings import NatsSettings

logger = logging.getLogger("liftlog.server.jetstream_api")

_TURN_SECONDS = 0.002
"""Time limit, in seconds, in each turn of the event loop. When it is reached, the remaining parts
wait for the next turn."""
_MOST_ACKS, _MOST_PULLS = 512, 64
"""Maximum numbers of acks and pulls in one part."""
_RETRY_SECONDS = 0.02
WAIT_SECONDS = 0.005
"""Time, in seconds, for which acks may wait for later acks."""


class Arrived(NamedTuple):
    """Acks and pulls for one stream, from one read of the connection. The acks are processed first,
    because they make room for the messages that the pulls request."""

    stream: str
    acks: list[WorkerAcks]
    pulls: list[WorkerPull]
    answers: list[bytes]
    """Reply subjects of acks that have no effect, but whose clients want an empty answer."""


class Urgency(Protocol):
    """Decides which acks and pulls are urgent."""

    def can_wait(self, stream: str, consumer: bytes) -> bool:
        """Return True if acks of this consumer can wait for a moment."""
        ...

    def precedes(self, stream: str, pull: WorkerPull, acks: int) -> bool:
        """Return True if a pull can be passed on before a number of acks that came with it."""
        ...


@dataclass(slots=True)
class WorkerCounters:
    """Counters since the start of the process."""

    acks: int = 0
    pulls: int = 0
    not_parsed: int = 0
    """Messages on these subjects that are neither acks nor pulls."""
    gaps: int = 0
    """Number of times that acks and pulls of a stream may have been lost."""


@dataclass(slots=True, eq=False)
class _Led:
    """A stream that this node leads, with its acks and pulls in the present read."""

    stream: str
    ack_parser: AckParser
    pull_parser: PullParser
    subscribed_at: float
    """Monotonic time of the subscription. Nothing for the stream can have arrived earlier."""
    subscriptions: list[LinkSubscription] = field(default_factory=list)
    acks: list[MessageRun] = field(default_factory=list)
    pulls: list[MessageRun] = field(default_factory=list)

    def can_wait(self, urgency: Urgency) -> bool:
        """Return True if only acks of one consumer have arrived, and these acks can wait."""
        if self.pulls or sum(map(len, self.acks)) >= _MOST_ACKS:
            return False
        last = self.acks[-1]
        head = self.ack_parser.head_of(last.subjects[0])
        return (
            not any(last.replies)
            and all(map(bytes.startswith, last.subjects, repeat(head)))
            and urgency.can_wait(self.stream, head[len(self.ack_parser.prefix) : -1])
        )

    def take_parts(self) -> Iterator[_Part]:
        """Yield the acks and pulls that have arrived, in parts."""
        acks = _parts(_joined(self.acks), _MOST_ACKS) if self.acks else []
        pulls = [part for run in self.pulls for part in _parts(run, _MOST_PULLS)]
        self.acks.clear()
        self.pulls.clear()
        for one in acks[:-1]:
            yield _Part(self, one, None)
        yield _Part(self, acks[-1] if acks else None, pulls[0] if pulls else None)
        for one in pulls[1:]:
            yield _Part(self, None, one)


class _Part(NamedTuple):
    """Acks and pulls that are parsed and passed on at once."""

    led: _Led
    acks: MessageRun | None
    pulls: MessageRun | None


class WorkerLink:
    """The connection for acks and pulls. Belongs to one event loop. The owner calls `start` and
    `close`."""

    def __init__(
        self,
        settings: NatsSettings,
        servers: list[str],
        seam: str,
        take: Callable[[Arrived], None],
        *,
        api_level: int,
    ) -> None:
        """`take` is called with the acks and pulls of one read; it must not block or raise.
        `servers` and `seam` are the same as for the other connections. `api_level` is the level of
        JetStream's API that the daemon reports."""
        self._take = take
        self._api_level = api_level
        self._led: dict[str, _Led] = {}
        self._arrived: dict[str, _Led] = {}
        self._parts: deque[_Part] = deque()
        """The parts of earlier reads that are not passed on yet. While there are such parts, the
        connection is not read."""
        self._next: asyncio.Handle | None = None
        self._waits: asyncio.TimerHandle | None = None
        """The timer that ends the wait of the oldest acks. These acks wait for later acks."""
        self.urgency: Urgency | None = None
        """Decides which acks wait. If it is None, no acks wait, and all acks precede the pulls that
        came with them."""
        self._is_held = False
        self._leaving: set[asyncio.Future[bool]] = set()
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._warnings = RareWarnings(logger)
        self._read_began = 0.0
        self.on_read_end: Callable[[float], None] = lambda seconds: None
        """A callback that runs after acks or pulls were passed on. It receives the time, in
        seconds, that this step took."""
        self.counters = WorkerCounters()
        self.link = NatsLink(
            settings.model_copy(update={"name": f"{settings.name} workers"}),
            servers,
            seam,
            on_chunk_end=self._hand_over,
            wait_until_ready_to_read=self._wait_until_open,
            reading_is_held=lambda: not self._is_open.is_set(),
        )

    def start(self) -> None:
        """Connect in the background, and again after every disconnect until `close`."""
        self.link.start()

    async def close(self) -> None:
        """Send the queued answers, and close the connection. No acks and pulls are passed on
        afterwards."""
        self._stop_waiting()
        self._led.clear()
        self._arrived.clear()
        self._parts.clear()
        for ending in self._leaving:
            ending.cancel()
        await self.left()
        await self.link.close()

    # --- streams ---

    def lead(self, stream: str) -> None:
        """Subscribe for the consumers of a stream as soon as NATS is available, and again after
        each disconnect. Does nothing if the method was already called for the stream."""
        if stream in self._led:
            return
        led = _Led(stream, AckParser(stream), PullParser(stream, self._api_level), time.monotonic())
        self._led[stream] = led
        for subject, handler in (
            (f"{ack_columns.PREFIX.decode()}{stream}.>", self._take_acks),
            (f"{pull_parsing.PREFIX.decode()}{stream}.*", self._take_pulls),
        ):
            wanted = self.link.want((subject,), None, partial(handler, led), self._gap)
            led.subscriptions.append(wanted)

    def subscribed_at(self, stream: str) -> float:
        """Return the monotonic time at which this node subscribed for a stream; 0 if it has not
        subscribed. Acks and pulls that arrived earlier have not reached this connection."""
        led = self._led.get(stream)
        return 0.0 if led is None else led.subscribed_at

    async def confirm(self, stream: str) -> None:
        """Wait until NATS has confirmed the subscriptions that `lead` has requested for a stream.

        Raises NatsRefused, and NatsUnavailable without a connection; the link repeats the
        subscriptions until NATS takes them.
        """
        led = self._led[stream]
        if all(one.confirmed for one in led.subscriptions):
            return
        attaching = [self.link.attach(one) for one in led.subscriptions]
        for found in await asyncio.gather(*attaching, return_exceptions=True):
            if isinstance(found, NatsRefused):
                raise NatsRefused(found.message, hint=_hint(led))
            if isinstance(found, BaseException):
                raise found

    async def wait_confirmed(self, streams: Iterable[str], seconds: float) -> None:
        """Wait, for a few seconds at most, until NATS has confirmed or refused the subscriptions
        for these streams."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*[self._until_confirmed(one) for one in streams])

    async def _until_confirmed(self, stream: str) -> None:
        while stream in self._led:
            try:
                await self.confirm(stream)
            except NatsUnavailable:
                await asyncio.sleep(_RETRY_SECONDS)
            except NatsRefused:
                return
            else:
                return

    def leave(self, stream: str) -> None:
        """Unsubscribe. Drops the acks and pulls of the stream that were not passed on yet. Also
        drops acks and pulls that arrive until NATS has confirmed the end of the subscriptions.
        `left` waits for this confirmation."""
        led = self._led.pop(stream, None)
        self._arrived.pop(stream, None)
        self._parts = deque([part for part in self._parts if part.led is not led])
        for one in () if led is None else led.subscriptions:
            ending = asyncio.ensure_future(self.link.unwant(one))
            self._leaving.add(ending)
            ending.add_done_callback(self._leaving.discard)

    async def left(self) -> None:
        """Wait until NATS has confirmed the end of all subscriptions that `leave` has ended."""
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def problems(self) -> dict[str, str]:
        """Return the streams whose subscriptions NATS refuses, with the reason and the permission
        that is needed."""
        found = {}
        for stream, led in self._led.items():
            refused = [one for one in led.subscriptions if one.problem]
            if refused:
                subjects = ", ".join(one.refused_subjects for one in refused)
                found[stream] = f"NATS refuses {subjects}: {refused[0].problem}; {_hint(led)}"
        return found

    # --- reading ---

    def hold(self) -> None:
        """Stop reading, and pass nothing on, until `release`. NATS buffers data during this time,
        but it disconnects a client that does not read for some seconds."""
        self._is_held = True
        self._is_open.clear()

    def release(self) -> None:
        self._is_held = False
        self._go_on_soon()

    def finish(self) -> None:
        """Pass on all acks and pulls that have arrived, in this call, because the consumers are
        about to end. Nothing is read afterwards."""
        self.hold()
        self.pass_on()
        while self._parts:
            self._pass_on(self._parts.popleft())

    async def _wait_until_open(self) -> None:
        await self._is_open.wait()

    def _take_acks(self, led: _Led, run: MessageRun) -> None:
        if self._led.get(led.stream) is led:
            led.acks.append(run)
            self._arrived[led.stream] = led

    def _take_pulls(self, led: _Led, run: MessageRun) -> None:
        if self._led.get(led.stream) is led:
            led.pulls.append(run)
            self._arrived[led.stream] = led

    def _hand_over(self) -> None:
        """Begin to pass on the acks and pulls of one read, after all its messages have arrived."""
        if not self._arrived:
            return
        urgency = self.urgency
        if urgency is None or not all(one.can_wait(urgency) for one in self._arrived.values()):
            self._begin()
        else:
            self._start_waiting()

    def _start_waiting(self) -> None:
        if self._waits is None:
            self._waits = asyncio.get_running_loop().call_later(WAIT_SECONDS, self.pass_on)

    def _stop_waiting(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None

    def pass_on(self) -> None:
        """Begin to pass on all that has arrived, including acks that wait for later acks."""
        self._stop_waiting()
        self._begin()

    def _begin(self) -> None:
        """Begin to pass on all that has arrived. Some acks may then wait again, until the time of
        `_waits` at the latest."""
        if not self._arrived:
            return
        arrived, self._arrived = self._arrived, {}
        for led in arrived.values():
            self._parts.extend(led.take_parts())
        if self._next is None and not self._is_held:
            self._go_on()

    def _go_on(self) -> None:
        """Pass on some parts."""
        self._next = None
        if self._is_held:
            return
        began = now = time.perf_counter()
        while self._parts and not self._is_held and now < began + _TURN_SECONDS:
            if not self._pass_on(self._parts.popleft()):
                break
            now = time.perf_counter()
        now = time.perf_counter()
        if not self._arrived:
            self._stop_waiting()
        self.on_read_end(now - began)
        self._go_on_soon()

    def _go_on_soon(self) -> None:
        """Pass on the remaining parts in the next turn of the loop. If there are none, continue to
        read."""
        if self._is_held:
            return
        if not self._parts:
            self._is_open.set()
            return
        self._is_open.clear()
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._go_on)

    def _pass_on(self, part: _Part) -> bool:
        """Pass on a part. Returns False if its pull was passed on first and its acks still wait.
        These acks should wait for the next turn of the loop, so that the answer to the pull is sent
        before them."""
        led, acks, pulls, answers = part.led, list[WorkerAcks](), list[WorkerPull](), list[bytes]()
        found, dropped = list[WorkerPull](), 0
        if part.pulls is not None:
            found, dropped = led.pull_parser.parse(part.pulls)
            self.counters.pulls += len(found)
        if len(found) == 1 and part.acks is not None and self._precedes(led, found[0], part.acks):
            self._take(Arrived(led.stream, [], found, []))
            self._parts.appendleft(part._replace(pulls=None))
            return False
        if part.acks is not None:
            parsed = led.ack_parser.parse(part.acks)
            acks, answers = parsed.acks, parsed.answers
            dropped += parsed.dropped
            pulls = [
                WorkerPull(pull.consumer, pull.reply, request_of(pull.body))
                for pull in parsed.pulls
            ]
            self.counters.acks += len(part.acks) - parsed.dropped
        pulls += found
        if dropped:
            self.counters.not_parsed += dropped
            self._warnings.warn("jetstream-acks-not-parsed stream=%s", led.stream)
        if acks or pulls or answers:
            self._take(Arrived(led.stream, acks, pulls, answers))
        return True

    def _precedes(self, led: _Led, pull: WorkerPull, acks: MessageRun) -> bool:
        """Return True if a pull is passed on before the acks of the same read. A nak, for example,
        must come first, because the client expects the message again."""
        urgency = self.urgency
        if urgency is None or any(acks.replies):
            return False
        is_plain = sum(map(acks.payloads.count, PLAIN)) == len(acks)
        return is_plain and urgency.precedes(led.stream, pull, len(acks))

    def _gap(self, reason: str) -> None:
        self.counters.gaps += 1


def _joined(runs: list[MessageRun]) -> MessageRun:
    """Return all messages of some runs without their headers, because acks do not use headers."""
    if len(runs) == 1:
        return runs[0]
    each = [(run.subjects, run.replies, run.payloads) for run in runs]
    subjects, replies, payloads = [
        list(chain.from_iterable(one)) for one in zip(*each, strict=True)
    ]
    return MessageRun(subjects, replies, payloads, has_cookie=False)


def _parts(run: MessageRun, most: int) -> list[MessageRun]:
    """Return a run in parts of at most `most` messages."""
    if len(run) <= most:
        return [run]
    found = []
    for start in range(0, len(run), most):
        at = slice(start, start + most)
        headers = None if run.headers is None else run.headers[at]
        found.append(
            MessageRun(
                run.subjects[at],
                run.replies[at],
                run.payloads[at],
                headers,
                has_cookie=run.has_cookie,
            )
        )
    return found


def _hint(led: _Led) -> str:
    subjects = ", ".join(subject for one in led.subscriptions for subject in one.subjects)
    return f"give the daemon's NATS user permission to subscribe to {subjects}"
