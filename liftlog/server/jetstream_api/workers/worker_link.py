"""The connection on which acks and pulls of workers arrive.

It is separate from the other connections to NATS, so that messages for streams do not wait behind
acks, and acks do not wait behind requests. The node that leads a stream subscribes to two subjects
for all consumers of the stream:

    $JS.ACK.<stream>.>                          acks
    $JS.API.CONSUMER.MSG.NEXT.<stream>.*        pulls

Acks and pulls that arrive while there is no connection are lost. That loses no message: without its
ack it is delivered again, and clients repeat a pull.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from liftlog.errors import NatsRefused
from liftlog.sequencing.run import MessageRun
from liftlog.server.ingest.nats_link import NatsLink
from liftlog.server.ingest.subscriptions import LinkSubscription
from liftlog.server.jetstream_api.workers import acks as ack_columns
from liftlog.server.jetstream_api.workers import pulls as pull_parsing
from liftlog.server.jetstream_api.workers.acks import AckParser, WorkerAcks
from liftlog.server.jetstream_api.workers.pulls import PullParser, WorkerPull, request_of
from liftlog.server.vitals.rare_warnings import RareWarnings
from liftlog.settings import NatsSettings

logger = logging.getLogger("liftlog.server.jetstream_api")


class Arrived(NamedTuple):
    """Acks and pulls for one stream that one read of the connection has brought. The acks come
    first: they make room for what the pulls ask for."""

    stream: str
    acks: list[WorkerAcks]
    pulls: list[WorkerPull]
    answers: list[bytes]
    """Reply subjects of acks that have no effect. Their clients want an empty answer."""


@dataclass(slots=True)
class WorkerCounters:
    """Counters since the start of the process."""

    acks: int = 0
    pulls: int = 0
    not_parsed: int = 0
    """Messages on these subjects that are neither acks nor pulls."""
    gaps: int = 0
    """Number of times that acks and pulls of a stream may have been missed."""


@dataclass(slots=True)
class _Led:
    """A stream that this node leads, and the acks and pulls for it in the present read."""

    stream: str
    ack_parser: AckParser
    pull_parser: PullParser
    subscriptions: list[LinkSubscription] = field(default_factory=list)
    acks: list[WorkerAcks] = field(default_factory=list)
    pulls: list[WorkerPull] = field(default_factory=list)
    answers: list[bytes] = field(default_factory=list)

    def take_arrived(self) -> Arrived:
        arrived = Arrived(self.stream, self.acks, self.pulls, self.answers)
        self.acks, self.pulls, self.answers = [], [], []
        return arrived


class WorkerLink:
    """Belongs to one event loop. `start` and `close` it."""

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
        `servers` and `seam` are those of the other connections, `api_level` is the level of
        JetStream's API that the daemon reports."""
        self._take = take
        self._api_level = api_level
        self._led: dict[str, _Led] = {}
        self._arrived: dict[str, _Led] = {}
        self._leaving: set[asyncio.Future[bool]] = set()
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._warnings = RareWarnings(logger)
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
        """Send what is queued, and close the connection. Nothing is taken afterwards."""
        self._led.clear()
        self._arrived.clear()
        for ending in self._leaving:
            ending.cancel()
        await self.left()
        await self.link.close()

    # --- streams ---

    def lead(self, stream: str) -> None:
        """Subscribe for the consumers of a stream as soon as NATS is available, and again after
        each disconnect. Does nothing if the stream is led already."""
        if stream in self._led:
            return
        led = _Led(stream, AckParser(stream), PullParser(stream, self._api_level))
        self._led[stream] = led
        for subject, handler in (
            (f"{ack_columns.PREFIX.decode()}{stream}.>", self._take_acks),
            (f"{pull_parsing.PREFIX.decode()}{stream}.*", self._take_pulls),
        ):
            wanted = self.link.want((subject,), None, partial(handler, led), self._gap)
            led.subscriptions.append(wanted)

    async def confirm(self, stream: str) -> None:
        """Return when NATS has confirmed the subscriptions for a stream that is led (`lead`).

        Raises NatsRefused, and NatsUnavailable without a connection; the link repeats the
        subscriptions until NATS takes them.
        """
        led = self._led[stream]
        attaching = [self.link.attach(one) for one in led.subscriptions]
        for found in await asyncio.gather(*attaching, return_exceptions=True):
            if isinstance(found, NatsRefused):
                raise NatsRefused(found.message, hint=_hint(led))
            if isinstance(found, BaseException):
                raise found

    async def ensure(self, stream: str) -> None:
        """Subscribe for the consumers of a stream, and return when NATS has confirmed it.

        Raises NatsRefused, and NatsUnavailable without a connection. After an error or a
        cancellation the subscriptions are removed again, unless the stream was led before.
        """
        was_led = stream in self._led
        self.lead(stream)
        try:
            await self.confirm(stream)
        except BaseException:
            if not was_led:
                self.leave(stream)
            raise

    def leave(self, stream: str) -> None:
        """Unsubscribe. Drops the acks and pulls of the stream that were not yet passed on, and
        those that arrive until NATS has confirmed the end of the subscriptions. `left` waits for
        this."""
        led = self._led.pop(stream, None)
        self._arrived.pop(stream, None)
        for one in () if led is None else led.subscriptions:
            ending = asyncio.ensure_future(self.link.unwant(one))
            self._leaving.add(ending)
            ending.add_done_callback(self._leaving.discard)

    async def left(self) -> None:
        """Return when NATS has confirmed the end of all subscriptions that `leave` has ended."""
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
        """Read no more until `release`. NATS keeps what arrives meanwhile, but disconnects a client
        that does not read for some seconds."""
        self._is_open.clear()

    def release(self) -> None:
        self._is_open.set()

    async def _wait_until_open(self) -> None:
        await self._is_open.wait()

    def _take_acks(self, led: _Led, run: MessageRun) -> None:
        parsed = led.ack_parser.parse(run)
        led.acks += parsed.acks
        led.answers += parsed.answers
        led.pulls += [
            WorkerPull(pull.consumer, pull.reply, request_of(pull.body)) for pull in parsed.pulls
        ]
        self.counters.acks += len(run) - parsed.dropped
        self._note(led, parsed.dropped)

    def _take_pulls(self, led: _Led, run: MessageRun) -> None:
        pulls, dropped = led.pull_parser.parse(run)
        led.pulls += pulls
        self.counters.pulls += len(pulls)
        self._note(led, dropped)

    def _note(self, led: _Led, dropped: int) -> None:
        if dropped:
            self.counters.not_parsed += dropped
            self._warnings.warn("jetstream-acks-not-parsed stream=%s", led.stream)
        if self._led.get(led.stream) is led and (led.acks or led.pulls or led.answers):
            self._arrived[led.stream] = led

    def _hand_over(self) -> None:
        """All messages of one read were delivered."""
        arrived, self._arrived = self._arrived, {}
        for led in arrived.values():
            self._take(led.take_arrived())

    def _gap(self, reason: str) -> None:
        self.counters.gaps += 1


def _hint(led: _Led) -> str:
    subjects = ", ".join(subject for one in led.subscriptions for subject in one.subjects)
    return f"give the daemon's NATS user permission to subscribe to {subjects}"
