"""The client's end of a connection, without any I/O.

The caller moves bytes: it receives into `get_buffer()`, calls `buffer_updated(n)` and `receive()`,
and writes the bytes that `take_outgoing()` returns. `handshake` describes the states of a
connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from liftlog.errors import (
    BadRequest,
    LiftlogError,
    LimitExceeded,
    ProtocolViolation,
    Unauthenticated,
)
from liftlog.protocol.consumer_states import ConsumerChanges
from liftlog.protocol.frames import LENGTH, FrameReader, encode_frame
from liftlog.protocol.handshake import (
    CLIENT_TRANSITIONS,
    Credentials,
    LocalProtocolError,
    State,
    text_to_sign,
)
from liftlog.protocol.limits import (
    ANSWER_BODY_BYTES,
    ANSWER_FRAME_BYTES,
    OPENING_FRAME_BYTES,
    SUPPORTED_VERSIONS,
)
from liftlog.protocol.messages import (
    ANONYMOUS,
    ANSWERS,
    CERTIFICATE,
    NKEY,
    TOKEN,
    UNIX,
    Auth,
    Cancel,
    Challenge,
    ErrorAnswer,
    Fetch,
    FetchHeader,
    Hello,
    Welcome,
    exception_from,
)
from liftlog.protocol.replication import Replica
from liftlog.protocol.wire import ID_KEY, KIND_KEY, Message
from liftlog.protocol.workers import Delivered, PullWork

_WithBody = FetchHeader | Replica | Delivered | ConsumerChanges
_ROOM_FOR_OTHERS = 4
"""Number of requests that may always be in flight in addition to fetches."""


class Exchange:
    """One request of a client and its answer.

    `on_header` runs when the header of a fetch arrives, before its body: `body` is then set, and
    its first `arrived_bytes` are valid. `on_progress` runs when more bytes of the body have
    arrived. `on_done` runs once, when the answer is complete or the connection is lost; then either
    `answer` or `error` is set. While `sent` is false, the daemon cannot have received the request.
    """

    __slots__ = (
        "answer",
        "arrived_bytes",
        "body",
        "error",
        "on_done",
        "on_header",
        "on_progress",
        "request_id",
        "sent",
    )

    def __init__(
        self,
        on_header: Callable[[FetchHeader], None] | None = None,
        on_done: Callable[[Exchange], None] | None = None,
        on_progress: Callable[[], None] | None = None,
    ) -> None:
        self.request_id = 0
        self.sent = False
        self.arrived_bytes = 0
        self.on_progress = on_progress
        self.on_header = on_header
        self.on_done = on_done
        self.answer: Message | None = None
        self.body: memoryview | None = None
        self.error: LiftlogError | None = None

    @property
    def done(self) -> bool:
        return self.error is not None or self.answer is not None

    def finish(self, answer: Message | None, error: LiftlogError | None) -> None:
        self.answer, self.error = answer, error
        if self.on_done is not None:
            self.on_done(self)


class ClientConnection:
    """The client's end of a connection. It assigns ids to requests, and finds the `Exchange` of an
    answer by its id.

    `take_outgoing()` returns the bytes to write. Requests beyond the server's limit for requests in
    flight wait until an answer frees a place. Fetches, which may wait long for their answers, leave
    some places to other requests, so that a checkpoint need not wait for new records.
    """

    def __init__(
        self,
        *,
        nonce: bytes,
        software: str,
        allocate: Callable[[int], memoryview] | None = None,
    ) -> None:
        options: dict[str, Any] = {} if allocate is None else {"allocate": allocate}
        self.state = State.NEW
        self.answered = False
        """True after the first answer to a request."""
        self.welcome = Welcome()
        self.challenge: Challenge | None = None
        self._nonce = nonce
        self._software = software
        self._frames = FrameReader(
            max_frame_bytes=OPENING_FRAME_BYTES, max_body_bytes=ANSWER_BODY_BYTES, **options
        )
        self.get_buffer = self._frames.get_buffer
        self.buffer_updated = self._frames.buffer_updated
        self._exchanges: dict[int, Exchange | None] = {}  # None: cancelled, but not yet answered
        self._backlog: deque[tuple[Exchange, bytes]] = deque()
        self._fetch_backlog: deque[tuple[Exchange, bytes]] = deque()
        self._outgoing: list[bytes] = []
        self._last_id = 0
        self._awaiting_body: tuple[int, _WithBody] | None = None

    @property
    def in_flight(self) -> int:
        return len(self._exchanges)

    @property
    def missing_bytes(self) -> int:
        """Number of bytes that are missing from the body that is arriving; 0 if no body is
        arriving."""
        body = self._frames.arriving_body
        return 0 if body is None else len(body) - self._frames.arrived_bytes

    def allow_in_flight(self, count: int) -> None:
        """Allow more requests in flight than the server's welcome allowed, after the server has
        identified this client."""
        self.welcome = self.welcome.replaced(max_in_flight=count)

    def greet(self) -> None:
        """Send the hello, which the server answers with a challenge."""
        self._move("send hello")
        self._send(self._next_id(), Hello(list(SUPPORTED_VERSIONS), self._nonce, self._software))

    def authenticate(self, credentials: Credentials, certificate: bytes | None = None) -> None:
        """Answer the challenge. Raises Unauthenticated when no method fits the credentials.

        `certificate` is the certificate of the server in the TLS handshake, in DER.
        """
        if self.challenge is None:
            raise LocalProtocolError("the server has sent no challenge yet")
        proof = self._proof(self.challenge, credentials, certificate)
        self._move("send auth")
        self._send(self._next_id(), proof)

    def _proof(
        self, challenge: Challenge, credentials: Credentials, certificate: bytes | None
    ) -> Auth:
        """Choose the credentials that the server requests. A token is sent only if the server
        requests one; the seed of an nkey is never sent."""
        methods, nkey = challenge.methods, credentials.nkey
        if NKEY in methods and nkey is not None:
            text = text_to_sign(self._nonce, challenge.nonce, challenge.server_id, certificate)
            return Auth(NKEY, public_key=nkey.public_key, signature=nkey.sign(text))
        if TOKEN in methods and credentials.token is not None:
            return Auth(TOKEN, credentials.token)
        for method in (CERTIFICATE, UNIX, ANONYMOUS):  # the server identifies the client
            if method in methods:
                return Auth(method)
        wanted = {TOKEN: "a token", NKEY: "an nkey"}
        known = [wanted[method] for method in methods if method in wanted]
        if known:
            raise Unauthenticated(f"the server asks for {' or '.join(known)}")
        if methods:
            raise Unauthenticated(
                f"the server accepts {', '.join(one[:40] for one in methods)} only",
                hint="a newer client may know that",
            )
        raise Unauthenticated(
            "the server accepts only clients that it knows by certificate or Unix user"
        )

    def request(self, message: Message, exchange: Exchange) -> None:
        """Send `message` as soon as the server's limit allows; `exchange` gets the answer.

        Raises LimitExceeded if the message is longer than the server accepts.
        """
        if self.state is not State.READY:
            raise LocalProtocolError(f"a request cannot be sent while {self.state.value}")
        request_id = exchange.request_id = self._next_id()
        frame = encode_frame(message.to_map(request_id))
        limit = self.welcome.max_request_bytes
        if len(frame) - LENGTH.size > limit:
            raise LimitExceeded(f"the request is longer than the server's limit of {limit} bytes")
        backlog = self._fetch_backlog if isinstance(message, Fetch | PullWork) else self._backlog
        backlog.append((exchange, frame))
        self._send_backlog()

    def _send_backlog(self) -> None:
        """Send waiting requests as far as the server's limit allows."""
        most = self.welcome.max_in_flight
        room_for_others = min(_ROOM_FOR_OTHERS, most // 2)
        for backlog, bound in (self._backlog, most), (self._fetch_backlog, most - room_for_others):
            while backlog and len(self._exchanges) < bound:
                exchange, frame = backlog.popleft()
                self._exchanges[exchange.request_id] = exchange
                exchange.sent = True
                self._outgoing.append(frame)

    def give_up(self, exchange: Exchange) -> None:
        """Cancel a request, and drop an answer that may still arrive. Does nothing if the request
        is done."""
        if self._exchanges.get(exchange.request_id) is exchange:
            self._exchanges[exchange.request_id] = None
            if self.state is State.READY:
                self._send(exchange.request_id, Cancel())
        else:
            for backlog in self._backlog, self._fetch_backlog:
                for one in backlog:
                    if one[0] is exchange:
                        backlog.remove(one)
                        return

    def take_outgoing(self) -> bytes:
        """Return the bytes to write. Each byte is returned once."""
        if not self._outgoing:
            return b""
        outgoing = self._outgoing
        self._outgoing = []
        return outgoing[0] if len(outgoing) == 1 else b"".join(outgoing)

    def receive(self) -> bool:
        """Handle all bytes that have arrived; return True if they include a challenge or the
        welcome.

        Calls the callbacks of exchanges. Raises the error that the server reported for the whole
        connection, or ProtocolViolation.
        """
        progressed = False
        while True:
            try:
                event = self._frames.next_event()
            except LiftlogError as error:
                raise ProtocolViolation(
                    f"the server broke the framing: {error.message}", hint=error.hint
                ) from error
            if event is None:
                if self._awaiting_body is not None:
                    self._note_arrived(self._awaiting_body[0])
                return progressed
            if type(event) is memoryview:
                self._receive_body(event)
            else:
                progressed = self._receive_map(event) or progressed

    def close(self, error: LiftlogError) -> None:
        """End every open exchange with `error`, because the connection has ended."""
        self.state = State.CLOSED
        waiting = [exchange for exchange, _ in (*self._backlog, *self._fetch_backlog)]
        waiting += [exchange for exchange in self._exchanges.values() if exchange is not None]
        self._exchanges = {}
        self._backlog.clear()
        self._fetch_backlog.clear()
        self._outgoing.clear()
        for exchange in waiting:
            exchange.finish(None, error)

    def _send(self, request_id: int, message: Message) -> None:
        self._outgoing.append(encode_frame(message.to_map(request_id)))

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _move(self, event: str) -> None:
        following = CLIENT_TRANSITIONS.get((self.state, event))
        if following is None:
            error = LocalProtocolError if event.startswith("send") else ProtocolViolation
            raise error(f"cannot {event} while {self.state.value}")
        self.state = following

    def _receive_map(self, received: dict[str, Any]) -> bool:
        request_id, kind = received.get(ID_KEY), received.get(KIND_KEY)
        cls = ANSWERS.get(kind) if type(kind) is str else None
        if cls is None or type(request_id) is not int:
            raise ProtocolViolation(f"the server sent an unknown answer {kind!r}")
        try:
            message = cls.from_map(received)
        except BadRequest as error:
            raise ProtocolViolation(f"the server sent a malformed answer: {error}") from error
        if isinstance(message, _WithBody):
            self._receive_header(request_id, message)
        elif isinstance(message, ErrorAnswer) and request_id not in self._exchanges:
            raise exception_from(message)
        elif isinstance(message, Challenge):
            self._move("receive challenge")
            self.challenge = message
            return True
        elif isinstance(message, Welcome):
            self._move("receive welcome")
            self.welcome = message
            self._frames.max_frame_bytes = ANSWER_FRAME_BYTES
            return True
        else:
            self._finish(request_id, message)
        return False

    def _receive_header(self, request_id: int, header: _WithBody) -> None:
        if request_id not in self._exchanges:
            raise ProtocolViolation(f"the server answered request {request_id}, which is not open")
        exchange = self._exchanges[request_id]
        self.answered = True
        if header.body_length:
            self._awaiting_body = (request_id, header)
        if exchange is not None:
            if header.body_length:
                exchange.body = self._frames.arriving_body
                exchange.arrived_bytes = self._frames.arrived_bytes
            if exchange.on_header is not None and isinstance(header, FetchHeader):
                exchange.on_header(header)
        if not header.body_length:
            self._finish(request_id, header)

    def _receive_body(self, body: memoryview) -> None:
        if self._awaiting_body is None:
            raise ProtocolViolation("the server sent a body with an answer that has none")
        request_id, header = self._awaiting_body
        self._awaiting_body = None
        exchange = self._exchanges.get(request_id)
        if exchange is not None:
            exchange.arrived_bytes = len(body)
        self._finish(request_id, header)

    def _note_arrived(self, request_id: int) -> None:
        exchange = self._exchanges.get(request_id)
        if exchange is not None:
            exchange.arrived_bytes = self._frames.arrived_bytes
            if exchange.on_progress is not None:
                exchange.on_progress()

    def _finish(self, request_id: int, message: Message) -> None:
        if request_id not in self._exchanges:
            raise ProtocolViolation(f"the server answered request {request_id}, which is not open")
        exchange = self._exchanges.pop(request_id)
        self.answered = True
        if self._backlog or self._fetch_backlog:
            self._send_backlog()
        if exchange is None:
            return
        if isinstance(message, ErrorAnswer):
            exchange.finish(None, exception_from(message))
        else:
            exchange.finish(message, None)
