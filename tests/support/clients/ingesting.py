"""Publishes to a real daemon, and reads the stored records."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

from support.clients.raw_nats import RawMessage, RawNats, header_block, hpub_frame, pub_frame
from support.daemons.daemon import Daemon
from support.rounds import is_torture

from liftlog.client import connect_sync
from liftlog.records.decode import Record


def records_of(
    daemon: Daemon, stream: str, start: int | str = "earliest", *, on_corrupt: Any = "raise"
) -> list[Record]:
    """Return all records of a stream that a consumer can read now."""
    with connect_sync(daemon.pull_address) as client:
        return list(client.read(stream, start=start, until="end", on_corrupt=on_corrupt))


def values_of(daemon: Daemon, stream: str) -> list[bytes | None]:
    return [record.value for record in records_of(daemon, stream)]


def describe(daemon: Daemon, stream: str) -> Any:
    with connect_sync(daemon.pull_address) as client:
        return client.describe_stream(stream)


def until(condition: Callable[[], Any], timeout: float = 60.0, what: str = "") -> Any:
    """Poll until the condition holds, at most `timeout` seconds. Returns its value."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not in {timeout} s: {what or condition}"
        time.sleep(0.01)
    return value


def assert_no_traceback(daemon: Daemon) -> None:
    assert "Traceback" not in daemon.log, daemon.log
    assert "Error in sys.excepthook" not in daemon.log
    assert "was never retrieved" not in daemon.log, daemon.log


def refused(daemon: Daemon, stream: str, reason: str) -> float:
    try:
        return daemon.metric("liftlog_refused_total", stream=stream, reason=reason)
    except KeyError:
        return 0.0


def ack_of(message: RawMessage) -> dict[str, Any]:
    assert message.payload, f"no ack but {message.headers!r}"
    found: dict[str, Any] = json.loads(message.payload)
    return found


def publish(client: RawNats, subject: str, payload: bytes = b"", **headers: str) -> dict[str, Any]:
    """Publish with a reply subject, and return the ack. Underscores in names of headers become
    dashes."""
    block = header_block({name.replace("_", "-"): value for name, value in headers.items()})
    return ack_of(client.request(subject, payload, headers=block if headers else b""))


