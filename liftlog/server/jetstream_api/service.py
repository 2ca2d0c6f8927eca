"""Receives requests from `$JS.API.>`, calls the methods that answer them, and sends the answers.

In a cluster, the nodes are members of one queue group, so NATS delivers each request to one node.
If only the leader of a stream can answer, this node forwards the request to the leader once, as a
NATS message. The leader then sends the answer.

Requests must not delay acks. Therefore the number of waiting requests is limited, for each client
and in total. Only a few requests are answered at the same time. An answer is sent only after NATS
has accepted the previous answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from itertools import repeat

from liftlog.errors import LiftlogError, NatsRefused, NatsUnavailable
from liftlog.sequencing.destinations import own_subject
from liftlog.sequencing.run import MessageRun
from liftlog.server.ingest.nats_link import NatsLink
from liftlog.server.ingest.subscriptions import LinkSubscription
from liftlog.server.jetstream_api import consumer_methods, message_methods, purging, streams
from liftlog.server.jetstream_api.answers import (
    API_LEVEL,
    JetStreamError,
    answer_text,
    bad_request,
    command,
    from_liftlog,
    refusal,
    too_large_for_nats,
    too_many_requests,
)
from liftlog.server.jetstream_api.consumers.leaf import leaf_link_of
from liftlog.server.jetstream_api.consumers.table import Consumers
from liftlog.server.jetstream_api.creations import Creations, creating_node
from liftlog.server.jetstream_api.fields import MAX_REQUEST_BYTES
from liftlog.server.jetstream_api.held_pulls import LOOK_SECONDS, HeldPulls
from liftlog.server.jetstream_api.immediate import MAX_UNSENT_BYTES, ImmediateAnswers
from liftlog.server.jetstream_api.inboxes import Inboxes, party_of
from liftlog.server.jetstream_api.messages.ages import Ages
from liftlog.server.jetstream_api.messages.buckets import Buckets
from liftlog.server.jetstream_api.methods import (
    ANSWERED,
    FAILED,
    PREFIX,
    PULL_KIND,
    REFUSED,
    TOO_MANY,
    ApiCounters,
    NoDestination,
    Parts,
    Request,
    find_method,
    tokens_of,
    unknown_method,
)
from liftlog.server.jetstream_api.overview import Overviews
from liftlog.server.jetstream_api.own_requests import OwnRequests
from liftlog.server.jetstream_api.pace import Pace, ReadingPause
from liftlog.server.jetstream_api.passed_pulls import passed_on_prefix, passed_pulls_of
from liftlog.server.jetstream_api.presence import Presence
from liftlog.server.jetstream_api.request_workers import RequestWorkers
from liftlog.server.jetstream_api.waiting import MAX_OF_PARTY, WORKERS, Message, Waiting
from liftlog.server.jetstream_api.workers.acked_table import AckedConsumers
from liftlog.server.jetstream_api.workers.permissions import NatsRights
from liftlog.server.jetstream_api.workers.socket_door import SocketDoor
from liftlog.server.jetstream_api.workers.without_nats import NoLeaf
from liftlog.server.jetstream_api.workers.worker_link import Arrived, WorkerLink
from liftlog.server.pull.services import PullServices
from liftlog.server.streams.broker import Broker
from liftlog.server.streams.catalog import Catalog

logger = logging.getLogger("liftlog.server.jetstream_api")

_PREFIX = PREFIX.encode()
_TAKEOVER_SECONDS = 2.0
_TAKEOVER_LOOK_SECONDS = 0.02
_MAX_AT_TAKEOVER = WORKERS // 2
"""Maximum number of requests that wait until this node leads their stream. The other tasks that
answer requests remain free."""
_LOOK_SECONDS = 15.0
_LOOK_AGAIN_SECONDS = 1.0
_UNAVAILABLE = 503
_UNDECIDED = "not yet known whether JetStream is off"

__all__ = ["JetStreamApi"]
_REGISTERED = (consumer_methods, message_methods, purging, streams)
"""Modules that are imported only because they register methods; `purging` imports `erasing`."""


class JetStreamApi:
    """Serves JetStream's API. Belongs to the event loop."""

    def __init__(
        self, broker: Broker, servers: list[str], seam: str, services: PullServices
    ) -> None:
        """`servers` and `seam` belong to the link on which messages arrive. The API has a separate
        link, because one client can send any number of requests, and messages must not wait behind
        these requests."""
        settings = broker.settings
        self.problem = _UNDECIDED
        """Reason why requests are not answered; empty if requests are answered."""
        self.counters = ApiCounters()
        cluster = settings.cluster
        mark = f"{settings.name} {broker.server_id}"
        if cluster is not None:
            mark = f"cluster {cluster.name}"
        self._broker = broker
        self._reading = ReadingPause()
        self.link = link = NatsLink(
            settings.nats.model_copy(update={"name": f"{settings.nats.name} $JS.API"}),
            servers,
            seam,
            on_chunk_end=self._reading.chunk_ended,
            wait_until_ready_to_read=self._reading.wait,
            reading_is_held=self._reading.is_held,
        )
        self._ages = Ages(broker, services.cold_readers)
        buckets = Buckets(broker, services.scanners.of("(buckets)"), self._ages)
        pace = Pace(self._ingested_bytes, time.thread_time)
        leaf = leaf_link_of(settings.nats, settings.name)
        if leaf is not None:
            leaf.on_flow = self._flow_answered
        self._consumers = Consumers(broker, services, self._ages, leaf, pace)
        self._workers = WorkerLink(
            settings.nats, servers, seam, self._take_from_workers, api_level=API_LEVEL
        )
        self._acked = AckedConsumers(broker, services, self._ages, leaf or NoLeaf(), self._workers)
        self._rights = NatsRights(services.gate, self._acked)
        inboxes = Inboxes()
        self._parts = Parts(
            broker,
            services,
            mark,
            self.send,
            lambda: link.max_payload_bytes,
            self._consumers,
            self._acked,
            self._ages,
            buckets,
            self.counters,
            inboxes,
            self._take_from_workers,
            Creations(),
        )
        self.overviews = Overviews(self._parts, OwnRequests(link), self._prefix_of)
        self._waiting = Waiting(inboxes, self._is_costly)
        self._held = HeldPulls(self._check_led, self._waiting.add)
        self._passed = passed_pulls_of(broker, self.link.send, self._waiting.add)
        self._immediate = ImmediateAnswers(self._parts, link, self._waiting.add)
        self._at_takeover = 0
        self._pace = Pace(self._ingested_bytes, time.thread_time)
        self._presence: Presence | None = None
        self._subscriptions: list[LinkSubscription] = []
        self._checked = -1
        """Generation of the NATS connection on which a check found no other server that answers."""
        self._look = asyncio.Event()
        self._looked = asyncio.Event()
        """An event that is set when the present connection has been checked."""
        self._tasks: list[asyncio.Task[None]] = []

    def _ingested_bytes(self) -> int:
        return self._broker.intake.ingested().size_bytes

    def start(self) -> None:
        """Begin to serve; call it when the streams are open."""
        self.link.start()
        self._presence = Presence(self.link, self._parts.mark)
        self.link.on_connected.append(self._look_again)
        self._consumers.start()
        self._workers.start()
        self._acked.start()
        self._broker.consumers = SocketDoor(self._broker, self._acked)
        tasks = {
            "look": self._keep_looking(),
            "ages": self._ages.keep(),
            "buckets": self._parts.buckets.keep(),
        }
        workers = RequestWorkers(
            self._waiting,
            self._pace,
            self._looked,  # requests wait while a new connection is checked
            self._handle,
            self._drop,
            self._passed.was_repeated,
        )
        tasks |= {f"{number}": workers.work() for number in range(WORKERS)}
        self._tasks = [
            asyncio.create_task(one, name=f"jetstream-api-{name}") for name, one in tasks.items()
        ]

    async def close(self) -> None:
        """Stop serving. A second call changes nothing."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._broker.consumers = None
        await self._held.close()
        await self._passed.close()
        await self._acked.close()
        await self._workers.close()
        await self._consumers.close()
        await self._parts.buckets.close()
        await self.link.close()

    @property
    def consumer_count(self) -> int:
        return self._consumers.count() + self._acked.count()

    @property
    def acked(self) -> AckedConsumers:
        return self._acked

    def _flow_answered(self, subject: bytes) -> None:
        self._consumers.flow_answered(subject)
        self._acked.flow_answered(subject)

    @property
    def is_deciding(self) -> bool:
        """True until the first check for JetStream has ended. After that, the daemon answers
        requests, or `problem` contains the reason why it does not."""
        return self.problem == _UNDECIDED

    @property
    def worker_problems(self) -> dict[str, str]:
        """Return, by stream, the reason why NATS does not deliver the acks and pulls for the
        stream's consumers."""
        return self._workers.problems()

    def _take_from_workers(self, arrived: Arrived) -> None:
        self._acked.take(self._rights.permitted(arrived))

    # --- the decision to answer ---

    def _look_again(self) -> None:
        self._looked.clear()
        self._look.set()

    async def _keep_looking(self) -> None:
        if not self.link.connected:
            await self._look.wait()
        while True:
            self._look.clear()
            try:
                await self._look_once()
            except NatsUnavailable as error:
                self._pause(f"not connected to NATS: {error.message}")
            except NatsRefused as error:
                self._pause(error.message)
                # If NATS allows the subjects later, this daemon must repeat the check before it
                # subscribes.
                await self._unsubscribe()
            except Exception as error:  # a supervisor: the next check may succeed
                self._pause("the check for JetStream failed")
                logger.exception("jetstream-api-look-failed error=%r", error)
            seconds = _LOOK_AGAIN_SECONDS if self.problem else _LOOK_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._look.wait()

    async def _look_once(self) -> None:
        assert self._presence is not None, "it was started"
        generation = self.link.generation
        rival = await self._presence.rival()
        if rival:
            self._pause(f"{rival}: this daemon does not answer at the same time")
            await self._unsubscribe()
            return
        is_new = not self._subscriptions
        if is_new:
            self._looked.clear()  # answers are sent now, unless the check below fails
            self._subscribe()
        for wanted in self._subscriptions:
            await self.link.attach(wanted)
        if is_new:
            self._look.set()  # another daemon may have started at the same time
        if generation != self.link.generation:
            self._look.set()
            return
        self._checked = generation
        self._looked.set()
        if self.problem:
            self.problem = ""
            logger.info("jetstream-api-answers subject=%s", f"{PREFIX}>")

    def _pause(self, problem: str) -> None:
        if problem != self.problem:
            logger.warning("jetstream-api-silent reason=%s", problem)
        self.problem = problem
        self._checked = -1
        self._waiting.clear()
        self._looked.set()

    def _subscribe(self) -> None:
        group = self._parts.mark.replace(" ", ".")
        self._subscriptions = [self.link.want((f"{PREFIX}>",), group, self._take)]
        if self._passed.own:
            own = f"{self._passed.own.decode()}>"
            self._subscriptions.append(self.link.want((own,), group, self._take))

    async def _unsubscribe(self) -> None:
        subscriptions, self._subscriptions = self._subscriptions, []
        for wanted in subscriptions:
            await self.link.unwant(wanted)

    # --- requests ---

    def _take(self, run: MessageRun) -> None:
        """Queue the requests that the subscription has delivered."""
        now = repeat(time.monotonic(), len(run))
        refused: list[Message] = []
        full: set[bytes] = set()
        unseen = 0
        for message in zip(run.subjects, run.replies, run.payloads, now, strict=True):
            if self._passed.takes(message[0]) or not message[1]:
                continue
            if self._acked.takes_pull(message[0]):
                continue
            party = party_of(message[1])
            if party in full:  # thousands of requests wait; the rest is not examined
                unseen += 1
            elif not self._waiting.add(message):
                refused.append(message)
                if len(refused) >= MAX_OF_PARTY:
                    full.add(party)
        if not refused:
            return
        self._reading.flooded()
        for message in refused:
            self.counters.requests[self._method_of(message[0]), TOO_MANY] += 1
        self.counters.requests["unknown", TOO_MANY] += unseen
        self._waiting.refused += unseen
        if self.link.unsent_bytes < MAX_UNSENT_BYTES:
            error, destinations = too_many_requests(), self._broker.destinations
            self.link.send(
                b"".join(
                    [
                        refusal(target, self._kind_of(subject), error)
                        for subject, reply, _, _ in refused[:MAX_OF_PARTY]
                        if (target := destinations.for_answer(reply)) is not None
                    ]
                )
            )

    def _drop(self, message: Message) -> None:
        self.counters.requests[self._method_of(message[0]), TOO_MANY] += 1

    async def _handle(self, message: Message) -> None:
        if self.problem or self._checked != self.link.generation:
            return
        try:
            found = find_method(self._call(message[0]))
            answer = self._immediate.answer
            if found is None or not self._pace.run_now(answer, message, *found):
                await self._pace.run(self._answer(message))
        except NatsUnavailable:
            pass  # the client repeats the request
        except NoDestination:
            self._count(message, REFUSED)
        except Exception as error:  # a supervisor: continue with other requests
            self.counters.requests[self._method_of(message[0]), FAILED] += 1
            logger.exception("jetstream-api-failed error=%r", error)

    async def _answer(self, message: Message) -> None:
        subject, reply, *_ = message
        if not self._broker.destinations.allows(reply):
            self._count(message, REFUSED)
            return
        kind, refused = self._kind_of(subject), None
        try:
            body = await self._perform(message)
            if body is None:
                self._count(message, ANSWERED)
                return
            text = answer_text(kind, body)
            limit = self.link.max_payload_bytes
            if limit and len(text) > limit:
                raise too_large_for_nats(limit)
        except JetStreamError as error:
            refused = error
        except LiftlogError as error:
            refused = from_liftlog(error)
        if refused is not None and kind == PULL_KIND and refused.code == _UNAVAILABLE:
            # Clients would take the text for a message.
            is_own = self._is_passed_on(subject)
            if is_own or not self._held.hold(tokens_of(self._call(subject))[3], message):
                self._count(message, REFUSED)
            return

        def composed() -> bytes:
            target = self._broker.destinations.for_answer(reply)
            if target is None:
                raise NoDestination
            return command(target, text) if refused is None else refusal(target, kind, refused)

        await self.send(composed)
        self._count(message, ANSWERED if refused is None else REFUSED)

    def _count(self, message: Message, result: str) -> None:
        method = self._method_of(message[0])
        self.counters.answered(method, result, time.monotonic() - message[3])

    def _method_of(self, subject: bytes) -> str:
        found = find_method(self._call(subject))
        return "unknown" if found is None else found[0].name

    async def _perform(self, message: Message) -> dict[str, object] | None:
        subject, reply, payload, arrived = message
        found = find_method(self._call(subject))
        is_passed_on = self._is_passed_on(subject)
        if found is None or (found[0].kind == PULL_KIND and len(found[1]) > 2 and not is_passed_on):
            raise unknown_method(subject.decode("utf-8", "replace"))
        method, arguments = found
        if len(payload) > MAX_REQUEST_BYTES:
            raise bad_request(f"the request is larger than {MAX_REQUEST_BYTES} bytes")
        if method.at_leader:
            catalog = self._broker.catalog
            await catalog.look_for(arguments[0])
            node = catalog.answerer(arguments[0])
            if node is not None:
                if is_passed_on:
                    raise catalog.not_leader(arguments[0])
                if method.kind == PULL_KIND:
                    self._check_led(arguments[0])
                    self._passed.note(arguments[0], message)
                    held = time.monotonic() - arrived
                    subject += b".%d" % (held * 1000) if held >= LOOK_SECONDS else b""
                await self._pass_on(node, subject, reply, payload)
                return None
            await self._take_over(catalog, arguments[0])
        elif not is_passed_on and (node := creating_node(self._broker, method.name, arguments)):
            await self._pass_on(node, subject, reply, payload)
            return None
        request = Request(self._parts, arguments, reply, payload, arrived)
        if method.at_leader:
            request.check_exists()
        return await method.perform(request)

    def _check_led(self, stream: str) -> None:
        """Raise LiftlogError if no node leads the stream, or if this node cannot reach the leader.
        The leader may have just failed."""
        catalog = self._broker.catalog
        node = catalog.answerer(stream)
        if node is not None and not catalog.reaches(node):
            raise catalog.not_leader(stream)

    async def _take_over(self, catalog: Catalog, stream: str) -> None:
        """Wait until this node leads the stream, if it is about to become the leader. This wait
        exists because programs use a stream as soon as they receive the answer to its creation. If
        too many requests already wait, return at once; the request is then refused."""
        if not catalog.begins_to_lead(stream) or self._at_takeover >= _MAX_AT_TAKEOVER:
            return
        self._at_takeover += 1
        try:
            async with asyncio.timeout(_TAKEOVER_SECONDS):
                while catalog.begins_to_lead(stream):  # noqa: ASYNC110  nothing tells its end
                    await asyncio.sleep(_TAKEOVER_LOOK_SECONDS)
        except TimeoutError:
            pass
        finally:
            self._at_takeover -= 1

    async def _pass_on(self, node: str, subject: bytes, reply: bytes, payload: bytes) -> None:
        """Forward the request to the leader's node, which sends the answer."""
        target = self._prefix_of(node).encode() + subject.removeprefix(PREFIX.encode())
        await self.send(lambda: command(own_subject(target), payload, reply=reply))

    def _prefix_of(self, node: str) -> str:
        """Return the prefix of the subjects on which other nodes forward requests to `node`."""
        cluster = self._broker.settings.cluster
        assert cluster is not None, "only a cluster has other nodes"
        return passed_on_prefix(cluster.name, node)

    def _is_passed_on(self, subject: bytes) -> bool:
        return bool(self._passed.own) and subject.startswith(self._passed.own)

    def _call(self, subject: bytes) -> bytes:
        """Return the subject after the prefix: a method and its arguments."""
        return subject.removeprefix(self._passed.own if self._is_passed_on(subject) else _PREFIX)

    def _is_costly(self, subject: bytes, payload: bytes) -> bool:
        found = find_method(self._call(subject))
        return found is not None and not found[0].is_cheap(found[1], payload)

    def _kind_of(self, subject: bytes) -> str:
        found = find_method(self._call(subject))
        return "system" if found is None else found[0].kind

    # --- answers ---

    async def send(self, compose: Callable[[], bytes]) -> None:
        """Queue an answer as `Parts.send` describes. Answers wait for space because acks use the
        same connection, and must not wait behind long answers."""
        await self.link.room()
        self.link.send(compose())
