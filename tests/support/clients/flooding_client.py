"""A process that keeps requests in flight on many connections.

`python -m support.clients.flooding_client` reads a `Plan` as JSON from stdin. It prints a line when
every connection has logged in, and sends requests for the time in the plan. At the end it prints
the number of answers of each kind.
"""

from __future__ import annotations

import json
import secrets
import selectors
import socket
import struct
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import msgpack
from support.clients.raw_pull import HELLO, frame

_PATIENCE_SECONDS = 0.5
"""Time after which a request without an answer is sent again. Some requests wait, and others never
get an answer."""
_LEFT_BYTES = 1 << 20
_LONGEST_SECONDS = 20.0
_CANCEL = msgpack.packb({"k": "cancel"})


@dataclass(frozen=True)
class Plan:
    """A plan of a flood. Each connection sends `requests` in turn: frames of the pull protocol
    without their id, whole HTTP requests, or pairs (subject, payload) for NATS. Bytes are written
    as Latin-1 text.

    Over NATS each request has its own inbox, as if it came from another client.
    """

    door: str
    port: int
    requests: list[list[str]]
    seconds: float
    """Minimum duration; the flood lasts longer if there is no answer yet."""
    connections: int = 16
    in_flight: int = 64
    token: str = ""

    def as_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass
class Slot:
    """A place for one request in flight."""

    sent: float = 0.0
    round: int = 0


@dataclass
class Counts:
    answers: Counter[str] = field(default_factory=Counter)
    sent: int = 0


class Line(ABC):
    """One connection."""

    def __init__(self, plan: Plan, number: int, counts: Counts) -> None:
        self.plan, self.number, self.counts = plan, number, counts
        self.requests = [[part.encode("latin-1") for part in one] for one in plan.requests]
        self.next = number
        self.unsent = bytearray()
        self.received = bytearray()
        self.slots = [Slot() for _ in range(plan.in_flight)]
        self.sock = self.connect()

    def connect(self) -> socket.socket:
        self.unsent.clear()
        self.received.clear()
        sock = socket.create_connection(("127.0.0.1", self.plan.port), timeout=30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.greet(sock)
        sock.setblocking(False)
        return sock

    @abstractmethod
    def greet(self, sock: socket.socket) -> None: ...

    @abstractmethod
    def encoded(self, request: Sequence[bytes], place: int) -> bytes: ...

    @abstractmethod
    def take(self) -> list[int]:
        """Return the slots of the answers that have been received."""

    def fill(self, place: int, now: float) -> None:
        slot = self.slots[place]
        slot.round += 1
        slot.sent = now
        self.counts.sent += 1
        self.unsent += self.encoded(self.requests[self.next % len(self.requests)], place)
        self.next += 1

    def refill(self, now: float) -> None:
        """Send requests again that got no answer for a while, unless the daemon does not read
        them."""
        if len(self.unsent) < _LEFT_BYTES:
            for place, slot in enumerate(self.slots):
                if now - slot.sent > _PATIENCE_SECONDS:
                    self.fill(place, now)

    def write(self) -> None:
        if self.unsent:
            try:
                del self.unsent[: self.sock.send(memoryview(self.unsent)[: 1 << 18])]
            except BlockingIOError:
                pass

    def read(self, now: float) -> bool:
        """Read answers. Returns False at the end of the connection."""
        try:
            data = self.sock.recv(1 << 18)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.received += data
        for place in self.take():
            self.fill(place, now)
        return bool(data)


class PullLine(Line):
    def greet(self, sock: socket.socket) -> None:
        auth = {"k": "auth", "i": 2, "m": "token", "t": self.plan.token}
        for message, wanted in ((HELLO, "challenge"), (auth, "welcome")):
            sock.sendall(frame(message))
            (length,) = struct.unpack("<I", _exactly(sock, 4))
            answer = msgpack.unpackb(_exactly(sock, length))
            assert answer["k"] == wanted, answer

    def encoded(self, request: Sequence[bytes], place: int) -> bytes:
        # The header of a map with up to 15 entries is one byte. The id is one of these entries.
        entries = request[0]
        data = bytes((entries[0] + 1,)) + b"\xa1i" + msgpack.packb(place + 1) + entries[1:]
        framed = struct.pack("<I", len(data)) + data
        if entries == _CANCEL:  # which is not answered
            return framed + frame({"k": "ping", "i": place + 1})
        return framed

    def refill(self, now: float) -> None:
        for place, slot in enumerate(self.slots):
            if not slot.sent:
                self.fill(place, now)

    def take(self) -> list[int]:
        found = []
        while len(self.received) >= 4:
            (length,) = struct.unpack_from("<I", self.received)
            if len(self.received) < 4 + length:
                break
            answer = msgpack.unpackb(
                memoryview(self.received)[4 : 4 + length].tobytes(), strict_map_key=False
            )
            whole = 4 + length + (answer.get("b") or 0)
            if len(self.received) < whole:
                break
            del self.received[:whole]
            self.counts.answers[answer["n"] if answer["k"] == "error" else answer["k"]] += 1
            if answer["i"]:
                found.append(answer["i"] - 1)
        return found


class HttpLine(Line):
    def greet(self, sock: socket.socket) -> None:
        self.order: list[int] = []

    def encoded(self, request: Sequence[bytes], place: int) -> bytes:
        self.order.append(place)
        return request[0]

    def refill(self, now: float) -> None:
        if not self.order:
            for place in range(len(self.slots)):
                self.fill(place, now)

    def take(self) -> list[int]:
        found = []
        while (end := self.received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self.received[:end]).lower()
            _, marked, length = head.partition(b"content-length:")
            whole = end + 4 + (int(length.split(b"\r\n")[0]) if marked else 0)
            if len(self.received) < whole:
                break
            self.counts.answers[head[9:12].decode("latin-1")] += 1
            del self.received[:whole]
            if self.order:
                found.append(self.order.pop(0))
        return found


class NatsLine(Line):
    def greet(self, sock: socket.socket) -> None:
        sock.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')
        sock.sendall(b"SUB _INBOX.*.%d.> 1\r\nPING\r\n" % self.number)
        while b"PONG\r\n" not in sock.recv(1 << 16):
            pass

    def encoded(self, request: Sequence[bytes], place: int) -> bytes:
        subject, payload = request
        inbox = secrets.token_hex(8).encode()
        reply = b"_INBOX.%b.%d.%d.%d" % (inbox, self.number, place, self.slots[place].round)
        return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload)

    def take(self) -> list[int]:
        found = []
        while (end := self.received.find(b"\r\n")) >= 0:
            words = bytes(self.received[:end]).split(b" ")
            if words[0] not in (b"MSG", b"HMSG"):
                del self.received[: end + 2]
                if words[0] == b"PING":
                    self.unsent += b"PONG\r\n"
                elif words[0] == b"-ERR":
                    self.counts.answers[b" ".join(words).decode("latin-1")] += 1
                continue
            size = int(words[-1])
            whole = end + 2 + size + 2
            if len(self.received) < whole:
                break
            payload = bytes(self.received[end + 2 : whole - 2])
            del self.received[:whole]
            if not words[1].startswith(b"_INBOX."):
                continue  # a consumer delivers a record on the record's subject
            place, number = map(int, words[1].split(b".")[-2:])
            if number == self.slots[place].round:
                said = "error" if b'"error"' in payload[:400] else "ok"
                if words[0] == b"HMSG" and payload.startswith(b"NATS/1.0 "):
                    said = payload[9:12].decode("latin-1")
                self.counts.answers[said] += 1
                found.append(place)
        return found


