"""The interface of consumers with acks for workers on the pull socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from liftlog.deliveries.acks import AckKind
from liftlog.errors import LiftlogError
from liftlog.protocol.workers import ConsumerInfo, Run

Body = bytes | bytearray | memoryview


class Delivery(NamedTuple):
    """Messages for one worker. `bodies` are the whole record batches that contain the messages."""

    identity: str
    runs: Sequence[tuple[int, int, int]]
    pending: int
    bodies: Sequence[Body]


class Asked(NamedTuple):
    """A worker's request for at most `most` messages, of about `max_bytes` bytes in total. Either
    `answer` or `refuse` is called, exactly once."""

    worker: str
    most: int
    max_bytes: int
    answer: Callable[[Delivery], None]
    refuse: Callable[[Exception], None]


class AcksOf(NamedTuple):
    """Acks of one kind. The acks have no effect if `identity` belongs to an earlier consumer of
    this name."""

    identity: str
    kind: AckKind
    runs: Sequence[Run]
    delay_ns: int
    reason: str


Told = Callable[[LiftlogError | None], None]
Readable = tuple[str, ...] | None
"""The subjects that the caller may read; None for all. The caller may not use a consumer that
delivers other subjects."""


class Door(Protocol):
    """The consumers with acks of streams that this node leads. All methods raise ConsumerNotFound,
    and the errors of the broker."""

    async def opened(self) -> None:
        """Wait until the consumers are loaded."""
        ...

    def work(self, stream: str, consumer: str, asked: Asked, readable: Readable) -> None:
        """Let a worker wait for messages."""
        ...

    def cancel(self, stream: str, consumer: str, asked: Asked) -> bool:
        """End the wait of a worker. Returns False if the answer to the worker is already being
        sent."""
        ...

    def rest(self, stream: str, consumer: str, worker: str) -> None:
        """Answer the waiting request of a worker without messages. If no request is waiting, answer
        the next one in this way."""
        ...

    def acknowledge(self, stream: str, consumer: str, acks: AcksOf, told: Told | None) -> None:
        """Apply acks. `told` is called when these acks and all earlier acks are synced."""
        ...

    async def create(
        self, stream: str, consumer: str, config: Mapping[str, Any], party: str, readable: Readable
    ) -> tuple[ConsumerInfo, bool]:
        """Create a consumer; durable on return. Returns False if the consumer already existed with
        this configuration. Raises Conflict, InvalidArgument, LimitExceeded."""
        ...

    async def update(
        self, stream: str, consumer: str, config: Mapping[str, Any], readable: Readable
    ) -> ConsumerInfo:
        """Change the settings in `config`. Raises InvalidArgument."""
        ...

    async def reset(
        self, stream: str, consumer: str, config: Mapping[str, Any], readable: Readable
    ) -> ConsumerInfo:
        """Begin again at the position in `config`. Raises InvalidArgument."""
        ...

    async def describe(self, stream: str, consumer: str) -> ConsumerInfo: ...

    async def list(
        self, stream: str, after: str | None, limit: int
    ) -> tuple[list[ConsumerInfo], bool]:
        """Return consumers in the order of their names. Also return True if there are more
        consumers."""
        ...

    async def delete(self, stream: str, consumer: str) -> None: ...
