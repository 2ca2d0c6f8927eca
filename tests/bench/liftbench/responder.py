"""The ceiling: a program that stores nothing, and acks every message at once with the bytes of our
acks.

    python -m bench.liftbench.responder '{"port": 4222, "subject": "bench", "stream": "bench", ...}'

It shows the speed of nats-server and the publishers when the receiver does almost no work. It
prints a line when it is subscribed. On SIGTERM it prints the number of acked messages and ends.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

_SID = 1
_CONTROL = re.compile(rb"(PING|PONG|\+OK|INFO [^\r\n]*)\r\n")


class Failed(Exception):
    """The measurement is void."""


class Responder:
    """Converts received bytes to bytes to send, without I/O, and with few Python steps per
    message."""

    def __init__(self, subject: str, stream: str, payload_bytes: int) -> None:
        self.acked = 0
        self._stream = stream.encode()
        self._rest = b""
        self._body_bytes = payload_bytes + len(b"\r\n")
        head = b"MSG %b %d " % (subject.encode(), _SID)
        self._start = re.compile(re.escape(head) + rb"[^ \r\n]+ %d\r\n" % payload_bytes)
        self._message = re.compile(
            re.escape(head) + rb"([^ \r\n]+) %d\r\n(?s:.{%d})\r\n" % (payload_bytes, payload_bytes)
        )
        self._forms: dict[int, bytes] = {}

    def receive(self, data: bytes) -> bytes:
        """Handle `data`, which may begin and end anywhere. Raises Failed for unexpected bytes."""
        # The bytes between two messages, and the reply subject of each message, alternate.
        pieces = self._message.split(self._rest + data)
        self._rest = pieces.pop()
        between, replies = pieces[::2], pieces[1::2]
        pongs = 0
        if any(between):
            for piece in filter(None, between):
                left, pings = _take_control(piece)
                if left:
                    raise Failed(f"not what the benchmark publishes: {left[:200]!r}")
                pongs += pings
        if self._rest:
            self._rest, pings = _take_control(self._rest)
            self._check_rest()
            pongs += pings
        return self._acks(replies) + b"PONG\r\n" * pongs

    def _check_rest(self) -> None:
        """Check that the remaining bytes are the beginning of an expected message."""
        if b"\r\n" not in self._rest:
            return
        start = self._start.match(self._rest)
        if start is None or len(self._rest) >= start.end() + self._body_bytes:
            raise Failed(f"not what the benchmark publishes: {self._rest[:200]!r}")

    def _acks(self, replies: Sequence[bytes]) -> bytes:
        """Return the acks. One format string serves all numbers with the same number of digits."""
        parts: list[bytes] = []
        done = 0
        while done < len(replies):
            number = self.acked + 1
            digits = len(str(number))
            chosen = replies[done : done + 10**digits - number]
            numbered = zip(chosen, range(number, number + len(chosen)), strict=True)
            parts += map(self._form(digits).__mod__, numbered)
            done += len(chosen)
            self.acked += len(chosen)
        return b"".join(parts)

    def _form(self, digits: int) -> bytes:
        form = self._forms.get(digits)
        if form is None:
            head = b'{"stream":"%b","seq":' % self._stream
            size = len(head) + digits + len(b"}")
            form = self._forms[digits] = b"PUB %%b %d\r\n%b%%d}\r\n" % (size, head)
        return form


def _take_control(data: bytes) -> tuple[bytes, int]:
    """Return the bytes after the control lines at the front, and the number of PINGs among these
    lines."""
    position = pings = 0
    while found := _CONTROL.match(data, position):
        pings += found[1] == b"PING"
        position = found.end()
    return data[position:], pings


def serve(spec: dict[str, Any], responder: Responder) -> None:
    with socket.create_connection(("127.0.0.1", spec["port"]), timeout=10) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        options = {"verbose": False, "pedantic": False, "echo": False, "headers": False}
        hello = f"CONNECT {json.dumps({**options, 'lang': 'bench', 'protocol': 1})}\r\n"
        sock.sendall(f"{hello}SUB {spec['subject']} {_SID}\r\nPING\r\n".encode())
        greeting = b""
        while b"PONG\r\n" not in greeting:
            data = sock.recv(1 << 16)
            if not data or b"-ERR" in data:
                raise Failed(f"the server refused the connection: {greeting + data!r}")
            greeting += data
        sock.sendall(responder.receive(greeting))  # a PING may have arrived with it
        sock.settimeout(None)
        print("subscribed", flush=True)
        buffer = bytearray(1 << 18)
        view = memoryview(buffer)
        while count := sock.recv_into(buffer):
            answer = responder.receive(bytes(view[:count]))
            if answer:
                sock.sendall(answer)
        raise Failed("the server closed the connection")


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit


def main(argument: str) -> None:
    spec: dict[str, Any] = json.loads(argument)
    signal.signal(signal.SIGTERM, _end)
    responder = Responder(spec["subject"], spec["stream"], spec["payload_bytes"])
    try:
        serve(spec, responder)
    except SystemExit:
        print(json.dumps({"acked": responder.acked}))
    except (Failed, OSError) as error:
        sys.exit(f"the responder gave up: {error}")


if __name__ == "__main__":
    main(sys.argv[1])
