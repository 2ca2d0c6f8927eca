"""Flow control and heartbeats of a push consumer."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from liftlog.server.jetstream_api.consumers.budget import Part
from liftlog.server.jetstream_api.consumers.config import ConsumerSpec
from liftlog.server.jetstream_api.consumers.leaf import FLOW_PREFIX

WINDOW_BYTES, LEAST_WINDOW_BYTES = 1024 * 1024, 128 * 1024
"""The normal and the smallest size of a window, in bytes. After one window, the daemon asks a
client with flow control for an answer. It sends up to one more window before the answer arrives.
Some clients check for these requests only a few times a second, so a small window slows them down.
If many consumers share the limit on all windows, each window has the smaller size."""


class PushFlow:
    """Limits the bytes that may be sent before the client answers, and schedules heartbeats."""

    def __init__(self, spec: ConsumerSpec, stream: str, window: Part, now: float) -> None:
        """`window` is this consumer's part of the limit on all windows."""
        self._is_on = spec.flow_control
        self._head = f"{FLOW_PREFIX}{stream}.{spec.name}.".encode()
        if self._is_on and not window.resize(WINDOW_BYTES):
            window.resize(LEAST_WINDOW_BYTES)
        self._window = window
        self._window_bytes = window.amount
        self._heartbeat_seconds = spec.heartbeat_seconds
        self._heartbeat_at = now + spec.heartbeat_seconds
        self._bytes = 0
        self.question = b""
        """The subject on which the client's answer is awaited; empty if no answer is awaited."""

    @property
    def is_open(self) -> bool:
        return not self.question or self._bytes < self._window_bytes

    def sent(self, size: int) -> bytes:
        """Count the sent bytes. Return the subject for a new request of flow control; empty if no
        request is due."""
        if not self._is_on:
            return b""
        self._bytes += size
        if self.question or self._bytes < self._window_bytes:
            return b""
        self._bytes = 0
        self.question = self._head + secrets.token_hex(4).encode()
        return self.question

    def answered(self, subject: bytes) -> bool:
        if not self.question or subject != self.question:
            return False
        self.question = b""
        return True

    def close(self) -> None:
        self._window.close()

    def due(self) -> Iterator[float]:
        """Yield the time of the next heartbeat, if the consumer has heartbeats."""
        if self._heartbeat_seconds:
            yield self._heartbeat_at

    def delay_heartbeat(self, now: float) -> None:
        """Postpone the next heartbeat, because records were sent at `now`."""
        self._heartbeat_at = now + self._heartbeat_seconds

    def heartbeat(self, now: float, position: bytes) -> bytes:
        """Return the headers of a heartbeat that is due, and count it as sent; empty if no
        heartbeat is due. `position` has the header lines that show the progress of the consumer."""
        if not self._heartbeat_seconds or self._heartbeat_at > now:
            return b""
        self._heartbeat_at = now + self._heartbeat_seconds
        lines = position
        if self.question and not self.is_open:
            lines += b"Nats-Consumer-Stalled: %b\r\n" % self.question
        return b"NATS/1.0 100 Idle Heartbeat\r\n%b\r\n" % lines
