"""The publisher of every publishing figure: one process with plain sockets that sends the same
bytes to each system.

    python -m bench.liftbench.publisher '{"port": 4222, "subject": "bench", ...}'

Frames are built before the measurement starts. Each Python step sends many frames and counts many
acks, so the publisher uses little of the machine that it shares with the measured system.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from envelope import liftbridge

from .kinds import KINDS, LAP, PLAIN, lap

ACK = b'"seq":'  # occurs once in each ack of JetStream and of liftlog, even in errors
LIFTBRIDGE_ACK = liftbridge.COOKIE
ERROR = b'"error"'
DUPLICATE = b'"duplicate"'
PAYLOAD_BYTES = 256
_OVERLAP = max(map(len, (ACK, LIFTBRIDGE_ACK, ERROR, DUPLICATE))) - 1
_STALL_SECONDS = 20.0
_FRAMES = 1 << 16  # distinct frames altogether: real clients use ever new reply subjects
_FRAMES_BYTES = 32 << 20


@dataclass(slots=True)
class Load:
    """What to publish. Either for `seconds` after `warmup_seconds`, or exactly `count`."""

    port: int
    subject: str
    connections: int = 1
    in_flight: int = 1
    """Number in flight per connection; 0 to request no acks and send at full speed (needs
    `count`)."""
    payload_bytes: int = PAYLOAD_BYTES
    seconds: float = 3.0
    warmup_seconds: float = 0.5
    count: int = 0
    streams: int = 1
    """With more than one stream, the connections divide the subjects `subject`.0 and so on."""
    kind: str = PLAIN
    """Kind of the messages, see `kinds`."""
    liftbridge_acks: bool = False
    """True if acks come in Liftbridge's envelope."""

    @property
    def ack(self) -> bytes:
        return LIFTBRIDGE_ACK if self.liftbridge_acks else ACK


@dataclass(slots=True)
class Outcome:
    sent: int
    acked: int
    errors: int
    seconds: float
    """The time over which `rate` was measured."""
    rate: float
    """Acks (without acks: messages) per second."""
    cpu: float = 0.0
    """Share of one core that this process used during the measurement."""
    p50_us: float | None = None
    """Round trip of a message; only with one message in flight per connection."""
    p99_us: float | None = None
    duplicates: int = 0
    """Messages that were acked as duplicates, so they were not stored."""


@dataclass(slots=True)
class Connection:
    socket: socket.socket
    frames: memoryview
    frame_bytes: int
    position: int = 0
    unsent: memoryview | None = None
    in_flight: int = 0
    tail: bytes = b" " * _OVERLAP
    owes_pong: bool = False
    sent_at: float = 0.0
    latencies: list[float] = field(default_factory=list)
    laps: int = 0
    lap_at: int = -1
    """Position of the number of the pass in a frame; -1 if it has none."""

    def begin_lap(self) -> None:
        """Number the frames again, because the socket has accepted all of them."""
        self.laps += 1
        if self.lap_at >= 0:
            rows = np.frombuffer(self.frames, np.uint8).reshape(-1, self.frame_bytes)
            rows[:, self.lap_at : self.lap_at + len(LAP)] = np.frombuffer(lap(self.laps), np.uint8)

    def send(self, count: int) -> bool:
        """Queue `count` more frames and send as many bytes as possible. Returns False if the socket
        is full."""
        while True:
            if self.unsent is None:
                if self.owes_pong:
                    self.owes_pong = False
                    self.unsent = memoryview(b"PONG\r\n")
                elif count:
                    if self.position == 0:
                        self.begin_lap()
                    room = len(self.frames) // self.frame_bytes - self.position
                    take = min(count, room)
                    start = self.position * self.frame_bytes
                    self.unsent = self.frames[start : start + take * self.frame_bytes]
                    self.position = 0 if take == room else self.position + take
                    self.in_flight += take
                    count -= take
                else:
                    return True
            try:
                sent = self.socket.send(self.unsent)
            except BlockingIOError:
                # The remaining frames of `count` are not in flight, so the next call sends them.
                return False
            self.unsent = None if sent == len(self.unsent) else self.unsent[sent:]


