"""New cursors of consumers: after a change of their filters, or of the rights of NATS clients."""

from __future__ import annotations

import asyncio
import logging

from acl.policy import Policy
from liftlog.errors import LiftlogError
from liftlog.server.jetstream_api.consumers.config import ConsumerSpec
from liftlog.server.jetstream_api.consumers.cursor import Cursor
from liftlog.server.jetstream_api.workers.acked_consumer import AckedConsumer
from liftlog.server.jetstream_api.workers.building import Builder
from liftlog.server.journal import ConsumerKey
from liftlog.server.pull.services import PullServices

logger = logging.getLogger("liftlog.server.jetstream_api")

_AGAIN_SECONDS = 1.0


async def cursor_for(
    builder: Builder, consumer: AckedConsumer, spec: ConsumerSpec
) -> tuple[Cursor, Policy | None]:
    """Return a cursor at the position of a consumer, and the policy that gives the cursor's rights.
    The cursor has the filters of `spec` and the present rights. Raises LiftlogError."""
    cursor, policy = builder.cursor(spec, consumer.host, is_local=consumer.local.origin.is_local)
    offset = consumer.machine.state.next_offset
    try:
        if spec.filters == consumer.spec.filters:
            chosen_end = consumer.local.cursor.chosen_end
            await builder.begin(cursor, spec, consumer.host, offset, chosen_end)
        else:
            await cursor.begin(offset, None)
    except BaseException:
        cursor.close()
        raise
    return cursor, policy


class Renewing:
    """Gives consumers new cursors after changes of the ACL. Belongs to the event loop."""

    def __init__(self, builder: Builder, services: PullServices) -> None:
        self._builder = builder
        self._services = services
        self._under_way: set[ConsumerKey] = set()

    def begin(self, consumer: AckedConsumer) -> None:
        if consumer.key not in self._under_way:
            self._under_way.add(consumer.key)
            self._services.spawn(self._renew(consumer))

    async def _renew(self, consumer: AckedConsumer) -> None:
        before = consumer.local.cursor
        try:
            cursor, policy = await cursor_for(self._builder, consumer, consumer.spec)
            if consumer.is_closed or consumer.local.cursor is not before:
                # An update or a reset has made another cursor; the next turn checks again.
                cursor.close()
            else:
                consumer.replace(cursor, policy)
        except LiftlogError as error:  # the consumer may read nothing; the next turn tries again
            logger.warning(
                "consumer-not-read stream=%s name=%s error=%s", *consumer.key, error.message
            )
            await asyncio.sleep(_AGAIN_SECONDS)
        finally:
            self._under_way.discard(consumer.key)
        consumer.wake()
