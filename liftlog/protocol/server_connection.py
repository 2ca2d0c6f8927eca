"""The server's end of a connection, without any I/O. `handshake` describes the states of a
connection."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from liftlog.errors import (
    BadRequest,
    LiftlogError,
    LimitExceeded,
    Unauthenticated,
    UnknownRequest,
    UnsupportedVersion,
)
from liftlog.protocol.frames import FrameReader, encode_frame
from liftlog.protocol.handshake import SERVER_TRANSITIONS, LocalProtocolError, State, text_to_sign
from liftlog.protocol.limits import (
    HELLO_FRAME_BYTES,
    MAX_HELLO_VALUES,
    MAX_REQUEST_VALUES,
    SUPPORTED_VERSIONS,
    WireLimits,
)
from liftlog.protocol.messages import (
    REQUESTS,
    Auth,
    Cancel,
    Challenge,
    Fetch,
    Hello,
    Welcome,
    answer_for,
)
from liftlog.protocol.wire import ID_KEY, KIND_KEY, MAX_UINT, Message

REQUEST_OVERHEAD_BYTES = 1024
"""Approximate memory of an unanswered request, in addition to the bytes of its frame."""

_FILTER_VALUE_BYTES = 64
"""Approximate memory of each value of a filter."""


class InFlight:
    """Counts the unanswered requests of several connections, and the memory that they take."""

    __slots__ = ("count", "max_bytes", "maximum", "size_bytes")

    def __init__(self, maximum: int, max_bytes: int = sys.maxsize) -> None:
        self.count = 0
        self.maximum = maximum
        self.size_bytes = 0
        self.max_bytes = max_bytes


class ServerConnection:
    """The server's end of a connection: converts frames to typed requests, and limits the requests
    in flight.

    `next_event()` returns `(id, message)`, or `(id, error)` for a request to refuse, or None. It
    raises errors that end the connection; the caller sends them to the client with `error(0, ...)`.

    When the limit is reached, the connection still reads, because a `cancel` may follow. The first
    request beyond the limit is kept until a place is free, and the connection reads no further
    frame before that. A request is refused if it would take more memory than is left to this
    connection (`max_held_bytes`) or to its principal. The limit of the connection never refuses its
    only request.
    """

    def __init__(
        self,
        limits: WireLimits,
        *,
        max_hello_bytes: int = HELLO_FRAME_BYTES,
        max_held_bytes: int = sys.maxsize,
    ) -> None:
        self.state = State.NEW
        self.limits = limits
        self._frames = FrameReader(
            max_frame_bytes=max_hello_bytes,
            max_body_bytes=0,
            max_values=MAX_HELLO_VALUES,
            buffer_bytes=HELLO_FRAME_BYTES,
        )
        self.get_buffer = self._frames.get_buffer
        self.buffer_updated = self._frames.buffer_updated
        self._open: dict[int, int] = {}  # memory of each request, by its id
        self._kept: tuple[dict[str, Any], int] | None = None  # waits; bytes of its frame
        self._max_held_bytes = max_held_bytes
        self.held_bytes = 0
        """Memory of unanswered requests, and of the request that is arriving."""
        self._grown_bytes = 0  # the part of them in the buffer of the arriving request
        self.shared = InFlight(limits.max_in_flight)
        """The counter of requests in flight. Once the principal is known, all connections of the
        principal share one counter."""
        self._auth_id = 0
        self._nonces = (b"", b"")  # the client's, ours
        self._server_id = ""
        self.methods: list[str] = []

    @property
    def in_flight(self) -> int:
        return len(self._open)

    @property
    def saturated(self) -> bool:
        """True if a request waits for a free place, so that `next_event` returns None."""
        return self._kept is not None and self._is_full

    @property
    def _is_full(self) -> bool:
        return len(self._open) >= self.limits.max_in_flight

    @property
    def mid_frame(self) -> bool:
        return self._frames.mid_frame

    def next_event(self) -> tuple[int, Message | LiftlogError] | None:
        received: dict[str, Any] | memoryview | None
        if self._kept is not None:
            if self._is_full:
                return None
            (received, frame_bytes), self._kept = self._kept, None
            self._hold(-frame_bytes)
        else:
            if self._frames.grown_bytes != self._grown_bytes:
                self._count_buffer()
            received = self._frames.next_event()
            frame_bytes = self._frames.frame_bytes
        if received is None:
            return None
        if type(received) is memoryview:  # pragma: no cover - max_body_bytes is 0
            raise BadRequest("a request has no body")
        request_id, kind = received.get(ID_KEY), received.get(KIND_KEY)
        if type(request_id) is not int or not 0 < request_id <= MAX_UINT or type(kind) is not str:
            raise BadRequest("a request needs an id `i` (1 or more) and a kind `k`")
        if self.state is not State.READY:
            return request_id, self._receive_opening(request_id, kind, received)
        if self._is_full and kind != Cancel.KIND:
            self._kept = received, frame_bytes
            self._hold(frame_bytes)
            return None
        return request_id, self._receive_request(request_id, kind, received, frame_bytes)

    def challenge(self, request_id: int, server_id: str, nonce: bytes, methods: list[str]) -> bytes:
        self._move("send challenge")
        self.methods = methods
        self._nonces = (self._nonces[0], nonce)
        self._server_id = server_id
        answer = Challenge(SUPPORTED_VERSIONS[-1], server_id, nonce, methods)
        return encode_frame(answer.to_map(request_id))

    def text_to_sign(self, certificate: bytes | None) -> bytes:
        """Return the text that the client signs with its nkey. `certificate` is the certificate
        that was sent to the client."""
        return text_to_sign(*self._nonces, self._server_id, certificate)

    def welcome(self, principal: str | None, software: str) -> bytes:
        self._move("send welcome")
        limits = self.limits
        self._frames.max_frame_bytes = limits.max_request_bytes
        self._frames.max_values = MAX_REQUEST_VALUES
        answer = Welcome(
            principal,
            software,
            limits.max_request_bytes,
            limits.max_in_flight,
            limits.max_fetch_bytes,
            limits.max_wait_ms,
        )
        return encode_frame(answer.to_map(self._auth_id))

    def allow_in_flight(self, count: int) -> None:
        """Allow `count` unanswered requests from now on, on this connection and on all connections
        of its principal together."""
        self.limits = replace(self.limits, max_in_flight=count)
        self.shared.maximum = max(self.shared.maximum, count)

    def answer(self, request_id: int, message: Message) -> bytes:
        cost = self._open.pop(request_id, None)
        if cost is not None:
            self.shared.count -= 1
            self._hold(-cost)
        return encode_frame(message.to_map(request_id))

    def error(self, request_id: int, error: LiftlogError) -> bytes:
        return self.answer(request_id, answer_for(error))

    def close(self) -> None:
        self.state = State.CLOSED
        self.shared.count -= len(self._open)
        self._open.clear()
        # A cycle of references delays the release of this object; its memory is released now.
        self._kept = None
        self._frames.clear()
        self._hold(-self.held_bytes)

    def _hold(self, more: int) -> None:
        self.held_bytes += more
        self.shared.size_bytes += more

    def _count_buffer(self) -> None:
        """Count the memory of the arriving request. Raises LimitExceeded if the principal must read
        answers before it sends more requests."""
        grown_bytes = self._frames.grown_bytes
        more = grown_bytes - self._grown_bytes
        self._grown_bytes = grown_bytes
        self._hold(more)
        if more > 0 and self.shared.size_bytes > self.shared.max_bytes:
            raise self._too_much_memory()

    def _too_much_memory(self) -> LimitExceeded:
        return LimitExceeded(
            f"the unanswered requests of this principal would take more than "
            f"{self.shared.max_bytes} bytes of memory",
            hint="wait for answers, filter by less, or raise "
            "pull.max_request_memory_per_principal_bytes",
        )

    def _move(self, event: str) -> None:
        following = SERVER_TRANSITIONS.get((self.state, event))
        if following is None:
            if event.startswith("send"):
                raise LocalProtocolError(f"cannot {event} while {self.state.value}")
            raise BadRequest(f"cannot {event} while {self.state.value}")
        self.state = following

    def _receive_opening(self, request_id: int, kind: str, received: dict[str, Any]) -> Message:
        if kind == Hello.KIND and self.state is State.NEW:
            hello = Hello.from_map(received)
            if not set(hello.versions) & set(SUPPORTED_VERSIONS):
                raise UnsupportedVersion(
                    f"this daemon speaks protocol version "
                    f"{', '.join(map(str, SUPPORTED_VERSIONS))} only",
                    supported=list(SUPPORTED_VERSIONS),
                )
            self._move("receive hello")
            self._nonces = (hello.nonce, b"")
            return hello
        if kind == Auth.KIND and self.state is State.CHALLENGED:
            proof = Auth.from_map(received)
            if proof.method not in self.methods:
                raise Unauthenticated(f"the method {proof.method[:40]!r} was not offered")
            self._move("receive auth")
            self._auth_id = request_id
            return proof
        raise Unauthenticated(
            f"a connection opens with hello and auth; got {kind[:40]!r} while {self.state.value}",
            hint="send hello, then auth, then wait for welcome",
        )

    def _receive_request(
        self, request_id: int, kind: str, received: dict[str, Any], frame_bytes: int
    ) -> Message | LiftlogError:
        cls = REQUESTS.get(kind)
        if cls is Cancel:
            return Cancel()
        if request_id in self._open:
            raise BadRequest(f"the request id {request_id} is in use")
        self._open[request_id] = 0
        self.shared.count += 1
        if self.shared.count > self.shared.maximum:
            return LimitExceeded(
                f"the connections of this principal have {self.shared.maximum} requests in flight",
                hint="wait for answers, or ask the operator of the daemon to raise pull."
                "max_in_flight_per_principal",
            )
        if cls is None:
            return UnknownRequest(f"this daemon knows no request {kind[:40]!r}")
        try:
            message = cls.from_map(received)
        except BadRequest as error:
            return error
        cost = REQUEST_OVERHEAD_BYTES + frame_bytes
        if type(message) is Fetch and (message.selects or message.optional_subjects):
            cost += _FILTER_VALUE_BYTES * message.filter_values
        more = cost - self._grown_bytes  # from now on the request is counted, not the buffer
        if self.held_bytes + more > self._max_held_bytes and len(self._open) > 1:
            return LimitExceeded(
                f"the unanswered requests of this connection would take more than "
                f"{self._max_held_bytes} bytes of memory",
                hint="wait for answers, filter by less, or raise pull.max_request_memory_bytes",
            )
        if self.shared.size_bytes + more > self.shared.max_bytes:
            return self._too_much_memory()
        self._open[request_id] = cost
        self._hold(cost)
        return message
