"""Requests to JetStream over the store's own connection to NATS, and the notices of changes.

There is one connection at a time, to one server. It is closed in two cases:

- Requests receive no answer. NATS itself would wait half a minute for a server that hangs, and the
  session of the node would end before that.
- The server has had no leader for longer than an election of NATS usually takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import nats.errors

from liftlog.client.publishing.publisher_link import why_not_connected
from liftlog.cluster.store import MetaStoreError, StoreUnavailable
from liftlog.errors import NatsUnavailable
from liftlog.records.message_headers import build_block
from liftlog.sequencing.run import MessageRun
from liftlog.server.ingest.connection import NatsConnection
from liftlog.server.ingest.endings import Cause, Ending, Rejection
from liftlog.server.ingest.servers import NatsServerAddress, ServerPool
from liftlog.server.ingest.subscriptions import LinkSubscription, in_words
from liftlog.server.metadata.kv_bucket import Refused
from liftlog.server.vitals.rare_warnings import RareWarnings
from liftlog.settings import NatsSettings

logger = logging.getLogger("liftlog.server.replication")

_SILENCE_SECONDS = 3.0
"""If requests receive no answer for this time (in seconds), the link connects to another server."""
_LEADERLESS_SECONDS = 6.0
"""If a server reports for this time (in seconds) that there is no leader, the link connects to
another server. Servers that this server cannot reach may have elected a leader."""
_PING_SECONDS = 2.0
_WATCH_SECONDS = 0.25
_NO_RESPONDERS = b"NATS/1.0 503"

_T = TypeVar("_T")
Parse = Callable[[bytes], _T | None]
"""Function that converts an answer to the result, or raises a MetaStoreError for the caller. If it
returns None, the link waits for another answer."""


class Unanswered(MetaStoreError):
    """Raised if a request was sent, but no answer arrived."""


class NobodyAnswers(StoreUnavailable):
    """No service in NATS receives the request, so it was not delivered."""


class NotAllowed(StoreUnavailable):
    """NATS does not allow this user to send the request. The request was not delivered."""


class _Question(NamedTuple):
    subject: str
    parse: Callable[[bytes], Any]
    answer: asyncio.Future[Any]


class KvLink:
    """The connection of the store to NATS. Belongs to one event loop.

    `on_notices` receives the messages on the subject `notices`. `on_connected` is called at each
    new connection, because notices may have been missed before the connection.
    """

    def __init__(
        self,
        settings: NatsSettings,
        servers: Sequence[str],
        notices: str,
        *,
        on_notices: Callable[[MessageRun], None] = lambda run: None,
        on_connected: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings.model_copy(
            update={"name": f"{settings.name} metadata", "ping_interval_seconds": _PING_SECONDS}
        )
        self._pool = ServerPool(servers)
        self._on_connected = on_connected
        self._inbox = f"_INBOX.{secrets.token_hex(11)}"
        self._answers = LinkSubscription((f"{self._inbox}.*",), None, self._receive)
        self._notices = LinkSubscription((notices,), None, on_notices)
        self._connection: NatsConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._questions: dict[int, _Question] = {}
        self._last_number = 0
        self._asked_at = 0.0
        """Time of the first request after the last answer; 0 if all requests were answered."""
        self._leaderless_since = 0.0
        """Time at which the server began to report that there is no leader; 0 after any other
        answer."""
        self._warn = RareWarnings(logger).warn
        self.problem = "no connection was made yet"
        """The reason why there is no connection."""
        self.notices_refused = ""
        """The reason why NATS does not deliver notices; empty if NATS delivers them."""

    # --- life cycle ---

    def start(self) -> None:
        """Connect in the background, and again whenever the connection ends."""
        self._connecting = asyncio.get_running_loop().create_task(self._supervise(), name="kv-link")

    async def close(self) -> None:
        """Close the connection. Requests without an answer raise Unanswered."""
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
            await asyncio.wait({connecting})
        await self._leave("the daemon is stopping")

    @property
    def connected(self) -> bool:
        return self._connection is not None and self._connection.connected

    async def wait_connected(self, seconds: float) -> None:
        """Wait until there is a connection, but at most for `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.connected:
                    self._changed.clear()
                    await self._changed.wait()

    async def _supervise(self) -> None:
        last = ""
        while True:
            # The server of the last connection is tried last.
            for address in sorted(self._pool.round(), key=lambda one: one.shown == last):
                try:
                    if await self._connect(address):
                        last = address.shown
                        await self._serve()
                        break
                except Exception as error:  # noqa: BLE001  # a supervisor: nats-py may raise anything
                    self._warn("metadata-link-failed error=%r", error)
                    await self._leave(repr(error))
            pause = self._settings.reconnect_wait_seconds
            await asyncio.sleep(0 if self.connected else pause * random.uniform(0.5, 1.0))

    async def _connect(self, address: NatsServerAddress) -> bool:
        connection = NatsConnection(
            address,
            "client",
            on_chunk_end=lambda: None,
            on_revoked=self._revoked,
            on_publish_refused=self._publish_refused,
            on_change=self._changed.set,
            wait_until_ready_to_read=_ready,
            reading_is_held=lambda: False,
            tls_name=self._settings.tls.hostname or address.tls_name,
        )
        try:
            await connection.log_in(self._settings)
            refused = await connection.subscribe([self._answers, self._notices])
            if self._answers in refused:
                raise NatsUnavailable(f"it refuses inboxes: {in_words(refused[self._answers])}")
        except (OSError, nats.errors.Error, TimeoutError, NatsUnavailable) as error:
            await connection.close()
            self.problem = f"{address.shown}: {why_not_connected(error).removeprefix('nats: ')}"
            self._warn("metadata-link-not-connected error=%s", self.problem)
            return False
        except BaseException:
            await connection.close()
            raise
        self._pool.learn(address, connection.connect_urls)
        self.notices_refused = in_words(refused.get(self._notices, {}))
        if self.notices_refused:
            self._warn("metadata-notices-refused error=%s", self.notices_refused)
        self._connection, self._asked_at, self._leaderless_since = connection, 0.0, 0.0
        logger.info("metadata-link-connected server=%s", address.shown)
        self._changed.set()
        self._on_connected()
        return True

    async def _serve(self) -> None:
        """Use the connection until it ends."""
        connection = self._connection
        assert connection is not None
        while not connection.ended.is_set():
            self._judge(connection)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_SECONDS):
                    await connection.ended.wait()
        self._pool.learn(connection.address, connection.connect_urls)
        self.problem = f"{connection.address.shown}: {connection.ending}"
        self._warn("metadata-link-ended error=%s", self.problem)
        await self._leave(str(connection.ending))

    def _judge(self, connection: NatsConnection) -> None:
        """End the connection if it is no longer usable."""
        now = time.monotonic()
        if self._asked_at and now - self._asked_at > _SILENCE_SECONDS:
            connection.end(Ending(Cause.OTHER, "JetStream does not answer through this server"))
        elif (
            self._leaderless_since
            and now - self._leaderless_since > _LEADERLESS_SECONDS
            and len(self._pool.round()) > 1
        ):
            connection.end(Ending(Cause.OTHER, "JetStream has no leader that this server reaches"))
        elif connection.lame_duck:
            connection.end(Ending(Cause.LAME_DUCK, "the NATS server is about to stop"))
        elif not connection.is_read:
            # nats-py considers itself connected, but its read loop has ended.
            connection.end(Ending(Cause.OTHER, "the read loop ended"))

    async def _leave(self, reason: str) -> None:
        connection, self._connection = self._connection, None
        questions, self._questions = self._questions, {}
        for question in questions.values():
            if not question.answer.done():
                question.answer.set_exception(Unanswered(f"the connection has ended: {reason}"))
        if connection is not None:
            await connection.close()

    # --- requests ---

    async def ask(
        self,
        subject: str,
        payload: bytes,
        parse: Parse[_T],
        *,
        seconds: float,
        headers: Sequence[tuple[str, str]] = (),
    ) -> _T:
        """Send a request and return the parsed answer. Raises Unanswered if no answer arrived in
        time, StoreUnavailable if the request was certainly not delivered, and the errors of
        `parse`."""
        connection = self._connection
        if connection is None or not connection.connected:
            raise StoreUnavailable(f"there is no connection to NATS: {self.problem}")
        self._last_number = number = self._last_number + 1
        frame = _frame(subject, f"{self._inbox}.{number}", payload, headers)
        if 0 < connection.max_payload_bytes < len(frame):
            raise StoreUnavailable(
                f"{len(frame)} bytes are more than the max_payload of the NATS server"
            )
        answer: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._questions[number] = _Question(subject, parse, answer)
        try:
            if not connection.send(frame):
                raise StoreUnavailable("there is no connection to NATS: it has just ended")
            self._asked_at = self._asked_at or time.monotonic()
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise Unanswered(f"JetStream did not answer within {seconds:g} s") from None
        finally:
            self._questions.pop(number, None)

    def _receive(self, run: MessageRun) -> None:
        headers = run.headers or (b"",) * len(run)
        for subject, payload, block in zip(run.subjects, run.payloads, headers, strict=True):
            self._asked_at = 0.0  # also set for a cancelled request, because JetStream has answered
            number = subject.rpartition(b".")[2]
            question = self._questions.get(int(number)) if number.isdigit() else None
            if question is None or question.answer.done():
                continue
            if not payload and block.startswith(_NO_RESPONDERS):
                self._note_leader(is_there=False)
                question.answer.set_exception(
                    NobodyAnswers("JetStream does not answer: no leader is elected, or it is off")
                )
                continue
            try:
                result = question.parse(payload)
            except MetaStoreError as error:
                self._note_leader(is_there=not (isinstance(error, Refused) and error.is_away))
                question.answer.set_exception(error)
            else:
                if result is not None:
                    self._note_leader(is_there=True)
                    question.answer.set_result(result)

    def _note_leader(self, *, is_there: bool) -> None:
        if is_there:
            self._leaderless_since = 0.0
        else:
            self._leaderless_since = self._leaderless_since or time.monotonic()

    def _publish_refused(self, rejection: Rejection) -> None:
        named = rejection.subject.lower()
        for question in self._questions.values():
            if question.subject.lower() == named and not question.answer.done():
                self._asked_at = 0.0
                question.answer.set_exception(
                    NotAllowed(
                        f"the NATS user may not publish to {question.subject}: {rejection.text}"
                    )
                )

    def _revoked(self, subscription: LinkSubscription, subject: str, text: str) -> None:
        """Note that NATS has ended a subscription after a change of permissions."""
        if self._connection is not None:
            self._connection.end(Ending(Cause.AUTHORIZATION, text))


def _frame(subject: str, reply: str, payload: bytes, headers: Sequence[tuple[str, str]]) -> bytes:
    if not headers:
        return f"PUB {subject} {reply} {len(payload)}\r\n".encode() + payload + b"\r\n"
    block = build_block([(name.encode(), value.encode()) for name, value in headers])
    total = len(block) + len(payload)
    return f"HPUB {subject} {reply} {len(block)} {total}\r\n".encode() + block + payload + b"\r\n"


async def _ready() -> None:
    pass
