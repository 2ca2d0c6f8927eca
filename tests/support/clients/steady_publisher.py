"""Publishers that lose no message by themselves: they change servers only between two messages."""

from __future__ import annotations

import threading
import time

from support.clients.raw_nats import RawNats, header_block, hpub_frame, pub_frame

_BURST_SECONDS = 0.005


class SteadyPublisher(threading.Thread):
    """Publishes numbered messages at a steady rate, without requesting acks.

    With `same` all messages have the same value, so that only their number can be compared.
    """

    def __init__(self, port: int, subject: str, *, per_second: int, same: bool = False) -> None:
        super().__init__(name=f"steady-{subject}")
        self.subject = subject
        self.published = 0
        self.error: BaseException | None = None
        self._port = port
        self._per_second = per_second
        self._same = same
        self._stop_asked = threading.Event()
        self._moved = threading.Event()
        self._moved.set()

    def move(self, port: int) -> None:
        """Continue at another server. Returns when the first server has received all earlier
        messages."""
        self._moved.clear()
        self._port = port
        assert self._moved.wait(20), self.error

    def run(self) -> None:
        try:
            while not self._stop_asked.is_set():
                with RawNats(self._port) as client:
                    self._moved.set()
                    self._publish(client)
                    client.ping()
        except (OSError, AssertionError) as error:
            self.error = error
        self._moved.set()

    def _publish(self, client: RawNats) -> None:
        began, first = time.monotonic(), self.published
        while self._moved.is_set() and not self._stop_asked.is_set():
            due = int((time.monotonic() - began) * self._per_second) - (self.published - first)
            frames = [self._frame(self.published + number) for number in range(due)]
            if frames:
                client.send(b"".join(frames))
                self.published += len(frames)
            self._stop_asked.wait(_BURST_SECONDS)

    def _frame(self, number: int) -> bytes:
        return pub_frame(self.subject, b"same" if self._same else b"%d" % number)

    def finish(self) -> None:
        """Stop, and raise the error of the publisher if there was one."""
        self._stop_asked.set()
        self.join(20)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


class IdPublisher(SteadyPublisher):
    """Publishes like a JetStream publisher: each message has an id, and is repeated until it is
    acked."""

    def __init__(self, port: int, subject: str, *, per_second: int) -> None:
        super().__init__(port, subject, per_second=per_second)
        self.acked: dict[int, int] = {}
        self.repeated = 0
        self.duplicates = 0
        self._waiting: dict[int, float] = {}

    def _publish(self, client: RawNats) -> None:
        inbox = client.new_reply().rpartition(b".")[0]
        client.ping()
        began, first = time.monotonic(), self.published
        while True:
            # Answers in flight would be lost with this connection.
            is_leaving = self._stop_asked.is_set() or not self._moved.is_set()
            if is_leaving and not self._waiting:
                return
            now = time.monotonic()
            due = int((now - began) * self._per_second) - (self.published - first)
            numbers = [] if is_leaving else list(range(due))
            numbers = [self.published + number for number in numbers]
            self.published += len(numbers)
            late = [number for number, sent in self._waiting.items() if now - sent > 2]
            self.repeated += len(late)
            frames = []
            for number in numbers + late:
                self._waiting[number] = now
                block = header_block({"Nats-Msg-Id": f"{self.subject}-{number}"})
                reply = inbox + b".%d" % number
                frames.append(hpub_frame(self.subject, block, b"%d" % number, reply=reply))
            client.send(b"".join(frames))
            self._take_answers(client)

    def _take_answers(self, client: RawNats) -> None:
        try:
            answer = client.next_message(_BURST_SECONDS)
            while True:
                found = answer.json()
                number = int(answer.subject.rpartition(b".")[2])
                assert "error" not in found, found
                self.duplicates += bool(found.get("duplicate"))
                self.acked[number] = found["seq"]
                self._waiting.pop(number, None)
                if not client.messages:
                    return
                answer = client.next_message()
        except TimeoutError:
            pass
