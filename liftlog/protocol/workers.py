"""Requests of workers (about consumers with acks, deliveries and acks), and the answers to these
requests.

A delivery is described by runs: consecutive offsets with the same delivery count. On the wire each
run has 24 bytes:

    i64  offset of the first message      little-endian, as the others
    i64  number of messages
    i64  delivery count of these messages, 1 for the first delivery
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from liftlog.errors import BadRequest
from liftlog.protocol.described import Described
from liftlog.protocol.wire import (
    BOOL,
    LABEL,
    MAP,
    MAX_UINT,
    NAME,
    Message,
    array_of,
    raw,
    text,
    uint,
)
from liftlog.protocol.wire import wire as key

MAX_BATCH = 10_000
"""Maximum number of messages in one delivery."""
MAX_ACKED = 100_000
"""Maximum number of messages that one ack names."""
PAGE_CONSUMERS = 250
"""Maximum number of consumers in one answer."""

ACK, NAK, PROGRESS, TERM = "ack", "nak", "progress", "term"
KINDS = (ACK, NAK, PROGRESS, TERM)
"""Kinds of acks."""

_RUN = struct.Struct("<qqq")
_MAX_RUNS_BYTES = _RUN.size * MAX_BATCH
_RUNS = raw(0, _MAX_RUNS_BYTES)
_MAX_REASON_CHARS = 1024
_MAX_NAME_CHARS = 255
_CONSUMER = text(_MAX_NAME_CHARS)


class Run(NamedTuple):
    """Consecutive offsets that have the same delivery count."""

    first: int
    size: int
    deliveries: int

    @property
    def end(self) -> int:
        return self.first + self.size


def encode_runs(runs: Iterable[tuple[int, int, int]]) -> bytes:
    return b"".join([_RUN.pack(*one) for one in runs])


def decode_runs(data: bytes) -> list[Run]:
    """Decode the runs of a delivery or of acks. Raises BadRequest."""
    if len(data) % _RUN.size:
        raise BadRequest(f"runs of messages have {_RUN.size} bytes each")
    runs = [Run(*one) for one in _RUN.iter_unpack(data)]
    total = 0
    for run in runs:
        if run.first < 0 or run.size < 1 or run.deliveries < 1 or run.end > MAX_UINT:
            raise BadRequest("a run of messages has numbers that are out of bounds")
        total += run.size
    if total > MAX_ACKED:
        raise BadRequest(f"more than {MAX_ACKED} messages in one request")
    return runs


# --- requests -------------------------------------------------------------------


class PullWork(Message):
    """Asks for messages of a consumer with acks. The answer comes as soon as there is at least one
    message, or after `max_wait_ms` without a message. `worker` names the client in `rest`."""

    KIND: ClassVar[str] = "work"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    consumer: str = key("c", _CONSUMER)
    batch: int = key("n", uint(MAX_BATCH), default=1)
    max_bytes: int | None = key("m", uint(), default=None)
    max_wait_ms: int = key("w", uint(), default=0)
    worker: str = key("u", LABEL, default="")


class Rest(Message):
    """Ends the waiting `work` request of a worker. The daemon answers that request without
    messages, and also a `work` request of this worker that arrives later. The client then naks the
    messages that it has received but not processed."""

    KIND: ClassVar[str] = "rest"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    consumer: str = key("c", _CONSUMER)
    worker: str = key("u", LABEL)


class AckWork(Message):
    """Acks messages that were delivered. Answered when the acks are synced."""

    KIND: ClassVar[str] = "ack"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    consumer: str = key("c", _CONSUMER)
    identity: str = key("x", LABEL)
    kind: str = key("a", LABEL)
    runs: bytes = key("r", _RUNS)
    delay_ns: int = key("d", uint(), default=0)
    reason: str = key("t", text(_MAX_REASON_CHARS), default="")


class CreateConsumer(Message):
    """Creates a consumer with acks. `config` has the keys of JetStream's configuration of a
    consumer. If the consumer exists with the same configuration, the answer describes it."""

    KIND: ClassVar[str] = "consumercreate"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    consumer: str = key("c", _CONSUMER)
    config: dict[str, Any] = key("d", MAP)


class UpdateConsumer(Message):
    """Changes the settings in `config`; the others do not change. A setting of nil gets its
    default."""

    KIND: ClassVar[str] = "consumerupdate"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    consumer: str = key("c", _CONSUMER)
    config: dict[str, Any] = key("d", MAP)


class ResetConsumer(Message):
    """Lets a consumer begin again at the start that `config` names, like a new consumer. The other
    settings do not change. Pending messages, delivery counts and acks are deleted."""

    KIND: ClassVar[str] = "consumerreset"
    stream: str = key("s", NAME)
    consumer: str = key("c", _CONSUMER)
    config: dict[str, Any] = key("d", MAP)


class DescribeConsumer(Message):
    KIND: ClassVar[str] = "consumer"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    consumer: str = key("c", _CONSUMER)


class ListConsumers(Message):
    """Lists the consumers with acks of a stream whose names come after `after`, in the order of
    their names."""

    KIND: ClassVar[str] = "consumers"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    after: str | None = key("f", _CONSUMER, default=None)


class PauseConsumer(Message):
    """Stops deliveries until `until_ns`, in ns since 1970; 0 ends the pause."""

    KIND: ClassVar[str] = "consumerpause"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    consumer: str = key("c", _CONSUMER)
    until_ns: int = key("u", uint())


class DeleteConsumer(Message):
    KIND: ClassVar[str] = "consumerdelete"
    stream: str = key("s", NAME)
    consumer: str = key("c", _CONSUMER)


# --- answers --------------------------------------------------------------------


class Delivered(Message):
    """Answer to work; `body_length` bytes of whole record batches follow the frame. The batches
    contain the records of `runs`, and may contain other records, which a client drops. If `runs` is
    empty, the wait has ended without messages. `pending` is the number of messages that are still
    to be delivered for the first time."""

    KIND: ClassVar[str] = "delivered"
    identity: str = key("x", LABEL)
    runs: bytes = key("r", _RUNS)
    pending: int = key("p", uint(), default=0)
    body_length: int = key("b", uint(), default=0)


class ConsumerAnswer(Message):
    """Answer to consumercreate, consumerupdate, consumerreset, consumerpause and consumer."""

    KIND: ClassVar[str] = "consumerinfo"
    consumer: dict[str, Any] = key("d", MAP)
    created: bool = key("n", BOOL, default=False)

    @property
    def info(self) -> ConsumerInfo:
        return ConsumerInfo.from_wire(self.consumer)


class ConsumersAnswer(Message):
    """Answer to consumers. `after` is set if there are more consumers."""

    KIND: ClassVar[str] = "consumerlist"
    consumers: list[dict[str, Any]] = key("d", array_of(MAP, PAGE_CONSUMERS))
    after: str | None = key("f", _CONSUMER, default=None)

    @property
    def infos(self) -> list[ConsumerInfo]:
        return [ConsumerInfo.from_wire(one) for one in self.consumers]


@dataclass(frozen=True, slots=True)
class ConsumerInfo(Described):
    """A consumer with acks."""

    stream: str = ""
    name: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    """The configuration, with the keys and units of JetStream's API; durations are in ns."""
    created_ns: int = 0
    next_offset: int = 0
    """The offset of the next record to examine for a first delivery."""
    ack_floor: int = 0
    """All messages below this offset are done."""
    num_pending: int = 0
    """Number of messages that are still to be delivered for the first time."""
    num_ack_pending: int = 0
    """Number of messages that are delivered, and not done."""
    num_redelivered: int = 0
    num_waiting: int = 0
    """Waiting pulls of workers over NATS, and waiting workers on the pull socket."""
    deliveries: int = 0
    """Number of deliveries since the consumer was created."""
    exhausted: list[int] = field(default_factory=list)
    """The newest messages, at most 1,000, that were not acked after `max_deliver` deliveries."""
    pause_remaining_ns: int = 0


REQUESTS: tuple[type[Message], ...] = (
    PullWork,
    Rest,
    AckWork,
    CreateConsumer,
    UpdateConsumer,
    ResetConsumer,
    DescribeConsumer,
    ListConsumers,
    PauseConsumer,
    DeleteConsumer,
)

ANSWERS: tuple[type[Message], ...] = (Delivered, ConsumerAnswer, ConsumersAnswer)
