"""One connected client: its socket, its login, its limits, its close."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable

import liftlog
from liftlog.errors import (
    InternalError,
    LiftlogError,
    LimitExceeded,
    RequestTimeout,
    ShuttingDown,
    Unauthenticated,
)
from liftlog.protocol.handshake import State
from liftlog.protocol.messages import NONCE_BYTES, Auth, Hello, Message
from liftlog.protocol.server_connection import InFlight, ServerConnection
from liftlog.server.access.authentication import NO_PRINCIPAL, Identity
from liftlog.server.access.origins import Origin
from liftlog.server.pull.answers import Answers
from liftlog.server.pull.client_requests import ClientRequests
from liftlog.server.pull.limits import (
    HELD_FRAMES_BYTES,
    LAST_WORDS_SECONDS,
    LINGERING_CLOSE_BYTES,
    LINGERING_CLOSE_SECONDS,
)
from liftlog.server.pull.send_queue import SendQueue
from liftlog.server.pull.services import PullServices
from liftlog.server.pull.sockets import Transport
from liftlog.server.requests.rights import Caller
from liftlog.tls import problem

logger = logging.getLogger("liftlog.server.pull")

_SOFTWARE = f"liftlog/{liftlog.__version__}"


class PullConnection:
    """One connection of a client. Belongs to the loop's thread. `_close` releases all of its
    resources.

    `on_login` accepts the identity, or raises Unauthenticated or LimitExceeded. It returns the
    counter of requests in flight that all connections of the principal share. `on_memory_short`
    runs when all connections together use too much memory. It may close this connection. `on_end`
    runs once, when the connection is closed.
    """

    def __init__(
        self,
        services: PullServices,
        transport: Transport,
        origin: Origin,
        *,
        on_login: Callable[[PullConnection, Identity], InFlight],
        on_memory_short: Callable[[], None],
        on_end: Callable[[PullConnection], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.peer, self.place = origin.name, origin.place
        self._origin = origin
        self._identity = NO_PRINCIPAL
        self.principal: str | None = None
        self._services = services
        self._on_login = on_login
        self._on_memory_short = on_memory_short
        self._on_end = on_end
        self._transport = transport
        limits = self._limits = services.limits
        self._protocol = ServerConnection(
            limits.wire,
            max_hello_bytes=limits.max_hello_bytes,
            max_held_bytes=limits.max_request_memory_bytes,
        )
        self._counted_bytes = 0  # this connection's part of `services.memory`
        self._queue = SendQueue(
            self._loop,
            transport,
            services.cold_readers,
            self._on_progress,
            self._on_send_failure,
            services.memory,
            services.read_share,
        )
        self._answers = Answers(services, self._protocol, self._queue, self.peer, self.settle)
        self._requests: ClientRequests | None = None  # None until the client has logged in
        self._reading = False
        self._has_more = False  # True if received requests have not been handled yet
        self._closed = False
        self._last_words = False  # True if the connection closes when the queue has been sent
        self._lingering_bytes_left = LINGERING_CLOSE_BYTES
        self._request_since = 0.0  # start time of the request that is being received; 0: none
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(
            self._limits.hello_timeout_seconds, self._hello_timed_out
        )
        self._start_reading()

    # --- the socket ---

    def _start_reading(self) -> None:
        if not self._reading and not self._closed:
            self._reading = True
            self._loop.add_reader(self._transport.fileno(), self._on_readable)
            if self._transport.has_input:
                self._loop.call_soon(self._read_again)

    def _read_again(self) -> None:
        """Read bytes that TLS has already taken from the socket. The event loop does not report
        such bytes."""
        if self._reading and self._transport.has_input:
            self._on_readable()

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._transport.fileno())

    def _on_readable(self) -> None:
        self._services.fair_input.run(self.principal or self, self._receive)

    def _receive(self) -> None:
        if not self._reading:
            return  # the connection was stopped or closed while it waited for its turn
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
        with self._services.read_share:
            self._protocol.buffer_updated(received)
            if self._transport.has_input:
                self._loop.call_soon(self._read_again)
            self.settle()

    def settle(self) -> None:
        """Handle the received requests, within the limits, and send the answers that are ready."""
        if self._closed:
            return
        self._take_requests()
        self._queue.flush()
        if self._answers.is_open:
            if self._held_back:
                self._request_since = 0.0  # the timeout does not run while the daemon does not read
                self._stop_reading()
            elif not self._reading:
                self._start_reading()
        self._count_memory()

    def _count_memory(self) -> None:
        memory = self._services.memory
        held_bytes = self._protocol.held_bytes
        memory.used_bytes += held_bytes - self._counted_bytes
        self._counted_bytes = held_bytes
        if memory.used_bytes > self._limits.max_unsent_memory_bytes:
            self._on_memory_short()

    @property
    def _held_back(self) -> bool:
        queue = self._queue
        return (
            queue.unsent_bytes >= self._limits.max_unsent_bytes
            or queue.memory_bytes >= HELD_FRAMES_BYTES
            or self._protocol.saturated
        )

    @property
    def is_opening(self) -> bool:
        """True before the client has logged in."""
        return self._protocol.state is not State.READY and not self._last_words

    @property
    def memory_bytes(self) -> int:
        """Memory, in bytes, of the unsent answers and of the requests without an answer."""
        return self._queue.memory_bytes + self._counted_bytes

    def _take_requests(self) -> None:
        self._has_more = True
        try:
            while not self._held_back and self._answers.is_open:
                event = self._protocol.next_event()
                if event is None:
                    self._has_more = self._protocol.saturated
                    if not self._request_since and self._protocol.mid_frame:
                        self._request_since = self._loop.time()
                    return
                self._request_since = 0.0
                request_id, message = event
                if not isinstance(message, Message):
                    self._answers.refuse(request_id, message)
                elif self._requests is not None:
                    self._requests.begin(request_id, message)
                elif isinstance(message, Hello):
                    self._greet(request_id)
                elif isinstance(message, Auth):
                    self._cancel_timer()  # the timeout does not run while the token is checked
                    self._services.spawn(self._authenticate(request_id, message))
        except LiftlogError as error:
            self._end_with(error)

    def _on_progress(self) -> None:
        if self._last_words:
            if not self._queue.unsent_bytes:
                self._finish_sending()
            return
        if self._answers.may_produce:
            if self._requests is not None:
                self._requests.pump()
            if self._has_more or not self._reading:
                self.settle()
            else:
                self._count_memory()

    def _on_send_failure(self, error: Exception) -> None:
        self._close(f"sending failed: {error}", unexpected=not isinstance(error, OSError))

    # --- login ---

    def _greet(self, request_id: int) -> None:
        nonce = secrets.token_bytes(NONCE_BYTES)
        policy = self._services.gate.policy
        names = self._transport.peer_names
        methods = self._services.authenticator.methods(policy, self._origin, names)
        server_id = self._services.broker.server_id
        self._queue.put(self._protocol.challenge(request_id, server_id, nonce, methods))

    async def _authenticate(self, request_id: int, proof: Auth) -> None:
        refusal: LiftlogError
        began = self._loop.time()
        try:
            identity = await self._services.authenticator.identify(
                self._services.gate.policy,
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
        # The delay hides from the client what was wrong, and how long the check took.
        await asyncio.sleep(began + self._limits.auth_failure_delay_seconds - self._loop.time())
        if not self._closed:
            self._end_with(refusal, request_id)

    def _admit(self, identity: Identity) -> None:
        """Complete the login and send the welcome. Raises Unauthenticated, LimitExceeded."""
        if not self._answers.is_open:
            return
        self._protocol.shared = self._on_login(self, identity)
        self._identity, self.principal = identity, identity.principal
        services = self._services
        caller = Caller(self.principal, services.gate, services.broker, self.peer)
        self._requests = ClientRequests(services, caller, self._answers)
        self._cancel_timer()
        self._queue.put(self._protocol.welcome(self.principal, _SOFTWARE))
        self.settle()

    def check_identity(self) -> None:
        """Close the connection if its login would be refused now. Called after a change of the
        ACL."""
        if self._protocol.state is not State.READY or self._last_words:
            return
        services = self._services
        if self._identity.holds_in(services.gate.policy):
            return
        if self.principal is not None:
            services.audit.withdrawn(self.principal, self.peer, self._identity.method)
        self._end_with(Unauthenticated("the credential of this connection is no longer valid"))

    # --- closing ---

    def shut_down(self) -> None:
        """Refuse waiting requests, send the answers that are ready, and close the connection."""
        error = ShuttingDown("the daemon is shutting down")
        if self._requests is not None:
            self._requests.close(error)
        self._end_with(error)

    def check_stalled(self, now: float) -> None:
        waited = now - self._queue.progress_at
        if self._queue.unsent_bytes and waited > self._limits.write_stall_seconds:
            self._close("the client reads no answers")
            return
        began = self._request_since
        if self._reading and began and now - began > self._limits.request_timeout_seconds:
            seconds = self._limits.request_timeout_seconds
            self._end_with(RequestTimeout(f"a request did not arrive within {seconds:g} s"))

    def fileno(self) -> int:
        return self._transport.fileno()

    def hung_up(self) -> None:
        """Close the connection, because the client has closed both directions or has reset it."""
        self._close("the client is gone")

    def close(self) -> None:
        self._close("the daemon closed it")

    def make_room(self, reason: str) -> None:
        """Close the connection, because other connections need its resources."""
        logger.warning("connection-cut-off peer=%s reason=%s", self.peer, reason)
        self._services.counters.refusals_total[LimitExceeded.name] += 1
        self._close(reason)

    def _hello_timed_out(self) -> None:
        self._timer = None
        seconds = self._limits.hello_timeout_seconds
        self._end_with(RequestTimeout(f"no complete hello and auth within {seconds:g} s"))

    def _end_with(self, error: LiftlogError, request_id: int = 0) -> None:
        """Send the reason to the client, then close the connection."""
        if not self._answers.is_open:
            return
        if not isinstance(error, ShuttingDown | Unauthenticated):
            logger.warning(
                "connection-refused peer=%s error=%s reason=%s",
                self.peer,
                error.name,
                error.message,
            )
        self._services.counters.refusal(error)
        if not self._transport.established:
            self._close("its TLS handshake was not complete")
            return
        if self._requests is not None:
            self._requests.close()
        self._answers.end_with(error, request_id)
        self._last_words = True
        self._cancel_timer()
        self._timer = self._loop.call_later(
            LAST_WORDS_SECONDS, self._close, "the client did not read its last answer"
        )
        self._start_reading()
        self._queue.flush()

    def _finish_sending(self) -> None:
        """Close the sending side, because everything is sent. Then wait a short time, so that the
        client can read the data."""
        self._cancel_timer()
        try:
            self._transport.end_sending()
        except OSError:
            self._close("gone")
            return
        self._timer = self._loop.call_later(LINGERING_CLOSE_SECONDS, self._close, "ended")

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
        self._answers.is_open = False
        level = logging.ERROR if unexpected else logging.DEBUG
        logger.log(level, "connection-closed peer=%s reason=%s", self.peer, reason)
        self._cancel_timer()
        self._stop_reading()
        if self._requests is not None:
            self._requests.close()
        self._queue.close()
        if self._protocol.state is not State.CLOSED:
            self._protocol.close()
        self._services.memory.used_bytes -= self._counted_bytes
        self._counted_bytes = 0
        self._transport.close()
        self._on_end(self)
