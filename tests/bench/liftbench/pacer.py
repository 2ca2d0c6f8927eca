"""A publisher at a fixed rate, independent of acks. Measures the duration of each ack.

    python -m bench.liftbench.pacer '{"port": 4222, "subject": "bench", "rate": 50000, ...}'

One connection and one stream, so acks come in the order of the messages: the n-th ack answers the
n-th message. The time of a message counts from the moment at which it was due, so the wait for a
full socket counts, too.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from typing import Any

import numpy as np

ACK = b'"seq":'
_TICK_SECONDS = 0.001
_FRAMES = 1 << 14
_DRAIN_SECONDS = 5.0


def publish(spec: dict[str, Any]) -> dict[str, Any]:
    frame = _frames(spec["subject"], spec["payload_bytes"], spec.get("subjects", 0))
    rate, seconds = float(spec["rate"]), spec["seconds"]
    total = int(rate * seconds)
    acked_at = np.zeros(total)
    with socket.create_connection(("127.0.0.1", spec["port"])) as sock:
        _connect(sock)
        run = _Run(sock, *frame, rate, total, acked_at)
        run.go(seconds, spec.get("drain", _DRAIN_SECONDS))
    due = np.arange(total) / rate
    waited = acked_at[: run.acked] - due[: run.acked]
    return {
        "began": run.began,
        "ended": time.monotonic(),
        "offered": total,
        "acked": run.acked,
        "acked_in_time": int((acked_at[: run.acked] <= seconds).sum()),
        "errors": run.errors,
        "p50_us": float(np.percentile(waited, 50) * 1e6) if run.acked else None,
        "p99_us": float(np.percentile(waited, 99) * 1e6) if run.acked else None,
    }


def _frames(subject: str, payload_bytes: int, subjects: int) -> tuple[memoryview, int]:
    """Make frames of one length, each with its own reply subject. They use this number of subjects
    below `subject` in turn, or only `subject`."""
    payload = b"x" * payload_bytes
    names = [b"%s.%06d" % (subject.encode(), n) for n in range(subjects)] or [subject.encode()]
    frames = [
        b"PUB %s _INBOX.pace.%06d %d\r\n%s\r\n" % (names[n % len(names)], n, payload_bytes, payload)
        for n in range(_FRAMES)
    ]
    return memoryview(b"".join(frames)), len(frames[0])


def _connect(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB _INBOX.pace.* 1\r\nPING\r\n')
    received = b""
    while b"PONG\r\n" not in received:
        received += sock.recv(65536)
    sock.setblocking(False)


class _Run:
    def __init__(
        self,
        sock: socket.socket,
        frames: memoryview,
        frame_bytes: int,
        rate: float,
        total: int,
        acked_at: Any,
    ) -> None:
        self.sock, self.frames, self.frame_bytes = sock, frames, frame_bytes
        self.rate, self.total, self.acked_at = rate, total, acked_at
        self.acked = self.errors = 0
        self.unsent = memoryview(b"")
        self.tail = b""
        self.asked = False  # by PING
        self.began = 0.0

    def go(self, seconds: float, drain_seconds: float) -> None:
        queued = 0
        self.began = time.monotonic()
        started = time.perf_counter()
        while self.acked < self.total:
            now = time.perf_counter() - started
            if now > seconds + drain_seconds:
                return
            due = min(int(now * self.rate), self.total)
            if self.asked and not self.unsent:  # not inside of a partly sent message
                self.asked = False
                self.unsent = memoryview(b"PONG\r\n")
            elif due > queued and not self.unsent:
                first = queued % _FRAMES
                count = min(due - queued, _FRAMES - first)
                size = self.frame_bytes
                self.unsent = self.frames[first * size : (first + count) * size]
                queued += count
            self._send()
            readable, _, _ = select.select([self.sock], [], [], _TICK_SECONDS)
            if readable:
                self._receive(started)

    def _send(self) -> None:
        if self.unsent:
            try:
                self.unsent = self.unsent[self.sock.send(self.unsent) :]
            except BlockingIOError:
                pass

    def _receive(self, started: float) -> None:
        chunk = self.tail + self.sock.recv(1 << 20)
        now = time.perf_counter() - started
        if b"PING\r\n" in chunk:
            self.asked = True
        count = chunk.count(ACK)
        self.errors += chunk.count(b'"error"')
        self.acked_at[self.acked : self.acked + count] = now
        self.acked += count
        # Keep a mark that is cut by the border of two chunks. A complete mark would count twice.
        self.tail = chunk[-(len(ACK) - 1) :]


def main(argument: str) -> None:
    print(json.dumps(publish(json.loads(argument))))


if __name__ == "__main__":
    main(sys.argv[1])
