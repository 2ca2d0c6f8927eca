# Made from liftlog/client/aio/consumer_calls.py by `make blocking`: edit that one.
"""The calls of the blocking client for consumers with acks."""

from __future__ import annotations

from datetime import datetime
from typing import Unpack

from liftlog.client.blocking.routing import SyncRouter
from liftlog.client.requests import Expected, result_of
from liftlog.client.working.settings import (
    ConsumerOptions,
    Deliver,
    config_of,
    deliver_fields,
    time_ns,
)
from liftlog.protocol.messages import Done, Message
from liftlog.protocol.workers import (
    ConsumerAnswer,
    ConsumerInfo,
    ConsumersAnswer,
    CreateConsumer,
    DeleteConsumer,
    DescribeConsumer,
    ListConsumers,
    PauseConsumer,
    ResetConsumer,
    UpdateConsumer,
)


class SyncConsumerCalls:
    """Calls for consumers with acks. A call that gets no answer within `request_timeout` seconds
    raises RequestTimeout."""

    def __init__(self, session: SyncRouter) -> None:
        self.address = session.target.address.text
        self.request_timeout = session.target.request_timeout
        self._session = session

    def _call(self, message: Message, expected: type[Expected]) -> Expected:
        return result_of(self._session.ask(message, self.request_timeout), expected)

    def create_consumer(
        self, stream: str, consumer: str, **options: Unpack[ConsumerOptions]
    ) -> ConsumerInfo:
        """Create a consumer with acks, and describe it. The consumer is durable on return.

        `ConsumerOptions` describes the `options`. If the consumer exists with these settings,
        nothing changes. Raises Conflict if it exists with other settings. Also raises
        StreamNotFound, InvalidArgument, LimitExceeded.
        """
        request = CreateConsumer(stream, consumer, config_of(options))
        return (self._call(request, ConsumerAnswer)).info

    def update_consumer(
        self, stream: str, consumer: str, **options: Unpack[ConsumerOptions]
    ) -> ConsumerInfo:
        """Change settings of a consumer with acks, and describe it. Settings that are not named do
        not change. New filters apply to messages that are not delivered yet. Raises
        ConsumerNotFound and InvalidArgument. `deliver` is invalid, because only `reset_consumer`
        can change it."""
        request = UpdateConsumer(stream, consumer, config_of(options))
        return (self._call(request, ConsumerAnswer)).info

    def reset_consumer(self, stream: str, consumer: str, deliver: Deliver) -> ConsumerInfo:
        """Make a consumer with acks begin again at `deliver`. Its settings do not change. The
        daemon deletes its acks and delivery counts. Raises ConsumerNotFound, InvalidArgument."""
        request = ResetConsumer(stream, consumer, deliver_fields(deliver))
        return (self._call(request, ConsumerAnswer)).info

    def pause_consumer(self, stream: str, consumer: str, until: datetime | float) -> ConsumerInfo:
        """Pause a consumer until a time, or for a number of seconds: the daemon delivers none of
        its messages. A restart of the daemon does not end the pause. Raises ConsumerNotFound."""
        request = PauseConsumer(stream, consumer, time_ns(until))
        return (self._call(request, ConsumerAnswer)).info

    def resume_consumer(self, stream: str, consumer: str) -> ConsumerInfo:
        """End the pause of a consumer. Raises ConsumerNotFound."""
        request = PauseConsumer(stream, consumer, 0)
        return (self._call(request, ConsumerAnswer)).info

    def describe_consumer(self, stream: str, consumer: str) -> ConsumerInfo:
        """Describe a consumer with acks. Raises ConsumerNotFound, StreamNotFound."""
        return (self._call(DescribeConsumer(stream, consumer), ConsumerAnswer)).info

    def list_consumers(self, stream: str) -> list[ConsumerInfo]:
        """Describe all consumers with acks of a stream, by name. Raises StreamNotFound."""
        found: list[ConsumerInfo] = []
        after: str | None = None
        while True:
            answer = self._call(ListConsumers(stream, after), ConsumersAnswer)
            found += answer.infos
            after = answer.after
            if after is None:
                return found

    def delete_consumer(self, stream: str, consumer: str) -> None:
        """Delete a consumer with acks. Its workers end with ConsumerNotFound. Raises
        ConsumerNotFound."""
        self._call(DeleteConsumer(stream, consumer), Done)
