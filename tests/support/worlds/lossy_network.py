"""A publisher's queue and the real sequencer, connected by a network that loses messages.

Time is simulated, so nothing waits. Requests keep their order, as on one NATS connection, and so do
answers. Both can be lost, and a lost connection loses everything in flight.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from typing import NamedTuple

from liftlog.client.publishing.delivery import NO_RESPONDERS, Delivery, Outcome, read_answer
from liftlog.client.publishing.message import OutgoingMessage
from liftlog.client.publishing.send_queue import SendQueue
from liftlog.sequencing import DedupeWindow, Destinations, MessageRun, Sequencer, SequencerConfig
from liftlog.sequencing.refusals import STORE_FAILED

SECOND_NS = 1_000_000_000
START_NS = 1_700_000_000 * SECOND_NS
STREAM = "orders"
ACK_TIMEOUT = 1.0


class Weather(NamedTuple):
    """Probabilities per message; the last four are per step."""

    lose_request: float = 0.0
    lose_answer: float = 0.0
    paused: float = 0.0
    fail_commit: float = 0.0
    absent: float = 0.0
    disconnect: float = 0.0
    stall: float = 0.0  # everything arrives after the timeout
    foreign_writer: float = 0.0


class Stream:
    """The stored records after each commit, made by the code of the daemon."""

    def __init__(self, max_message_bytes: int = 1000) -> None:
        self.sequencer = Sequencer(
            SequencerConfig(STREAM, max_message_bytes=max_message_bytes),
            DedupeWindow(120 * SECOND_NS, 100_000),
            Destinations(["orders.>"]),
            next_offset=1,
        )
        self.records: list[bytes] = []

    def receive(self, payload: bytes, block: bytes, now: float, *, fails: bool = False) -> bytes:
        """Judge one message and commit it. Returns the JSON of the answer."""
        run = MessageRun([b"orders.x"], [b"_INBOX.r"], [payload], [block])
        sequencer = self.sequencer
        sequencer.judge(run, START_NS + int(now * SECOND_NS))
        group = sequencer.take_group()
        assert group is not None
        if fails:
            commands = sequencer.failed(group, STORE_FAILED)
        else:
            self.records += [value or b"" for value in group.values]
            commands = sequencer.committed(group)
        return commands.split(b"\r\n")[1]

    def offset_of(self, payload: bytes) -> int:
        return self.records.index(payload) + 1


class Simulation:
    """Publishes payloads through a queue until each has a result."""

    def __init__(self, queue: SendQueue, weather: Weather, seed: int) -> None:
        self.queue = queue
        self.weather = weather
        self.stream = Stream()
        self.now = 0.0
        self.attempts = 0
        self.deliveries: list[Delivery] = []
        self._random = random.Random(seed)
        self._requests: deque[tuple[Delivery, int, bytes, dict[str, str] | None]] = deque()
        self._answers: deque[tuple[Delivery, int, Outcome]] = deque()
        self._deadlines: deque[tuple[float, Delivery, int]] = deque()
        self._foreign = itertools.count()

    def publish(self, payloads: list[bytes], max_in_flight: int, expect: tuple[str, ...]) -> None:
        waiting = deque(payloads)
        while waiting or not all(d.settled for d in self.deliveries):
            inside = sum(not d.settled for d in self.deliveries)
            while waiting and inside < max_in_flight:
                payload = waiting.popleft()
                message = OutgoingMessage("orders.x", payload, None, (), payload[:20].decode())
                delivery = Delivery(message, expect, lambda _: None)
                self.deliveries.append(delivery)
                self.queue.add(delivery)
                inside += 1
            self._step()
            assert self.now < 10_000, "it never ends"

    def _happens(self, chance: float) -> bool:
        return self._random.random() < chance

    def _step(self) -> None:
        weather = self.weather
        while (delivery := self.queue.next(self.now)) is not None:
            self._send(delivery)
        if self._happens(weather.disconnect):
            self._disconnect()
        if self._happens(weather.stall):
            self.now += 1.1 * ACK_TIMEOUT
        if self._happens(weather.foreign_writer):
            self.stream.receive(b"foreign %d" % next(self._foreign), b"", self.now)
        for _ in range(self._random.randint(1, 4)):
            if self._requests and self._happens(0.7):
                self._deliver_request()
            if self._answers and self._happens(0.7):
                self.queue.answered(*self._answers.popleft(), self.now)
        self.now += self._random.uniform(0.001, 0.02)
        if not self._requests and not self._answers:
            self._skip_ahead()
        while self._deadlines and self._deadlines[0][0] <= self.now:
            _, delivery, attempt = self._deadlines.popleft()
            self.queue.expired(delivery, attempt, self.now)

    def _send(self, delivery: Delivery) -> None:
        self.attempts += 1
        attempt = delivery.start_attempt(self.now)
        self._deadlines.append((self.now + ACK_TIMEOUT, delivery, attempt))
        last = delivery.last_sequence
        stream = STREAM if last is not None else None
        payload, block = delivery.message.to_wire("", stream=stream, last_sequence=last)
        if not self._happens(self.weather.lose_request):
            self._requests.append((delivery, attempt, payload, block))

    def _deliver_request(self) -> None:
        delivery, attempt, payload, block = self._requests.popleft()
        if self._happens(self.weather.absent):
            self._answers.append((delivery, attempt, NO_RESPONDERS))
            return
        if self._happens(self.weather.paused):
            body = b'{"error":{"code":503,"err_code":10077},"stream":"orders","seq":0}'
        else:
            fails = self._happens(self.weather.fail_commit)
            body = self.stream.receive(payload, block, self.now, fails=fails)
        answer = read_answer(body)
        assert answer is not None
        if not self._happens(self.weather.lose_answer):
            self._answers.append((delivery, attempt, answer))

    def _disconnect(self) -> None:
        self._requests.clear()
        self._answers.clear()
        while self._deadlines:
            _, delivery, attempt = self._deadlines.popleft()
            self.queue.expired(delivery, attempt, self.now)

    def _skip_ahead(self) -> None:
        """Advance the time to the next possible event, because nothing is in flight."""
        times = [self._deadlines[0][0]] if self._deadlines else []
        wake_at = self.queue.wake_at()
        if wake_at is not None:
            times.append(wake_at)
        if times:
            self.now = max(self.now, min(times))