def publish_until_acked(
    client: RawNats, subject: str, payload: bytes, message_id: str, **headers: str
) -> dict[str, Any]:
    """Publish until a leader has stored the message. While there is no leader, NATS reports that
    the subject has no subscriber, and a leader that resigns does not answer. The message has an id,
    so it is stored once. Returns the ack."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    block = header_block(named | {"Nats-Msg-Id": message_id})
    deadline = time.monotonic() + 60
    while True:
        answer = None
        with suppress(TimeoutError):
            answer = client.request(subject, payload, headers=block, timeout=5)
        if answer is not None and answer.payload and b"error" not in answer.payload:
            return ack_of(answer)
        assert time.monotonic() < deadline, f"no ack but {answer}"
        time.sleep(0.02)


def numbered(number: int, size_bytes: int = 0) -> bytes:
    """Return a padded value that contains a number. Two of three values end in zeros."""
    text = b"%d" % number
    if number % 3 == 0:
        return text.ljust(size_bytes)
    return text.ljust(max(size_bytes, len(text) + number % 10), b"\0")


def number_of(value: bytes | None) -> int:
    """Return the number in a value; -1 if it has none."""
    return int((value or b"-1").rstrip(b"\0"))


MOST_PER_SECOND = 1500
"""Maximum number of messages per second of one publisher in `make test`. This rate finds the same
faults as a higher rate, and leaves processor time for other tests. In campaigns, publishers send as
fast as acks arrive."""


class AckedPublisher(threading.Thread):
    """Publishes numbered messages, with many in flight, and records the results.

    The value of a message contains its number (`number_of`). `acked` maps numbers to offsets,
    `nacked` maps numbers to error codes. A message without an answer is in neither.
    """

    EASE_SECONDS: ClassVar = 0.1
    """Pause between two volleys of a publisher that is `easy`."""

    def __init__(
        self,
        port: int,
        subject: str,
        *,
        in_flight: int = 64,
        pad: int = 0,
        keys: int = 0,
        value_of: Callable[[int], bytes] | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        """With `keys`, message n has the key `<subject>/<n % keys>`. `value_of` makes the values;
        the default is `numbered`."""
        super().__init__(name=f"publisher-{subject}")
        self.acked: dict[int, int] = {}
        self.nacked: dict[int, int] = {}
        self.published = 0
        self.error: BaseException | None = None
        self.subject = subject
        self._port, self._host = port, host
        self._in_flight, self._keys = in_flight, keys
        self._value_of = value_of or (lambda number: numbered(number, pad))
        self._stop_asked = threading.Event()
        self.easy = False
        """True to publish some hundred messages a second instead of the usual rate."""
        self.unheard = 0
        """Number of times that NATS reported that the subject has no subscriber."""

    def run(self) -> None:
        try:
            with RawNats(self._port, host=self._host) as client:
                self._publish(client)
        except (OSError, AssertionError) as error:
            self.error = error

    def _publish(self, client: RawNats) -> None:
        inbox = client.new_reply().rpartition(b".")[0]
        waiting: set[int] = set()
        unheard = 0
        while not self._stop_asked.is_set():
            if self.easy:
                self._stop_asked.wait(self.EASE_SECONDS)
            frames = []
            while len(waiting) < self._in_flight:
                number = self.published
                self.published += 1
                waiting.add(number)
                frames.append(self.frame(number, inbox + b".%d" % number))
            client.send(b"".join(frames))
            if not is_torture():
                self._stop_asked.wait(min(len(frames) / MOST_PER_SECOND, 0.1))
            if self.unheard > unheard:  # no more messages while there is no subscriber
                unheard = self.unheard
                self._stop_asked.wait(0.02)
            try:
                self.take(client.next_message(0.3), waiting)
                while client.messages:
                    self.take(client.next_message(), waiting)
            except TimeoutError:
                waiting.clear()
        # Wait for the answers to messages in flight. Some may never arrive.
        while waiting:
            try:
                self.take(client.next_message(0.3), waiting)
            except TimeoutError:
                break

    def frame(self, number: int, reply: bytes) -> bytes:
        value = self._value_of(number)
        if not self._keys:
            return pub_frame(self.subject, value, reply=reply)
        block = header_block({"Liftlog-Key": f"{self.subject}/{number % self._keys}"})
        return hpub_frame(self.subject, block, value, reply=reply)

    def take(self, message: RawMessage, waiting: set[int]) -> None:
        number = int(message.subject.rpartition(b".")[2])
        waiting.discard(number)
        if not message.payload:
            self.unheard += 1
        else:
            answer = json.loads(message.payload)
            if "error" in answer:
                self.nacked[number] = answer["error"]["err_code"]
            else:
                assert number not in self.acked, "acked twice"
                self.acked[number] = answer["seq"]

    def finish(self) -> None:
        """Stop publishing, and wait for the answers to messages in flight."""
        self._stop_asked.set()
        self.join(20)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


def assert_all_stored(
    daemon: Daemon, stream: str, publisher: AckedPublisher, *, on_corrupt: Any = "raise"
) -> list[Record]:
    """Check that every acked message can be read at its offset, and that offsets have no gaps."""
    records = records_of(daemon, stream, on_corrupt=on_corrupt)
    by_offset = {record.offset: record for record in records}
    assert len(by_offset) == len(records)
    missing = [
        (number, offset)
        for number, offset in publisher.acked.items()
        if offset not in by_offset or number_of(by_offset[offset].value) != number
    ]
    assert not missing, f"{len(missing)} of {len(publisher.acked)} acked are wrong: {missing[:5]}"
    return records