class Failed(Exception):
    """The measurement is void."""


def connect(load: Load, number: int) -> Connection:
    sock = socket.create_connection(("127.0.0.1", load.port), timeout=10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
    inbox = f"_INBOX.{os.getpid():08d}{number:04d}"
    hello = f"CONNECT {json.dumps({**options, 'lang': 'bench', 'protocol': 1})}\r\n"
    if load.in_flight:
        hello += f"SUB {inbox}.* 1\r\n"
    sock.sendall(f"{hello}PING\r\n".encode())
    greeting = b""
    while b"PONG\r\n" not in greeting:
        data = sock.recv(1 << 16)
        if not data or b"-ERR" in data:
            raise Failed(f"the server refused the connection: {greeting + data!r}")
        greeting += data
    # Divided among the connections, so that every load sends the same number of different frames.
    kinds = min(_FRAMES, _FRAMES_BYTES // load.payload_bytes) // load.connections
    kinds = max(kinds, load.in_flight)
    subject = f"{load.subject}.{number % load.streams}" if load.streams > 1 else load.subject
    frames = bytearray().join(_frame(load, subject, inbox, n) for n in range(kinds))
    size = len(frames) // kinds
    return Connection(sock, memoryview(frames), size, lap_at=frames.find(LAP, 0, size))


def _frame(load: Load, subject: str, inbox: str, number: int) -> bytes:
    reply = f"{inbox}.{number:07d} " if load.in_flight else ""
    start = number * 61 % (len(_RANDOM) - load.payload_bytes)
    payload = _RANDOM[start : start + load.payload_bytes]
    block, payload = KINDS[load.kind](inbox, number, payload)
    if block:
        sizes = f"{len(block)} {len(block) + len(payload)}"
        head = f"HPUB {subject} {reply}{sizes}\r\n".encode()
    else:
        head = f"PUB {subject} {reply}{len(payload)}\r\n".encode()
    return head + block + payload + b"\r\n"


_RANDOM = os.urandom(1 << 20)  # incompressible


class Run:
    """One load with acks, from the first message to the last ack."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.connections = {c.socket.fileno(): c for c in _connect_all(load)}
        self.sent = self.acked = self.errors = self.duplicates = 0
        self._ack = load.ack
        self._buffer = bytearray(1 << 18)
        self._view = memoryview(self._buffer)
        self._measuring = False
        self._poll = select.epoll()
        for number, connection in self.connections.items():
            connection.socket.setblocking(False)
            self._poll.register(number, select.EPOLLIN)

    def measure(self) -> Outcome:
        load = self.load
        started = time.perf_counter()
        cpu = time.process_time()
        if load.count:
            self._measuring = True
            self._publish(until=None)
            self._drain()
            acked, seconds = self.acked, time.perf_counter() - started
            cpu = (time.process_time() - cpu) / seconds
        else:
            self._publish(until=started + load.warmup_seconds)
            self._measuring = True
            cpu, before, from_ = time.process_time(), self.acked, time.perf_counter()
            self._publish(until=from_ + load.seconds)
            acked, seconds = self.acked - before, time.perf_counter() - from_
            cpu = (time.process_time() - cpu) / seconds
            self._drain()
        if self.acked != self.sent or self.errors:
            raise Failed(f"{self.sent} sent, {self.acked} acked, {self.errors} of them errors")
        return self._outcome(acked, seconds, cpu)

    def _publish(self, until: float | None) -> None:
        """Keep the window of every connection full."""
        for connection in self.connections.values():
            self._fill(connection)
        while self._below_count() if until is None else time.perf_counter() < until:
            for connection in self._turn():
                self._fill(connection)

    def _drain(self) -> None:
        while self.acked < self.sent or any(c.unsent for c in self.connections.values()):
            for connection in self._turn():
                self._send(connection, 0)

    def _below_count(self) -> bool:
        return self.sent < self.load.count

    def _fill(self, connection: Connection) -> None:
        room = self.load.in_flight - connection.in_flight
        if self.load.count:
            room = min(room, self.load.count - self.sent)
        self._send(connection, room)

    def _send(self, connection: Connection, count: int) -> None:
        before = connection.in_flight
        if count and self.load.in_flight == 1:
            connection.sent_at = time.perf_counter()
        all_sent = connection.send(count)
        self.sent += connection.in_flight - before
        if not all_sent:
            self._poll.modify(connection.socket.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _turn(self) -> list[Connection]:
        """Receive acks. Returns the connections on which more messages may be sent."""
        events = self._poll.poll(_STALL_SECONDS)
        if not events:
            raise Failed(f"no ack for {_STALL_SECONDS} s; {self.sent} sent, {self.acked} acked")
        touched = []
        for number, event in events:
            connection = self.connections[number]
            if event & ~select.EPOLLOUT:
                self._receive(connection)
            if event & select.EPOLLOUT:
                self._poll.modify(number, select.EPOLLIN)
            touched.append(connection)
        return touched

    def _receive(self, connection: Connection) -> None:
        buffer = self._buffer
        buffer[:_OVERLAP] = connection.tail
        end = _OVERLAP + connection.socket.recv_into(self._view[_OVERLAP:])
        if end == _OVERLAP:
            raise Failed("the server closed a connection")
        # The end of the last chunk comes first, so that no ack at a border is missed. The shorter
        # pattern must not be found twice there.
        acks = buffer.count(self._ack, _OVERLAP - len(self._ack) + 1, end)
        self.errors += buffer.count(ERROR, _OVERLAP - len(ERROR) + 1, end)
        self.duplicates += buffer.count(DUPLICATE, _OVERLAP - len(DUPLICATE) + 1, end)
        if buffer.find(b"-ERR", 0, end) >= 0:
            raise Failed(bytes(buffer[_OVERLAP:end]).decode(errors="replace")[:200])
        if buffer.find(b"PING\r\n", _OVERLAP, end) >= 0:
            connection.owes_pong = True
        connection.tail = bytes(buffer[end - _OVERLAP : end])
        self.acked += acks
        connection.in_flight -= acks
        if acks and self._measuring and self.load.in_flight == 1:
            connection.latencies.append(time.perf_counter() - connection.sent_at)

    def _outcome(self, acked: int, seconds: float, cpu: float) -> Outcome:
        outcome = Outcome(self.sent, self.acked, self.errors, seconds, acked / seconds, cpu)
        outcome.duplicates = self.duplicates
        latencies = sorted(x for c in self.connections.values() for x in c.latencies)
        if latencies:
            outcome.p50_us = latencies[len(latencies) // 2] * 1e6
            outcome.p99_us = latencies[int(len(latencies) * 0.99)] * 1e6
        return outcome

    def close(self) -> None:
        self._poll.close()
        for connection in self.connections.values():
            connection.socket.close()


def flood(load: Load) -> Outcome:
    """Send `count` messages without acks, as fast as the server accepts them."""
    (connection,) = _connect_all(load)
    sock, frames, size = connection.socket, connection.frames, connection.frame_bytes
    at_once = (1 << 20) // size
    left = load.count
    started = time.perf_counter()
    while left:
        take = min(left, at_once)
        sock.sendall(frames[: take * size])
        left -= take
    sock.sendall(b"PING\r\n")
    answer = b""
    while b"PONG\r\n" not in answer:
        data = sock.recv(1 << 16)
        if not data or b"-ERR" in data:
            raise Failed(f"the server ended the flood: {data!r}")
        answer += data
    seconds = time.perf_counter() - started
    sock.close()
    return Outcome(load.count, 0, 0, seconds, load.count / seconds)


def _connect_all(load: Load) -> list[Connection]:
    return [connect(load, number) for number in range(load.connections)]


def publish(load: Load) -> Outcome:
    if not load.in_flight:
        return flood(load)
    run = Run(load)
    try:
        return run.measure()
    finally:
        run.close()


def main(argument: str) -> None:
    load: dict[str, Any] = json.loads(argument)
    try:
        print(json.dumps(asdict(publish(Load(**load)))))
    except Failed as error:
        sys.exit(f"the publisher gave up: {error}")


if __name__ == "__main__":
    main(sys.argv[1])
