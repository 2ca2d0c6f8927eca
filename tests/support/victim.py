"""A publisher who waits for each ack: what do others on the same daemon cost it?"""

from __future__ import annotations

import threading
import time
from types import TracebackType

from support.raw_nats import RawNats


class Victim(threading.Thread):
    """Publishes one message after the other from entry to exit, and times the acks."""

    def __init__(self, port: int, subject: str) -> None:
        super().__init__(daemon=True)
        self._port, self._subject = port, subject
        self._ended = threading.Event()
        self._began = 0.0
        self.seconds: list[float] = []
        """Between each message and its ack."""
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with RawNats(self._port, timeout=60) as client:
                while not self._ended.is_set():
                    self._began = time.monotonic()
                    ack = client.request(self._subject, b"victim").json()
                    assert "error" not in ack, ack
                    self.seconds.append(time.monotonic() - self._began)
        except BaseException as error:
            self.failure = error

    @property
    def worst_seconds(self) -> float:
        return max(self.seconds)

    def __enter__(self) -> Victim:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self.join(90)
        assert not self.is_alive(), "the last ack has not come"
        if kind is None and self.failure is not None:
            raise self.failure