LINES: dict[str, type[Line]] = {"pull": PullLine, "http": HttpLine, "nats": NatsLine}


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise ConnectionError("closed")
        data += part
    return data


def flood(plan: Plan) -> Counts:
    counts = Counts()
    lines = [LINES[plan.door](plan, number, counts) for number in range(plan.connections)]
    print("ready", flush=True)
    selector = selectors.DefaultSelector()
    both = selectors.EVENT_READ | selectors.EVENT_WRITE
    for line in lines:
        selector.register(line.sock, both, line)
    began = time.monotonic()
    while (now := time.monotonic()) < began + plan.seconds or (
        not counts.answers and now < began + _LONGEST_SECONDS
    ):
        for line in lines:
            line.refill(now)
            wanted = both if line.unsent else selectors.EVENT_READ
            if selector.get_key(line.sock).events != wanted:
                selector.modify(line.sock, wanted, line)
        for key, events in selector.select(0.05):
            line = key.data
            if events & selectors.EVENT_WRITE:
                try:
                    line.write()
                except OSError:
                    events |= selectors.EVENT_READ
            if events & selectors.EVENT_READ and not line.read(now):
                selector.unregister(line.sock)
                line.sock.close()
                counts.answers["closed"] += 1
                line.sock = line.connect()
                line.slots = [Slot() for _ in line.slots]
                selector.register(line.sock, both, line)
    return counts


if __name__ == "__main__":
    print(json.dumps(vars(flood(Plan(**json.load(sys.stdin))))), flush=True)
