"""Decides which acks can wait for a moment, and which pulls are answered before the acks that came
with them. Some clients ack all messages of a batch and then pull the next batch. Both decisions
shorten the wait of such clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from liftlog.deliveries.settings import AckPolicy, PriorityPolicy
from liftlog.server.jetstream_api.consumers.pull_body import BadPull
from liftlog.server.jetstream_api.workers.acked_consumer import AckedConsumer
from liftlog.server.jetstream_api.workers.pulls import WorkerPull
from liftlog.server.jetstream_api.workers.rounds import Clock
from liftlog.server.jetstream_api.workers.worker_link import WAIT_SECONDS

_WAIT_NS = round(WAIT_SECONDS * 1e9)


class ConsumerUrgency:
    """Decides by the states of consumers. Belongs to the event loop."""

    def __init__(
        self,
        consumers_of: Callable[[str], Mapping[str, AckedConsumer]],
        clock: Clock,
        room: Callable[[], int],
    ) -> None:
        """`consumers_of` returns the consumers of a stream by name. `room` returns the number of
        further messages that may become pending."""
        self._consumers_of = consumers_of
        self._clock = clock
        self._room = room

    def can_wait(self, stream: str, consumer: bytes) -> bool:
        """Return True if acks of this consumer can wait for a moment: no client waits for the
        messages for which these acks make room."""
        found = self._consumers_of(stream).get(consumer.decode("utf-8", "replace"))
        return (
            found is not None
            and not found.is_ready
            and not found.spec.deliver_subject
            and not found.machine.waiting
            and not found.local.is_waiting
            and not self._is_due(found, _WAIT_NS)
        )

    def precedes(self, stream: str, pull: WorkerPull, acks: int) -> bool:
        """Return True if a pull can be answered before a number of acks that came with it. In this
        case the answer does not depend on the acks, and the client probably has no more work.
        Otherwise the acks come first, because one turn for both takes less processor time."""
        consumer, request = self._consumers_of(stream).get(pull.consumer), pull.request
        if consumer is None or consumer.is_closed or isinstance(request, BadPull):
            return False
        settings, pending = consumer.spec.settings, consumer.machine.state.pending
        room = min(settings.most_pending - pending.total, self._room())
        if pending.total > acks or pending.queued or room < request.batch:
            return False
        if settings.ack_policy is not AckPolicy.EXPLICIT:
            return False
        return settings.priority_policy is PriorityPolicy.NONE and not self._is_due(consumer)

    def _is_due(self, consumer: AckedConsumer, within_ns: int = 0) -> bool:
        """Return True if a message or a pull may fall due within this time."""
        due = consumer.machine.due_ns()
        return due is not None and due <= self._clock.now_ns() + within_ns
