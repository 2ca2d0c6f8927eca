"""A NATS client on a plain socket, for messages that usual clients refuse to send."""

from __future__ import annotations

import itertools
import json
import socket
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple

Text = bytes | str

_inbox_ids = itertools.count()


class RawMessage(NamedTuple):
    subject: bytes
    sid: int
    reply: bytes
    headers: bytes
    """The unchanged header block, from `NATS/1.0` to the blank line; empty if there is none."""
    payload: bytes

    def json(self) -> Any:
        return json.loads(self.payload)


class ServerError(Exception):
    """The server sent -ERR."""


class RawNats:
    """A blocking client; not thread-safe. It does not check the data that it sends.

    Messages that arrive during the wait for another answer are kept for `next_message`.
    """

    def __init__(
        self,
        port: int,
        *,
        host: str = "127.0.0.1",
        timeout: float = 10.0,
        connect_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.socket = socket.create_connection((host, port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._timeout = timeout
        self._received = bytearray()
        self.messages: deque[RawMessage] = deque()
        self._next_sid = itertools.count(1)
        self._sids: list[int] = []
        self._inbox: bytes | None = None
        self._request_ids = itertools.count(1)
        try:
            self._greet(connect_options or {})
        except BaseException:
            self.socket.close()
            raise

    def _greet(self, connect_options: Mapping[str, Any]) -> None:
        greeting = self._line()
        assert greeting.startswith(b"INFO "), greeting
        self.info: dict[str, Any] = json.loads(greeting[5:])
        options = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "lang": "raw",
            "version": "0",
            "protocol": 1,
            **connect_options,
        }
        self.send(b"CONNECT " + json.dumps(options).encode() + b"\r\n")
        self.ping()

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> RawNats:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def pub(self, subject: Text, payload: Text = b"", *, reply: Text = b"") -> None:
        self.send(pub_frame(subject, payload, reply=reply))

    def hpub(
        self, subject: Text, headers: bytes, payload: Text = b"", *, reply: Text = b""
    ) -> None:
        """Publish with headers. `headers` is the whole block, which may be malformed;
        `header_block` makes a valid block."""
        self.send(hpub_frame(subject, headers, payload, reply=reply))

    def sub(self, subject: Text, *, queue: Text = b"") -> int:
        """Subscribe, and return the sid. The subscription is active when the next `ping`
        returns."""
        sid = next(self._next_sid)
        self._sids.append(sid)
        self.send(b" ".join(filter(None, (b"SUB", _b(subject), _b(queue), b"%d" % sid))) + b"\r\n")
        return sid

    def ping(self) -> None:
        """Make a round trip. On return, the server has handled all earlier data."""
        self.send(b"PING\r\n")
        while True:
            got = self._read_operation()
            if got == b"PONG":
                return
            if isinstance(got, RawMessage):
                self.messages.append(got)

    def forget(self) -> None:
        """End all subscriptions. Drops messages that have arrived on them or are in flight."""
        self.send(b"".join(b"UNSUB %d\r\n" % sid for sid in self._sids))
        self._sids.clear()
        self._inbox = None
        self.ping()
        self.messages.clear()

    def next_message(self, timeout: float | None = None) -> RawMessage:
        """Return the next message on any subscription. Raises TimeoutError if the server sends
        nothing."""
        if self.messages:
            return self.messages.popleft()
        self.socket.settimeout(self._timeout if timeout is None else timeout)
        try:
            while True:
                got = self._read_operation()
                if isinstance(got, RawMessage):
                    return got
        finally:
            self.socket.settimeout(self._timeout)

    def new_reply(self) -> bytes:
        """Return a new reply subject below this connection's inbox, which is subscribed at the
        first call."""
        if self._inbox is None:
            self._inbox = b"_INBOX.raw%d.%d" % (self.info.get("client_id", 0), next(_inbox_ids))
            self.sub(self._inbox + b".*")
        return self._inbox + b".%d" % next(self._request_ids)

    def request(
        self,
        subject: Text,
        payload: Text = b"",
        *,
        headers: bytes = b"",
        timeout: float | None = None,
    ) -> RawMessage:
        """Publish with a new reply subject, and return the first answer."""
        reply = self.new_reply()
        if headers:
            self.hpub(subject, headers, payload, reply=reply)
        else:
            self.pub(subject, payload, reply=reply)
        others: list[RawMessage] = []
        try:
            while True:
                message = self.next_message(timeout)
                if message.subject == reply:
                    return message
                others.append(message)
        finally:
            self.messages.extendleft(reversed(others))

    def no_message(self) -> bool:
        """Return True if no message has arrived, including during a round trip to the server."""
        self.ping()
        return not self.messages

    def _read_operation(self) -> RawMessage | bytes:
        line = self._line()
        if line.startswith((b"MSG ", b"HMSG ")):
            return self._read_message(line)
        if line == b"PING":
            self.send(b"PONG\r\n")
        elif line.startswith(b"-ERR"):
            raise ServerError(line.decode(errors="replace"))
        return line

    def _read_message(self, line: bytes) -> RawMessage:
        # Split only at blanks, because a subject may contain any other byte, including control
        # characters.
        words = line.split(b" ")
        sizes = 2 if words[0] == b"HMSG" else 1
        subject, sid, *reply = words[1:-sizes]
        total = int(words[-1])
        header_size = int(words[-2]) if sizes == 2 else 0
        body = self._exactly(total + 2)
        assert body.endswith(b"\r\n"), "the message is shorter or longer than announced"
        return RawMessage(
            subject, int(sid), b"".join(reply), body[:header_size], body[header_size:-2]
        )

    def _line(self) -> bytes:
        while (end := self._received.find(b"\r\n")) < 0:
            self._receive()
        return self._exactly(end + 2)[:-2]

    def _exactly(self, count: int) -> bytes:
        while len(self._received) < count:
            self._receive()
        taken = bytes(self._received[:count])
        del self._received[:count]
        return taken

    def _receive(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError(f"the server closed the connection: {bytes(self._received)!r}")
        self._received += data


def pub_frame(subject: Text, payload: Text = b"", *, reply: Text = b"") -> bytes:
    body = _b(payload)
    words = filter(None, (b"PUB", _b(subject), _b(reply), b"%d" % len(body)))
    return b" ".join(words) + b"\r\n" + body + b"\r\n"


def hpub_frame(subject: Text, headers: bytes, payload: Text = b"", *, reply: Text = b"") -> bytes:
    body = headers + _b(payload)
    sizes = (b"%d" % len(headers), b"%d" % len(body))
    words = filter(None, (b"HPUB", _b(subject), _b(reply), *sizes))
    return b" ".join(words) + b"\r\n" + body + b"\r\n"


def header_block(headers: Mapping[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def _b(text: Text) -> bytes:
    return text.encode() if isinstance(text, str) else text
