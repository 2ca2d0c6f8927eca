"""The table of methods, and the decorator `answers`, with which modules register the functions that
answer them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from acl.rules import OVER_NATS, Operation
from liftlog.errors import StreamNotFound
from liftlog.sequencing.destinations import Destination, Why
from liftlog.server.access.gate import Gate
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.answers import (
    JetStreamError,
    bad_request,
)
from liftlog.server.jetstream_api.consumers.deliveries import record_target
from liftlog.server.jetstream_api.consumers.table import Consumers
from liftlog.server.jetstream_api.creations import Creations
from liftlog.server.jetstream_api.fields import read_object
from liftlog.server.jetstream_api.inboxes import Inboxes
from liftlog.server.jetstream_api.messages.ages import Ages
from liftlog.server.jetstream_api.messages.buckets import Buckets
from liftlog.server.jetstream_api.workers.acked_table import AckedConsumers
from liftlog.server.jetstream_api.workers.worker_link import Arrived
from liftlog.server.pull.services import PullServices
from liftlog.server.requests.rights import Caller
from liftlog.server.streams.broker import Broker
from liftlog.server.vitals.histogram import LATENCY_BOUNDS, Histogram

PREFIX = "$JS.API."
PULL_KIND = "consumer_getnext"
"""The kind of answers to pull requests."""

Answer = dict[str, Any]


class ApiCounters:
    """Counters since the start of the process."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        """Number of requests by method and result."""
        self.seconds = Histogram(LATENCY_BOUNDS)
        """Time from the arrival of a request to its answer."""

    def answered(self, method: str, result: str, seconds: float) -> None:
        self.requests[method, result] += 1
        self.seconds.observe(seconds)

    @property
    def errors(self) -> int:
        return sum(count for (_, result), count in self.requests.items() if result != ANSWERED)


ANSWERED, REFUSED, FAILED, TOO_MANY = "ok", "refused", "failed", "too many"
"""Results of requests. `TOO_MANY` means that the request was not processed."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of the daemon that the functions need."""

    broker: Broker
    services: PullServices
    mark: str
    """The name in answers that identifies this daemon or its cluster."""
    send: Callable[[Callable[[], bytes]], Awaitable[None]]
    """Waits for space in the send buffer. Then calls the function that it received, and queues the
    NATS commands that this function returns. The commands are composed only after the wait, because
    the allowed subjects can change during the wait. Raises NatsUnavailable, and the errors of the
    called function."""
    max_payload_bytes: Callable[[], int]
    """Returns the maximum size of one message, in bytes; 0 if it is unknown."""
    consumers: Consumers
    acked: AckedConsumers
    ages: Ages
    buckets: Buckets
    counters: ApiCounters
    inboxes: Inboxes
    take: Callable[[Arrived], None]
    """Receives pulls for consumers with acks, as if they had arrived on the connection of
    workers."""
    creations: Creations

    @property
    def gate(self) -> Gate:
        """The gate that decides about access. A decision may differ after each await, because the
        ACL can be reloaded."""
        return self.services.gate


