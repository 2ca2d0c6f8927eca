"""One connected client: its socket, its login, the bounds on it, its end."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING

import liftlog
from liftlog.errors import (
    InternalError,
    LiftlogError,
    LimitExceeded,
    RequestTimeout,
    ShuttingDown,
    Unauthenticated,
)
from liftlog.protocol.messages import NONCE_BYTES, Auth, Hello, Message
from liftlog.protocol.server_connection import InFlight, ServerConnection
from liftlog.protocol.states import State
from liftlog.server.access.authentication import NOBODY, Identity
from liftlog.server.access.origins import Origin
from liftlog.server.pull.client_requests import ClientRequests
from liftlog.server.pull.limits import (
    HELD_FRAMES_BYTES,
    LAST_WORDS_SECONDS,
    LINGERING_CLOSE_BYTES,
    LINGERING_CLOSE_SECONDS,
)
from liftlog.server.pull.send_queue import Outbox
from liftlog.server.pull.transport import Transport
from liftlog.tls.contexts import problem

if TYPE_CHECKING:
    from liftlog.server.pull.server import PullServer

logger = logging.getLogger("liftlog.server.pull")

_SOFTWARE = f"liftlog/{liftlog.__version__}"


class PrincipalUse:
    """What the connections of one principal have in use together."""

    __slots__ = ("connections", "in_flight")

    def __init__(self, in_flight: InFlight) -> None:
        self.connections: set[PullConnection] = set()
        self.in_flight = in_flight


class PullConnection:
    """Belongs to the loop's thread. Ends in `_close`, which releases everything it holds."""

    def __init__(self, server: PullServer, transport: Transport, origin: Origin) -> None:
        self.loop = server.loop
        self.peer = origin.name
        self._origin = origin
        self._identity = NOBODY
        self.principal: str | None = None
        self._server = server
        self._transport = transport
        self._limits = server.limits
        self._protocol = ServerConnection(
            server.limits.wire,
            max_hello_bytes=server.limits.max_hello_bytes,
            max_held_bytes=server.limits.max_request_memory_bytes,
        )
        self._counted_bytes = 0  # of what its requests take, counted in the server's memory
        self._outbox = Outbox(
            self.loop,
            transport,
            server.cold_readers,
            self._on_progress,
            self._on_send_failure,
            server.memory,
            server.read_share,
        )
        self._requests = ClientRequests(server, self, self._protocol, self._outbox)
        self._reading = False
        self._closed = False
        self._last_words = False  # nothing but what is in the outbox will be sent
        self.takes_answers = True  # neither of both
        self._lingering_bytes_left = LINGERING_CLOSE_BYTES
        self._request_since = 0.0  # when the request that is still arriving began; 0: none is
        self._timer: asyncio.TimerHandle | None = self.loop.call_later(
            self._limits.hello_timeout_seconds, self._hello_timed_out
        )
        self._start_reading()

    # --- the socket ---

    def _start_reading(self) -> None:
        if not self._reading and not self._closed:
            self._reading = True
            self.loop.add_reader(self._transport.fileno(), self._on_readable)
            if self._transport.has_input:
                self.loop.call_soon(self._read_again)

    def _read_again(self) -> None:
        """TLS has more of what was received already: the loop would not call for that."""
        if self._reading and self._transport.has_input:
            self._on_readable()

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self.loop.remove_reader(self._transport.fileno())

    def _on_readable(self) -> None:
        self._server.rounds.run(self.principal or self, self._receive)

    def _receive(self) -> None:
        if not self._reading:
            return  # stopped or closed since its turn was asked for
        if self._last_words:
            self._drop_input()
            return
        try:
            received = self._transport.recv_into(self._protocol.get_buffer())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            if not self._transport.established:
                logger.warning("tls-handshake-failed peer=%s reason=%s", self.peer, problem(error))
            self._close(f"receiving failed: {error}")
            return
        if received == 0:
            self._close("closed by the client")
            return
        with self._server.read_share:
            self._protocol.buffer_updated(received)
            if self._transport.has_input:
                self.loop.call_soon(self._read_again)
            self.settle()

    def settle(self) -> None:
        """Handle requests received so far, within the bounds, and send what there is to send."""
        if self._closed:
            return
        self._take_requests()
        self._outbox.flush()
        if self.takes_answers:
            if self._held_back:
                self._request_since = 0.0  # from now on it is not the client that is slow
                self._stop_reading()
            else:
                self._start_reading()
        memory = self._server.memory
        held_bytes = self._protocol.held_bytes
        memory.used_bytes += held_bytes - self._counted_bytes
        self._counted_bytes = held_bytes
        if memory.used_bytes > self._limits.max_unsent_memory_bytes:
            self._server.relieve()

    @property
    def _held_back(self) -> bool:
        return (
            self._protocol.saturated
            or not self._requests.may_produce
            or self._outbox.memory_bytes >= HELD_FRAMES_BYTES
        )

    @property
    def is_opening(self) -> bool:
        """Whether it has yet to say who it is."""
        return self._protocol.state is not State.READY and not self._last_words

    @property
    def memory_bytes(self) -> int:
        """What its unsent answers, and its requests without an answer, take in memory."""
        return self._outbox.memory_bytes + self._counted_bytes

    def _take_requests(self) -> None:
        try:
            while not self._held_back and self.takes_answers:
                event = self._protocol.next_event()
                if event is None:
                    if not self._request_since and self._protocol.mid_frame:
                        self._request_since = self.loop.time()
                    return
                self._request_since = 0.0
                request_id, message = event
                if not isinstance(message, Message):
                    self._requests.refuse(request_id, message)
                elif isinstance(message, Hello):
                    self._greet(request_id)
                elif isinstance(message, Auth):
                    self._server.spawn(self._authenticate(request_id, message))
                else:
                    self._requests.begin(request_id, message)
        except LiftlogError as error:
            self._end_with(error)

    def _on_progress(self) -> None:
        if self._last_words:
            if not self._outbox.unsent_bytes:
                self._finish_sending()
            return
        if self._requests.may_produce:
            self._requests.pump()
            self.settle()

    def _on_send_failure(self, error: Exception) -> None:
        self._close(f"sending failed: {error}", unexpected=not isinstance(error, OSError))

    # --- login ---

    def _greet(self, request_id: int) -> None:
        nonce = secrets.token_bytes(NONCE_BYTES)
        policy = self._server.gate.policy
        names = self._transport.peer_names
        methods = self._server.authenticator.methods(policy, self._origin, names)
        server_id = self._server.broker.server_id
        self._outbox.put(self._protocol.challenge(request_id, server_id, nonce, methods))

    async def _authenticate(self, request_id: int, proof: Auth) -> None:
        refusal: LiftlogError
        began = self.loop.time()
        try:
            identity = await self._server.authenticator.identify(
                self._server.gate.policy,
                self._origin,
                self._transport.peer_names,
                proof,
                self._protocol.text_to_sign(self._origin.certificate),
            )
            self._admit(identity)
        except LiftlogError as error:
            refusal = error
        except Exception:
            logger.exception("authentication-failed peer=%s", self.peer)
            refusal = InternalError("the daemon failed to check the token")
        else:
            return
        # At a time that does not tell what was wrong, nor how long it took to find out.
        await asyncio.sleep(began + self._limits.auth_failure_delay_seconds - self.loop.time())
        if not self._closed:
            self._end_with(refusal, request_id)

    def _admit(self, identity: Identity) -> None:
        """Raises Unauthenticated, LimitExceeded."""
        if not self.takes_answers:
            return
        use = self._server.enter(self, identity)
        self._protocol.shared = use.in_flight
        self._identity, self.principal = identity, identity.principal
        self._cancel_timer()
        self._outbox.put(self._protocol.welcome(self.principal, _SOFTWARE))
        self.settle()

    def check_identity(self) -> None:
        """After the ACL has changed: whoever would not be let in any more has to go."""
        if self._protocol.state is not State.READY or self._last_words:
            return
        if self._identity.holds_in(self._server.gate.policy):
            return
        if self.principal is not None:
            self._server.audit.withdrawn(self.principal, self.peer, self._identity.method)
        self._end_with(Unauthenticated("what you have authenticated with is valid no more"))

    # --- the end ---

    def shut_down(self) -> None:
        """Refuse what waits, send what is there, then close."""
        error = ShuttingDown("the daemon is shutting down")
        self._requests.close(error)
        self._end_with(error)

    def check_stalled(self, now: float) -> None:
        waited = now - self._outbox.progress_at
        if self._outbox.unsent_bytes and waited > self._limits.write_stall_seconds:
            self._close("the client takes nothing")
            return
        began = self._request_since
        if self._reading and began and now - began > self._limits.request_timeout_seconds:
            seconds = self._limits.request_timeout_seconds
            self._end_with(RequestTimeout(f"a request did not arrive within {seconds:g} s"))

    def close(self) -> None:
        self._close("the daemon closed it")

    def make_room(self, reason: str) -> None:
        """End it for the sake of the others."""
        logger.warning("connection-cut-off peer=%s reason=%s", self.peer, reason)
        self._server.counters.refusals_total[LimitExceeded.name] += 1
        self._close(reason)

    def _hello_timed_out(self) -> None:
        self._timer = None
        seconds = self._limits.hello_timeout_seconds
        self._end_with(RequestTimeout(f"no complete hello and auth within {seconds:g} s"))

    def _end_with(self, error: LiftlogError, request_id: int = 0) -> None:
        """Tell the client why, and close once it was sent."""
        if not self.takes_answers:
            return
        if not isinstance(error, ShuttingDown | Unauthenticated):
            logger.warning(
                "connection-refused peer=%s error=%s reason=%s",
                self.peer,
                error.name,
                error.message,
            )
        self._server.counters.refusal(error)
        if not self._transport.established:
            self._close("its TLS handshake was not complete")
            return
        self._requests.close()
        self._outbox.put(self._protocol.error(request_id, error))
        self._last_words = True
        self.takes_answers = False
        self._cancel_timer()
        self._timer = self.loop.call_later(
            LAST_WORDS_SECONDS, self._close, "its last answer was not taken"
        )
        self._start_reading()
        self._outbox.flush()

    def _finish_sending(self) -> None:
        """All was sent: end our side and wait a moment for the client to have read it."""
        self._cancel_timer()
        try:
            self._transport.end_sending()
        except OSError:
            self._close("gone")
            return
        self._timer = self.loop.call_later(LINGERING_CLOSE_SECONDS, self._close, "ended")

    def _drop_input(self) -> None:
        try:
            received = self._transport.recv_into(memoryview(bytearray(65536)))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            received = 0
        self._lingering_bytes_left -= received
        if received == 0 or self._lingering_bytes_left <= 0:
            self._close("ended")

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _close(self, reason: str, *, unexpected: bool = False) -> None:
        if self._closed:
            return
        self._closed = True
        self.takes_answers = False
        level = logging.ERROR if unexpected else logging.DEBUG
        logger.log(level, "connection-closed peer=%s reason=%s", self.peer, reason)
        self._cancel_timer()
        self._stop_reading()
        self._requests.close()
        self._outbox.close()
        if self._protocol.state is not State.CLOSED:
            self._protocol.close()
        self._server.memory.used_bytes -= self._counted_bytes
        self._counted_bytes = 0
        self._transport.close()
        self._server.forget(self)
