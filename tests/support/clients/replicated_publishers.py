"""Publishers of a load that runs during faults, and the results of their messages."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from support.clients.ingesting import numbered
from support.clients.raw_nats import RawMessage, RawNats, header_block, hpub_frame, pub_frame
from support.daemons.cluster import PATIENCE
from support.daemons.nats_server import NatsServer
from support.worlds.history import History

_VOLLEY_SECONDS = 0.15
_EASY_VOLLEY_SECONDS = 1.0
_REPEAT_SECONDS = 1.0
_KEYS = 40
_LARGE_BYTES = 900_000

Event = tuple[str, int, float, Any]
"""An event of the message with this number: the time, the kind, and data: "sent" (key, deletes),
"acked" (offset, promised) or "refused" (code)."""


class LoadPublisher(threading.Thread):
    """Publishes numbered messages to one subject, several at a time, and records their results.

    `message_of` makes subject, headers and value for a number. A message with an id in its headers
    is repeated until it is acked. A message with "silent" among its headers requests no ack. If its
    server is down, the publisher continues at the next of `servers`.
    """

    def __init__(
        self,
        servers: Sequence[NatsServer],
        subject: str,
        message_of: Callable[[str, int], tuple[str, dict[str, str], bytes]],
        *,
        in_flight: int = 8,
    ) -> None:
        super().__init__(name=f"publisher-{subject}", daemon=True)
        self.subject = subject
        self.events: deque[Event] = deque()
        self.acked = 0
        self.host = ""
        """Host of the server to which the publisher is connected."""
        self.knows_host = True
        """If False, `host` is the server through which the last acked message was published."""
        self.easy = False
        """True to publish a few messages per second instead of some dozens."""
        self.error: BaseException | None = None
        self._servers = deque(servers)
        self._message_of = message_of
        self._in_flight = in_flight
        self._stop_asked = threading.Event()
        self._next = 0
        self._waiting: dict[int, float] = {}
        self._repeated: dict[int, float] = {}

    def finish(self) -> None:
        self._stop_asked.set()
        self.join(PATIENCE)
        assert not self.is_alive(), f"{self.name} does not end"
        if self.error is not None:
            raise self.error

    def tell(self, history: History) -> None:
        """Add all events since the last call to the history."""
        for _ in range(len(self.events)):
            what, number, at, more = self.events.popleft()
            message = (self.subject, number)
            if what == "sent":
                key, deletes = more
                encoded = None if key is None else key.encode()
                history.sent(message, at, encoded, deletes=deletes)
            elif what == "acked":
                offset, promised = more
                history.acked(message, offset, at, promised=promised)
            else:
                history.refused(message, more)

    def run(self) -> None:
        try:
            while not self._stop_asked.is_set():
                server = self._servers[0]
                self.host = server.host
                try:
                    with RawNats(server.port, host=server.host, timeout=2.0) as client:
                        self._publish_through(client)
                except OSError:  # the server is down; messages in flight get no answer
                    self._servers.rotate(-1)
                    self._stop_asked.wait(0.05)
        except (AssertionError, ValueError) as error:
            self.error = error

    def _publish_through(self, client: RawNats) -> None:
        inbox = client.new_reply().rpartition(b".")[0]
        while not self._stop_asked.is_set():
            client.send(b"".join(self._frames(inbox)))
            pause = _EASY_VOLLEY_SECONDS if self.easy else _VOLLEY_SECONDS
            self._take_answers(client, time.monotonic() + pause)
        deadline = time.monotonic() + 10.0
        while (self._waiting or self._repeated) and time.monotonic() < deadline:
            client.send(b"".join(self._late(inbox)))
            self._take_answers(client, time.monotonic() + 0.3)
            self._waiting.clear()

    def _frames(self, inbox: bytes) -> list[bytes]:
        frames = self._late(inbox)
        now = time.monotonic()
        self._waiting = {n: at for n, at in self._waiting.items() if now - at < _REPEAT_SECONDS}
        while len(self._waiting) + len(self._repeated) < self._in_flight:
            number, self._next = self._next, self._next + 1
            frames.append(self._frame(number, inbox))
        return frames

    def _late(self, inbox: bytes) -> list[bytes]:
        now = time.monotonic()
        late = [n for n, at in self._repeated.items() if now - at > _REPEAT_SECONDS]
        return [self._frame(number, inbox) for number in late]

    def _frame(self, number: int, inbox: bytes) -> bytes:
        subject, headers, value = self._message_of(self.subject, number)
        now = time.monotonic()
        deletes = "Liftlog-Tombstone" in headers
        self.events.append(("sent", number, now, (headers.get("Liftlog-Key"), deletes)))
        if "silent" in headers:
            return pub_frame(subject, value)
        (self._repeated if "Nats-Msg-Id" in headers else self._waiting)[number] = now
        reply = inbox + b".%d" % number
        if not headers:
            return pub_frame(subject, value, reply=reply)
        return hpub_frame(subject, header_block(headers), value, reply=reply)

    def _take_answers(self, client: RawNats, until_time: float) -> None:
        with suppress(TimeoutError):
            while (left := until_time - time.monotonic()) > 0:
                self._take(client.next_message(left))

    def _take(self, message: RawMessage) -> None:
        number, now = int(message.subject.rpartition(b".")[2]), time.monotonic()
        is_repeated = number in self._repeated
        self._waiting.pop(number, None)
        if not message.payload:
            return  # NATS has no subscriber for the subject
        answer = json.loads(message.payload)
        if "error" not in answer:
            self._repeated.pop(number, None)
            self.acked += 1
            promised = answer.get("policy") != "leader"
            self.events.append(("acked", number, now, (answer["seq"], promised)))
        elif not is_repeated:  # an attempt without an answer may have been stored
            self.events.append(("refused", number, now, answer["error"]["err_code"]))


def mixed(subject: str, number: int) -> tuple[str, dict[str, str], bytes]:
    """Make messages with and without headers, repeated and unrepeated, empty, and without a request
    for an ack."""
    value = numbered(number, 100)
    kind = number % 8
    if kind == 0:
        return subject, {"Number": str(number), "X-Colour": "grün"}, value
    if kind == 1:  # only the subject distinguishes them
        return f"{subject}.{number}", {}, b""
    if kind == 2:
        return subject, {"silent": ""}, value
    if kind in (3, 4, 5):
        return subject, {"Nats-Msg-Id": f"{subject}-{number}"}, value
    return subject, {}, value


def keyed(subject: str, number: int) -> tuple[str, dict[str, str], bytes]:
    """Make messages with a few keys. Each eighth message deletes its key."""
    headers = {"Liftlog-Key": f"{subject}/{number * 7 % _KEYS}", "Number": str(number)}
    if number % 3 == 0:
        headers["Nats-Msg-Id"] = f"{subject}-{number}"
    if number % 8 == 0:
        return subject, {**headers, "Liftlog-Tombstone": "true"}, b""
    return subject, headers, numbered(number, 100)


def plain(subject: str, number: int) -> tuple[str, dict[str, str], bytes]:
    return subject, {}, numbered(number, 200)


def large(subject: str, number: int) -> tuple[str, dict[str, str], bytes]:
    """Make large messages. Only one in four is really large, because otherwise the test would
    measure the disk."""
    return subject, {}, numbered(number, _LARGE_BYTES if number % 4 == 0 else 2000)