class NoDestination(Exception):
    """Raised if the daemon may send nothing to the reply subject, not even an error."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `arguments` are the tokens of its subject after the method. If the method
    concerns a stream, the first argument is the stream."""

    parts: Parts
    arguments: Sequence[str]
    reply: bytes
    payload: bytes
    arrived: float
    """Monotonic time of the arrival at this node."""

    @property
    def stream(self) -> str:
        return self.arguments[0]

    @property
    def broker(self) -> Broker:
        return self.parts.broker

    @property
    def caller(self) -> Caller:
        return Caller(OVER_NATS, self.parts.gate, self.parts.broker, "nats")

    def authorize(self, operation: Operation, *, subjects: Sequence[str] = ()) -> None:
        """Check that clients of NATS have this right on the request's stream. Raises Forbidden,
        InvalidArgument."""
        gate = self.parts.gate
        gate.authorize(OVER_NATS, operation, self.stream, peer="nats", subjects=subjects)

    def authorize_work(self, consumer: str) -> None:
        """Check that clients of NATS may use this consumer with acks. Raises Forbidden."""
        self.parts.gate.authorize_work(OVER_NATS, self.stream, consumer, peer="nats")

    def may_read(self, stream: str) -> bool:
        return self.parts.gate.may(OVER_NATS, "read", stream)

    def target(self) -> Destination:
        """Return the subject for the answer. Raises NoDestination."""
        found = self.broker.destinations.for_answer(self.reply)
        if found is None:
            raise NoDestination
        return found

    def record_target(self) -> Destination:
        """Return the subject for a record. Raises NoDestination, Forbidden."""
        found = record_target(self.broker, self.parts.gate, self.reply)
        if found is Why.NOT_GRANTED:
            shown = self.reply.decode("utf-8", "replace")
            raise self.parts.gate.delivery_denied(OVER_NATS, self.stream, shown, peer="nats")
        if isinstance(found, Why):
            raise NoDestination
        return found

    def check_exists(self) -> None:
        """Raise StreamNotFound for a stream that was deleted in the cluster, even if this node has
        not closed its copy yet."""
        if self.parts.broker.catalog.was_deleted(self.stream):
            raise StreamNotFound(f"there is no stream {self.stream!r}")

    def led_stream(self) -> StreamHost:
        """Return the request's stream, which this node must lead. Raises LiftlogError."""
        return self.parts.broker.led_stream(self.stream)

    def body(self) -> dict[str, Any]:
        """Parse the payload, a JSON object; an empty one means `{}`. Raises JetStreamError."""
        return read_object(self.payload)


Perform = Callable[[Request], Awaitable[Answer | None]]
"""Function that returns the body of a JSON answer; None if the function has already sent the
answer."""


AnswerNow = Callable[["Request"], bytes | None]
"""Function that returns the NATS command that answers the request, without a wait. Returns None if
the answer needs a wait or reports an error. The function may raise LiftlogErrors, JetStreamError
and NoDestination. The caller treats these errors like None."""

IsCheap = Callable[[Sequence[str], bytes], bool]


def always(_: Sequence[str], __: bytes) -> bool:
    return True


def never(_: Sequence[str], __: bytes) -> bool:
    return False


def without(*words: bytes) -> IsCheap:
    """Return a function that returns True if the payload contains none of these fields. Escaped
    text could hide such a field, so the function also returns False for a payload with escaped
    text."""

    def is_cheap(_: Sequence[str], payload: bytes) -> bool:
        return not any(word in payload for word in (*words, b"\\"))

    return is_cheap


class Method(NamedTuple):
    name: str
    kind: str
    """Kind of the answer, such as `stream_info`."""
    perform: Perform
    arguments: tuple[int, int | None]
    """Minimum and maximum number of tokens after the method."""
    at_leader: bool
    """True if only the leader of the stream can answer."""
    is_cheap: IsCheap
    """Function that returns True if a request with these arguments and this payload can be answered
    quickly. Any other request may search a log, write, or describe many streams. Such requests wait
    in a separate lane (`waiting`)."""
    answer_now: AnswerNow | None = None
    """Function that is tried before `perform`."""


METHODS: dict[str, Method] = {}


def answers(
    name: str,
    kind: str,
    *,
    arguments: tuple[int, int | None] = (0, 0),
    at_leader: bool = False,
    is_cheap: IsCheap = never,
    answer_now: AnswerNow | None = None,
) -> Callable[[Perform], Perform]:
    """Register the function that answers the requests on `$JS.API.<name>`."""

    def register(perform: Perform) -> Perform:
        METHODS[name] = Method(name, kind, perform, arguments, at_leader, is_cheap, answer_now)
        return perform

    return register


@lru_cache(maxsize=256)
def find_method(call: bytes) -> tuple[Method, Sequence[str]] | None:
    """Return the method of a subject (without `PREFIX`), and the tokens after it. If several names
    match, the longest name is used: CONSUMER.MSG.NEXT before CONSUMER.MSG. Returns None if no
    method matches, or if the number of tokens is wrong."""
    tokens = tokens_of(call)
    for length in (3, 2, 1):
        method = METHODS.get(".".join(tokens[:length]))
        if method is not None:
            rest = tokens[length:]
            least, most = method.arguments
            if len(rest) < least or (most is not None and len(rest) > most):
                return None
            return method, rest
    return None


def tokens_of(call: bytes) -> list[str]:
    return call.decode("utf-8", "replace").split(".")


def unknown_method(subject: str) -> JetStreamError:
    return bad_request(f"liftlog does not answer {subject[:200]}")
