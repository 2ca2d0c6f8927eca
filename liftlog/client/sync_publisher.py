"""Publishing over NATS with acks, for blocking code: `SyncPublisher`.

with SyncPublisher("nats://127.0.0.1:4222", expect=["orders"]) as publisher:
    published = publisher.publish("orders.new", b"...", key="k1")
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from liftlog.client.publisher import DEFAULT_NATS, Publisher
from liftlog.client.publishing.headers import Headers
from liftlog.client.publishing.results import Published
from liftlog.errors import InvalidArgument, LiftlogError

__all__ = ["SyncPublisher"]

Result = TypeVar("Result")


class SyncPublisher:
    """A `Publisher` for blocking code. It runs in a thread with its own event loop. Open it with
    `with`.

    `nats` is the address of a NATS server, or a list of addresses; `options` are the options of
    `Publisher`. Any number of threads may publish at the same time. An exception that a signal
    handler raises only ends the wait; the message may still be stored.
    """

    def __init__(self, nats: str | Sequence[str] = DEFAULT_NATS, **options: Any) -> None:
        """Raises InvalidArgument."""
        if not isinstance(nats, str | list | tuple):
            raise InvalidArgument(
                "a connection of nats-py belongs to an event loop: pass its address"
            )
        self._publisher = Publisher(nats, **options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def open(self) -> Self:
        """Connect to NATS. Raises NatsUnavailable, and MissingDependency if nats-py is not
        installed."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=_run, args=(self._loop,), name="liftlog-publisher", daemon=True
        )
        self._thread.start()
        try:
            self._wait(self._publisher.open())
        except BaseException:
            self.close()
            raise
        return self

    def publish(
        self,
        subject: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        message_id: str | None = None,
        expect: Sequence[str] | None = None,
    ) -> Published:
        """Like `Publisher.publish`, but blocks until every stream in `expect` has acked.

        Raises PublishRefused, PublishUnknown, NotPublished and OrderBroken (all are subclasses of
        PublishFailed), InvalidArgument for a message that NATS or liftlog cannot carry, and
        LiftlogError if the publisher is not open.
        """
        publishing = self._publisher.publish(
            subject, value, key=key, headers=headers, message_id=message_id, expect=expect
        )
        return self._wait(publishing)

    def close(self) -> None:
        """Close the publisher at once. Calls whose messages have no answer yet raise PublishUnknown
        or NotPublished."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        try:
            self._wait(self._publisher.close())
        finally:
            self._loop = self._thread = None
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._loop is None:
            work.close()
            raise LiftlogError("cannot publish: the publisher is not open")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # a signal handler has raised an exception
            raise

    def __enter__(self) -> Self:
        return self if self._loop is not None else self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the publisher. First wait for all messages in flight, unless an exception left the
        block."""
        try:
            if error is None:
                self._wait(self._publisher.flush())
        finally:
            self.close()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(_end_tasks())
    finally:
        loop.close()


async def _end_tasks() -> None:
    """Cancel the tasks of nats-py that are still running."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
