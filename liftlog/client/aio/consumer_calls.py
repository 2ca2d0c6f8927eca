"""The calls of the asyncio client for consumers with acks."""

from __future__ import annotations

from datetime import datetime
from typing import Unpack

from liftlog.client.aio.routing import Router
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


class ConsumerCalls:
    """Calls for consumers with acks. A call that gets no answer within `request_timeout` seconds
    raises RequestTimeout."""

    def __init__(self, session: Router) -> None:
        self.address = session.target.address.text
        self.request_timeout = session.target.request_timeout
        self._session = session

    async def _call(self, message: Message, expected: type[Expected]) -> Expected:
        return result_of(await self._session.ask(message, self.request_timeout), expected)

    async def create_consumer(
        self, stream: str, consumer: str, **options: Unpack[ConsumerOptions]
    ) -> ConsumerInfo:
        """Create a consumer with acks, and describe it. The consumer is durable on return.

        `ConsumerOptions` describes the `options`. If the consumer exists with these settings,
        nothing changes. Raises Conflict if it exists with other settings. Also raises
        StreamNotFound, InvalidArgument, LimitExceeded.
        """
        request = CreateConsumer(stream, consumer, config_of(options))
        return (await self._call(request, ConsumerAnswer)).info

    async def update_consumer(
        self, stream: str, consumer: str, **options: Unpack[ConsumerOptions]
    ) -> ConsumerInfo:
        """Change settings of a consumer with acks, and describe it. Settings that are not named do
        not change. New filters apply to messages that are not delivered yet. Raises
        ConsumerNotFound and InvalidArgument. `deliver` is invalid, because only `reset_consumer`
        can change it."""
        request = UpdateConsumer(stream, consumer, config_of(options))
        return (await self._call(request, ConsumerAnswer)).info

    async def reset_consumer(self, stream: str, consumer: str, deliver: Deliver) -> ConsumerInfo:
        """Make a consumer with acks begin again at `deliver`. Its settings do not change. The
        daemon deletes its acks and delivery counts. Raises ConsumerNotFound, InvalidArgument."""
        request = ResetConsumer(stream, consumer, deliver_fields(deliver))
        return (await self._call(request, ConsumerAnswer)).info

    async def pause_consumer(
        self, stream: str, consumer: str, until: datetime | float
    ) -> ConsumerInfo:
        """Pause a consumer until a time, or for a number of seconds: the daemon delivers none of
        its messages. A restart of the daemon does not end the pause. Raises ConsumerNotFound."""
        request = PauseConsumer(stream, consumer, time_ns(until))
        return (await self._call(request, ConsumerAnswer)).info

    async def resume_consumer(self, stream: str, consumer: str) -> ConsumerInfo:
        """End the pause of a consumer. Raises ConsumerNotFound."""
        request = PauseConsumer(stream, consumer, 0)
        return (await self._call(request, ConsumerAnswer)).info

    async def describe_consumer(self, stream: str, consumer: str) -> ConsumerInfo:
        """Describe a consumer with acks. Raises ConsumerNotFound, StreamNotFound."""
        return (await self._call(DescribeConsumer(stream, consumer), ConsumerAnswer)).info

    async def list_consumers(self, stream: str) -> list[ConsumerInfo]:
        """Describe all consumers with acks of a stream, by name. Raises StreamNotFound."""
        found: list[ConsumerInfo] = []
        after: str | None = None
        while True:
            answer = await self._call(ListConsumers(stream, after), ConsumersAnswer)
            found += answer.infos
            after = answer.after
            if after is None:
                return found

    async def delete_consumer(self, stream: str, consumer: str) -> None:
        """Delete a consumer with acks. Its workers end with ConsumerNotFound. Raises
        ConsumerNotFound."""
        await self._call(DeleteConsumer(stream, consumer), Done)
